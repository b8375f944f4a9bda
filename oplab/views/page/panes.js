// What stands side by side. Every pane can `light` a selection, and says what line of it a person points at.

class Pane {
  constructor(key, title, hint) {
    this.key = key;
    this.title = title;
    this.box = make("section", "pane");
    this.box.id = `pane-${key}`;
    this.box.setAttribute("aria-label", title);
    this.count = make("span", "count");
    this.tools = make("span", "tools");
    this.wide = make("button", "wide", "⤢");
    this.wide.title = "Enlarge this pane, or put it back";
    this.wide.setAttribute("aria-label", `Enlarge ${title}`);
    this.bar = make("div", "bar", make("h2", "", title), this.count, this.tools, this.wide);
    this.body = make("div", "body");
    this.view = make("div", "view");
    this.view.id = `view-${key}`;
    this.view.tabIndex = 0;
    this.view.setAttribute("role", "listbox");
    this.view.setAttribute("aria-label", `${title}: ${hint}`);
    this.body.append(this.view);
    this.box.append(this.bar, this.body);
    this.lit = new Map();  // line -> how
    this.origin = -1;
  }

  target() { return null; }  // line -> [stage, row]
  lines() { return []; }  // [stage, row] -> the lines that show it
  words(i) { return ""; }  // what the search reads
  get size() { return this.list ? this.list.count : 0; }

  look(i) {
    const how = this.lit.get(i);
    const named = [this.target(i) ? "row" : "", how === undefined ? "" : `lit ${HOW_CLASS[how]}`];
    if (i === this.origin) named.push("origin");
    if (i === this.list?.cursor) named.push("cursor");
    if (this.hits?.has(i)) named.push("hit");
    return named.filter(Boolean).join(" ");
  }

  // Light up what belongs to the selection; `origin` is [stage, row], or null for nothing.
  light(found, origin, scroll) {
    this.lit = new Map();
    this.origin = -1;
    let close = 0, far = 0;  // rows, not lines: an equation may go over several
    if (origin) {
      for (const stage of STAGES) {
        for (const [row, how] of found[stage]) {
          const lines = this.lines(stage, row);
          for (const i of lines) this.lit.set(i, how);
          if (lines.length) how < INSIDE ? close++ : far++;
        }
      }
      this.origin = this.lines(...origin)[0] ?? -1;
    }
    this.list.restyle();
    this.list.mark([...this.lit].map(([i, how]) => [i, HOW_CLASS[how]]));
    this.count.textContent = !origin ? "" : close ? `${close} lit` : far ? `${far} inside or around` : "none";
    this.count.classList.toggle("nothing", Boolean(origin) && !this.lit.size);
    if (scroll) this.revealLit();
  }

  // Scroll so that a relative is in view, the closest first; no jump when one is in view already.
  revealLit() {
    if (!this.lit.size) return;
    if (this.origin >= 0) return this.list.reveal(this.origin);
    const best = Math.min(...this.lit.values());
    const lines = [...this.lit].filter(([, how]) => how === best).map(([i]) => i).sort((a, b) => a - b);
    if (!lines.some((i) => this.list.inView(i))) this.list.reveal(lines[0]);
  }
}

const MANY_ARGUMENTS = 16;  // lines

// A stage's own text, in its own words.
class TextPane extends Pane {
  constructor(key, title, hint, data) {
    super(key, title, hint);
    this.rows = data.rows[key];
    this.numbers = key === "script" ? data.numbers : null;
    this.runs = key === "script" ? data.runs : null;
    this.painter = key === "script" ? null : new Painter(data.patterns[data.languages[key]]);
    this.list = new List(this.view, 18, (i, line) => this.draw(i, line), (i) => this.look(i));
    this.say(data.texts[key]);
  }

