// The numbers in an operand's block: as text where there is room, as colours around zero where there is not.

class Values {
  constructor(values, position) {
    this.steps = values.steps;
    this.position = position;
    const shape = values.shapes[position];
    this.cols = shape.at(-1) ?? 1;
    this.rows = shape.length > 1 ? shape.at(-2) : 1;
    this.spelt = this.cols <= 8;
    this.cell = this.spelt ? [42, 19] : [18, 14];
    [this.canvas, this.pen] = sheet(this.cols * this.cell[0] + 2, this.rows * this.cell[1] + 2, "values");
    this.note = make("small");
    this.box = make("div");
    this.box.append(this.note, this.canvas);
    const sizes = this.steps.flatMap((step) => step[position].filter((v) => typeof v === "number").map(Math.abs));
    this.most = sizes.reduce((a, b) => Math.max(a, b), 0) || 1;
  }

  draw(step, colours) {
    const numbers = this.steps[step]?.[this.position], { pen, cols, rows, cell: [w, h] } = this;
    pen.clearRect(0, 0, 1e4, 1e4);
    this.canvas.hidden = !numbers;
    this.note.textContent = numbers ? this.words(numbers) : "Values: not recorded at this step";
    if (!numbers) return;
    numbers.slice(0, rows * cols).forEach((value, i) => {
      const x = 1 + (i % cols) * w, y = 1 + Math.floor(i / cols) * h;
      pen.fillStyle = colours.paper;
      pen.fillRect(x, y, w, h);
      if (typeof value === "number") {
        pen.globalAlpha = Math.min(1, Math.abs(value) / this.most) * 0.75;
        pen.fillStyle = value < 0 ? colours.now : colours.moved;
        pen.fillRect(x, y, w, h);
        pen.globalAlpha = 1;
      } else {
        hatched(pen, [x, y, w, h], colours.wrong, 5);
      }
      pen.strokeStyle = colours.edge;
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      if (!this.spelt) return;
      pen.fillStyle = colours.ink;
      pen.font = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(brief(value), x + w - 3, y + h / 2 + 0.5, w - 5);
    });
    this.canvas.setAttribute("aria-label", this.note.textContent);
  }

  words(numbers) {
    const known = numbers.filter((v) => typeof v === "number"), odd = numbers.length - known.length;
    if (!known.length) return "Values: none is a finite number";
    const ends = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))].map(brief);
    const range = ends[0] === ends[1] ? `all ${ends[0]}` : `${ends[0]} to ${ends[1]}`;
    return `Values: ${range}${odd ? `, and ${odd} hatched: not finite` : ""}`;
  }
}

function brief(value) {
  if (value === null) return "NaN";
  if (typeof value !== "number") return String(value);
  const text = String(value);
  return text.length <= 6 ? text.replace("-", "−") : Number(value.toPrecision(3)).toString().replace("-", "−").slice(0, 8);
}
