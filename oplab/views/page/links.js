// Which line belongs to which. No drawing here: numbers in, numbers out.
//
// A line is named by its stage and its row. Lines are relatives when they share an equation; a loop's or a call's
// equation has more of them inside, and lies in others itself, which is a weaker tie.

const STAGES = ["script", "jaxpr", "stablehlo", "hlo", "kernels"];
const EXACT = 0, INFERRED = 1, COMPILER = 2, INSIDE = 3, AROUND = 4;  // the smaller, the closer
const HOW_CLASS = ["exact", "inferred", "compiler", "inside", "inside"];

class Links {
  constructor(data) {
    this.equations = data.equations;
    this.rows = data.rows;
    this.homes = data.equations.map(() => []);  // equation -> [stage, row, how]
    for (const stage of STAGES) {
      this.rows[stage].forEach((row, r) => {
        const how = row.how === INFERRED ? INFERRED : EXACT;
        for (const e of row.equations) this.homes[e].push([stage, r, how]);
        for (const e of row.more) this.homes[e].push([stage, r, INFERRED]);
      });
    }
    this.children = data.equations.map(() => []);
    data.equations.forEach((e, n) => { if (e.parent >= 0) this.children[e.parent].push(n); });
    this.paired = new Map();  // lines that no equation joins: "stage row" -> [stage, row, how]
    for (const [a, i, b, j, how] of data.pairs) {
      this.pair(`${a} ${i}`, [b, j, how]);
      this.pair(`${b} ${j}`, [a, i, how]);
    }
    this.labels = {};
    for (const stage of STAGES) this.labels[stage] = new Map(this.rows[stage].map((row, r) => [row.label, r]));
  }

  pair(key, end) {
    if (!this.paired.has(key)) this.paired.set(key, []);
    this.paired.get(key).push(end);
  }

  // All relatives of a line: {stage: Map(row -> how)}.
  relatives(stage, row) {
    const found = Object.fromEntries(STAGES.map((s) => [s, new Map()]));
    const add = (s, r, how) => {
      const known = found[s].get(r);
      if (known === undefined || how < known) found[s].set(r, how);
    };
    const origin = this.rows[stage][row];
    const own = origin.how === INFERRED ? INFERRED : EXACT;
    const strong = new Map([...origin.more.map((e) => [e, INFERRED]), ...origin.equations.map((e) => [e, own])]);
    for (const [e, how] of strong) for (const [s, r, far] of this.homes[e]) add(s, r, Math.max(how, far));
    for (const [s, r, how] of this.paired.get(`${stage} ${row}`) || []) add(s, r, how);
    for (const e of this.inside(strong.keys())) for (const [s, r] of this.homes[e]) add(s, r, INSIDE);
    for (const e of this.around(strong.keys())) {
      for (const [s, r] of this.homes[e]) if (s === "jaxpr" || s === "script") add(s, r, AROUND);
    }
    if (origin.how === COMPILER) add(stage, row, COMPILER);
    return found;
  }

  // The equations that lie in these, at any depth, without these themselves.
  inside(equations) {
    const found = new Set(equations), own = found.size;
    for (const e of found) for (const child of this.children[e]) found.add(child);  // a set goes on to what is added
    return [...found].slice(own);
  }

  around(equations) {
    const found = new Set();
    for (const e of equations) {
      for (let up = e; (up = this.equations[up].parent) >= 0 && !found.has(up);) found.add(up);
    }
    return found;
  }

  // A line by its name: "e3", "hlo:fusion.2", "script:demo.py:9". Null when there is none.
  find(name) {
    const colon = name.indexOf(":");
    const stage = STAGES.includes(name.slice(0, colon)) ? name.slice(0, colon) : "jaxpr";
    const row = this.labels[stage].get(stage === "jaxpr" && colon < 0 ? name : name.slice(colon + 1));
    return row === undefined ? null : [stage, row];
  }

  name(stage, row) {
    const label = this.rows[stage][row].label;
    return stage === "jaxpr" ? label : `${stage}:${label}`;
  }
}

// The row that each line of a text belongs to; -1 for none. An equation or op may go on over the lines after its
// first: those that stand deeper, and the closing bracket at its own depth.
function rowOfEachLine(lines, rows, nested) {
  const owner = new Int32Array(lines.length).fill(-1);
  rows.forEach((row, r) => { if (row.line >= 1 && row.line <= lines.length) owner[row.line - 1] = r; });
  if (!nested) return owner;
  const open = [];  // [depth, row] of what goes on here
  for (let i = 0; i < lines.length; i++) {
    const depth = lines[i].search(/\S/);
    if (depth < 0) continue;
    const closes = /^[\])}]/.test(lines[i].slice(depth));
    while (open.length && (open.at(-1)[0] > depth || (open.at(-1)[0] === depth && !closes))) open.pop();
    if (owner[i] >= 0) open.push([depth, owner[i]]);
    else if (open.length) owner[i] = open.at(-1)[1];
  }
  return owner;
}
