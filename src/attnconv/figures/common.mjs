// What figures share: elements, native controls with labels, pixels on a canvas, a pixel picker, and the layers
// they compute.

export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

/** A number for reading: fixed digits, a true minus sign. */
export const format = (x, digits = 2) => x.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");

/** A small number for reading: 3.1e-5 becomes 3.1·10⁻⁵. */
export function scientific(x) {
  if (x === 0) return "0";
  const [mantissa, exponent] = x.toExponential(1).split("e");
  const raised = [...String(Number(exponent))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  return raised === "⁰" ? mantissa : `${mantissa}·10${raised}`.replace("-", "−");
}

/** A count for reading: whole up to a hundred thousand, then as a power of ten. */
export const grouped = (count) => (count < 1e5 ? String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f") : scientific(count));

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** An element with attributes, listeners (`onclick: …`) and children. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function svgElement(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** A slider that shows its own value: `label` says what, `show(value)` how. */
export function slider({ label, min, max, step, value, show = format }, oninput) {
  const text = element("span");
  const input = element("input", { type: "range", min, max, step, value, oninput: () => changed() });
  const root = element("label", {}, text, input);
  const write = () => {
    text.textContent = `${label}: ${show(Number(input.value))}`;
    input.setAttribute("aria-valuetext", show(Number(input.value)));
  };
  const changed = () => (write(), oninput(Number(input.value)));
  const set = (next) => ((input.value = next), write());
  write();
  return { root, input, set, get value() { return Number(input.value); } };
}

/** A drop-down list: `options` maps what is shown to what it stands for. */
export function choice({ label, options, value }, onchange) {
  const names = Object.keys(options);
  const select = element("select", { onchange: () => onchange(options[select.value], select.value) });
  for (const name of names) select.append(new Option(name, name, false, name === value));
  return { root: element("label", {}, element("span", {}, label), select), select };
}

export function checkbox({ label, checked = false }, onchange) {
  const input = element("input", { type: "checkbox", onchange: () => onchange(input.checked) });
  input.checked = checked;
  return { root: element("label", { class: "ac-check" }, input, label), input };
}

export const button = (label, onclick) => element("button", { type: "button", onclick }, label);

/** A small table of texts; the column `chosen`, counted from the names of the rows, is in bold type. */
export function tabulate(columns, rows, { chosen } = {}) {
  const cell = (tag, text, n) => {
    const style = `padding: 0.15rem 0.35rem; text-align: ${n ? "right" : "left"}; font-weight: ${n === chosen ? 700 : 400}`;
    return element(tag, { style: `${style}; white-space: ${tag === "td" ? "nowrap" : "normal"}` }, text);
  };
  const line = (tag, texts) => element("tr", {}, ...texts.map((text, n) => cell(n ? tag : "th", text, n)));
  return element("table", { style: "border-collapse: collapse; margin: 0; width: 100%; max-width: 30rem; color: inherit" },
    element("thead", {}, line("th", columns)),
    element("tbody", {}, ...rows.map((texts) => line("td", texts))),
  );
}

/** A button that walks `step(i)` through 0 … count − 1, and stops at the end or when pressed again. */
export function player({ label, count, milliseconds }, step) {
  let timer = null;
  const stop = () => (clearInterval(timer), (timer = null), (root.textContent = label));
  const start = () => {
    let i = 0;
    step(0);
    root.textContent = "Stop";
    timer = setInterval(() => (!root.isConnected || ++i >= count ? stop() : step(i)), milliseconds);
  };
  const root = button(label, () => (timer === null ? start() : stop()));
  return { root, start, stop, get running() { return timer !== null; } };
}

/** Pixels sent from Python (bytes, base64) as numbers between 0 and 1: {height, width, channels, data}. */
export function decode({ shape: [height, width, channels], bytes }) {
  const data = Float64Array.from(atob(bytes), (c) => c.charCodeAt(0) / 255);
  return { height, width, channels, data };
}

export const blank = (height, width, channels) =>
  ({ height, width, channels, data: new Float64Array(height * width * channels) });

/** A colour of a list of stops, [[r, g, b], …], at t between 0 and 1. */
export function ramp(stops, t) {
  const x = clamp(t, 0, 1) * (stops.length - 1);
  const i = Math.min(Math.floor(x), stops.length - 2);
  return stops[i].map((c, n) => c + (x - i) * (stops[i + 1][n] - c));
}

/** A titled picture with a layer for marks above it. */
export function panel(title, height, width) {
  const heading = element("div", { class: "ac-title" }, title);
  const canvas = element("canvas", { width, height, role: "img", "aria-label": title });
  const marks = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const frame = element("div", { class: "ac-image" }, canvas, marks);
  const setTitle = (text) => ((heading.textContent = text), canvas.setAttribute("aria-label", text));
  return { root: element("div", { class: "ac-panel" }, heading, frame), setTitle, canvas, frame, marks };
}

/**
 * Paint an image into a panel. Three channels are red, green and blue; one channel runs through `stops` from
 * `low` to `high`.
 */
export function paint({ canvas }, { height, width, channels, data }, { low = 0, high = 1, stops } = {}) {
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  const span = high - low || 1;
  for (let p = 0; p < height * width; p++) {
    const at = (c) => (data[p * channels + c] - low) / span;
    const rgb = stops && channels === 1 ? ramp(stops, at(0)) : [0, 1, 2].map((c) => 255 * at(channels === 1 ? 0 : c));
    pixels.data.set(rgb, 4 * p);
    pixels.data[4 * p + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
}

/** Frame one pixel; a dark line inside a light one shows on every picture. */
export function frame({ marks }, row, column, { color = "#ffffff", size = 1 } = {}) {
  const box = { x: column, y: row, width: size, height: size, fill: "none", "vector-effect": "non-scaling-stroke" };
  marks.append(
    svgElement("rect", { ...box, stroke: "#000000", "stroke-width": 5 }),
    svgElement("rect", { ...box, stroke: color, "stroke-width": 2.5 }),
  );
}

/**
 * Let mouse, finger and arrow keys point into a panel: `onmove({row, column, y, x})` for a place, as a pixel and
 * as a point of the canvas; `onstep({rows, columns})` for an arrow key.
 */
export function pointable({ frame, canvas }, { label, onmove, onstep }) {
  const attributes = { tabindex: 0, role: "application", "aria-label": label };
  for (const [name, value] of Object.entries(attributes)) frame.setAttribute(name, value);
  const place = (event) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const y = clamp((event.clientY - top) / height, 0, 1) * canvas.height;
    const x = clamp((event.clientX - left) / width, 0, 1) * canvas.width;
    const row = Math.min(Math.floor(y), canvas.height - 1);
    const column = Math.min(Math.floor(x), canvas.width - 1);
    onmove({ row, column, y, x, begins: event.type === "pointerdown" });
  };
  frame.addEventListener("pointerdown", (event) => (frame.setPointerCapture(event.pointerId), place(event)));
  frame.addEventListener("pointermove", (event) => frame.hasPointerCapture(event.pointerId) && place(event));
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  frame.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [rows, columns] = steps[event.key];
    onstep({ rows, columns });
  });
}

/** Radius, in pixels, inside which a Gaussian of sharpness α holds a share of its mass. */
export const massRadius = (share, alpha) => Math.sqrt(-Math.log(1 - share) / alpha);

/**
 * Where the heads of a layer look: the pixels around a query, which is a filled square, up to `reach` away.
 *
 * `draw(heads)` takes {center: [row, column], alpha, color, chosen} for each head, and draws its centre and the
 * circles that hold 50 % (solid) and 90 % (dashed) of a Gaussian. A head beyond the edge has its dot on the edge.
 */
export function centersPlane(title, reach) {
  const size = 2 * reach + 1;
  const plane = panel(title, size, size);
  const clip = svgElement("svg", { x: 0, y: 0, width: size, height: size, style: "overflow: hidden" });
  plane.marks.append(clip);
  const thin = { "vector-effect": "non-scaling-stroke", fill: "none" };
  const draw = (heads, window = 1) => {
    clip.replaceChildren();
    const add = (tag, attributes) => clip.append(svgElement(tag, { ...thin, ...attributes }));
    for (let n = 0; n <= size; n++) add("path", { d: `M${n} 0V${size}M0 ${n}H${size}`, stroke: "var(--ac-line)", "stroke-width": 0.8 });
    const [corner, side] = [reach - window, 2 * window + 1];
    add("rect", { x: corner, y: corner, width: side, height: side, stroke: "var(--ac-ink)", "stroke-width": 1.5 });
    add("rect", { x: reach + 0.2, y: reach + 0.2, width: 0.6, height: 0.6, fill: "var(--ac-ink)" });
    for (const { center, alpha, color, chosen } of heads) {
      const [cy, cx] = center.map((c) => c + reach + 0.5);
      if (alpha > 1e-3) {
        add("circle", { cx, cy, r: massRadius(0.5, alpha), stroke: color, "stroke-width": chosen ? 3.5 : 2 });
        add("circle", { cx, cy, r: massRadius(0.9, alpha), stroke: color, "stroke-width": chosen ? 2.2 : 1.2, "stroke-dasharray": "5 4" });
      }
      const [y, x] = [cy, cx].map((c) => clamp(c, 0.12, size - 0.12));
      add("circle", { cx: x, cy: y, r: chosen ? 0.2 : 0.14, fill: color, stroke: "var(--ac-paper)", "stroke-width": 1.2 });
    }
  };
  return { ...plane, draw };
}

/** Softmax of a row of scores. */
export function softmax(scores) {
  const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const exponentials = scores.map((a) => Math.exp(a - largest));
  const total = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((e) => e / total);
}

export const largestDifference = (a, b) => a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i])), 0);

