// The roofline: how many FLOPs each kernel makes of a byte, under what a machine allows. Both axes are logarithmic.

class RooflinePane extends PlotPane {
  constructor(data, pick) {
    super("roofline", "Roofline", "FLOP/s against FLOPs per byte, under the roof of a machine", pick);
    Object.assign(this, { stage: "kernels", rows: data.rows.kernels, roofs: data.roofs, colours: data.colours, left: 66, right: 24 });
    this.measured = this.rows.some((row) => row.median_us);
    this.choice = make("select", "choice");
    this.choice.setAttribute("aria-label", "Machine whose roof is drawn");
    this.choice.append(make("option", "", "no roof"), ...this.roofs.map((roof) => make("option", "", this.named(roof))));
    const asked = this.roofs[0]?.measured !== undefined;  // times belong under no other machine's roof, unless one asked for it
    this.choice.selectedIndex = asked || !this.measured ? 1 : 0;
    this.choice.addEventListener("change", () => this.under());
    this.tools.append(this.choice);
    this.columns("kernel", "FLOPs", "bytes", "FLOPs/byte", "FLOP/s", "at most", "limit");
    this.foot = make("p", "foot");
    this.body.append(this.foot);
    const intensity = (r) => (this.rows[r].flops && this.rows[r].bytes ? this.rows[r].flops / this.rows[r].bytes : 0);
    this.intensity = this.rows.map((_, r) => intensity(r));
    this.under();
  }

  named(roof) { return `${roof.name}${roof.measured ? ", measured" : ""} · ${roof.dtype}`; }

  under() {
    this.roof = this.roofs[this.choice.selectedIndex - 1] || null;
    const order = this.rows.map((_, r) => r).sort((a, b) => (this.rows[b].flops || 0) - (this.rows[a].flops || 0) || a - b);
    this.arrange(order);
    const some = this.intensity.filter(Boolean).length, idle = this.rows.length - some;
    const kernels = `${some} kernel${some === 1 ? "" : "s"} compute${some === 1 ? "s" : ""} something`
      + (idle ? `, ${idle} only move${idle === 1 ? "s" : ""} data (in the table alone)` : "");
    this.usual = this.roof ? `${this.roof.name}, ${this.roof.dtype}: ridge at ${(this.roof.flops_per_s / this.roof.bytes_per_s).toPrecision(3)} FLOPs per byte; `
      + `left of it the memory is the limit, right of it the arithmetic. ${kernels}.` : `${kernels}. Choose a machine above to draw its roof.`;
    const source = this.roof?.source ? `Peaks: ${this.roof.source}. ` : "";
    const times = this.measured ? "Filled: reached here, in the median run." : "Nothing was measured: call walk.execute() to see what is reached.";
    const other = this.measured && this.roof && !this.roof.measured ? " The times are this machine's, the roof is another's." : "";
    this.foot.textContent = visible(`${source}${times}${other} Hollow: at most, under the roof. FLOPs and bytes are counted, not measured.`);
    this.tell();
    this.redraw();
  }

  most(r) { return this.roof && this.intensity[r] ? Math.min(this.roof.flops_per_s, this.intensity[r] * this.roof.bytes_per_s) : null; }
  reached(r) { return this.rows[r].median_us && this.intensity[r] ? (this.rows[r].flops * 1e6) / this.rows[r].median_us : null; }
  limit(r) {
    if (!this.roof || !this.rows[r].bytes) return "";
    return this.intensity[r] < this.roof.flops_per_s / this.roof.bytes_per_s ? "memory" : "arithmetic";
  }

  words(i) { return this.rows[this.order[i]].label; }

  says(i) {
    const r = this.order[i], at = this.reached(r), most = this.most(r);
    return `${this.rows[r].label}: ${this.intensity[r].toPrecision(3)} FLOPs per byte`
      + (at ? `, ${amount(at)}FLOP/s reached` : "") + (most ? `, ${amount(most)}FLOP/s at most (${this.limit(r)})` : "");
  }

  draw(i, line) {
    const r = this.order[i], row = this.rows[r], number = (text) => make("span", "cell number", text);
    this.cells(line, instruction(row.label), number(amount(row.flops)), number(amount(row.bytes)),
      number(this.intensity[r] ? this.intensity[r].toPrecision(3) : DASH), number(amount(this.reached(r))),
      number(amount(this.most(r))), this.limit(r));
  }

