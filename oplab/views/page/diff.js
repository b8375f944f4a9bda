// The passes as a diff: what each one took out and put in, line against line, word against word.

const WORDS = /\s+|[\w.\-%]+|./g;
const MOST_WORDS = 160;  // of a longer line only what differs at its middle is marked

// The words of two lines that the other has not: [[from, to], ...] in characters, for each of the two.
function differences(before, after) {
  const a = before.match(WORDS) || [], b = after.match(WORDS) || [];
  let head = 0, tail = 0;
  while (head < Math.min(a.length, b.length) && a[head] === b[head]) head++;
  while (tail < Math.min(a.length, b.length) - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const left = a.slice(head, a.length - tail), right = b.slice(head, b.length - tail);
  const [mine, theirs] = left.length * right.length > MOST_WORDS ** 2 ? [new Set(), new Set()] : common(left, right);
  return [spans(a, head, left, mine), spans(b, head, right, theirs)];
}

// Which words stand in both, in the same order (the longest common subsequence): their places on each side.
function common(a, b) {
  const width = b.length + 1, best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  const mine = new Set(), theirs = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { mine.add(i++); theirs.add(j++); }
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i++;
    else j++;
  }
  return [mine, theirs];
}

function spans(words, head, middle, shared) {
  const found = [];
  let at = words.slice(0, head).join("").length;
  middle.forEach((word, n) => {
    if (!shared.has(n) && word.trim()) {
      if (found.length && found.at(-1)[1] === at) found.at(-1)[1] += word.length;
      else found.push([at, at + word.length]);
    }
    at += word.length;
  });
  return found;
}

// Coloured pieces of a text, cut where a marked span begins or ends: [class, text, marked].
function marked(pieces, found) {
  const cut = [];
  let at = 0;
  for (const [name, text] of pieces) {
    const edges = [...new Set([0, text.length, ...found.flat().map((edge) => edge - at).filter((edge) => edge > 0 && edge < text.length)])].sort((a, b) => a - b);
    for (let n = 0; n + 1 < edges.length; n++) {
      const from = at + edges[n];
      cut.push([name, text.slice(edges[n], edges[n + 1]), found.some(([begin, end]) => begin <= from && from < end)]);
    }
    at += text.length;
  }
  return cut;
}