// ---- what layers compute --------------------------------------------------------------------------------------

export const multiply = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));

export const transpose = (matrix) => matrix[0].map((_, c) => matrix.map((row) => row[c]));

/** An image whose pixel (i, j) is the pixel source(i, j) of another, or black where that is null. */
export function gather({ channels, data, width }, height, columns, source) {
  const result = blank(height, columns, channels);
  for (let i = 0; i < height; i++) {
    for (let j = 0; j < columns; j++) {
      const from = source(i, j);
      if (from === null) continue;
      for (let c = 0; c < channels; c++) result.data[(i * columns + j) * channels + c] = data[(from[0] * width + from[1]) * channels + c];
    }
  }
  return result;
}

export const modulo = (x, n) => ((x % n) + n) % n;

/** Which pixel of an axis of length n stands at `x` under a padding; −1 where zero stands. */
export function sourceOf(x, n, padding) {
  if (padding === "replicate") return clamp(x, 0, n - 1);
  if (padding === "circular") return modulo(x, n);
  if (padding === "reflect") return n - 1 - Math.abs(n - 1 - Math.abs(x));
  return x < 0 || x >= n ? -1 : x;
}

/** Part of an image, an image moved, or an image with a ring around it. */
export function region(image, top, left, height, width, padding) {
  return gather(image, height, width, (i, j) => {
    const [r, c] = [sourceOf(top + i, image.height, padding), sourceOf(left + j, image.width, padding)];
    return r < 0 || c < 0 ? null : [r, c];
  });
}

