// One operand's picture: its array to scale, the block of this step, and, of an output, what is written by now.

const THIN = 26, EDGE = 30, HEAD = 20, FAR = 64; // pixels: thinnest array, room for the sizes, room beyond the array
// Blocks that are drawn one by one, slices that get a cell each, and a step that does not come.
const MANY = 3000, SLICES = 512, NEVER = 2 ** 31 - 1;

class Picture {
  constructor(operand, position, walk, scale, box) {
    Object.assign(this, { operand, position, walk });
    this.figure = make("figure");
    this.caption = make("figcaption");
    this.caption.append(make("span", "name mono", operand.name), " ",
      make("span", "type", `${ROLE[operand.role]} · ${operand.array}${operand.block_shape.length ? `, blocks of ${operand.block_shape.join("×")}` : ""}`));
    this.state = make("span", "state");
    this.caption.append(this.state);
    this.figure.append(this.caption);
    this.across = operand.drawn.at(-1);
    this.down = operand.drawn.length > 1 ? operand.drawn[0] : undefined;
    this.leading = operand.shape.map((_, axis) => axis).filter((axis) => !operand.drawn.includes(axis) && operand.shape[axis] > 1);
    this.measure(scale, box);
    this.depth = this.leading.length ? make("small") : null;
    if (this.depth) this.figure.append(this.depth);
    const slices = this.leading.reduce((n, axis) => n * operand.shape[axis], 1);
    this.stack = this.depth && slices <= SLICES ? new Stack(operand, this.leading) : null;
    if (this.stack) this.figure.append(this.stack.canvas);
    [this.canvas, this.pen, this.width, this.height] = sheet(this.left + this.w + this.right, this.top + this.h + this.bottom, "array");
    this.drawn = make("div", "drawn");
    this.drawn.append(this.canvas);
    this.figure.append(this.drawn);
    const notes = [this.thick && "drawn thicker than to scale", operand.note].filter(Boolean).join("; ");
    if (notes) this.figure.append(make("small", "", notes));
    this.values = walk.values?.steps.length && walk.values.shapes[position].every((n) => n > 0) ? new Values(walk.values, position) : null;
    if (this.values) this.drawn.append(this.values.box);
  }

  // Pixels of the array, the same scale for all operands, and of the room around it for blocks that reach out.
  measure(scale, box) {
    const { operand, across, down } = this;
    const cols = across === undefined ? 1 : operand.shape[across], rows = down === undefined ? 1 : operand.shape[down];
    const fit = (count, most) => Math.min(most, Math.max(THIN, count * scale));
    [this.w, this.h] = [fit(cols, box.width), fit(rows, box.height)];
    [this.x, this.y] = [this.w / Math.max(1, cols), this.h / Math.max(1, rows)];
    this.thick = Math.max(this.x, this.y) > 1.2 * Math.min(this.x, this.y) && operand.shape.length > 0;
    const reach = (axis, per) => (axis === undefined || !operand.at ? [0, 0] : beyond(operand, axis).map((n) => Math.min(FAR, n * per)));
    [this.left, this.right] = reach(across, this.x);
    [this.top, this.bottom] = reach(down, this.y);
    this.left += down === undefined ? 8 : EDGE + 8;
    this.right += 12;
    this.over = this.top;
    this.top += HEAD;
    this.bottom += 8;
  }

  // Pixels [x, y, w, h] of elements of the two drawn axes.
  place(block, inside) {
    const { operand, across, down } = this;
    const along = (axis, per, from) => {
      if (axis === undefined) return [from, per];
      let low = operand.start[axis][block], high = low + operand.size[axis][block];
      if (inside) [low, high] = [Math.max(0, low), Math.min(high, operand.shape[axis])];
      return [from + low * per, Math.max(0, high - low) * per];
    };
    const [x, w] = along(across, this.x, this.left), [y, h] = along(down, this.y, this.top);
    return [x, y, w, h];
  }