  say(lines) {
    this.text = lines;
    this.owner = rowOfEachLine(this.text, this.rows, this.key === "jaxpr" || this.key === "stablehlo");
    this.places = new Map();
    this.owner.forEach((row, i) => {
      if (row < 0) return;
      if (!this.places.has(row)) this.places.set(row, []);
      this.places.get(row).push(i);
    });
    const numbers = this.text.map((_, i) => String(this.number(i, this.rows[this.owner[i]])));
    this.view.style.setProperty("--margin", `${Math.max(3, longest(numbers)) + 1}ch`);
    this.list.fill(this.text.length, longest(this.text));
  }

  target(i) { return this.owner[i] >= 0 ? [this.key, this.owner[i]] : null; }
  lines(stage, row) { return stage === this.key ? this.places.get(row) || [] : []; }
  words(i) { return this.text[i]; }

  draw(i, line) {
    const text = this.text[i].slice(0, LONGEST);
    const row = this.rows[this.owner[i]];
    const mark = row && this.key === "hlo" && !row.free ? ["", "≈", "∅"][row.how] : "";
    line.append(make("span", "no", String(this.number(i, row))), make("span", "how", mark));
    if (row && this.key === "jaxpr") line.title = visible(row.label);
    if (this.runs) pour(line, this.numbers[i] ? ranges(text, this.runs[i]) : [["c", text]]);
    else pour(line, this.painter.pieces(text));
    const more = this.text[i].length - LONGEST;
    if (more > 0) line.append(make("em", "cut", ` … ${more} more characters`));
  }

  // In the margin: the line's number in its own file, an equation's name (its last part, where it lies in another's),
  // or the line's number in this text.
  number(i, row) {
    if (this.numbers) return this.numbers[i] || "";
    if (this.key !== "jaxpr") return i + 1;
    return row && row.line === i + 1 ? row.label.split(".").at(-1) : "";
  }

  // Where to begin: the program's entry, past headers and helpers; or, where its arguments would fill the pane, what
  // it computes first.
  begin() {
    if (this.key === "script") return;
    const entry = this.key === "hlo" ? Math.max(0, this.text.findIndex((line) => line.startsWith("ENTRY"))) : 0;
    const first = this.owner.findIndex((row, i) => i >= entry && row >= 0 && !this.rows[row].free);
    const from = first - entry > MANY_ARGUMENTS ? first - 1 : entry;
    if (from > 0) this.list.begin(from);
  }
}

function longest(lines) {
  return lines.reduce((most, line) => Math.max(most, line.length), 0);
}

function ranges(text, runs) {
  const pieces = [];
  let at = 0;
  for (let r = 0; r < runs.length; r += 2) pieces.push([runs[r], text.slice(at, (at += runs[r + 1]))]);
  return pieces;
}

// The code of one kernel, in the form that is asked for; or the sentence that says whose the kernel is.
class KernelPane extends Pane {
  constructor(data, code, pick) {
    super("kernels", "Kernel", "the code of the selected kernel");
    Object.assign(this, { rows: data.rows.kernels, code, current: -1, form: "", related: [] });
    this.painters = Object.fromEntries(Object.entries(data.patterns).map(([name, p]) => [name, new Painter(p)]));
    this.choice = make("select", "choice");
    this.choice.setAttribute("aria-label", "Kernel");
    this.choice.append(...this.rows.map((row) => make("option", "", row.label)));
    this.choice.addEventListener("change", () => pick("kernels", this.choice.selectedIndex));
    this.next = make("button", "next");
    this.next.addEventListener("click", () => {
      const at = this.related.indexOf(this.current) + 1;
      this.show(this.related[at % this.related.length]);
    });
    this.tabs = make("span", "forms");
    this.tabs.setAttribute("role", "group");
    this.tabs.setAttribute("aria-label", "Form of the code");
    this.tools.append(this.choice, this.next, this.tabs);
    this.note = make("div", "note");
    this.body.prepend(this.note);
    this.text = [];
    this.list = new List(this.view, 18, (i, line) => this.draw(i, line), (i) => this.look(i));
    const all = this.rows.map((_, r) => r), own = all.filter((r) => !this.rows[r].library);
    if (all.length) this.show(this.slowest(own.length ? own : all));
    else this.tell("No kernels are known for this walk.");
  }

