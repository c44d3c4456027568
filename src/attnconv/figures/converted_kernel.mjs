// Chapter 9: a kernel of the reader's own and the attention layer it becomes, with every option of a convolution.
import { blank, choice, clamp, decode, element, format, frame, largestDifference, paint, panel, pointable, region, scientific, slider, softmax, svgElement } from "./common.mjs";

/** Pixels added before and after an axis, so that a kernel with K taps at distance d keeps its size. */
export function marginsOf(K, dilation) {
  const total = dilation * (K - 1);
  return [Math.floor(total / 2), total - Math.floor(total / 2)];
}

/** The image with a ring around it: `before` pixels above and to the left, `after` below and to the right. */
export const padImage = (image, [before, after], mode) =>
  region(image, -before, -before, image.height + before + after, image.width + before + after, mode);

/** Attention along one axis, a row a query: softmax over the keys of −α (k − (s q + Δ))². */
export function axisMap(keys, queries, stride, center, alpha) {
  return Array.from({ length: queries }, (_, q) => {
    const distances = Array.from({ length: keys }, (_, k) => (k - stride * q - center) ** 2);
    if (alpha < Infinity) return softmax(distances.map((d) => -alpha * d));
    const nearest = Math.min(...distances); // the limit: the nearest keys share everything
    const count = distances.filter((d) => d === nearest).length;
    return distances.map((d) => (d === nearest ? 1 / count : 0));
  });
}

/** The layer, one head a tap: Σ_h w_h R_h X̃ C_hᵀ, where R_h and C_h are the attention along rows and columns. */
export function attend(padded, weights, K, { rows, columns, stride, dilation, alpha }) {
  const result = blank(rows, columns, 1);
  const along = (keys, queries) =>
    Array.from({ length: K }, (_, tap) => axisMap(keys, queries, stride, dilation * tap, alpha));
  const [down, across] = [along(padded.height, rows), along(padded.width, columns)];
  weights.forEach((weight, h) => {
    if (weight === 0) return;
    const [R, C] = [down[Math.floor(h / K)], across[h % K]];
    for (let q = 0; q < columns; q++) {
      const mixed = Array.from({ length: padded.height }, (_, k) => {
        let sum = 0;
        for (let l = 0; l < padded.width; l++) sum += C[q][l] * padded.data[k * padded.width + l];
        return sum;
      });
      for (let p = 0; p < rows; p++) {
        for (let k = 0; k < padded.height; k++) result.data[p * columns + q] += weight * R[p][k] * mixed[k];
      }
    }
  });
  return result;
}

/** The convolution, window by window: it knows nothing of heads. */
export function slideWindow(padded, weights, K, { rows, columns, stride, dilation }) {
  const result = blank(rows, columns, 1);
  for (let p = 0; p < rows; p++) {
    for (let q = 0; q < columns; q++) {
      for (let i = 0; i < K; i++) {
        for (let j = 0; j < K; j++) {
          const key = (stride * p + dilation * i) * padded.width + stride * q + dilation * j;
          result.data[p * columns + q] += weights[i * K + j] * padded.data[key];
        }
      }
    }
  }
  return result;
}

/** The map of one head for one query, over the padded image. */
export function headMap(padded, [row, column], [i, j], { stride, dilation, alpha }) {
  const result = blank(padded.height, padded.width, 1);
  const down = axisMap(padded.height, row + 1, stride, dilation * i, alpha)[row];
  const across = axisMap(padded.width, column + 1, stride, dilation * j, alpha)[column];
  down.forEach((a, k) => across.forEach((b, l) => (result.data[k * padded.width + l] = a * b)));
  return result;
}

const MODES = { "zeros": "zeros", "replicate": "replicate", "reflect": "reflect", "circular": "circular" };

