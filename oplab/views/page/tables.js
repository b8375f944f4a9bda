// The panes that are tables of kernels: time and summary; and what all tables share.

const DASH = "–";

function few(list, most = 4) {
  return list.slice(0, most).join(", ") + (list.length > most ? ` +${list.length - most}` : "");
}

// "demo.py:9, 10, 12": each file is named once.
function places(lines, most = 6) {
  const files = new Map();
  for (const place of lines) {
    const cut = place.lastIndexOf(":");
    const file = place.slice(place.lastIndexOf("/") + 1, cut);
    files.set(file, [...(files.get(file) || []), Number(place.slice(cut + 1))]);
  }
  return [...files].map(([file, numbers]) => `${file}:${few(numbers.sort((a, b) => a - b), most)}`).join(", ");
}

// An instruction's name in a cell: when it is cut, its number at the end stays.
function instruction(name, ...more) {
  const cut = name.lastIndexOf(".") > 0 ? name.lastIndexOf(".") : name.length;
  const parts = [make("span", "front", name.slice(0, cut)), make("span", "", name.slice(cut))];
  const cell = make("span", "cell name", ...parts, ...more);
  cell.title = visible(name);
  return cell;
}

function micros(value) {
  if (value === null || value === undefined) return DASH;
  if (value >= 9995) return `${(value / 1e3).toFixed(value >= 99950 ? 0 : 1)} ms`;
  return `${value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} µs`;
}

function percent(share) {
  if (share === null || share === undefined) return DASH;
  if (share > 0 && share < 0.0005) return "<0.1%";
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
}

function amount(value) {
  if (value === null || value === undefined) return DASH;
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return power ? `${(value / 1000 ** power).toPrecision(3)} ${" kMGT"[power]}` : String(value);
}

class TablePane extends Pane {
  constructor(key, title, hint, height = 24) {
    super(key, title, hint);
    this.head = make("div", "head");
    this.body.prepend(this.head);
    this.view.setAttribute("role", "grid");
    this.list = new List(this.view, height, (i, line) => this.draw(i, line), (i) => this.look(i));
    this.list.head = this.head;
    this.order = [];
  }

  columns(...names) { this.head.append(...names.map((name) => make("span", "cell", name))); }

  arrange(order) {
    this.order = order;
    this.place = new Map(order.map((row, i) => [row, i]));
    this.list.fill(order.length);
  }

  target(i) { return i < this.order.length ? [this.stage, this.order[i]] : null; }
  lines(stage, row) { return stage === this.stage && this.place.has(row) ? [this.place.get(row)] : []; }
  cells(line, ...cells) {
    line.append(...cells.map((c) => (c instanceof Node ? c : make("span", "cell", c))));
    for (const cell of line.children) cell.setAttribute("role", "gridcell");
  }
}

// One bar per kernel. A kernel's time is never shared out among its operators: the bar carries all their colours.
class TimePane extends TablePane {
  constructor(data) {
    super("time", "Time", "kernels and how long each was busy in one call");
    Object.assign(this, { stage: "kernels", rows: data.rows.kernels, colours: data.colours });
    const end = (row) => (row.median_us || 0) + (row.spread_us || 0) / 2;
    this.most = this.rows.reduce((most, row) => Math.max(most, end(row)), 1e-9);
    this.sort = make("button", "sort", "longest first");
    this.sort.setAttribute("aria-pressed", "false");
    this.sort.addEventListener("click", () => this.sorted(this.sort.getAttribute("aria-pressed") !== "true"));
    if (data.executed) this.tools.append(this.sort);
    this.columns("kernel, in order", "median", "", "spread", "share");
    const missing = "Not executed: call walk.execute(), then show or save the walk again.";
    this.foot = make("p", "foot", data.executed ? data.measured.replace(/ us\b/, " µs") : missing);
    this.body.append(this.foot);
    this.box.classList.toggle("unmeasured", !data.executed);
    const shown = [...new Set(this.rows.flatMap((row) => row.operators))];
    for (const name of shown) this.foot.append(make("span", "of", this.swatch(name), name));
    if (this.rows.some((row) => row.library)) this.foot.append(make("span", "of", " · hatched: done by a library"));
    this.sorted(false);
  }

