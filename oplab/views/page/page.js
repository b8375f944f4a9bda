// The page: reads the data, puts up the panes, and follows the mouse, the keyboard and the address.

const VIEWS = [
  ["stages", "Stages", ["script", "jaxpr", "stablehlo", "hlo", "kernels", "time"]],
  ["fates", "Where did my operator go?", ["script", "jaxpr", "fates"]],
  ["passes", "Passes", ["script", "jaxpr", "passes"]],
  ["timeline", "Timeline", ["script", "hlo", "timeline"]],
  ["memory", "Memory", ["script", "hlo", "memory"]],
  ["roofline", "Roofline", ["script", "hlo", "roofline"]],
  ["summary", "Summary", ["script", "kernels", "summary"]],
];
const WELCOME = "Point at a line; click to keep it. Arrows move, / searches, Esc clears.";
const SIZES = [0.8, 1, 1.25, 1.5, 1.8];  // of the text, and of everything with it
const REST = 25;  // milliseconds under the mouse before a line is shown
const $ = (id) => document.getElementById(id);

async function main() {
  let data = JSON.parse($("data").textContent);
  if (typeof data === "string") data = await unpack(data);
  let code = null;
  const shown = new Promise((done) => {  // code is long: it waits until the first picture stands
    requestAnimationFrame(() => setTimeout(() => done(performance.mark("shown"))));
  });
  const page = new Page(data, () => (code ??= shown.then(() => unpack($("code").textContent))));
  page.start();
}

class Page {
  constructor(data, code) {
    this.data = data;
    this.links = new Links(data);
    this.pinned = null;
    this.hovered = null;
    this.hidden = new Set();
    const pick = (stage, row) => this.pin([stage, row]);
    const choose = (target, pane) => this.pin(target, pane);
    this.panes = [
      new TextPane("script", "Script", "the lines of Python that were reached", data),
      new TextPane("jaxpr", "Jaxpr", "what tracing kept", data),
      new TextPane("stablehlo", "StableHLO", "what the compiler is given", data),
      new TextPane("hlo", "Optimised HLO", "what the compiler made of it", data),
      new KernelPane(data, code, pick), new TimePane(data),
      new TimelinePane(data, choose), new MemoryPane(data, choose), new RooflinePane(data, choose),
      new FatesPane(data, (n) => this.goPass(n), (name) => this.pinName(name)),
      new DiffPane(data, code), new SummaryPane(data),
    ];
    this.pane = Object.fromEntries(this.panes.map((pane) => [pane.key, pane]));
  }

  start() {
    for (const id of ["coverage", "sizes", "search", "bar", "panes", "status"]) $(id).hidden = false;
    document.body.classList.add("ready");
    this.coverage();
    $("panes").append(...this.panes.map((pane) => pane.box));
    $("tabs").append(...VIEWS.map(([key, title]) => this.tab(key, title)));
    this.panes.forEach((pane) => this.listen(pane));
    this.panes.forEach((pane) => this.swapper(pane));
    this.search = new Search(this);
    $("smaller").addEventListener("click", () => this.resize(-1));
    $("larger").addEventListener("click", () => this.resize(1));
    this.legend();
    document.addEventListener("keydown", (event) => this.key(event));
    // Not the window's resize event: JupyterLab first lays a frame out without a size, and then none comes.
    new ResizeObserver(() => this.layout()).observe(document.documentElement);
    window.addEventListener("hashchange", () => this.follow());
    this.size = SIZES.indexOf(window.innerWidth >= 1800 && window.innerHeight >= 900 ? 1.25 : 1);
    this.view("stages");
    this.resize(0);
    for (const pane of this.panes) if (pane.begin) pane.begin();
    this.follow();
    this.apply(null);
  }

  coverage() {
    const [exact, inferred, own] = this.data.coverage, all = exact + inferred + own;
    if (!all) return;
    const parts = [[exact, "exact", "linked exactly"], [inferred, "inferred", "inferred"],
      [own, "compiler", "the compiler's own"]].filter(([n]) => n);
    const bar = make("span", "cover", ...parts.map(([, name]) => make("i", name)));
    parts.forEach(([n], at) => { bar.children[at].style.flexGrow = n; });
    bar.setAttribute("aria-hidden", "true");
    const words = parts.map(([n, , name]) => `${percent(n / all)} ${name}`).join(", ");
    const long = make("span", "long", `${all.toLocaleString("en")} computing instruction${all > 1 ? "s" : ""}:`);
    $("coverage").append(bar, long, make("span", "", words));
    $("coverage").title = "Of the optimised instructions that do work (no parameters, constants, tuples, bitcasts): "
      + "how sure it is which of your equations they come from.";
  }

