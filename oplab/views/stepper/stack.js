// The axes of an array that are not in its picture: a cell for each slice, and how much of it is written.

class Stack {
  constructor(operand, leading) {
    Object.assign(this, { operand, leading });
    this.slices = leading.reduce((n, axis) => n * operand.shape[axis], 1);
    this.columns = Math.min(this.slices, leading.length > 1 ? operand.shape[leading.at(-1)] : 32, 32);
    this.cell = this.slices > 128 ? 9 : 15;
    [this.canvas, this.pen] = sheet(this.columns * this.cell + 2, Math.ceil(this.slices / this.columns) * this.cell + 2, "stack");
    this.canvas.setAttribute("aria-hidden", "true");
  }

  // The numbers of the slices that a block lies in.
  slicesOf(block) {
    return this.leading.reduce((found, axis) => {
      const { start, size, shape } = this.operand, from = Math.max(0, start[axis][block]);
      const stop = Math.min(shape[axis], start[axis][block] + size[axis][block]);
      return found.flatMap((n) => Array.from({ length: Math.max(0, stop - from) }, (_, i) => n * shape[axis] + from + i));
    }, [0]);
  }

  draw(step, colours) {
    const { operand, pen, cell } = this;
    const at = (n) => [1 + (n % this.columns) * cell, 1 + Math.floor(n / this.columns) * cell];
    const share = new Float64Array(this.slices);
    const whole = operand.shape.reduce((a, b) => a * b, 1) / this.slices;
    if (operand.out && operand.at && operand.count <= 20000) {
      for (let b = 0; b < operand.count; b++) {
        if (operand.done[b] < 0 || operand.done[b] >= step || !operand.stored[b]) continue;
        const own = this.slicesOf(b);
        own.forEach((n) => { share[n] += operand.inner[b] / own.length / whole; });
      }
    }
    const current = new Set(operand.at && operand.steps ? this.slicesOf(operand.at[step]) : []);
    pen.clearRect(0, 0, 1e4, 1e4);
    for (let n = 0; n < this.slices; n++) {
      const [x, y] = at(n), full = Math.min(1, share[n]) * (cell - 2);
      pen.fillStyle = colours.void;
      pen.fillRect(x, y, cell - 2, cell - 2);
      pen.fillStyle = colours.done;
      pen.fillRect(x, y + cell - 2 - full, cell - 2, full);
      if (!current.has(n)) continue;
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2.5;
      pen.strokeRect(x + 0.5, y + 0.5, cell - 3, cell - 3);
    }
  }
}