export default {
  render({ model, el }) {
    const { image: sent, kernels, start, colors } = model.get("state");
    const image = decode(sent);
    const alphaOf = (t) => (t >= 1 ? Infinity : 0.25 * 100 ** t);
    const settings = { stride: 1, dilation: 1, mode: "zeros", alpha: Infinity };
    let K = Math.sqrt(kernels[start].length);
    let weights = [...kernels[start]];
    let chosen = 0;
    let query = [Math.floor(image.height / 2), Math.floor(image.width / 2)];
    let taps = [];

    const ring = panel("", image.height, image.width);
    const map = panel("", image.height, image.width);
    const ours = panel("Attention", image.height, image.width);
    const conv = panel("Convolution", image.height, image.width);
    const readout = element("output");
    const grid = element("div", { class: "ac-taps", role: "group", "aria-label": "The kernel, one head a tap" });

    const change = (name) => (value) => ((settings[name] = value), update());
    const whole = (n) => format(n, 0);
    const preset = choice({ label: "Kernel", options: kernels, value: start }, (kernel) => take(kernel));
    const padding = choice({ label: "Padding mode", options: MODES, value: "zeros" }, change("mode"));
    const stride = slider({ label: "Stride", min: 1, max: 3, step: 1, value: 1, show: whole }, change("stride"));
    const dilation = slider({ label: "Dilation", min: 1, max: 3, step: 1, value: 1, show: whole }, change("dilation"));
    const showAlpha = (t) => (t >= 1 ? "∞, hard" : format(alphaOf(t)));
    const sharpness = slider({ label: "Sharpness α", min: 0, max: 1, step: 0.02, value: 1, show: showAlpha }, (t) => change("alpha")(alphaOf(t)));
    const weight = slider({ label: "Weight of the tap", min: -4, max: 4, step: 0.01, value: 0 }, (w) => ((weights[chosen] = w), update()));

    for (const one of [ours, conv]) {
      pointable(one, {
        label: `${one === ours ? "Attention" : "Convolution"}: the output. Arrow keys move the query.`,
        onmove: ({ row, column }) => look(row, column),
        onstep: ({ rows, columns }) => look(query[0] + rows, query[1] + columns),
      });
    }

    const color = (h) => colors.heads[h % colors.heads.length];
    const size = (n) => Math.floor((n - 1) / settings.stride) + 1;

    function look(row, column) {
      query = [row, column];
      update();
    }

    /** Take a kernel from the bank, with a button for each of its taps. */
    function take(kernel) {
      K = Math.sqrt(kernel.length);
      weights = [...kernel];
      chosen = Math.min(chosen, kernel.length - 1);
      taps = weights.map((_, h) => {
        const name = `head and tap ${h + 1}, row ${Math.floor(h / K) + 1}, column ${(h % K) + 1}`;
        const onclick = () => ((chosen = h), update());
        const node = element("button", { type: "button", class: "ac-tap", "data-name": name, onclick, onkeydown: (event) => walk(event, h) });
        node.style.borderColor = color(h);
        return node;
      });
      grid.replaceChildren(...taps);
      grid.style.gridTemplateColumns = `repeat(${K}, max-content)`;
      update();
    }

    function walk(event, h) {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -K, ArrowDown: K }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      if (h + step < 0 || h + step >= taps.length) return;
      chosen = h + step;
      taps[chosen].focus();
      update();
    }

    function resize({ canvas, marks }, { height, width }) {
      if (canvas.height !== height) canvas.height = height;
      if (canvas.width !== width) canvas.width = width;
      marks.setAttribute("viewBox", `0 0 ${width} ${height}`);
      marks.replaceChildren();
    }

    /** A square inside a pixel, in the colour of its head. */
    function mark({ marks }, row, column, stroke, strong) {
      const box = { x: column + 0.14, y: row + 0.14, width: 0.72, height: 0.72, fill: "none", "vector-effect": "non-scaling-stroke" };
      marks.append(
        svgElement("rect", { ...box, stroke: strong ? "#ffffff" : "#000000", "stroke-width": strong ? 7 : 4.5 }),
        svgElement("rect", { ...box, stroke, "stroke-width": strong ? 3.5 : 2.5 }),
      );
    }

    function update() {
      const shape = { rows: size(image.height), columns: size(image.width), ...settings };
      query = [clamp(query[0], 0, shape.rows - 1), clamp(query[1], 0, shape.columns - 1)];
      const [row, column] = query;
      const margins = marginsOf(K, settings.dilation);
      const padded = padImage(image, margins, settings.mode);
      const result = attend(padded, weights, K, shape);
      const expected = slideWindow(padded, weights, K, shape);
      const place = [Math.floor(chosen / K), chosen % K];
      const attention = headMap(padded, query, place, settings);
      const difference = largestDifference(result.data, expected.data);

      weight.set(weights[chosen]);
      taps.forEach((node, h) => {
        node.textContent = format(weights[h]);
        node.setAttribute("aria-label", `${node.dataset.name}, weight ${format(weights[h])}`);
        node.setAttribute("aria-pressed", String(h === chosen));
      });

      resize(ring, padded);
      resize(map, padded);
      resize(ours, result);
      resize(conv, result);
      paint(ring, padded);
      const border = { x: margins[0], y: margins[0], width: image.width, height: image.height, fill: "none", "vector-effect": "non-scaling-stroke" };
      ring.marks.append(
        svgElement("rect", { ...border, stroke: "#000000", "stroke-width": 3 }),
        svgElement("rect", { ...border, stroke: "#ffffff", "stroke-width": 1.5, "stroke-dasharray": "5 3" }),
      );
      const looks = (h) => [settings.stride * row + settings.dilation * Math.floor(h / K), settings.stride * column + settings.dilation * (h % K)];
      weights.forEach((_, h) => h !== chosen && mark(ring, ...looks(h), color(h), false));
      mark(ring, ...looks(chosen), color(chosen), true);
      ring.setTitle("The keys: X and its ring");

      const peak = attention.data.reduce((a, b) => Math.max(a, b), 0);
      paint(map, attention, { stops: colors.attention, low: 0, high: peak });
      frame(map, ...looks(chosen), { color: color(chosen) });
      map.setTitle(`Map of one head, peak ${format(peak)}`);

      const signed = weights.some((w) => w < 0);
      const span = Math.max(1e-9, ...expected.data.map(Math.abs));
      const scale = signed ? { low: -span, high: span, stops: colors.diverging } : { low: 0, high: span };
      for (const [one, output, name] of [[ours, result, "Attention"], [conv, expected, "Convolution"]]) {
        paint(one, output, scale);
        frame(one, row, column);
        one.setTitle(`${name}, ${output.height} × ${output.width}`);
      }
      const at = row * shape.columns + column;
      const number = (x) => (x === 0 || x >= 0.005 ? format(x) : scientific(x));
      const said = difference === 0 ? "none at all" : `at most ${number(difference)}`;
      readout.textContent = `${K * K} heads, ${padded.height} × ${padded.width} keys. Query (${row}, ${column}): attention ${format(result.data[at], 3)}, convolution ${format(expected.data[at], 3)}. Difference over the whole output: ${said}.`;
      model.set("value", { ...settings, alpha: settings.alpha === Infinity ? null : settings.alpha, K, weights: [...weights], query, difference });
      model.save_changes();
    }

    const sliders = [sharpness, stride, dilation, weight].map((one) => one.root);
    el.append(
      element("div", { class: "ac-row" }, preset.root, padding.root),
      element("div", { class: "ac-panels" }, ring.root, map.root, ours.root, conv.root),
      readout,
      element("div", { class: "ac-row" }, grid, element("div", { class: "ac-row", style: "flex: 1 1 14rem" }, ...sliders)),
    );
    take(weights);
  },
};
