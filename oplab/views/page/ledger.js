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
