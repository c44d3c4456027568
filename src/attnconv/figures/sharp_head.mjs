// Chapter 6: one quadratic head under the reader's hand, and the layer that nine of them make.
import { blank, choice, clamp, convolve, decode, element, format, frame, largestDifference, massRadius, nineHeads, paint, panel, pointable, scientific, slider, softmax, svgElement } from "./common.mjs";

/** Attention over a size × size neighbourhood of the query: softmax of −α ‖δ − Δ‖², row by row. */
export function neighbourhoodAttention(size, [row, column], alpha) {
  const middle = (size - 1) / 2;
  const squares = Array.from({ length: size * size }, (_, p) => (Math.floor(p / size) - middle - row) ** 2 + ((p % size) - middle - column) ** 2);
  return softmax(squares.map((d) => -alpha * d));
}

/** Σ_n exp(−α ((n − t)² − t²)) over all integers n but 0, for a centre at distance |t| ≤ ½ from the pixel 0. */
function others(t, alpha) {
  let sum = 0;
  for (let n = 1; alpha * n * (n - 1) < 750; n++) sum += Math.exp(-alpha * n * (n - 2 * t)) + Math.exp(-alpha * n * (n + 2 * t));
  return sum;
}

/** Attention on the pixel nearest to the centre, on an unbounded grid: the product of one sum an axis. */
export function targetMass(center, alpha) {
  return center.reduce((product, c) => product / (1 + others(c - Math.round(c), alpha)), 1);
}

/** ε = 1 − 1/θ₃(e^(−α))², written so that nothing cancels for large α. */
export function leakage(alpha) {
  const s = others(0, alpha);
  return (s * (s + 2)) / (1 + s) ** 2;
}

/** |error| ≤ ε(α) · (max X − min X) · Σ |w|. */
export function errorBound({ data }, weights, alpha) {
  const swing = data.reduce((a, b) => Math.max(a, b), -Infinity) - data.reduce((a, b) => Math.min(a, b), Infinity);
  return leakage(alpha) * swing * weights.reduce((sum, w) => sum + Math.abs(w), 0);
}

export default {
  render({ model, el }) {
    const { image: sent, kernels, start, center: first, alpha: firstAlpha, size, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    const middle = (size - 1) / 2;
    const alphaOf = (x) => 2 ** x; // the slider walks through the powers of two
    let center = [...first];
    let weights = kernels[start];
    let target = convolve(image, weights);

    const map = panel("Where the head looks", size, size);
    map.marks.style.overflow = "hidden"; // wide circles end with the map
    map.root.style.flex = "1 1 12rem";
    map.root.style.maxWidth = "17rem";
    const photo = panel("X", height, width);
    const layer = panel("Nine heads", height, width);
    const goal = panel("Convolution", height, width);
    const error = panel("Error", height, width);
    const readout = element("output");

    const sharpness = slider({ label: "Sharpness α", min: -3, max: 5, step: 0.05, value: Math.log2(firstAlpha), show: (x) => alphaOf(x).toPrecision(3) }, () => update());
    const axes = ["Centre Δ, rows", "Centre Δ, columns"].map((label, axis) =>
      slider({ label, min: -middle, max: middle, step: 0.1, value: center[axis], show: (x) => format(x, 1) }, (x) => ((center[axis] = x), update())),
    );
    const kernel = choice({ label: "Kernel of the nine heads", options: kernels, value: start }, (next) => {
      weights = next;
      target = convolve(image, weights);
      update();
    });
    const move = (row, column) => {
      center = [row, column].map((x) => clamp(Math.round(10 * x) / 10, -middle, middle));
      update();
    };
    const snap = (x) => (Math.abs(x - Math.round(x)) < 0.2 ? Math.round(x) : x); // hit a pixel's middle with a finger
    pointable(map, {
      label: "The neighbourhood of the query. Drag to move the centre Δ; arrow keys move it by half a pixel.",
      onmove: ({ y, x }) => move(snap(y - middle - 0.5), snap(x - middle - 0.5)),
      onstep: ({ rows, columns }) => move(center[0] + rows / 2, center[1] + columns / 2),
    });

    /** A dark line on a light one, so that it shows on every colour. */
    function line(tag, attributes, width = 2) {
      const shared = { ...attributes, fill: "none", "vector-effect": "non-scaling-stroke" };
      map.marks.append(
        svgElement(tag, { ...shared, stroke: "#000000", "stroke-width": width + 2.5, "stroke-dasharray": "none" }),
        svgElement(tag, { ...shared, stroke: "#ffffff", "stroke-width": width }),
      );
    }

    function update() {
      const alpha = alphaOf(sharpness.value);
      axes.forEach((axis, n) => axis.set(center[n]));

      const attention = neighbourhoodAttention(size, center, alpha);
      const nearest = center.map(Math.round);
      const [row, column] = nearest.map((c) => c + middle);
      const measured = attention[row * size + column];
      paint(map, { height: size, width: size, channels: 1, data: attention }, { high: Math.max(...attention), stops: colors.attention });
      map.marks.replaceChildren();
      frame(map, middle, middle);
      frame(map, row, column, { color: colors.heads[1] });
      const [y, x] = center.map((c) => c + middle + 0.5);
      line("circle", { cx: x, cy: y, r: massRadius(0.5, alpha) });
      line("circle", { cx: x, cy: y, r: massRadius(0.9, alpha), "stroke-dasharray": "6 5" });
      line("path", { d: `M${x - 0.22} ${y}h0.44M${x} ${y - 0.22}v0.44` });

      const result = nineHeads(image, weights, alpha);
      const difference = blank(height, width, 1);
      result.data.forEach((value, p) => (difference.data[p] = value - target.data[p]));
      const largest = largestDifference(result.data, target.data);
      const bound = errorBound(image, weights, alpha);
      const signed = weights.some((w) => w < 0) && weights.reduce((a, b) => a + b, 0) < 0.5;
      const span = Math.max(...target.data.map(Math.abs));
      const scale = signed ? { low: -span, high: span, stops: colors.diverging } : {};
      paint(photo, image);
      paint(layer, result, scale);
      paint(goal, target, scale);
      paint(error, difference, { low: -largest, high: largest, stops: colors.diverging });
      error.setTitle(`Error, ±${scientific(largest)}`);

      const name = `(${nearest.map((c) => format(c, 0)).join(", ")})`;
      const mass = targetMass(center, alpha);
      const equals = center.reduce((count, c) => count * (Math.abs(c % 1) === 0.5 ? 2 : 1), 1);
      const which = equals === 1 ? "the pixel" : `each of the ${equals} nearest pixels, such as`;
      const circles = `Half of a Gaussian lies within ${format(massRadius(0.5, alpha))} pixels, 90 % within ${format(massRadius(0.9, alpha))}.`;
      readout.replaceChildren(
        element("div", {}, `Attention on ${which} ${name}: ${format(measured, 4)} on this map, ${format(mass, 4)} by the formula for a grid without borders. ${circles}`),
        element("div", {}, `Nine heads against the convolution: largest error ${scientific(largest)}, bound ${scientific(bound)}.`),
      );
      model.set("value", { alpha, center: [...center], measured, mass, error: largest, bound });
      model.save_changes();
    }

    const controls = element("div", { class: "ac-row", style: "flex: 1 1 14rem; align-content: start" }, sharpness.root, axes[0].root, axes[1].root, kernel.root);
    el.append(
      element("div", { class: "ac-row", style: "align-items: start" }, map.root, controls),
      element("div", { class: "ac-panels" }, photo.root, layer.root, goal.root, error.root),
      readout,
    );
    update();
  },
};