  legend() {
    const item = (name, mark, text) => make("span", `key ${name}`, make("i", "", mark), text);
    $("legend").append(item("exact", "", "exact"), item("inferred", "≈", "inferred"),
      item("compiler", "∅", "the compiler's own"), item("inside", "", "inside or around"));
  }

  // ---- views and panes -----------------------------------------------------------------------------------

  tab(key, title) {
    const tab = make("button", "", title);
    tab.id = `tab-${key}`;
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => this.view(key));
    return tab;
  }

  view(key) {
    this.current = VIEWS.find(([name]) => name === key) || VIEWS[0];
    for (const [name] of VIEWS) {
      $(`tab-${name}`).setAttribute("aria-selected", String(name === this.current[0]));
      $(`tab-${name}`).tabIndex = name === this.current[0] ? 0 : -1;
    }
    this.enlarged = "";
    $("toggles").replaceChildren(...this.current[2].map((name) => {
      const button = make("button", "", this.pane[name].title);
      button.title = "Show or hide this pane";
      button.addEventListener("click", () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        this.enlarged = "";
        this.layout();
      });
      button.dataset.pane = name;
      return button;
    }));
    if (this.current[2].includes("passes")) this.pane.passes.open();
    this.layout();
    this.apply(null);
  }

  // Among the stages any pane may make room for another: the passes in place of the StableHLO, say.
  swapper(pane) {
    const choice = make("select", "swap");
    choice.setAttribute("aria-label", `Show another pane in place of ${pane.title}`);
    choice.title = "Show another pane here";
    const option = (text, value) => Object.assign(make("option", "", text), { value, hidden: !value });
    choice.append(option("⇄", ""), ...this.panes.map((other) => option(other.title, other.key)));
    choice.addEventListener("change", () => {
      const to = choice.value, names = this.current[2], here = names.indexOf(pane.key), there = names.indexOf(to);
      choice.value = "";
      if (here === there) return;
      if (there >= 0) names[there] = pane.key;  // both are shown: they change places
      names[here] = to;
      this.hidden.delete(to);
      this.view(this.current[0]);
      this.pane[to].bar.querySelector(".swap").focus();
    });
    pane.bar.insertBefore(choice, pane.wide);
  }

  get open() {
    const shown = this.current[2].filter((name) => !this.hidden.has(name));
    return this.enlarged ? [this.enlarged] : shown.length ? shown : [this.current[2].at(-1)];
  }

  layout() {
    const open = this.open, main = $("panes");
    for (const pane of this.panes) {
      pane.box.hidden = !open.includes(pane.key);
      pane.box.style.order = this.current[2].indexOf(pane.key);
    }
    for (const button of $("toggles").children) {
      button.setAttribute("aria-pressed", String(!this.hidden.has(button.dataset.pane)));
    }
    const room = window.innerWidth / SIZES[this.size], n = open.length;
    const columns = Math.min(room / n >= 380 || n < 3 ? n : Math.ceil(n / 2), Math.max(1, Math.floor(room / 290)));
    main.className = `${this.current[0]} ${room < 580 ? "narrow" : ""} n${n}`;
    main.style.setProperty("--columns", columns);
    for (const pane of this.panes) if (!pane.box.hidden) pane.list.later();
  }

  // Larger text for those at the back, smaller for long lines; a large screen begins one step up.
  resize(by) {
    this.size = Math.max(0, Math.min(SIZES.length - 1, this.size + by));
    $("smaller").disabled = !this.size;
    $("larger").disabled = this.size === SIZES.length - 1;
    document.documentElement.style.setProperty("--size", SIZES[this.size]);
    this.layout();
  }

  goPass(n) {
    this.view("passes");
    this.pane.passes.go(n);
  }

  // ---- the selection -------------------------------------------------------------------------------------

  listen(pane) {
    const at = (event) => {
      const line = event.target.closest?.(".line");
      return line && pane.view.contains(line) ? pane.target(Number(line.dataset.i)) : null;
    };
    pane.view.addEventListener("pointerover", (event) => this.hover(at(event), pane));
    pane.view.addEventListener("pointerleave", () => this.hover(null, pane));
    pane.view.addEventListener("click", (event) => {
      const target = at(event), line = event.target.closest(".line");
      if (!target || String(getSelection())) return;
      const same = this.pinned && this.pinned[0] === target[0] && this.pinned[1] === target[1];
      pane.list.cursor = line && !same ? Number(line.dataset.i) : -1;
      this.pin(same ? null : target, pane);
    });
    pane.wide.addEventListener("click", () => {
      this.enlarged = this.enlarged === pane.key ? "" : pane.key;
      this.layout();
      pane.list.paint();
    });
  }

  // Under the mouse: shown after a moment's rest, so that a passing mouse moves nothing. A pinned line stays.
  hover(target, pane) {
    clearTimeout(this.resting);
    if (this.pinned) return;
    this.resting = setTimeout(() => {
      this.hovered = target;
      this.apply(pane);
    }, target ? REST : 200);
  }

  pin(target, pane = null) {
    clearTimeout(this.resting);
    this.pinned = target;
    this.hovered = null;
    if (!target) for (const p of this.panes) p.list.cursor = -1;
    try {
      history.replaceState(null, "", target ? `#${encodeURIComponent(this.links.name(...target))}` : "#");
    } catch { /* a sandboxed frame has no address of its own */ }
    this.apply(pane);
  }

  pinName(name) {
    const target = this.links.find(name) || this.links.find(`kernels:${name}`) || this.links.find(`hlo:${name}`);
    if (target) this.pin(target);
  }

  apply(from) {
    const origin = this.pinned || this.hovered;
    const found = origin && this.links.relatives(...origin);
    for (const pane of this.panes) if (!pane.box.hidden) pane.light(found, origin, origin && pane !== from);
    document.body.classList.toggle("pinned", Boolean(this.pinned));
    this.say(origin);
  }

  // One sentence on the line that is selected.
  say(origin) {
    const said = $("said");
    if (!origin) return said.replaceChildren(WELCOME);
    said.replaceChildren(make("b", "", this.links.rows[origin[0]][origin[1]].label), visible(` ${sentence(this.data, ...origin)}`));
    said.title = said.textContent;
    if (this.pinned) said.append(make("span", "dim", "   (kept; Esc clears)"));
  }

  // ---- keyboard and address ------------------------------------------------------------------------------

  key(event) {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      this.search.clear();
      this.pin(null);
      return document.activeElement.blur();
    }
    if (typing) return;
    if (event.key === "+" || event.key === "=" || event.key === "-") return this.resize(event.key === "-" ? -1 : 1);
    if (event.key === "/") {
      event.preventDefault();
      return $("query").focus();
    }
    if (event.target.getAttribute?.("role") === "tab") return this.turn(event);
    if (event.target.tagName === "BUTTON") return;
    const pane = this.panes.find((p) => p.view === event.target) || this.pane[this.open[0]];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], aside = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step && !aside) return;
    event.preventDefault();
    if (step) this.step(pane, step);
    else this.aside(pane, aside);
  }

  turn(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = VIEWS.findIndex(([name]) => name === this.current[0]);
    const [name] = VIEWS[(at + step + VIEWS.length) % VIEWS.length];
    this.view(name);
    $(`tab-${name}`).focus();
  }

  // The next line of this pane that is linked.
  step(pane, by) {
    pane.view.focus({ preventScroll: true });
    const here = pane.list.cursor >= 0 ? pane.list.cursor : by > 0 ? -1 : pane.size;
    const row = String(here >= 0 && pane.target(here));
    for (let i = here + by; i >= 0 && i < pane.size; i += by) {
      if (pane.target(i) && String(pane.target(i)) !== row) return this.point(pane, i);
    }
    if (!pane.size || !pane.target(0)) pane.view.scrollBy(0, by * 18);
  }

  // The pane beside this one, at the selected line's relative.
  aside(pane, by) {
    const open = this.open, next = this.pane[open[(open.indexOf(pane.key) + by + open.length) % open.length]];
    next.view.focus({ preventScroll: true });
    const lit = [...next.lit].sort((a, b) => a[1] - b[1] || a[0] - b[0])[0];
    if (lit) this.point(next, lit[0]);
  }

  point(pane, i) {
    for (const p of this.panes) p.list.cursor = -1;
    pane.list.point(i);
    this.pin(pane.target(i), pane);
  }

  // The address: #e3 or #hlo:fusion.2 selects, #view=fates opens a view; both with & between.
  follow() {
    let hash = "";
    try { hash = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    for (const part of hash.split("&")) {
      if (part.startsWith("view=")) this.view(part.slice(5));
      else if (part && this.links.find(part)) this.pin(this.links.find(part));
    }
  }
}

main();