  swatch(name) {
    const chip = make("i", "swatch");
    chip.style.background = this.colours[name] || this.colours.other;
    return chip;
  }

  sorted(longest) {
    this.sort.setAttribute("aria-pressed", String(longest));
    const order = this.rows.map((_, r) => r), time = (r) => this.rows[r].median_us || 0;
    if (longest) order.sort((a, b) => time(b) - time(a) || a - b);
    this.arrange(order);
  }

  words(i) { return `${this.rows[this.order[i]].label} ${this.rows[this.order[i]].library}`; }

  draw(i, line) {
    const row = this.rows[this.order[i]];
    const name = instruction(row.label, make("small", "", row.library || ""));
    const bar = make("span", `fill${row.library ? " library" : ""}`);
    bar.style.width = `${(100 * (row.median_us || 0)) / this.most}%`;
    const bands = row.operators.map((o) => this.colours[o] || this.colours.other);
    bar.style.backgroundColor = bands[0];
    const stripes = bands.map((c, n) => `${c} ${(100 * n) / bands.length}% ${(100 * (n + 1)) / bands.length}%`);
    bar.style.backgroundImage = (row.library ? "var(--hatch), " : "") + `linear-gradient(to bottom, ${stripes})`;
    const track = make("span", "cell track", ...(row.median_us ? [bar] : []));
    if (row.spread_us > 0.01 * this.most) {
      const whisker = make("i", "whisker");
      whisker.style.left = `${Math.max(0, (100 * (row.median_us - row.spread_us / 2)) / this.most)}%`;
      whisker.style.width = `${(100 * Math.min(row.spread_us, row.median_us + row.spread_us / 2)) / this.most}%`;
      track.append(whisker);
    }
    this.cells(line, name, track, make("span", "cell number", micros(row.median_us)),
      make("span", "cell number", micros(row.spread_us)), make("span", "cell number", percent(row.share)));
  }
}

// The whole table, one row per kernel; a column's name sorts by it.
class SummaryPane extends TablePane {
  constructor(data) {
    super("summary", "Summary", "one row per kernel, with its lines and what it costs");
    Object.assign(this, { stage: "kernels", rows: data.rows.kernels });
    const ids = (row) => row.equations.concat(row.more).map((e) => data.equations[e].id);
    // name, text of a cell, what to sort by (numbers downwards)
    this.fields = [
      ["kernel", (r) => r.label, null], ["done by", (r) => r.library || "XLA", (r) => r.library],
      ["lines", (r) => places(r.lines), (r) => r.lines[0] || ""], ["equations", (r) => few(ids(r)), null],
      ["FLOPs", (r) => amount(r.flops), (r) => -r.flops], ["bytes", (r) => amount(r.bytes), (r) => -r.bytes],
      ["runs", (r) => String(r.runs ?? DASH), (r) => -r.runs],
      ["median", (r) => micros(r.median_us), (r) => -r.median_us],
      ["spread", (r) => micros(r.spread_us), (r) => -r.spread_us], ["share", (r) => percent(r.share), (r) => -r.share],
    ];
    this.head.append(...this.fields.map(([name, , by]) => {
      if (name === "equations") return make("span", "cell", name);
      const button = make("button", "cell", name);
      button.title = by ? `Sort by ${name}` : "In the order in which they run";
      button.addEventListener("click", () => this.sorted(by));
      return button;
    }));
    this.body.append(make("p", "foot", "FLOPs and bytes of one call, loops included. Median and spread (the middle half "
      + "of the runs) of the time the kernel was busy. A kernel's time is never shared out among its equations."));
    this.sorted(null);
  }

  sorted(by) {
    const order = this.rows.map((_, r) => r);
    const value = (r) => by(this.rows[r]);
    if (by) order.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a - b));
    this.arrange(order);
  }

  words(i) {
    const row = this.rows[this.order[i]];
    return `${row.label} ${row.library} ${row.lines.join(" ")}`;
  }

  draw(i, line) {
    const row = this.rows[this.order[i]];
    this.cells(line, instruction(row.label), ...this.fields.slice(1).map(([, text], at) => {
      const n = at + 1, cell = make("span", `cell${n > 3 ? " number" : ""}`, text(row));
      if (n < 4) cell.title = cell.textContent;
      return cell;
    }));
  }
}
