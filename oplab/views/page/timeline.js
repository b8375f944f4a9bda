// The timeline: what ran in one measured run, and when. A bar carries the colours of all operators that share its kernel.

class TimelinePane extends PlotPane {
  constructor(data, pick) {
    super("timeline", "Timeline", "what ran in one measured run, and when", pick);
    Object.assign(this, { stage: "hlo", run: data.timeline, hlo: data.rows.hlo, colours: data.colours, left: 10, right: 14 });
    this.kernels = new Map(data.rows.kernels.map((kernel) => [kernel.label, kernel]));
    this.at = new Map();  // row of the HLO -> its bars
    if (!this.run) return this.nothing(data.executed);
    this.times = new Map();  // row of the HLO -> how often it started
    this.run.bars.forEach(([row], i) => {
      if (!this.at.has(row)) this.at.set(row, []);
      this.at.get(row).push(i);
    });
    const again = [...this.at.values()].some((bars) => bars.length > 1);  // in a loop
    this.columns("what ran", again ? "which time" : "", "began at", "took");
    this.foot = make("p", "foot", "Bars that overlap lie one above the other: parts of one kernel on several threads, or a loop "
      + "above what runs in it. Time that several operators share is never divided among them.");
    const shown = [...new Set(this.run.bars.flatMap(([row]) => this.operators(row)))];
    for (const name of shown) this.foot.append(make("span", "of", this.swatch(name), name));
    this.body.append(this.foot);
    this.usual = `Run ${this.run.run + 1} of ${this.run.runs}, the one of median length: ${micros(this.run.length)}, ${this.run.bars.length} bars. `
      + "Wheel or + and − zoom, arrows or dragging move.";
    this.tell();
    this.plot.style.maxHeight = `${Math.max(120, 90 * this.run.lanes + 44)}px`;  // what is left is the table's
    this.zoomable();
    this.arrange(this.run.bars.map((_, i) => i));
  }

  nothing(executed) {
    this.plot.hidden = true;
    this.tell(executed ? "This page was made with OPLAB_STABLE=1, which shows nothing that was measured."
      : "Not executed: call walk.execute(), then show or save the walk again.");
    this.arrange([]);
  }

  operators(row) { return this.kernels.get(this.hlo[row].label)?.operators || ["other"]; }

  swatch(name) {
    const chip = make("i", "swatch");
    chip.style.background = this.colours[name] || this.colours.other;
    return chip;
  }

  target(i) { return i < this.order.length ? ["hlo", this.run.bars[i][0]] : null; }
  lines(stage, row) { return stage === "hlo" ? this.at.get(row) || [] : []; }
  words(i) { return this.hlo[this.run.bars[i][0]].label; }
  which(i) { return this.at.get(this.run.bars[i][0]).length > 1 ? `${this.run.bars[i][4]} of ${this.at.get(this.run.bars[i][0]).length}` : ""; }

  says(i) {
    const [row, start, took] = this.run.bars[i], which = this.which(i);
    return `${this.hlo[row].label}${which ? `, ${which}` : ""}: began at ${micros(start)}, took ${micros(took)}`;
  }

  draw(i, line) {
    const [row, start, took] = this.run.bars[i];
    this.cells(line, instruction(this.hlo[row].label), this.which(i), make("span", "cell number", micros(start)),
      make("span", "cell number", micros(took)));
  }

  paint() {
    if (!this.run) return;
    const top = 6, bottom = this.height - 34, { length, lanes, bars } = this.run;
    const lane = Math.max(3, Math.min(90, (bottom - top) / lanes));
    this.axis(top, bottom);
    const end = this.width - this.right;
    let last = [];  // lane -> where its last drawn bar ended: of bars thinner than a hair, one is enough
    bars.forEach(([row, start, took, at], i) => {
      const from = Math.max(this.left, this.across(start / length)), to = Math.min(end, this.across((start + took) / length));
      if (to < this.left || from > end || (to - from < 0.4 && last[at] > from - 0.4 && !this.lit.has(i))) return;
      last[at] = to;
      this.drawBar(i, row, from, Math.max(0.8, to - from), bottom - (at + 1) * lane, lane);
    });
  }

  drawBar(i, row, x, width, y, lane) {
    const operators = this.operators(row), gap = lane > 8 ? 3 : 0.5, height = (lane - gap) / operators.length;
    operators.forEach((name, n) => {
      const band = this.put("rect", { x, y: y + gap / 2 + n * height, width, height, class: width > 4 ? "thunk edged" : "thunk",
        fill: this.colours[name] || this.colours.other });
      this.mark(i, band);
    });
    const text = this.hlo[row].label, room = Math.floor((width - 8) / 7.3);
    if (lane < 16 || room < 4) return;
    const shown = text.length > room ? `${text.slice(0, room - 1)}…` : text;
    const long = this.put("text", { x: x + width / 2, y: y + lane / 2 + 4, class: "name haloed", "text-anchor": "middle" }, shown);
    long.classList.add("through");
  }

  axis(top, bottom) {
    const [a, b] = this.span, { length } = this.run;
    const unit = length * (b - a) > 5000 ? 1000 : 1;
    for (const value of ticks((a * length) / unit, (b * length) / unit, this.width / 110)) {
      const x = this.across((value * unit) / length);
      this.put("line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" });
      this.label(x, bottom + 14, String(Number(value.toPrecision(6))));
    }
    this.label((this.left + this.width) / 2, bottom + 29, `${unit > 1 ? "milliseconds" : "microseconds"} since the run began`, "axis");
  }
}
