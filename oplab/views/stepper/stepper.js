// The page: one kernel at a time, one step at a time, by slider, keys, a clock, or a click on a finding.

const $ = (id) => document.getElementById(id);

class Stepper {
  constructor(data) {
    this.kernels = data.kernels;
    this.timer = null;
    const options = this.kernels.map((kernel, i) => {
      const option = make("option", "", `${kernel.id}: ${kernel.name}`);
      option.value = i;
      return option;
    });
    $("kernels").append(...options);
    $("choice").hidden = this.kernels.length < 2;
    $("kernels").addEventListener("change", () => this.open(Number($("kernels").value)));
    $("slider").addEventListener("input", () => this.go(Number($("slider").value)));
    for (const [id, by] of [["back", -1], ["next", 1]]) $(id).addEventListener("click", () => this.go(this.at + by));
    $("first").addEventListener("click", () => this.go(0));
    $("last").addEventListener("click", () => this.go(this.walk.steps - 1));
    $("play").addEventListener("click", () => this.play(!this.timer));
    $("speed").addEventListener("change", () => this.timer && this.play(true));
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.lay());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    const [id, step] = decodeURIComponent(location.hash.slice(1)).split(":");
    this.open(Math.max(0, this.kernels.findIndex((kernel) => kernel.id === id)), Number(step) || 0);
  }

  open(number, step = 0) {
    this.play(false);
    const walk = this.walk = new Walk(this.kernels[number]);
    $("kernels").value = number;
    $("name").textContent = walk.name;
    const size = walk.grid.length ? `grid ${walk.grid.join(" × ")}${walk.grid.length > 1 ? " =" : ":"} ${walk.steps.toLocaleString("en")} step${walk.steps === 1 ? "" : "s"}` : "no grid";
    $("facts").textContent = [size, walk.signature, walk.semantics.join(", "), walk.where].filter(Boolean).join(" · ");
    const drawn = walk.steps > 0;
    for (const part of ["controls", "legend"]) $(part).hidden = !drawn;
    $("main").hidden = !walk.operands.length;
    $("said").hidden = false;
    $("said").className = "";
    $("said").textContent = walk.note;
    this.text("source", walk.source);
    this.text("body", walk.body);
    $("slider").max = Math.max(0, walk.steps - 1);
    this.mapped();
    this.found();
    this.marks();
    this.sliders();
    this.legend();
    this.at = Math.min(step, Math.max(0, walk.steps - 1));
    this.lay();
  }

  text(id, words) {
    $(id).hidden = !words;
    $(id).querySelector("pre").textContent = words;
  }

  mapped() {
    const rows = this.walk.operands.filter((o) => o.map);
    $("maps").hidden = !rows.length;
    $("maps").querySelector("dl").replaceChildren(...rows.flatMap((o) => [make("dt", "mono", o.name), make("dd", "", o.map)]));
  }

  found() {
    const { findings } = this.walk, list = make("ol");
    list.append(...findings.map((finding, i) => {
      const item = make("li"), button = make("button", "", `${i + 1}. ${finding.detail}`);
      button.type = "button";
      const title = make("b", "", `${finding.finding}${finding.step === null ? "" : `, step ${finding.step}`}`);
      button.prepend(title, make("br"));
      button.addEventListener("click", () => this.go(finding.step ?? this.walk.steps - 1));
      item.append(button);
      return item;
    }));
    const none = this.walk.operands.length ? "Nothing was found wrong." : "";
    $("findings").replaceChildren(make("h2", "", findings.length ? `Found without running it: ${findings.length}` : "Findings"),
      findings.length ? list : make("p", "", none));
    if (this.walk.values?.note) $("findings").append(make("h2", "", "Values"), make("p", "", this.walk.values.note));
  }

  // Where the findings are, as red marks under the slider.
  marks() {
    const steps = [...new Set(this.walk.findings.map((f) => f.step).filter((s) => s !== null))];
    $("marks").replaceChildren(...steps.map((step) => {
      const mark = make("i");
      mark.style.left = `${100 * step / Math.max(1, this.walk.steps - 1)}%`;
      return mark;
    }));
  }

  sliders() {
    const { grid, axes } = this.walk;
    this.inputs = [];
    $("axes").hidden = grid.length < 2;
    $("axes").replaceChildren(...grid.map((size, axis) => {
      const label = make("label"), input = make("input"), shown = make("output");
      Object.assign(input, { type: "range", min: 0, max: Math.max(0, size - 1), disabled: size < 2 });
      input.setAttribute("aria-label", `program id of axis ${axis}, ${axes[axis]}`);
      input.addEventListener("input", () => {
        const program = this.walk.program(this.at);
        program[axis] = Number(input.value);
        this.go(this.walk.step(program));
      });
      this.inputs.push([input, shown, size]);
      label.append(make("b", "", axes[axis]), input, shown);
      return label;
    }));
  }

  legend() {
    const colours = palette(), outs = this.walk.operands.some((o) => o.out);
    const key = (paint, words) => {
      const [canvas, pen] = sheet(26, 16), item = make("span");
      canvas.setAttribute("aria-hidden", "true");
      paint(pen);
      item.append(canvas, words);
      return item;
    };
    const block = (fill, sign, ink) => (pen) => {
      pen.fillStyle = fill;
      pen.fillRect(2, 1, 22, 14);
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(2, 1, 22, 14);
      if (sign) glyph(pen, sign, 13, 8, 12, ink);
    };
    const items = [key(block(colours.moved, "↓", colours.paper), "fetched for this step"),
      key(block(colours.kept, "=", colours.ink), "re-used, nothing moves")];
    if (outs) {
      items.push(key(block(colours.now, "", ""), "output in fast memory"), key(block(colours.now, "↑", "#1c1b19"), "written back after this step"),
        key((pen) => { pen.fillStyle = colours.done; pen.fillRect(1, 0, 24, 16); }, "written back before"));
    }
    if (this.walk.ragged) items.push(key((pen) => hatched(pen, [1, 0, 24, 16], colours.hatch, 6), "padding beyond the array"));
    if (this.walk.findings.length) {
      items.push(key((pen) => { pen.setLineDash([5, 3]); pen.strokeStyle = colours.wrong; pen.lineWidth = 2.5; pen.strokeRect(3, 2, 20, 12); }, "a finding"));
      if (this.walk.operands.some((o) => o.gaps)) items.push(key((pen) => hatched(pen, [1, 0, 24, 16], colours.wrong), "never written"));
    }
    $("legend").replaceChildren(...items);
  }

  // Pictures as large as the window allows, all to one scale.
  lay() {
    const { walk } = this, panel = $("pictures").clientWidth || 800;
    const shown = walk.operands.filter((o) => o.at).concat(walk.operands.filter((o) => !o.at));
    const few = shown.length <= 4, tall = $("pictures").clientHeight || 420;
    const box = { width: Math.max(160, few ? Math.min(460, panel / 2 - 90) : 220), height: Math.max(120, Math.min(shown.length <= 2 ? 330 : few ? 205 : 150, tall - 110)) };
    const fits = shown.map((o) => Math.min(box.width / Math.max(1, o.shape[o.drawn.at(-1)] ?? 1), box.height / Math.max(1, o.drawn.length > 1 ? o.shape[o.drawn[0]] : 1)));
    const scale = Math.min(...fits, 24);
    this.pictures = shown.map((o) => new Picture(o, walk.operands.indexOf(o), walk, scale, box));
    $("pictures").replaceChildren(...this.pictures.map((picture) => picture.figure));
    this.draw();
  }

  go(step) {
    if (!this.walk.steps) return;
    const next = Math.max(0, Math.min(step, this.walk.steps - 1));
    if (next === this.at) return;
    this.at = next;
    this.draw();
  }

  draw() {
    const { walk, at } = this, started = performance.now();
    if (!walk.steps) return;
    const colours = palette(), program = walk.program(at);
    $("slider").value = at;
    const id = walk.grid.length ? ` · program (${program.join(", ")}${program.length === 1 ? "," : ""})` : "";
    $("place").textContent = `step ${at.toLocaleString("en")} of 0…${(walk.steps - 1).toLocaleString("en")}${id}`;
    $("slider").setAttribute("aria-valuetext", $("place").textContent);
    this.inputs.forEach(([input, shown, size], axis) => {
      input.value = program[axis];
      shown.textContent = `${program[axis]} of 0…${size - 1}`;
    });
    this.pictures.forEach((picture) => picture.draw(at, colours));
    this.tally();
    this.say();
    document.body.dataset.drawn = String(at);
    document.body.dataset.took = (performance.now() - started).toFixed(2);
  }

  tally() {
    const { rows, total } = this.walk.bytes(this.at);
    const line = (head, cells, name) => {
      const row = make("tr", name), first = make("th", "mono", head);
      first.scope = "row";
      row.append(first, ...cells.map((bytes, i) => make("td", i === 0 && bytes ? "busy" : "", amount(bytes))));
      return row;
    };
    $("bytes").tBodies[0].replaceChildren(...rows.map(([operand, ...cells]) => line(operand.name, cells)), line("all", total, "total"));
  }

  say() {
    const { walk, at } = this, found = walk.findingsAt(at), said = $("said");
    said.className = found.length ? "wrong" : "";
    [...$("findings").querySelectorAll("button")].forEach((button, i) => button.setAttribute("aria-current", String(found.includes(i))));
    if (found.length) {
      said.replaceChildren(...found.slice(0, 2).flatMap((i) => [make("b", "", `${i + 1}. ${walk.findings[i].finding}: `), `${walk.findings[i].detail} `]));
      return;
    }
    const named = (test) => walk.operands.filter((o) => o.at && o.moves && test(o)).map((o) => o.name);
    const parts = [[named((o) => !o.out && o.entered(at)), "fetched"], [named((o) => !o.out && !o.entered(at)), "re-used, nothing moves"],
      [named((o) => o.out && o.left(at)), "written back after this step"], [named((o) => o.out && !o.left(at)), "kept for the next step"]];
    said.textContent = parts.filter(([names]) => names.length).map(([names, words]) => `${names.join(", ")}: ${words}.`).join(" ") || "Nothing is copied by the pipeline at this step.";
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = null;
    $("play").setAttribute("aria-pressed", String(on));
    $("play").textContent = on ? "❚❚ Pause" : "▶ Play";
    if (!on) return;
    if (this.at >= this.walk.steps - 1) this.go(0);
    this.timer = setInterval(() => {
      this.go(this.at + 1);
      if (this.at >= this.walk.steps - 1) this.play(false);
    }, Number($("speed").value));
  }

  key(event) {
    const tag = event.target.tagName, inside = event.target.closest?.("#side, select");
    if (event.altKey || event.ctrlKey || event.metaKey || !this.walk.steps) return;
    if (event.key === " " && tag !== "BUTTON" && tag !== "SUMMARY" && tag !== "SELECT") {
      event.preventDefault();
      return this.play(!this.timer);
    }
    if (tag === "INPUT" || inside && event.key !== "ArrowLeft" && event.key !== "ArrowRight" || tag === "SELECT") return;
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, PageDown: this.at + 10, PageUp: this.at - 10, Home: 0, End: this.walk.steps - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.go(to);
  }
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

unpack($("data").textContent).then((data) => new Stepper(data), () => {
  $("said").hidden = false;
  $("said").textContent = "This browser cannot unpack the page's data (it knows no DecompressionStream): a newer one can.";
});