  words(i) { return this.text[i]; }

  slowest(rows) {
    const time = (r) => this.rows[r].median_us || 0;
    return rows.reduce((a, b) => (time(b) > time(a) ? b : a));
  }

  light(found, origin) {
    const kernels = origin ? [...found.kernels] : [];
    const best = Math.min(...kernels.map(([, how]) => how));
    this.related = kernels.filter(([, how]) => how === best).map(([row]) => row);
    if (origin?.[0] === "kernels") this.related = [origin[1]];
    if (this.related.length && !this.related.includes(this.current)) this.show(this.slowest(this.related));
    this.heading(Boolean(origin));
    this.box.classList.toggle("chosen", this.related.includes(this.current));
  }

  heading(selected) {
    const many = this.related.length > 1;
    this.next.hidden = !many;
    this.next.textContent = many ? `${this.related.indexOf(this.current) + 1} of ${this.related.length} ›` : "";
    this.next.title = "The next kernel that belongs to the selected line";
    this.count.textContent = selected && !this.related.length ? "none" : "";
    this.count.classList.toggle("nothing", selected && !this.related.length);
  }

  async show(row, form) {
    this.current = row;
    this.choice.selectedIndex = row;
    this.heading(false);
    const kernel = this.rows[row];
    let forms, texts;
    try {
      ({ texts, kernels: { [kernel.label]: forms = {} } } = await this.code());
    } catch {
      return this.tell("This browser cannot unpack the code (it knows no DecompressionStream): a newer one can.");
    }
    if (this.current !== row) return;
    const names = Object.keys(forms);
    this.form = form || (names.includes(this.form) ? this.form : names.includes("llvm") ? "llvm" : names[0]);
    this.tabs.replaceChildren(...names.map((name) => {
      const button = make("button", "form", { mlir: "MLIR", llvm: "LLVM", asm: "asm", ptx: "PTX", sass: "SASS" }[name] || name);
      button.setAttribute("aria-pressed", name === this.form);
      button.addEventListener("click", () => this.show(row, name));
      return button;
    }));
    if (!names.length) return this.explain(kernel);
    this.note.replaceChildren(make("p", "dim", `${kernel.note}.`));
    this.note.hidden = !kernel.note;
    this.note.classList.add("brief");
    this.view.hidden = false;
    this.put(texts[forms[this.form]]);
  }

  put(lines) {
    this.text = lines;
    this.list.fill(this.text.length, longest(this.text));
    const start = this.form === "llvm" ? this.text.findIndex((line) => line.startsWith("define ")) : 0;
    this.list.begin(Math.max(0, start));
  }

  explain(kernel) {
    const who = make("strong", "", kernel.library || "XLA's runtime");
    const parts = [make("p", "", who, ` does the work of ${kernel.label}.`)];
    if (kernel.note) parts.push(make("p", "", `${kernel.note}.`));
    if (/^none/.test(kernel.switch)) {
      parts.push(make("p", "dim", `No switch: ${kernel.switch.replace(/^none:? */, "")}.`));
    } else if (kernel.switch) {
      parts.push(make("p", "", "To make XLA write the code itself, walk with"), make("code", "switch", kernel.switch));
    }
    this.tell(...parts);
  }

  tell(...parts) {
    this.text = [];
    this.list.fill(0);
    this.view.hidden = true;
    this.note.hidden = false;
    this.note.classList.remove("brief");
    this.note.replaceChildren(...parts.map((p) => (p instanceof Node ? p : make("p", "", p))));
  }

  draw(i, line) {
    line.append(make("span", "no", String(i + 1)), make("span", "how"));
    pour(line, this.painters[this.form].pieces(this.text[i].slice(0, LONGEST)));
  }
}
