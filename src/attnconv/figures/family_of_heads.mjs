// Chapter 17: heads of several families aim at the same shift; the reader sharpens them and walks to the border.
import { blank, choice, clamp, decode, element, format, frame, paint, panel, pointable, scientific, shiftImage, slider, softmax } from "./common.mjs";

/** Frequencies base^(−t/count), t = 0 … count − 1, in radians per pixel. */
export const frequencies = (count, base) => Array.from({ length: count }, (_, t) => base ** (-t / count));

/** What the position term of each family is at a distance (y, x) from its centre; `waves` is a count per axis. */
export const FAMILIES = {
  quadratic: () => (y, x) => -(y * y + x * x),
  axial: ({ waves, base }) => {
    const omegas = frequencies(waves, base);
    return (y, x) => omegas.reduce((sum, w) => sum + Math.cos(w * y) + Math.cos(w * x), 0);
  },
  mixed: ({ waves, base }) => {
    // As many waves as above, each in a direction of its own.
    const omegas = frequencies(2 * waves, base);
    return (y, x) => omegas.reduce((sum, w, t) => sum + Math.cos(w * (Math.cos(2.4 * t) * y + Math.sin(2.4 * t) * x)), 0);
  },
  table: () => (y, x) => (y === 0 && x === 0 ? 1 : 0),
};

/** B(δ) for every shift of a size × size image: a table of (2 size − 1)² numbers, row by row. */
export function positionTable(size, family, [row, column], options) {
  const term = FAMILIES[family](options);
  const side = 2 * size - 1;
  return Float64Array.from({ length: side * side }, (_, p) => term(Math.floor(p / side) - size + 1 - row, (p % side) - size + 1 - column));
}

/** How far B(Δ) is above all other shifts, and which of them comes next; of several the one nearest to Δ. */
export function gapOf(table, size, center) {
  const side = 2 * size - 1;
  const shiftOf = (p) => [Math.floor(p / side) - size + 1, (p % side) - size + 1];
  const away = (p) => shiftOf(p).reduce((sum, d, n) => sum + (d - center[n]) ** 2, 0);
  let best = null;
  table.forEach((b, p) => {
    if (away(p) === 0) return;
    const lead = best === null ? Infinity : b - table[best];
    if (lead > 1e-12 || (lead > -1e-12 && away(p) < away(best))) best = p;
  });
  return { gap: table[(center[0] + size - 1) * side + center[1] + size - 1] - table[best], next: shiftOf(best) };
}

/** First pixel of the window of k pixels that belongs to query q on an axis of n: moved inwards at the ends. */
export const windowStart = (q, k, n) => clamp(q - Math.floor(k / 2), 0, n - k);

/**
 * Attention of one query over all pixels. Position scores are s · B(δ); content scores −c (X_k − X_q)² are left
 * out ("none"), added to them ("before"), or have a softmax of their own and half of the weight ("gate").
 */
export function attentionRow({ height: size, data }, table, [row, column], { factor, window = size, content = "none", strength = 60 }) {
  const side = 2 * size - 1;
  const [top, left] = [row, column].map((q) => windowStart(q, window, size));
  const keys = Array.from({ length: window * window }, (_, n) => [top + Math.floor(n / window), left + (n % window)]);
  const position = keys.map(([i, j]) => factor * table[(i - row + size - 1) * side + j - column + size - 1]);
  const own = data[row * size + column];
  const alike = keys.map(([i, j]) => -strength * (data[i * size + j] - own) ** 2);
  let weights = softmax(content === "before" ? position.map((a, n) => a + alike[n]) : position);
  if (content === "gate") {
    const second = softmax(alike);
    weights = weights.map((a, n) => (a + second[n]) / 2);
  }
  const result = new Float64Array(size * size);
  keys.forEach(([i, j], n) => (result[i * size + j] = weights[n]));
  return result;
}

/** What the head passes on: every pixel the average of all pixels, weighted by its attention. */
export function seenBy(image, table, options) {
  const { height: size, data } = image;
  const result = blank(size, size, 1);
  for (let q = 0; q < size * size; q++) {
    const weights = attentionRow(image, table, [Math.floor(q / size), q % size], options);
    weights.forEach((a, k) => (result.data[q] += a * data[k]));
  }
  return result;
}

/** Half the sum of the absolute differences of two rows of attention: 0 for equal ones, 1 for disjoint ones. */
export const distance = (a, b) => a.reduce((sum, x, k) => sum + Math.abs(x - b[k]), 0) / 2;

