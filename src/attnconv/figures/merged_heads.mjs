// Chapter 4: a head's value matrix times its rows of the output matrix, its singular values, and its gauge.
import { choice, element, format, multiply, paint, panel, player, scientific, slider, svgElement, transpose } from "./common.mjs";

/** The Frobenius norm, the root of the sum of all squares. */
export const norm = (matrix) => Math.sqrt(matrix.flat().reduce((sum, x) => sum + x * x, 0));

export const subtract = (a, b) => a.map((row, i) => row.map((x, j) => x - b[i][j]));

/**
 * Singular values, largest first, and right singular vectors, one a row, by rotating pairs of columns until all are
 * orthogonal (Hestenes, Jacobi): M Vᵀ then has the lengths σ_i in its columns. The sign of a vector makes its largest entry positive.
 */
export function singular(matrix) {
  const columns = transpose(matrix); // becomes the columns of M Vᵀ
  const n = columns.length;
  const vectors = columns.map((_, i) => columns.map((_, j) => Number(i === j))); // becomes V, one vector a row
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  for (let sweep = 0, turned = true; turned && sweep < 40; sweep++) {
    turned = false;
    for (let p = 0; p < n - 1; p++) {
      for (let q = p + 1; q < n; q++) {
        const [a, b, c] = [dot(columns[p], columns[p]), dot(columns[q], columns[q]), dot(columns[p], columns[q])];
        if (Math.abs(c) <= 1e-15 * Math.sqrt(a * b)) continue;
        turned = true;
        const z = (b - a) / (2 * c);
        const tangent = (z < 0 ? -1 : 1) / (Math.abs(z) + Math.sqrt(1 + z * z));
        const cosine = 1 / Math.sqrt(1 + tangent * tangent);
        for (const list of [columns, vectors]) {
          const [x, y] = [list[p], list[q]];
          list[p] = x.map((value, i) => cosine * (value - tangent * y[i]));
          list[q] = y.map((value, i) => cosine * (value + tangent * x[i]));
        }
      }
    }
  }
  const lengths = columns.map((column) => Math.sqrt(dot(column, column)));
  const order = lengths.map((_, i) => i).sort((i, j) => lengths[j] - lengths[i]);
  const upright = (vector) => {
    const largest = vector.reduce((most, x) => (Math.abs(x) > Math.abs(most) + 1e-9 ? x : most), 0);
    return vector.map((x) => (largest < 0 ? -x : x));
  };
  return { values: order.map((i) => lengths[i]), vectors: order.map((i) => upright(vectors[i])) };
}

/** The pair of a D_in × width and a width × D_out matrix whose product is closest to a matrix: its first singular terms. */
export function splitHead(matrix, width) {
  const out = singular(matrix).vectors.slice(0, width);
  return { val: multiply(matrix, transpose(out)), out };
}

/**
 * An invertible G and its inverse: plane by plane a turn of neighbouring axes by `angle` (in degrees), then axis by
 * axis a stretch by s, 1/s, s, …
 */
export function gauge(width, angle, stretch) {
  const [c, s] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
  let turn = Array.from({ length: width }, (_, i) => Array.from({ length: width }, (_, j) => Number(i === j)));
  for (let p = 0; p + 1 < width; p++) {
    turn = turn.map((row) => row.map((x, j) => (j === p ? c * x - s * row[p + 1] : j === p + 1 ? s * row[p] + c * x : x)));
  }
  const factor = (i) => (i % 2 ? 1 / stretch : stretch);
  return {
    forward: turn.map((row) => row.map((x, j) => x * factor(j))),
    inverse: transpose(turn).map((row, i) => row.map((x) => x / factor(i))),
  };
}

/** How many singular values are more than rounding. */
export const rank = (values) => values.filter((value) => value > 1e-10 * values[0]).length;

/** Rows × columns, for a title; no line break inside. */
const size = (matrix) => `${matrix.length}\u00a0×\u00a0${matrix[0].length}`;

const largest = (matrix) => matrix.flat().reduce((most, x) => Math.max(most, Math.abs(x)), 0);

