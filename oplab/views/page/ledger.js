// What became of every equation, and what each pass of the compiler changed.

const FATES = {
  kept: "it is a kernel of its own, or a loop or branch that is still there",
  fused: "it shares a kernel with others",
  library: "a library's kernel does its work",
  merged: "it became one with an equal or adjacent equation",
  folded: "the compiler computed it; only the constant is left",
  absorbed: "it lives on in how another instruction reads or writes",
  inlined: "a call whose body took its place",
  dead: "nothing used its result",
};

function toneOf(fate) {
  return `f-${fate in FATES ? fate : "all"}`;
}

// Where did my operator go? One row per equation.
class FatesPane extends TablePane {
  constructor(data, goPass, pickName) {
    super("fates", "Where did my operator go?", "what became of every equation");
    Object.assign(this, { stage: "jaxpr", rows: data.equations, goPass, pickName, only: "" });
    this.known = new Map(data.passes.map((p, n) => [p.pass, n]).reverse());  // of a pass that ran often, the first time
    this.meaning = make("p", "foot");
    this.body.append(this.meaning);
    const counts = new Map();
    for (const e of this.rows) counts.set(e.fate, (counts.get(e.fate) || 0) + 1);
    const names = [...new Set([...Object.keys(FATES), ...counts.keys()])].filter((fate) => fate && counts.has(fate));
    this.chips = ["", ...names].map((fate) => {
      const chip = make("button", `chip ${toneOf(fate)}`, fate ? `${fate} ${counts.get(fate)}` : `all ${this.rows.length}`);
      chip.title = FATES[fate] || "";
      chip.addEventListener("click", () => this.filter(fate));
      return [fate, chip];
    });
    this.tools.append(...this.chips.map(([, chip]) => chip));
    this.columns("equation", "primitive", "line", "fate", "by the pass", "lives on in");
    this.filter("");
  }

  filter(fate) {
    for (const [name, chip] of this.chips) chip.setAttribute("aria-pressed", String(name === fate));
    const all = "Every equation has one fate. Choose one above to see only those, and what the word means.";
    this.meaning.textContent = fate in FATES ? `${fate}: ${FATES[fate]}.` : all;
    this.arrange(this.rows.map((_, n) => n).filter((n) => !fate || this.rows[n].fate === fate));
  }

  words(i) {
    const row = this.rows[this.order[i]];
    return `${row.id} ${row.primitive} ${row.fate} ${row.by_pass} ${row.into}`;
  }

  draw(i, line) {
    const row = this.rows[this.order[i]];
    const where = make("span", "cell", row.where.slice(row.where.lastIndexOf("/") + 1));
    where.title = visible(row.where);
    const pass = make("span", "cell", row.by_pass);
    if (this.known.has(row.by_pass)) {
      pass.replaceChildren(this.go(row.by_pass, () => this.goPass(this.known.get(row.by_pass))));
      pass.firstChild.title = "Show what this pass changed";
    }
    const into = make("span", "cell");
    for (const name of row.into.split(", ").filter(Boolean)) {
      into.append(this.go(name, () => this.pickName(name)), " ");
    }
    this.cells(line, row.id, make("span", "cell name", row.primitive), where,
      make("span", "cell", make("span", `fate ${toneOf(row.fate)}`, row.fate || DASH)), pass, into);
  }

  // A word in a row that leads elsewhere, where the row itself would only be selected.
  go(name, action) {
    const button = make("button", "go", name);
    button.addEventListener("click", (event) => {
      event.stopPropagation();
      action();
    });
    return button;
  }
}

// What each pass took out and put in.
class PassesPane extends Pane {
  constructor(data, code) {
    super("passes", "Passes", "what each pass of the compiler changed");
    Object.assign(this, { passes: data.passes, painter: new Painter(data.patterns.hlo), text: [], code });
    this.body.classList.add("split");
    this.index = make("ol", "index");
    this.index.setAttribute("aria-label", "Passes that changed something");
    this.index.append(...this.passes.map((pass, n) => {
      const go = make("button", "", make("b", "", pass.pass), make("small", "", pass.pipeline || ""),
        make("span", "delta", pass.removed ? `−${pass.removed} ` : "", pass.added ? `+${pass.added}` : ""));
      go.title = visible(`${pass.pass}: ${pass.instructions} instructions after it`);
      go.addEventListener("click", () => this.go(n));
      return make("li", "", go);
    }));
    this.body.prepend(this.index);
    this.list = new List(this.view, 18, (i, line) => this.draw(i, line), (i) => this.look(i));
  }

  async open() {
    if (this.opened) return;
    this.opened = true;
    try {
      this.text = (await this.code()).passes.split("\n");
    } catch {
      this.text = ["This browser cannot unpack the passes (it knows no DecompressionStream): a newer one can."];
    }
    this.list.fill(this.text.length, longest(this.text));
  }

  async go(n) {
    await this.open();
    [...this.index.children].forEach((item, i) => item.firstChild.setAttribute("aria-current", String(i === n)));
    this.index.children[n].scrollIntoView({ block: "nearest" });
    this.view.scrollTop = Math.max(0, (this.passes[n].text_line || 1) - 1) * this.list.height;
  }

  words(i) { return this.text[i]; }

  look(i) {
    const kind = { "-": "out", "+": "in", "=": "title" }[this.text[i][0]] || "";
    return `${kind} ${super.look(i)}`;
  }

  draw(i, line) {
    const text = this.text[i].slice(0, LONGEST);
    if (!/^[-+]/.test(text)) return pour(line, [["", text]]);
    line.append(make("span", "sign", text[0] === "-" ? "−" : "+"));
    pour(line, this.painter.pieces(text.slice(1)));
  }

  light() { this.count.textContent = ""; }
}