export default {
  render({ model, el }) {
    const { image: sent, center: firstCenter, query: firstQuery, factor: firstFactor, colors } = model.get("state");
    const image = decode(sent);
    const size = image.height;
    const reach = 4; // of the centre, in pixels
    const map = 2 * reach + 9; // side of the map of B, the shift 0 in its middle
    const middle = (map - 1) / 2;
    let family = "quadratic";
    let center = [...firstCenter];
    let query = [...firstQuery];
    let content = "none";
    let window = size;
    let base = 100;
    let table = null;

    const scores = panel("Position term B(δ)", map, map);
    const attention = panel("Attention of a query", size, size);
    const seen = panel("The head passes on", size, size);
    const goal = panel("X moved by Δ", size, size);
    const readout = element("output");

    const factorOf = (x) => 2 ** x;
    const families = { "Quadratic": "quadratic", "Cosines along the axes": "axial", "Cosines in all directions": "mixed", "Table with a single 1": "table" };
    const kind = choice({ label: "Position term B", options: families, value: "Quadratic" }, (next) => ((family = next), retable()));
    const sharpen = slider({ label: "Factor s", min: -3, max: 7, step: 0.1, value: Math.log2(firstFactor), show: (x) => factorOf(x).toPrecision(3) }, () => update());
    const waves = slider({ label: "Waves an axis", min: 1, max: 8, step: 1, value: 8, show: (x) => format(x, 0) }, () => retable());
    const slowest = choice({ label: "Frequencies", options: { "base 10": 10, "base 100": 100, "base 10 000": 10000 }, value: "base 100" }, (next) => ((base = next), retable()));
    const contents = choice({ label: "Content", options: { "none": "none", "added before the softmax": "before", "gated after it": "gate" }, value: "none" }, (next) => ((content = next), update()));
    const windows = choice({ label: "Keys", options: { "whole image": size, "window of 9 × 9": 9 }, value: "whole image" }, (next) => ((window = next), update()));

    const aim = (row, column) => {
      center = [row, column].map((x) => clamp(x, -reach, reach));
      retable();
    };
    pointable(scores, {
      label: "Position term over the shifts. Drag to move the wanted shift Δ; arrow keys move it by one pixel.",
      onmove: ({ row, column }) => aim(row - middle, column - middle),
      onstep: ({ rows, columns }) => aim(center[0] + rows, center[1] + columns),
    });
    const walk = (row, column) => {
      query = [row, column].map((x) => clamp(x, 0, size - 1));
      update();
    };
    pointable(attention, {
      label: "Attention over the image. Drag to move the query; arrow keys move it by one pixel.",
      onmove: ({ row, column }) => walk(row, column),
      onstep: ({ rows, columns }) => walk(query[0] + rows, query[1] + columns),
    });

    function retable() {
      table = positionTable(size, family, center, { waves: waves.value, base });
      const cosines = family === "axial" || family === "mixed";
      waves.root.hidden = slowest.root.hidden = !cosines;
      update();
    }

    function update() {
      const factor = factorOf(sharpen.value);
      const options = { factor, window, content };
      const side = 2 * size - 1;
      const part = Float64Array.from({ length: map * map }, (_, p) => table[(Math.floor(p / map) - middle + size - 1) * side + (p % map) - middle + size - 1]);
      const [low, high] = [Math.min(...part), Math.max(...part)];
      paint(scores, { height: map, width: map, channels: 1, data: part }, { low, high, stops: colors.attention });
      scores.marks.replaceChildren();
      frame(scores, middle, middle);
      frame(scores, center[0] + middle, center[1] + middle, { color: colors.heads[1] });

      const row = attentionRow(image, table, query, options);
      paint(attention, { height: size, width: size, channels: 1, data: row }, { high: Math.max(...row), stops: colors.attention });
      attention.marks.replaceChildren();
      frame(attention, ...query);
      const target = query.map((q, n) => q + center[n]);
      const inside = target.every((t) => t >= 0 && t < size);
      if (inside) frame(attention, ...target, { color: colors.heads[1] });

      const output = seenBy(image, table, options);
      const moved = shiftImage(image, center, "replicate");
      paint(seen, output);
      paint(goal, moved);
      let [within, beyond] = [0, 0];
      output.data.forEach((x, q) => {
        const apart = Math.abs(x - moved.data[q]);
        const has = [Math.floor(q / size), q % size].every((p, n) => p + center[n] >= 0 && p + center[n] < size);
        if (has) within = Math.max(within, apart);
        else beyond = Math.max(beyond, apart);
      });

      const { gap, next } = gapOf(table, size, center);
      const name = (shift) => `(${shift.map((d) => format(d, 0)).join(", ")})`;
      const weight = inside ? row[target[0] * size + target[1]] : null;
      const influence = distance(row, attentionRow(image, table, query, { ...options, strength: 0 }));
      const lines = [
        `Δ = ${name(center)}: the gap to the next shift, ${name(next)}, is ${format(gap, 3)}. With the factor s it is ${format(factor * gap, 2)}, as for a quadratic head of sharpness α = ${format(factor * gap, 2)}.`,
        `Softmax over ${window ** 2} keys. ${inside ? `Attention on q + Δ: ${format(weight, 4)}.` : "q + Δ is outside the image."}`,
        `Largest difference from the moved picture: ${scientific(within)} where q + Δ is a pixel, ${scientific(beyond)} where it is not (there the nearest pixel is compared).`,
      ];
      if (content !== "none") lines[1] += ` Content moves ${format(100 * influence, 1)} % of this query's attention.`;
      readout.replaceChildren(...lines.map((line) => element("div", {}, line)));
      model.set("value", { family, center: [...center], query: [...query], factor, gap, next, weight, within, beyond, influence });
      model.save_changes();
    }

    const pictures = element("div", { class: "ac-panels", style: "flex: 2 1 17rem; max-width: 28rem; grid-template-columns: repeat(2, minmax(0, 1fr))" }, scores.root, attention.root, seen.root, goal.root);
    const controls = element("div", { class: "ac-row", style: "flex: 1 1 13rem; align-content: start" }, kind.root, sharpen.root, waves.root, slowest.root, contents.root, windows.root);
    el.append(element("div", { class: "ac-row", style: "align-items: start" }, pictures, controls), readout);
    retable();
  },
};
