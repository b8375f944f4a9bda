// What the foot of the page says of a selected line, after its name.

function sentence(data, stage, r) {
  const row = data.rows[stage][r];
  const names = (list) => few(list.map((e) => `${data.equations[e].id} ${data.equations[e].primitive}`), 6);
  if (stage === "jaxpr") return fateOf(data.equations[r]);
  if (stage === "script") return `became ${names(row.equations)}`;
  if (row.free && !row.equations.length) return `is a ${row.free}: it computes nothing`;
  if (stage === "stablehlo" && row.how === COMPILER) return "belongs to no equation";
  const note = row.note ? `: ${row.note}` : "";
  if (row.how === COMPILER) return `is the compiler's own, from no equation of yours${note}`;
  const comes = row.how === INFERRED ? "comes, as inferred, from" : "comes from";
  const parts = [];
  if (row.equations.length) parts.push(`${comes} ${names(row.equations)}`);
  if (row.more.length) parts.push(`has taken in ${names(row.more)}`);
  return (parts.join(", and ") || "has no equation") + note;
}

function fateOf(equation) {
  const where = equation.where ? `, ${equation.where}` : "";
  const pass = equation.by_pass ? ` by ${equation.by_pass}` : "";
  const into = equation.into ? ` → ${few(equation.into.split(", "))}` : "";
  return `${equation.primitive}${where}: ${equation.fate || "fate unknown"}${pass}${into}`;
}
