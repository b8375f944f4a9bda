// The search: every line of the panes in view that holds the words, one after the other.

class Search {
  constructor(page) {
    this.page = page;
    this.hits = [];
    this.at = -1;
    $("query").addEventListener("input", () => this.run($("query").value));
    $("query").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.move(event.shiftKey ? -1 : 1);
    });
    $("search").addEventListener("submit", (event) => event.preventDefault());
  }

  clear() {
    $("query").value = "";
    this.run("");
  }

  run(query) {
    const wanted = query.toLowerCase();
    this.hits = [];
    this.at = -1;
    for (const pane of this.page.panes) {
      pane.hits = new Set();
      if (wanted && this.page.open.includes(pane.key)) {
        for (let i = 0; i < pane.size; i++) if (pane.words(i).toLowerCase().includes(wanted)) pane.hits.add(i);
        for (const i of pane.hits) this.hits.push([pane, i]);
      }
      pane.list.restyle();
    }
    if (this.hits.length) this.move(1);
    else $("found").textContent = wanted ? "none" : "";
  }

  move(by) {
    if (!this.hits.length) return;
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    const [pane, i] = this.hits[this.at];
    pane.list.reveal(i);
    if (pane.target(i)) this.page.point(pane, i);
    else { pane.list.cursor = i; pane.list.restyle(); }
    $("found").textContent = `${this.at + 1} of ${this.hits.length}`;
  }
}