const NAMED = /^\s*(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(/;

// One pass's lines in the order in which they are shown: a line that was put in follows the one it replaces.
// Two lines are one change when they name the same instruction, or else belong to the same equation and opcode.
function paired(lines, owners) {
  const all = lines.map(([n, text]) => {
    const found = NAMED.exec(text.slice(1)) || [];
    return { n, text, sign: text[0], name: found[1], kind: `${found[2]} ${owners[n] || ""}` };
  });
  const gone = all.filter((l) => l.sign === "-"), come = all.filter((l) => l.sign === "+");
  const match = (key) => {
    const waiting = new Map();
    for (const line of come) if (!line.mate && line[key]) waiting.set(line[key], [...(waiting.get(line[key]) || []), line]);
    for (const line of gone) {
      const other = !line.mate && line[key] && waiting.get(line[key])?.shift();
      if (other) { line.mate = other; other.mate = line; }
    }
  };
  match("name");
  match("kind");
  const shown = [];
  for (const line of gone) shown.push(line, ...(line.mate ? [line.mate] : []));
  return shown.concat(come.filter((line) => !line.mate));
}

class DiffPane extends Pane {
  constructor(data, code) {
    super("passes", "Passes", "what each pass of the compiler took out and put in");
    Object.assign(this, { passes: data.passes, painter: new Painter(data.patterns.hlo), equations: data.equations, code });
    Object.assign(this, { all: [], shown: [], owners: [], places: new Map(), every: false, following: null });
    this.body.classList.add("split");
    this.index = make("ol", "index");
    this.index.setAttribute("aria-label", "Passes that changed something");
    this.index.tabIndex = 0;
    this.index.append(...this.passes.map((pass, n) => this.entry(pass, n)));
    this.body.prepend(this.index);
    this.list = new List(this.view, 18, (i, line) => this.draw(i, line), (i) => this.look(i));
    this.follow = this.button("follow it", "Only what the passes did to the selected line's equations", () => this.toggle());
    this.follow.disabled = true;
    this.quiet = this.button("all passes", "Name the passes that changed nothing of what is shown, too", () => {
      this.every = !this.every;
      this.quiet.setAttribute("aria-pressed", String(this.every));
      this.fill();
      this.again?.();
    });
  }

  button(text, title, action) {
    const button = make("button", "", text);
    button.title = title;
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", action);
    this.tools.append(button);
    return button;
  }

  entry(pass, n) {
    const go = make("button", "", make("b", "", pass.pass), make("small", "", pass.pipeline || ""),
      make("span", "delta", pass.removed ? `−${pass.removed} ` : "", pass.added ? `+${pass.added}` : ""));
    go.title = visible(`${pass.does ? `${pass.does} ` : ""}${pass.instructions} instructions after it.`);
    go.addEventListener("click", () => this.go(n));
    return make("li", "", go);
  }

  async open() {
    if (this.opened) return this.opened;
    return (this.opened = this.read());
  }

  async read() {
    try {
      const { passes, pass_lines: owners } = await this.code();
      this.arrange(passes, owners || {});
    } catch (error) {
      this.all = [{ text: "This browser cannot unpack the passes (it knows no DecompressionStream): a newer one can.", pass: -1 }];
    }
    this.fill();
    this.again?.();
  }

  // The text of every pass, paired; line n of the text (from 1) belongs to the equations owners[n].
  arrange(text, owners) {
    this.owners = owners;
    let pass = -1, block = [];
    const close = () => {
      for (const line of paired(block, owners)) this.all.push({ ...line, pass, whole: line });
      block = [];
    };
    text.forEach((line, at) => {
      if (line.startsWith("===")) {
        close();
        this.all.push({ text: line.replace(/^=== \d+: /, ""), sign: "=", pass: ++pass, n: at + 1 });
        const does = this.passes[pass]?.does;
        if (does) this.all.push({ text: does, sign: "?", pass });
      } else if (/^[-+]/.test(line)) block.push([at + 1, line]);
      else if (line) this.all.push({ text: line, sign: "", pass, n: at + 1 });
    });
    close();
  }

  // What is shown now: all, or only what was done to the equations that are followed.
  fill() {
    const wanted = this.following, touches = (line) => (this.owners[line.n] || []).some((e) => wanted.has(e));
    const kept = !wanted ? this.all : this.all.filter((l) => l.sign === "=" || l.sign === "?" || touches(l) || (l.mate && touches(l.mate)));
    const busy = new Set(kept.filter((line) => line.sign === "-" || line.sign === "+").map((line) => line.pass));
    this.shown = kept.filter((line) => (line.sign !== "=" && line.sign !== "?") || busy.has(line.pass) || this.every);
    this.places = new Map();
    this.heads = new Map();
    this.shown.forEach((line, i) => {
      if (line.sign === "=") this.heads.set(line.pass, i);
      for (const e of this.owners[line.n] || []) {
        if (!this.places.has(e)) this.places.set(e, []);
        this.places.get(e).push(i);
      }
    });
    [...this.index.children].forEach((item, n) => { item.hidden = !this.every && !busy.has(n); });
    this.list.scroll(0);
    this.list.fill(this.shown.length, longest(this.shown.map((line) => line.text)));
  }

  toggle() {
    this.following = this.following ? null : this.selected;
    this.follow.setAttribute("aria-pressed", String(Boolean(this.following)));
    this.fill();
    this.again?.();
  }

  async go(n) {
    await this.open();
    if (!this.heads.has(n) && this.following) this.toggle();
    [...this.index.children].forEach((item, i) => item.firstChild.setAttribute("aria-current", String(i === n)));
    this.index.children[n]?.scrollIntoView({ block: "nearest" });
    this.list.scroll((this.heads.get(n) ?? 0) * this.list.height);
    this.list.paint();
  }

  words(i) { return this.shown[i].text; }
  target(i) { const [e] = this.owners[this.shown[i]?.n] || []; return e === undefined ? null : ["jaxpr", e]; }
  lines(stage, row) { return stage === "jaxpr" ? this.places.get(row) || [] : []; }

  look(i) {
    const kind = { "-": "out", "+": "in", "=": "title", "?": "does" }[this.shown[i].sign] || "";
    return `${kind} ${super.look(i)}`;
  }

  light(found, origin, scroll) {
    this.again = () => this.light(found, origin, scroll);
    const equations = origin ? [...found.jaxpr].filter(([, how]) => how < INSIDE).map(([e]) => e) : [];
    if (equations.length) this.selected = new Set(equations);
    this.follow.disabled = !this.following && !equations.length;
    super.light(found, origin, scroll);
  }

  draw(i, line) {
    const { text, sign, mate } = this.shown[i], cut = text.slice(0, LONGEST);
    if (sign !== "-" && sign !== "+") return pour(line, [["", cut]]);
    line.append(make("span", "sign", sign === "-" ? "−" : "+"));
    const own = cut.slice(1), pieces = this.painter.pieces(own);
    if (!mate) return pour(line, pieces);
    const other = mate.text.slice(1, LONGEST);
    const found = sign === "-" ? differences(own, other)[0] : differences(other, own)[1];
    for (const [name, part, differs] of marked(pieces, found)) {
      const shown = make("span", `${name ? `s-${name}` : ""}${differs ? " differs" : ""}`, part);
      line.append(shown);
    }
  }
}
