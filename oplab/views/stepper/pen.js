// What every drawing needs: elements, sharp canvases, the page's colours, hatches, signs.

function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

// A canvas that is sharp on any screen; its context counts in CSS pixels.
function sheet(width, height, name) {
  const canvas = make("canvas", name), scale = window.devicePixelRatio || 1;
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  canvas.style.width = `${width}px`;
  canvas.setAttribute("role", "img");
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return [canvas, pen, width, height];
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "panel", "edge", "ink", "dim", "moved", "kept", "now", "done", "wrong", "hatch", "void"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// A colour as the four bytes that a picture has for it.
function packed(pen, colour) {
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const bytes = pen.getImageData(0, 0, 1, 1).data;
  return new Uint32Array(bytes.buffer)[0];
}

function hatched(pen, [x, y, w, h], colour, gap = 7) {
  if (w <= 0 || h <= 0) return;
  pen.save();
  pen.beginPath();
  pen.rect(x, y, w, h);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (let at = -h; at < w; at += gap) {
    pen.moveTo(x + at, y + h);
    pen.lineTo(x + at + h, y);
  }
  pen.stroke();
  pen.restore();
}

function glyph(pen, text, x, y, size, colour) {
  pen.fillStyle = colour;
  pen.font = `700 ${size}px system-ui, "DejaVu Sans", sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, x, y);
}
