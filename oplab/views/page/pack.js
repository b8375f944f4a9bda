// The reverse of pack.py: templates and steps become lines again, and the lines JSON.

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(together(await new Response(stream).json()));
}

function together([templates, order, steps]) {
  const parts = templates.split("\n").map((t) => t.split(/([\x00-\x02])/));  // text, placeholder, text, ...
  const last = parts.map((p) => new Int32Array(p.length >> 1));
  const lines = new Array(order.length);
  let step = 0, address = 0;
  for (let n = 0; n < order.length; n++) {
    const part = parts[order[n]], values = last[order[n]];
    let line = part[0];
    for (let k = 0, at = 1; at < part.length; k++, at += 2) {
      let value = values[k] += steps[step++];
      if (part[at] === "\x02") value = address += value;
      const spelt = part[at] === "\x00" ? value : part[at] === "\x01" ? `0x${value.toString(16)}` : value.toString(16).padStart(6);
      line += spelt + part[at + 1];
    }
    lines[n] = line;
  }
  return lines.join("\n");
}