  paint() {
    const points = this.order.map((r, i) => [r, i]).filter(([r]) => this.intensity[r]);
    if (!points.length) return this.label(this.width / 2, this.height / 2, "No kernel of this walk is known to compute anything.", "word");
    this.frame(points);
    if (this.roof) this.drawRoof();
    this.taken = [];  // where names stand already
    points.reverse().forEach(([r, i]) => this.point(r, i));
  }

  // Where everything stands: whole powers of ten, so that the axes read well.
  frame(points) {
    const ridge = this.roof ? [this.roof.flops_per_s / this.roof.bytes_per_s] : [];
    const xs = [...points.map(([r]) => this.intensity[r]), ...ridge];
    const heights = points.flatMap(([r]) => [this.reached(r), this.most(r)]).concat(this.roof?.flops_per_s).filter(Boolean);
    const wide = (values, low, high) => [Math.floor(Math.log10(Math.min(...values) / low)), Math.ceil(Math.log10(Math.max(...values) * high))];
    this.xs = wide(xs, 1.5, 1.5);
    this.flat = !heights.length;
    this.ys = this.flat ? [0, 1] : wide(heights, 1.5, 1.2);
    const top = 12, bottom = this.height - 36;
    this.low = bottom;
    this.x = (v) => this.left + ((Math.log10(v) - this.xs[0]) / (this.xs[1] - this.xs[0])) * (this.width - this.left - this.right);
    this.y = (v) => bottom - ((Math.log10(v) - this.ys[0]) / (this.ys[1] - this.ys[0])) * (bottom - top);
    for (let p = this.xs[0]; p <= this.xs[1]; p++) {
      this.put("line", { x1: this.x(10 ** p), x2: this.x(10 ** p), y1: top, y2: bottom, class: "grid" });
      this.label(this.x(10 ** p), bottom + 15, p < -2 ? `1e${p}` : String(10 ** p));
    }
    for (let p = this.ys[0]; !this.flat && p <= this.ys[1]; p++) {
      this.put("line", { x1: this.left, x2: this.width - this.right, y1: this.y(10 ** p), y2: this.y(10 ** p), class: "grid" });
      this.label(this.left - 5, this.y(10 ** p) + 4, this.power(p), "tick", "end");
    }
    this.label((this.left + this.width) / 2, bottom + 31, "FLOPs per byte", "axis");
    if (!this.flat) this.put("text", { x: 0, y: 0, class: "axis", "text-anchor": "middle", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)` }, "FLOP/s");
  }

  power(p) {
    const unit = Math.min(5, Math.max(0, Math.floor(p / 3)));
    return `${10 ** (p - 3 * unit)}${["", " k", " M", " G", " T", " P"][unit]}`;
  }

  drawRoof() {
    const { flops_per_s: flops, bytes_per_s: bytes } = this.roof, ridge = flops / bytes, low = 10 ** this.xs[0];
    const begin = Math.max(low, 10 ** this.ys[0] / bytes);
    this.put("path", { d: `M${this.x(begin)} ${this.y(begin * bytes)}L${this.x(ridge)} ${this.y(flops)}H${this.width - this.right}`, class: "roof" });
    this.put("line", { x1: this.x(ridge), x2: this.x(ridge), y1: this.y(flops), y2: this.low, class: "ridge" });
    const side = this.x(ridge) > this.width * 0.72 ? "end" : "start";
    this.label(this.x(ridge) + (side === "end" ? -6 : 6), this.low - 7, `ridge ${ridge.toPrecision(3)}`, "word", side);
  }

  point(r, i) {
    const x = this.x(this.intensity[r]), most = this.most(r), at = this.reached(r), row = this.rows[r];
    const colour = this.colours[row.operators[0]] || this.colours.other;
    if (at && most) this.mark(i, this.put("line", { x1: x, x2: x, y1: this.y(most), y2: this.y(at), class: "reach" }));
    if (most) this.mark(i, this.put("circle", { cx: x, cy: this.y(most), r: 5, class: "hollow", stroke: colour }));
    const y = at ? this.y(at) : most ? this.y(most) : this.flat ? this.y(10 ** 0.5) : null;
    if (y === null) return;
    if (at || !most) this.mark(i, this.put("circle", { cx: x, cy: y, r: 6.5, class: "dot", fill: colour }));
    const crowded = this.taken.some(([p, q]) => Math.abs(p - x) < 130 && Math.abs(q - y) < 15);
    if (i < 8 && !this.flat && !crowded && this.taken.push([x, y])) this.label(x + (x > this.width * 0.7 ? -11 : 11), y + 4, row.label, "name haloed through", x > this.width * 0.7 ? "end" : "start");
  }
}