export default {
  render({ model, el }) {
    const { targets, start, colors } = model.get("state");
    const names = Object.keys(targets);
    const matrices = Object.values(targets);
    const [D_in, D_out] = [matrices[0].length, matrices[0][0].length];
    const most = Math.min(D_in, D_out);
    let head = 0;

    const all = panel("", names.length * most, D_out);
    const val = panel("", D_in, most);
    const out = panel("", most, D_out);
    const product = panel("", D_in, D_out);
    const target = panel("", D_in, D_out);
    const missing = panel("", D_in, D_out);
    all.root.style.flex = "0 0 3.9rem";

    const bars = svgElement("svg", { viewBox: "0 0 100 100", role: "img", style: "position: static; display: block; width: 100%; height: auto" });
    const chart = element("div", { class: "ac-panel" }, element("div", { class: "ac-title" }, "Singular values of both"), element("div", { class: "ac-image" }, bars));
    const readouts = [element("output"), element("output")];

    const heads = choice({ label: "Head", options: Object.fromEntries(names.map((name, h) => [name, h])), value: names[0] }, (h) => ((head = h), update()));
    const width = slider({ label: "Head width", min: 1, max: most, step: 1, value: start, show: (n) => `D_h = ${n}` }, () => update());
    const angle = slider({ label: "Gauge: turn", min: -180, max: 180, step: 2, value: 0, show: (x) => `${format(x, 0)}°` }, () => update());
    const stretch = slider({ label: "Gauge: stretch", min: -2, max: 2, step: 0.1, value: 0, show: (x) => `× ${format(2 ** x)}` }, () => update());
    const frames = 90;
    const turn = player({ label: "Turn once around", count: frames + 1, milliseconds: 60 }, (i) => (angle.set(i === frames ? 0 : (4 * i + 180) % 360 - 180), update(true)));

    /** Paint a matrix into the upper left of a panel; what it does not fill stays empty. */
    function show(one, matrix, limit) {
      const { canvas } = one;
      const data = new Float64Array(canvas.width * canvas.height);
      matrix.forEach((row, i) => data.set(row, i * canvas.width));
      paint(one, { height: canvas.height, width: canvas.width, channels: 1, data }, { low: -limit, high: limit, stops: colors.diverging });
      const context = canvas.getContext("2d");
      context.clearRect(0, matrix.length, canvas.width, canvas.height);
      context.clearRect(matrix[0].length, 0, canvas.width, canvas.height);
      const edge = { width: matrix[0].length, height: matrix.length, fill: "none", "vector-effect": "non-scaling-stroke" };
      one.marks.replaceChildren(svgElement("rect", { ...edge, stroke: "var(--ac-line)" }));
    }

    function outline({ marks }, x, y, columns, rows, color) {
      const box = { x, y, width: columns, height: rows, fill: "none", "vector-effect": "non-scaling-stroke" };
      marks.append(svgElement("rect", { ...box, stroke: "#ffffff", "stroke-width": 5 }), svgElement("rect", { ...box, stroke: color, "stroke-width": 3 }));
    }

    function draw(goal, own, color) {
      bars.replaceChildren();
      const step = 100 / goal.length;
      const height = (x) => (96 * x) / (goal[0] || 1);
      goal.forEach((value, i) => {
        const box = { x: (i + 0.15) * step, width: 0.7 * step };
        const tall = Math.max(height(value), 0.8); // a value of zero is still a line
        if (own[i] !== undefined) bars.append(svgElement("rect", { ...box, y: 98 - height(own[i]), height: height(own[i]), fill: color }));
        bars.append(svgElement("rect", { ...box, y: 98 - tall, height: tall, fill: "none", stroke: "currentColor", "vector-effect": "non-scaling-stroke" }));
      });
    }

    function update(playing = false) {
      if (!playing) turn.stop();
      const [D_h, s] = [width.value, 2 ** stretch.value];
      const goal = matrices[head];
      const color = colors.heads[head % colors.heads.length];
      const plain = splitHead(goal, D_h);
      const { forward, inverse } = gauge(D_h, angle.value, s);
      const [wVal, wOut] = [multiply(plain.val, forward), multiply(inverse, plain.out)];
      const before = multiply(plain.val, plain.out);
      const whole = multiply(wVal, wOut);
      const rest = subtract(goal, whole);
      const [sigma, own] = [singular(goal).values, singular(whole).values];
      const stack = matrices.flatMap((matrix, h) => (h === head ? wOut : splitHead(matrix, D_h).out));

      all.setTitle(`Whole W_out, ${size(stack)}`);
      val.setTitle(`W_val of this head, ${size(wVal)}`);
      out.setTitle(`Its rows of W_out, ${size(wOut)}`);
      product.setTitle(`Their product, rank ${rank(own)}`);
      target.setTitle(`Wanted, rank ${rank(sigma)}`);
      missing.setTitle("Wanted minus product");
      const [inside, outside] = [largest(plain.val), largest(plain.out)];
      show(all, stack, outside);
      show(val, wVal, inside);
      show(out, wOut, outside);
      for (const [one, matrix] of [[product, whole], [target, goal], [missing, rest]]) show(one, matrix, largest(goal));
      outline(all, 0, head * D_h, D_out, D_h, color);
      outline(val, 0, 0, D_h, D_in, color);
      outline(out, 0, 0, D_out, D_h, color);
      draw(sigma, own, color);

      const tail = Math.sqrt(sigma.slice(D_h).reduce((sum, x) => sum + x * x, 0));
      const list = (numbers) => numbers.map((x) => format(x)).join(", ");
      const small = (x) => (x < 5e-4 ? scientific(x) : format(x, 3)); // what is not zero is rounding
      bars.setAttribute("aria-label", `Singular values wanted: ${list(sigma)}. Of the product: ${list(own)}.`);
      const lost = sigma.slice(D_h);
      readouts[0].textContent =
        `Singular values: ${list(sigma.slice(0, D_h))} kept; ${lost.length ? list(lost) : "none"} lost. ` +
        `Missing: ${small(norm(rest))}, by the lost values ${small(tail)}, of a norm of ${format(norm(goal), 3)}.`;
      const change = (a, b) => small(largest(subtract(a, b)));
      const moved = angle.value !== 0 || s !== 1;
      readouts[1].textContent = !moved
        ? "The gauge is at rest. Turn or stretch it."
        : `The gauge has changed W_val by up to ${change(wVal, plain.val)}, its rows of W_out by up to ${change(wOut, plain.out)}, ` +
          `their product by up to ${change(whole, before)}.${D_h === 1 ? " A single channel cannot turn." : ""}`;
      model.set("value", { head: names[head], head_dim: D_h, angle: angle.value, stretch: s, error: norm(rest) });
      model.save_changes();
    }

    const panels = element("div", { class: "ac-panels", style: "flex: 1 1 0; grid-template-columns: repeat(auto-fit, minmax(min(9.5rem, 44%), 1fr))" });
    panels.append(...[val, out, product, target, missing].map((one) => one.root), chart);
    el.append(
      element("div", { class: "ac-row" }, heads.root, width.root),
      element("div", { class: "ac-row", style: "flex-wrap: nowrap; align-items: start; gap: 1rem" }, all.root, panels),
      element("div", { class: "ac-row" }, angle.root, stretch.root, turn.root),
      ...readouts,
    );
    update();
  },
};
