// A long list of lines of one height, of which only those in view are in the document.

const ALL_AT_ONCE = 400;  // up to here every line is drawn, so that the browser's own search finds it too
const MARGIN = 12;  // lines drawn above and below the view
const LONGEST = 3000;  // characters of a line that are shown
// Characters that a reader cannot see or that move others around, and halves of characters.
const HIDDEN = new RegExp("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
  + "\\ufeff\\ufff9-\\ufffb]|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]", "g");

// Text with its hidden characters spelt out, as in Python's `visible`; cut where it is longer than anyone reads.
function visible(text) {
  text = String(text);
  if (text.length > LONGEST) text = `${text.slice(0, LONGEST)}…`;
  return text.replace(HIDDEN, (c) => `[U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
}

// An element with a class, children, and properties. Text is always text here.
function make(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children.map((c) => (c instanceof Node ? c : visible(c))));
  return made;
}

class List {
  // view: the element that scrolls. draw(i, line) fills a line; look(i) gives its classes.
  // Where the view stands (`top`) and how tall it is are remembered: to ask the browser in the middle of a change
  // would make it lay out everything anew, once for each pane.
  constructor(view, height, draw, look) {
    Object.assign(this, { view, height, draw, look, count: 0, drawn: new Map(), cursor: -1, first: -1, top: 0, tall: 0 });
    this.sheet = make("div", "sheet");
    this.sheet.setAttribute("role", "none");
    this.ruler = make("div", "ruler");
    this.ruler.setAttribute("aria-hidden", "true");
    view.replaceChildren(this.sheet);
    view.after(this.ruler);
    view.addEventListener("scroll", () => { this.top = view.scrollTop; this.later(); });
    new ResizeObserver(() => this.measure()).observe(view);
    this.ruler.addEventListener("click", (event) => {
      const at = (event.clientY - this.ruler.getBoundingClientRect().top) / this.ruler.clientHeight;
      this.scroll(at * this.count * this.height - this.tall / 2);
    });
  }

  measure() {
    this.tall = this.view.clientHeight;
    this.top = this.view.scrollTop;
    const bar = this.head && this.head.clientWidth - this.view.clientWidth;  // the scroll bar's width
    if (this.head) this.head.style.paddingRight = `${bar + 4}px`;
    this.later();
  }

  scroll(top) {
    this.top = Math.max(0, Math.min(top, this.count * this.height - this.tall));
    if (!List.due.size) queueMicrotask(List.settle);
    List.due.add(this);
  }

  // All panes scroll together, after all of them have changed: so the page is laid out once, not once for each.
  static due = new Set();
  static settle() {
    for (const list of List.due) list.view.scrollTop = list.top;
    List.due.clear();
  }

  // New contents: so many lines, the longest of so many characters.
  fill(count, width = 0) {
    this.count = count;
    this.drawn.clear();
    this.sheet.replaceChildren();
    this.sheet.style.height = `${count * this.height}px`;
    this.sheet.style.minWidth = width ? `calc(${Math.min(width, LONGEST) + 2}ch + 4.5em)` : "";
    this.paint();
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
  }

  // Where to begin; at once, or, in a frame or pane that has no size yet, as soon as it has one.
  begin(i) {
    this.first = i;
    this.paint();
  }

  paint() {
    if (this.first >= 0 && this.tall) {
      this.scroll(this.first * this.height);
      this.first = -1;
    }
    const top = Math.floor(this.top / this.height);
    const all = this.count <= ALL_AT_ONCE;
    const first = all ? 0 : Math.max(0, top - MARGIN);
    const shown = Math.ceil(this.tall / this.height);
    const last = all ? this.count : Math.min(this.count, top + shown + MARGIN);
    for (const [i, line] of this.drawn) if (i < first || i >= last) { line.remove(); this.drawn.delete(i); }
    const fresh = [];
    for (let i = first; i < last; i++) if (!this.drawn.has(i)) fresh.push(this.line(i));
    this.sheet.append(...fresh);
  }

  line(i) {
    const line = make("div", `line ${this.look(i)}`);
    line.dataset.i = i;
    line.style.top = `${i * this.height}px`;
    line.id = `${this.view.id}-${i}`;
    if (this.view.getAttribute("role") === "grid") {  // its cells may hold buttons
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", i + 1);
    } else {
      line.setAttribute("role", "option");
      line.setAttribute("aria-setsize", this.count);
      line.setAttribute("aria-posinset", i + 1);
    }
    this.draw(i, line);
    this.drawn.set(i, line);
    return line;
  }

  // The classes again, after the selection changed.
  restyle() {
    for (const [i, line] of this.drawn) {
      const look = `line ${this.look(i)}`;
      if (line.className !== look) line.className = look;
      line.setAttribute("aria-selected", look.includes(" lit"));
    }
  }

  inView(i) {
    const top = i * this.height - this.top;
    return top >= 0 && top + this.height <= this.tall;
  }

  reveal(i) {
    this.first = -1;
    if (!this.tall) this.measure();  // this pane has only just been shown
    if (this.inView(i)) return;
    this.scroll(i * this.height - this.tall / 3);
    this.paint();
  }

  point(i) {
    this.cursor = i;
    if (i < 0) return this.view.removeAttribute("aria-activedescendant");
    this.reveal(i);
    this.view.setAttribute("aria-activedescendant", `${this.view.id}-${i}`);
  }

  // Ticks beside the scroll bar, where lit lines are: at most so many as can be told apart.
  mark(lines) {
    const ticks = new Map();
    for (const [i, name] of lines) {
      const at = Math.round((i / Math.max(1, this.count)) * 150);
      if (!ticks.has(at) || name !== "inside") ticks.set(at, name);
    }
    const long = this.count * this.height > this.tall;
    this.ruler.replaceChildren(...(long ? [...ticks] : []).map(([at, name]) => {
      const tick = make("i", name);
      tick.style.top = `${at / 1.5}%`;
      return tick;
    }));
  }
}

// The colours of one line: pieces of text with a class, by a table of patterns.
class Painter {
  constructor(patterns) {
    this.names = patterns.map(([name]) => name);
    this.pattern = new RegExp(patterns.map(([, p]) => `(${p})`).join("|"), "g");
  }

  pieces(text) {
    const pieces = [];
    let end = 0;
    for (const found of text.matchAll(this.pattern)) {
      const name = this.names[found.slice(1).findIndex((group) => group !== undefined)];
      if (!name || !found[0]) continue;
      if (found.index > end) pieces.push(["", text.slice(end, found.index)]);
      pieces.push([name, found[0]]);
      end = found.index + found[0].length;
    }
    if (end < text.length) pieces.push(["", text.slice(end)]);
    return pieces;
  }
}

function pour(line, pieces) {
  for (const [name, text] of pieces) line.append(name ? make("span", `s-${name}`, text) : visible(text));
}
