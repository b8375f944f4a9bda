// A drawing above a table of the same things: each row of the table is one mark of the drawing.
//
// The table is what keyboard, search and screen readers use; the drawing is what the eye uses. Marks are made by
// `mark`, which ties them to a row: pointing at one says what it is, a click selects it, a selection lights it.

const SVG = () => $("svg").namespaceURI;
const ZOOM = 1.25, FURTHEST = 1e6;

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG(), tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((c) => (c instanceof Node ? c : visible(c))));
  return made;
}

// Round numbers from low to high, about so many.
function ticks(low, high, about) {
  const raw = (high - low) / Math.max(1, about) || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= raw);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high * (1 + 1e-9); n++) found.push(n * step);
  return found;
}

function byteSize(n) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, n)) / 10)));
  const value = n / 1024 ** power;
  return `${power && value < 100 ? Number(value.toPrecision(3)) : Math.round(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

class PlotPane extends TablePane {
  constructor(key, title, hint, pick) {
    super(key, title, hint, 22);
    this.pick = pick;
    this.marks = new Map();  // row of the table -> its elements in the drawing
    this.span = [0, 1];  // what part of the width is shown
    this.body.classList.add("plotted");
    this.plot = make("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "group");
    this.plot.setAttribute("aria-label", `${title}, drawn; the table below says the same`);
    this.svg = drawn("svg", { role: "img", "aria-label": `${title}: ${hint}` });
    this.plot.append(this.svg);
    this.told = make("p", "told");
    this.body.prepend(this.plot, this.told);
    this.plot.addEventListener("pointerover", (event) => this.over(event));
    this.plot.addEventListener("pointerleave", () => this.tell());
    this.svg.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.redraw()).observe(this.plot);
  }

  // ---- one mark, one row ----------------------------------------------------------------------------------

  mark(i, element) {
    element.dataset.i = i;
    element.classList.add("mark");
    if (!this.marks.has(i)) this.marks.set(i, []);
    this.marks.get(i).push(element);
    return element;
  }

  row(event) {
    const at = event.target.dataset?.i;
    return at === undefined ? -1 : Number(at);
  }

  over(event) {
    const i = this.row(event);
    this.tell(i >= 0 ? this.says(i) : "");
  }

  click(event) {
    const i = this.row(event), target = i >= 0 && this.target(i);
    if (!target || this.dragged) return;
    this.list.cursor = i;
    this.list.reveal(i);
    this.pick(target, this);
  }

  tell(text = "") { this.told.replaceChildren(visible(text || this.usual || "")); }
  says(i) { return this.words(i); }

  light(found, origin, scroll) {
    super.light(found, origin, scroll);
    this.relight();
  }

  relight() {
    const some = this.lit.size > 0;
    for (const [i, elements] of this.marks) {
      for (const element of elements) {
        element.classList.toggle("lit", this.lit.has(i));
        element.classList.toggle("faded", some && !this.lit.has(i));
      }
    }
  }

  // ---- drawing --------------------------------------------------------------------------------------------

  redraw() {
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (width < 40 || height < 40) return;
    Object.assign(this, { width, height });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.marks.clear();
    this.svg.replaceChildren();
    this.paint();
    this.relight();
  }

  put(tag, attributes, ...children) {
    const made = drawn(tag, attributes, ...children);
    this.svg.append(made);
    return made;
  }

  label(x, y, text, name = "tick", anchor = "middle") {
    return this.put("text", { x, y, class: name, "text-anchor": anchor }, text);
  }

  // ---- zooming: wheel, drag, and + - 0 and arrows ------------------------------------------------------------

  zoomable() {
    this.plot.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.plot.getBoundingClientRect();
      const scale = box.width / this.width;  // the page may be enlarged
      const at = ((event.clientX - box.left) / scale - this.left) / (this.width - this.left - this.right);
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(Math.sign(event.deltaX || event.deltaY) / 10);
      else this.zoom(event.deltaY < 0 ? 1 / ZOOM : ZOOM, Math.min(1, Math.max(0, at)));
    }, { passive: false });
    this.plot.addEventListener("keydown", (event) => {
      const does = {
        "+": () => this.zoom(1 / ZOOM), "=": () => this.zoom(1 / ZOOM), "-": () => this.zoom(ZOOM), 0: () => this.show(0, 1),
        ArrowLeft: () => this.move(-0.1), ArrowRight: () => this.move(0.1),
      }[event.key];
      if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      does();
    });
    this.plot.addEventListener("pointerdown", (event) => { this.dragged = false; this.grip = [event.clientX, ...this.span]; });
    this.plot.addEventListener("pointermove", (event) => {
      if (!this.grip || !(event.buttons & 1)) return;
      const scale = this.plot.getBoundingClientRect().width / this.width;  // as for the wheel
      const by = (event.clientX - this.grip[0]) / scale / (this.width - this.left - this.right);
      if (Math.abs(event.clientX - this.grip[0]) < 4) return;
      this.dragged = true;
      const [, a, b] = this.grip, to = Math.min(1 - (b - a), Math.max(0, a - by * (b - a)));
      this.show(to, to + b - a);
    });
    const buttons = [["−", "Zoom out", () => this.zoom(ZOOM * ZOOM)], ["+", "Zoom in", () => this.zoom(1 / ZOOM / ZOOM)],
      ["whole", "Show all of it", () => this.show(0, 1)]];
    for (const [text, title, does] of buttons) {
      const button = make("button", "", text);
      button.title = `${title} (wheel, or + − 0 and arrows)`;
      button.setAttribute("aria-label", title);
      button.addEventListener("click", does);
      this.tools.append(button);
    }
  }

  zoom(by, at = 0.5) {
    const [a, b] = this.span, size = Math.min(1, Math.max(1 / FURTHEST, (b - a) * by));
    const begin = Math.min(1 - size, Math.max(0, a + (b - a - size) * at));
    this.show(begin, begin + size);
  }

  move(by) {
    const [a, b] = this.span, to = Math.min(1 - (b - a), Math.max(0, a + by * (b - a)));
    this.show(to, to + b - a);
  }

  show(a, b) {
    this.span = [a, b];
    this.redraw();
  }

  // Where a share of the whole width stands, in pixels.
  across(share) {
    const [a, b] = this.span;
    return this.left + ((share - a) / (b - a)) * (this.width - this.left - this.right);
  }
}