  // Does a block lie in the slice of the leading axes that is shown?
  shows(block, at) {
    const { start, size } = this.operand;
    return this.leading.every((axis) => start[axis][block] < at[axis] + 1 && at[axis] < start[axis][block] + size[axis][block]);
  }

  draw(step, colours) {
    const { operand } = this;
    this.slice = {};
    for (const axis of this.leading) {
      const first = operand.at ? operand.start[axis][operand.at[step]] : 0;
      this.slice[axis] = Math.max(0, Math.min(first, operand.shape[axis] - 1));
    }
    this.pen.clearRect(0, 0, this.width, this.height);
    this.ground(step, colours);
    if (operand.at && operand.steps) {
      if (operand.out) this.progress(step, colours);
      this.lines(colours);
      this.block(step, colours);
      this.badges(step, colours);
    }
    this.sizes(colours);
    this.stack?.draw(step, colours);
    this.tell(step);
    this.values?.draw(step, colours);
  }

  ground(step, colours) {
    const { pen, operand } = this, whole = [this.left, this.top, this.w, this.h];
    const changed = operand.role === "scratch" && operand.uses[step] & (WRITE | ADD | OTHER);
    pen.fillStyle = changed ? colours.now : operand.role === "prefetch" ? colours.kept : colours.void;
    pen.fillRect(...whole);
    if (operand.gaps) hatched(pen, whole, colours.wrong);
    pen.strokeStyle = colours.dim;
    pen.lineWidth = 1;
    pen.strokeRect(this.left - 0.5, this.top - 0.5, this.w + 1, this.h + 1);
    if (!operand.at && (operand.role === "in" || operand.role === "out")) glyph(pen, "?", this.left + this.w / 2, this.top + this.h / 2, 20, colours.dim);
  }

  progress(step, colours) {
    const { pen, operand } = this;
    if (operand.count > MANY) return this.fine(step, colours);
    for (let b = 0; b < operand.count; b++) {
      if (!operand.stored[b] || !this.shows(b, this.slice)) continue;
      const written = operand.done[b] >= 0 && operand.done[b] < step;
      if (!written && !operand.gaps) continue;
      const box = this.place(b, true);
      pen.fillStyle = written ? colours.done : colours.void;
      pen.fillRect(...box);
      const again = operand.twice && operand.again[b] >= 0 && operand.again[b] <= step;
      if (again && box[2] >= 24 && box[3] >= 12) glyph(pen, "2×", box[0] + box[2] / 2, box[1] + box[3] / 2, 14, colours.wrong);
    }
  }

  // The same for very many blocks, smaller than pixels: pixel by pixel, at which step it is first written.
  fine(step, colours) {
    const [wide, high] = [Math.ceil(this.w), Math.ceil(this.h)], key = JSON.stringify(this.slice);
    if (this.known !== key) [this.known, this.first] = [key, this.pixels(wide, high)];
    const layer = new OffscreenCanvas(wide, high), pen = layer.getContext("2d", { willReadFrequently: true });
    const picture = pen.createImageData(wide, high), cells = new Uint32Array(picture.data.buffer);
    const written = packed(pen, colours.done), open = this.operand.gaps ? packed(pen, colours.void) : 0;
    for (let i = 0; i < cells.length; i++) cells[i] = this.first[i] < step ? written : this.first[i] < NEVER ? open : 0;
    pen.putImageData(picture, 0, 0);
    this.pen.drawImage(layer, this.left, this.top, this.w, this.h);
  }

  pixels(wide, high) {
    const { operand, across, down } = this, first = new Int32Array(wide * high).fill(NEVER);
    const ends = (axis, b, count) => {
      if (axis === undefined) return [0, count];
      const per = count / operand.shape[axis], low = Math.max(0, operand.start[axis][b]);
      const from = Math.floor(low * per);
      return [from, Math.min(count, Math.max(from + 1, Math.floor((operand.start[axis][b] + operand.size[axis][b]) * per)))];
    };
    for (let b = 0; b < operand.count; b++) {
      if (!operand.stored[b] || !operand.inner[b] || !this.shows(b, this.slice)) continue;
      const [x0, x1] = ends(across, b, wide), [y0, y1] = ends(down, b, high);
      for (let y = y0; y < y1; y++) {
        for (let x = x0; x < x1; x++) first[y * wide + x] = Math.min(first[y * wide + x], operand.done[b]);
      }
    }
    return first;
  }

