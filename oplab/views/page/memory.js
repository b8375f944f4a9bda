// Memory: which buffers live when, and where. Across: the steps of the schedule; upwards: bytes.

const PLURAL = { argument: "arguments", constant: "constants", output: "outputs", temporary: "temporaries" };

class MemoryPane extends PlotPane {
  constructor(data, pick) {
    super("memory", "Memory", "which buffers the program keeps at each step of its schedule", pick);
    Object.assign(this, { stage: "hlo", memory: data.memory, hlo: data.rows.hlo, equations: data.equations, left: 62, right: 8 });
    this.at = new Map();  // row of the HLO -> its buffers
    this.foot = make("p", "foot");
    this.body.append(this.foot);
    if (!this.memory) return this.nothing();
    this.all = this.memory.buffers.map(([name, row, bytes, kind, first, last, bottom, peak, inUse, shares]) => (
      { name, row, bytes, kind, first, last, bottom, peak, inUse, shares }));
    this.peakStep = this.all.find((b) => b.inUse === this.memory.peak).first;
    this.columns("buffer", "equation", "kind", "bytes", "steps");
    this.chips = [["live at the peak", true], ["all", false]].map(([text, peak]) => {
      const chip = make("button", "", text);
      chip.addEventListener("click", () => this.only(peak));
      this.tools.append(chip);
      return [peak, chip];
    });
    this.zoomable();
    this.explain();
    this.only(true);
  }

  nothing() {
    this.plot.hidden = true;
    this.tell("This walk holds no buffers: it was saved before oplab kept them, or the compiler wrote none down. Walk the function again.");
    this.arrange([]);
  }

  explain() {
    const parts = this.memory.kinds.map((kind, n) => [kind, this.memory.blocks[n]]).filter(([, size]) => size);
    this.usual = `Peak ${byteSize(this.memory.peak)} at step ${this.peakStep} of ${this.memory.steps - 1}; `
      + `${byteSize(this.memory.total)} set aside: ${parts.map(([kind, size]) => `${PLURAL[kind]} ${byteSize(size)}`).join(", ")}.`;
    for (const [kind] of parts) {
      const key = make("span", "of", make("i", `swatch kind-${kind}`), kind);
      this.foot.append(key);
    }
    this.foot.append(" A height is always the same bytes: rectangles in one row reuse them. What lies in the same bytes at the "
      + "same time (in place) counts once. A library's own scratch memory is not known to the compiler.");
    this.tell();
  }

  only(peak) {
    for (const [mine, chip] of this.chips) chip.setAttribute("aria-pressed", String(mine === peak));
    const order = this.all.map((_, n) => n).filter((n) => !peak || this.all[n].peak);
    if (peak) order.sort((a, b) => this.all[b].bytes - this.all[a].bytes || a - b);
    this.at.clear();
    order.forEach((n, i) => {
      const row = this.all[n].row;
      if (row < 0) return;
      if (!this.at.has(row)) this.at.set(row, []);
      this.at.get(row).push(i);
    });
    this.arrange(order);
    this.redraw();
  }

  target(i) { return this.all[this.order[i]]?.row >= 0 ? ["hlo", this.all[this.order[i]].row] : null; }
  lines(stage, row) { return stage === "hlo" ? this.at.get(row) || [] : []; }
  words(i) { return `${this.all[this.order[i]].name} ${this.owners(this.all[this.order[i]])}`; }
  owners(b) { return b.row < 0 ? "" : few(this.hlo[b.row].equations.map((e) => `${this.equations[e].id} ${this.equations[e].primitive}`), 2); }

  draw(i, line) {
    const b = this.all[this.order[i]], kind = this.memory.kinds[b.kind];
    this.cells(line, instruction(b.name), this.owners(b) || DASH, make("span", "cell", make("i", `swatch kind-${kind}`), kind),
      make("span", "cell number", byteSize(b.bytes)), make("span", "cell number", `${b.first}–${b.last}`));
  }

  describe(b) {
    const whose = this.owners(b), shares = b.shares ? `; in the same bytes as ${b.shares}` : "";
    return `${b.name}: ${byteSize(b.bytes)}, ${this.memory.kinds[b.kind]}, steps ${b.first} to ${b.last}${whose ? `, ${whose}` : ""}${shares}`;
  }

  // Rectangles are all the buffers, also those that the table leaves out: they are named by their own number.
  row(event) {
    const n = event.target.dataset?.n;
    return n === undefined ? -1 : Number(n);
  }

  over(event) {
    const n = this.row(event);
    this.tell(n >= 0 ? this.describe(this.all[n]) : "");
  }

  click(event) {
    const n = this.row(event);
    if (n < 0 || this.dragged || this.all[n].row < 0) return;
    this.pick(["hlo", this.all[n].row], this);
  }

  light(found, origin, scroll) {
    this.rows = origin ? found.hlo : new Map();
    super.light(found, origin, scroll);
  }