/** shift_δ(X)_q = X_{q+δ}. */
export const shiftImage = (image, [rows, columns], padding = "zeros") =>
  region(image, rows, columns, image.height, image.width, padding);

/** A square part of an image. */
export const crop = (image, top, left, size, padding = "zeros") => region(image, top, left, size, size, padding);

/** Σ_t w_t X_t over images of one size. */
export function weightedSum(weights, images) {
  const result = blank(images[0].height, images[0].width, images[0].channels);
  images.forEach(({ data }, t) => {
    if (weights[t] !== 0) data.forEach((x, p) => (result.data[p] += weights[t] * x));
  });
  return result;
}

/** The shifts of a 3 × 3 kernel, in reading order. */
export const SHIFTS = Array.from({ length: 9 }, (_, t) => [Math.floor(t / 3) - 1, (t % 3) - 1]);

/** Σ_δ w_δ shift_δ(X) with one weight a tap, the same for every channel. */
export const convolve = (image, weights, { shifts = SHIFTS, padding = "replicate" } = {}) =>
  weightedSum(weights, shifts.map((shift) => shiftImage(image, shift, padding)));

/** Attention along one axis of n pixels: row q is the softmax of −α (k − q − Δ)² over all k. */
export function axisAttention(n, center, alpha) {
  const pixels = Array.from({ length: n }, (_, k) => k);
  return pixels.map((q) => softmax(pixels.map((k) => -alpha * (k - q - center) ** 2)));
}

/** Σ_k a[q][k] x[k] along the rows (axis 0) or the columns (axis 1) of an image. */
export function mix({ height, width, channels, data }, attention, axis) {
  const result = blank(height, width, channels);
  const [outer, stride, across] = axis === 0 ? [width, width * channels, channels] : [height, channels, width * channels];
  const n = axis === 0 ? height : width;
  for (let o = 0; o < outer; o++) {
    for (let q = 0; q < n; q++) {
      for (let k = 0; k < n; k++) {
        const a = attention[q][k];
        if (a < 1e-12) continue;
        for (let c = 0; c < channels; c++) result.data[o * across + q * stride + c] += a * data[o * across + k * stride + c];
      }
    }
  }
  return result;
}

/** Σ_h w_h softmax(A^(h)) X for nine quadratic heads on the 3 × 3 shifts: rows times columns. */
export function nineHeads(image, weights, alpha) {
  const rows = [-1, 0, 1].map((d) => mix(image, axisAttention(image.height, d, alpha), 0));
  const columns = [-1, 0, 1].map((d) => axisAttention(image.width, d, alpha));
  return weightedSum(weights, SHIFTS.map(([i, j]) => mix(rows[i + 1], columns[j + 1], 1)));
}