  // The cuts between blocks, where there is room for them.
  lines(colours) {
    const { pen, operand } = this;
    if (operand.count > MANY) return;
    pen.strokeStyle = colours.edge;
    pen.lineWidth = 1;
    for (let b = 0; b < operand.count; b++) {
      const [x, y, w, h] = this.place(b, true);
      if (w >= 4 && h >= 4 && this.shows(b, this.slice)) pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
  }

  badges(step, colours) {
    const { pen, operand } = this;
    this.walk.findings.forEach((finding, i) => {
      if (finding.operand !== operand.name || finding.step === null) return;
      const block = operand.at[finding.step];
      if (operand.outside(block) || !this.shows(block, this.slice)) return;
      const [x, y, w, h] = this.place(block, true);
      pen.strokeStyle = colours.wrong;
      pen.lineWidth = 2;
      pen.setLineDash([5, 3]);
      pen.strokeRect(x + 1, y + 1, Math.max(2, w - 2), Math.max(2, h - 2));
      pen.setLineDash([]);
      if (step !== finding.step) this.badge(i, x + w, y, colours);
    });
  }

  badge(i, x, y, colours) {
    const { pen } = this, at = [Math.min(x, this.width - 10), Math.max(y, 10)];
    pen.fillStyle = colours.wrong;
    pen.beginPath();
    pen.arc(...at, 9, 0, 7);
    pen.fill();
    glyph(pen, String(i + 1), at[0], at[1] + 0.5, 12, colours.paper);
  }

  block(step, colours) {
    const { pen, operand } = this, block = operand.at[step];
    if (operand.outside(block)) return this.astray(step, block, colours);
    const all = this.cut(this.place(block, false)), inner = this.place(block, true);
    pen.fillStyle = colours.paper;
    pen.fillRect(...all);
    hatched(pen, all, colours.hatch, 6);
    pen.fillStyle = operand.out ? colours.now : operand.entered(step) ? colours.moved : colours.kept;
    pen.fillRect(...inner);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2.5;
    pen.strokeRect(...all);
    const size = Math.min(24, inner[2] - 2, inner[3] - 2);
    const sign = !operand.moves ? "" : operand.out ? (operand.left(step) ? "↑" : "") : operand.entered(step) ? "↓" : "=";
    if (size >= 9 && sign) glyph(pen, sign, inner[0] + inner[2] / 2, inner[1] + inner[3] / 2, size, operand.out ? "#1c1b19" : operand.entered(step) ? colours.paper : colours.ink);
    const found = this.walk.findings.findIndex((f) => f.step === step && f.operand === operand.name);
    if (found >= 0) this.badge(found, inner[0] + inner[2], inner[1], colours);
  }

  // A block that the array does not have: in red beyond the edge, moved up to it where it is far away.
  astray(step, block, colours) {
    const { pen, operand } = this;
    let [x, y, w, h] = this.place(block, false);
    [w, h] = [Math.max(14, Math.min(w, this.w)), Math.max(14, Math.min(h, this.h))];
    x = Math.max(2, Math.min(x, this.width - w - 2));
    y = Math.max(2, Math.min(y, this.height - h - 2));
    const beside = this.leading.some((axis) => operand.start[axis][block] >= operand.shape[axis] || operand.start[axis][block] < 0);
    pen.fillStyle = colours.paper;
    pen.globalAlpha = 0.75;
    pen.fillRect(x, y, w, h);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.wrong;
    pen.lineWidth = 3;
    pen.setLineDash([6, 4]);
    pen.strokeRect(x + 1, y + 1, w - 2, h - 2);
    pen.setLineDash([]);
    glyph(pen, beside ? "✕ not here" : "✕", x + w / 2, y + h / 2, Math.min(20, w, h), colours.wrong);
    const found = this.walk.findings.findIndex((f) => f.operand === operand.name && f.step !== null);
    if (found >= 0) this.badge(found, x + w, y, colours);
  }

  // A block that reaches out further than there is room for.
  cut([x, y, w, h]) {
    const [left, top] = [Math.max(1, x), Math.max(1, y)];
    return [left, top, Math.max(5, Math.min(x + w, this.width - 2) - left), Math.max(5, Math.min(y + h, this.height - 2) - top)];
  }

  sizes(colours) {
    const { pen, operand, across, down } = this;
    pen.font = "12.5px system-ui, 'DejaVu Sans', sans-serif";
    pen.fillStyle = colours.dim;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    if (across !== undefined) pen.fillText(String(operand.shape[across]), this.left + this.w / 2, this.top - this.over - 6);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    if (down !== undefined) pen.fillText(String(operand.shape[down]), this.left - 5, this.top + this.h / 2);
  }

  // ---- the same in words ----

  tell(step) {
    const { operand, state } = this;
    if (this.depth) {
      const where = this.leading.map((axis) => {
        const from = operand.at ? operand.start[axis][operand.at[step]] : 0, many = operand.at ? operand.size[axis][operand.at[step]] : operand.shape[axis];
        return `axis ${axis}: ${many > 1 ? `${from} to ${from + many - 1}` : from} of ${operand.shape[axis]}`;
      }).join(", ");
      this.depth.textContent = `Drawn: axes ${operand.drawn.join(" and ")}. ${where[0].toUpperCase()}${where.slice(1)}`;
    }
    const words = this.words(step);
    state.replaceChildren(...(words.tag ? [make("b", `tag-${words.tag}`, words.verb)] : []), make("span", "block", words.rest),
      ...(words.verbs ? [make("span", "verbs", words.verbs)] : []));
    this.canvas.setAttribute("aria-label", [`${operand.name}, ${operand.array}: ${words.verb} ${words.rest}`, words.verbs].filter(Boolean).join(", "));
  }

  words(step) {
    const { operand } = this;
    if (operand.role === "prefetch") return { tag: "", verb: "", rest: "in fast memory from the first step on" };
    if (operand.role === "scratch" || !operand.at) return { tag: "", verb: "", rest: `the body: ${operand.verbs(step)}` };
    const block = `block ${operand.number(step)} = ${operand.slice(step)}`;
    if (operand.outside(operand.at[step])) return { tag: "wrong", verb: "outside the array", rest: block };
    if (!operand.moves) return { tag: "", verb: "", rest: `${block}, not copied by the pipeline` };
    const bytes = amount(operand.bytes(step)[0]);
    const missing = operand.padding(operand.at[step]);
    const more = missing ? `, ${missing.toLocaleString("en")} elements of padding` : "";
    if (!operand.out) {
      return operand.entered(step) ? { tag: "moved", verb: `↓ fetched, ${bytes}`, rest: block + more } : { tag: "kept", verb: "= re-used, 0 B", rest: block + more };
    }
    const verbs = `the body: ${operand.verbs(step)}`;
    return { tag: "now", verb: operand.left(step) ? `↑ written back after, ${bytes}` : "stays for the next step, 0 B", rest: block + more, verbs };
  }
}

const ROLE = { prefetch: "prefetched", in: "input", out: "output", scratch: "scratch" };

// How many elements blocks reach out of the array: before its first, and after its last.
function beyond(operand, axis) {
  let before = 0, after = 0;
  for (let b = 0; b < operand.count; b++) {
    before = Math.max(before, -operand.start[axis][b]);
    after = Math.max(after, operand.start[axis][b] + operand.size[axis][b] - operand.shape[axis]);
  }
  return [before, after];
}
