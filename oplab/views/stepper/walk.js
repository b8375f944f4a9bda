// A kernel's walk, taken out of its compact columns: at any step, what each operand does and what it has moved.

class Walk {
  constructor(kernel) {
    Object.assign(this, kernel);
    this.axes ||= [];
    this.findings ||= [];
    this.operands = (kernel.operands || []).map((operand) => new Operand(operand, this.steps));
    this.operands.forEach((operand) => operand.blame(this.findings));
    this.strides = this.grid.map((_, axis) => this.grid.slice(axis + 1).reduce((a, b) => a * b, 1));
  }

  program(step) { return this.grid.map((size, axis) => Math.floor(step / this.strides[axis]) % size); }

  step(program) { return program.reduce((sum, place, axis) => sum + place * this.strides[axis], 0); }

  // Bytes of one step, up to and with it, in all, and spared by re-use, over all operands.
  bytes(step) {
    const rows = this.operands.filter((o) => o.role !== "scratch").map((o) => [o, ...o.bytes(step)]);
    return { rows, total: [1, 2, 3, 4].map((i) => rows.reduce((sum, row) => sum + row[i], 0)) };
  }

  get ragged() { return this.operands.some((o) => o.at && [...o.inner.keys()].some((b) => o.inner[b] && o.padding(b))); }

  // The findings that show at a step, by number: where they were found, and wherever a block lies outside.
  findingsAt(step) {
    return this.findings.flatMap((finding, i) => {
      if (finding.step === step) return [i];
      const operand = this.operands.find((o) => o.name === finding.operand);
      const astray = finding.finding === "out of range" || finding.finding === "element offsets";
      return astray && operand?.at && operand.outside(operand.at[step]) ? [i] : [];
    });
  }
}

const READ = 1, WRITE = 2, ADD = 4, OTHER = 8, MAYBE = 16;

class Operand {
  constructor(known, steps) {
    const at = known.at && summed(known.at);
    Object.assign(this, known, { at });
    this.out = this.role === "out";
    this.uses = unrolled(known.uses, steps);
    this.steps = steps;
    if (!at) return;
    for (const name of ["start", "size", "index"]) this[name] = known[name].map(summed);
    this.count = steps ? 1 + at.reduce((a, b) => Math.max(a, b), 0) : 0;
    this.tally();
  }

  // For each block how many bytes it has; for each step how many were moved by then; when each block is done.
  tally() {
    this.inner = new Float64Array(this.count);
    for (let b = 0; b < this.count; b++) this.inner[b] = this.held(b);
    this.moved = new Float64Array(this.steps + 1);
    this.used = new Float64Array(this.steps + 1);
    this.done = new Int32Array(this.count).fill(-1); // the step after which it is first written back
    this.stored = new Uint8Array(this.count); // may anything ever be stored in it?
    this.again = new Int32Array(this.count).fill(-1); // the step at which it is returned to
    const seen = new Uint8Array(this.count);
    const at = this.at;
    for (let s = 0; s < this.steps; s++) {
      const size = this.moves ? Math.ceil(this.inner[at[s]] * this.bits / 8) : 0;
      this.used[s + 1] = this.used[s] + size;
      this.moved[s + 1] = this.moved[s] + (this.moves_at(s) ? size : 0);
      if (this.entered(s) && seen[at[s]] && this.again[at[s]] < 0) this.again[at[s]] = s;
      seen[at[s]] = 1;
      if (this.out && this.left(s) && this.done[at[s]] < 0) this.done[at[s]] = s;
      if (this.uses[s] & (WRITE | ADD | OTHER)) this.stored[at[s]] = 1;
    }
  }

  // What the findings say of this operand decides what is drawn in red.
  blame(findings) {
    const own = findings.filter((f) => f.operand === this.name);
    this.gaps = own.some((f) => f.finding === "never written");
    this.twice = own.some((f) => f.finding === "written twice");
  }

  held(block) { return this.shape.reduce((n, size, axis) => n * span(this.start[axis][block], this.size[axis][block], size), 1); }

  outside(block) { return this.inner[block] === 0 && this.size.every((column) => column[block] > 0) && this.shape.every((n) => n > 0); }

  padding(block) { return this.size.reduce((n, column) => n * column[block], 1) - this.inner[block]; }

  entered(step) { return step === 0 || this.at[step] !== this.at[step - 1]; }

  left(step) { return step === this.steps - 1 || this.at[step] !== this.at[step + 1]; }

  moves_at(step) { return this.out ? this.left(step) : this.entered(step); }

  bytes(step) {
    if (this.role === "prefetch") return [step === 0 ? this.bytes_all() : 0, this.bytes_all(), this.bytes_all(), 0];
    if (!this.at || !this.steps) return [0, 0, 0, 0];
    const { moved, used } = this, end = this.steps;
    return [moved[step + 1] - moved[step], moved[step + 1], moved[end], used[end] - moved[end]];
  }

  bytes_all() { return Math.ceil(this.shape.reduce((a, b) => a * b, 1) * this.bits / 8); }

  number(step) { return `(${this.index.map((column) => column[this.at[step]]).join(", ")})`; }

  slice(step) {
    const b = this.at[step];
    return `[${this.shape.map((_, axis) => (this.size[axis][b] === 1 && !this.drawn.includes(axis) ? this.start[axis][b] : `${this.start[axis][b]}:${this.start[axis][b] + this.size[axis][b]}`)).join(", ")}]`;
  }

  // "stores", "adds to", "reads": what the body does to it at a step.
  verbs(step) {
    const uses = this.uses[step], verbs = [];
    if (uses & READ) verbs.push("read");
    if (uses & WRITE) verbs.push("stored to");
    if (uses & ADD) verbs.push("added to");
    if (uses & OTHER) verbs.push("copied or changed in another way");
    return verbs.length ? `${verbs.join(", ")}${uses & MAYBE ? ", if the data say so" : ""}` : "not touched by the body";
  }
}

function summed(differences) {
  const column = new Int32Array(differences.length);
  let value = 0;
  differences.forEach((step, i) => { column[i] = value += step; });
  return column;
}

function unrolled(runs, length) {
  const column = new Uint8Array(length);
  for (let i = 0, at = 0; i < runs.length; i += 2) column.fill(runs[i], at, at += runs[i + 1]);
  return column;
}

function span(start, size, whole) { return Math.max(0, Math.min(start + size, whole) - Math.max(start, 0)); }

function amount(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const power = Math.min(5, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** power;
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${["", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
}