  relight() {
    const lit = this.rows || new Map(), some = this.all?.some((b) => lit.has(b.row));
    for (const [n, elements] of this.marks) {
      for (const element of elements) {
        element.classList.toggle("lit", lit.has(this.all[n].row));
        element.classList.toggle("faded", Boolean(some) && !lit.has(this.all[n].row));
      }
    }
  }

  paint() {
    if (!this.memory) return;
    const { total, steps, peak } = this.memory, top = 18, bottom = this.height - 34;
    const y = (bytes) => bottom - (bytes / total) * (bottom - top);
    const x = (step) => this.across(step / steps);
    this.axes(x, y, top, bottom);
    const [a, b] = this.span, names = [], hair = (0.8 * total) / (bottom - top);
    for (const { kind, first, last, from, to } of this.together(hair)) {
      const left = Math.max(this.left, x(first)), right = Math.min(this.width - this.right, x(last + 1));
      if (left < right) this.put("rect", { x: left, y: y(to), width: right - left, height: y(from) - y(to), class: `buffer kind-${this.memory.kinds[kind]}` });
    }
    this.all.forEach((buffer, n) => {
      const tall = y(buffer.bottom) - y(buffer.bottom + buffer.bytes);
      if (buffer.bytes < hair || (buffer.last + 1) / steps < a || buffer.first / steps > b) return;
      const from = Math.max(this.left, x(buffer.first)), to = Math.min(this.width - this.right, x(buffer.last + 1));
      const box = this.put("rect", { x: from, y: y(buffer.bottom + buffer.bytes), width: Math.max(0.7, to - from), height: tall,
        class: `buffer kind-${this.memory.kinds[buffer.kind]}${tall > 4 ? " edged" : ""}` });
      this.mark(n, box);
      box.dataset.n = n;
      if (tall > 15 && to - from > 40) names.push([buffer, from, to, y(buffer.bottom + buffer.bytes / 2)]);
    });
    for (const name of names) this.inside(...name);
    this.curve(x, y);
    const at = x(this.peakStep + 0.5);
    if (at < this.left || at > this.width - this.right) return;
    this.put("line", { x1: at, x2: at, y1: top, y2: bottom, class: "peak" });
    const side = at > this.width / 2 ? "end" : "start";
    this.label(at + (side === "end" ? -5 : 5), 13, `peak: ${byteSize(peak)} in use`, "word", side);
  }

  // Buffers too thin to be seen alone, which are of one kind, live as long as each other and lie side by side.
  together(hair) {
    const open = new Map(), found = [];
    for (const { kind, first, last, bottom, bytes } of [...this.all].sort((p, q) => p.bottom - q.bottom)) {
      if (bytes >= hair) continue;
      const key = `${kind} ${first} ${last}`, run = open.get(key), to = bottom + bytes;
      if (run && bottom - run.to < hair) {
        run.to = Math.max(run.to, to);
        continue;
      }
      open.set(key, { kind, first, last, from: bottom, to });
      found.push(open.get(key));
    }
    return found.filter(({ from, to }) => to - from >= hair);
  }

  // Its name, in the part that no later buffer in the same bytes covers.
  inside(buffer, from, end, middle) {
    const next = this.all.find((b) => b.bottom === buffer.bottom && b.first > buffer.first && b.first <= buffer.last);
    const to = next ? Math.min(end, this.across(next.first / this.memory.steps)) : end;
    if (to - from < 40) return;
    const room = Math.floor((to - from) / 7.2) - 1;
    const text = buffer.name.length > room ? `${buffer.name.slice(0, room - 1)}…` : buffer.name;
    this.mark(this.all.indexOf(buffer), this.label(from + 6, middle + 4, text, "name", "start"));
  }

  axes(x, y, top, bottom) {
    const { total, steps } = this.memory, power = Math.floor(Math.log2(total) / 10), unit = 1024 ** Math.min(4, power);
    for (const value of ticks(0, total / unit, (bottom - top) / 40)) {
      const at = y(value * unit);
      this.put("line", { x1: this.left, x2: this.width - this.right, y1: at, y2: at, class: "grid" });
      this.label(this.left - 5, at + 4, byteSize(value * unit), "tick", "end");
    }
    const [a, b] = this.span;
    for (const step of ticks(a * steps, b * steps, this.width / 90)) {
      if (Number.isInteger(step) && step < steps) this.label(x(step + 0.5), bottom + 14, String(step));
    }
    this.label((this.left + this.width) / 2, bottom + 29, "step of the schedule", "axis");
  }

  // The bytes in use, as a line: at each step that brings a buffer, until the next such step.
  curve(x, y) {
    const steps = new Map(this.all.map((b) => [b.first, b.inUse]));
    const stops = [...steps.keys()].sort((p, q) => p - q);
    const clamp = (at) => Math.min(this.width - this.right, Math.max(this.left, at));
    const path = stops.map((s, n) => `${n ? "L" : "M"}${clamp(x(s))} ${y(steps.get(s))}H${clamp(x(stops[n + 1] ?? this.memory.steps))}`);
    this.put("path", { d: path.join(""), class: "under" });
    this.put("path", { d: path.join(""), class: "curve" });
  }
}
