// Chapter 11: heads that learn a convolution by gradient descent, in the page.
import { button, centersPlane, checkbox, choice, clamp, element, format, paint, panel, pointable, reducedMotion, scientific, SHIFTS, slider, softmax, svgElement } from "./common.mjs";

/** Matrix of r(δ − δ′) over the shifts of a (2 reach + 1)² window; r is a table over shifts of up to 2 reach. */
export function autocorrelationMatrix(table, reach) {
  const [side, wide] = [2 * reach + 1, 4 * reach + 1];
  const count = side * side;
  const matrix = new Float64Array(count * count);
  for (let a = 0; a < count; a++) {
    for (let b = 0; b < count; b++) {
      const row = Math.floor(a / side) - Math.floor(b / side) + 2 * reach;
      matrix[a * count + b] = table[row * wide + (a % side) - (b % side) + 2 * reach];
    }
  }
  return matrix;
}

/** D: what the heads do, minus the target, for every shift of the window; one row of output channels a shift. */
export function difference({ centers, spreads, weights }, target, reach) {
  const side = 2 * reach + 1;
  const outputs = target[0].length;
  const rest = new Float64Array(side * side * outputs);
  SHIFTS.forEach(([i, j], t) => {
    const at = ((i + reach) * side + j + reach) * outputs;
    for (let o = 0; o < outputs; o++) rest[at + o] = -target[t][o];
  });
  const axes = centers.map((center, h) =>
    center.map((c) => softmax(Array.from({ length: side }, (_, k) => (-(spreads[h] ** 2) / 2) * (k - reach - c) ** 2))),
  );
  axes.forEach(([rows, columns], h) => {
    for (let i = 0; i < side; i++) {
      for (let j = 0; j < side; j++) {
        const [p, at] = [rows[i] * columns[j], (i * side + j) * outputs];
        for (let o = 0; o < outputs; o++) rest[at + o] += p * weights[h][o];
      }
    }
  });
  return { rest, axes };
}

/** Γ D, or D itself where the input is white noise. */
function correlated(rest, gamma, outputs) {
  if (!gamma) return rest;
  const count = rest.length / outputs;
  const result = new Float64Array(rest.length);
  for (let a = 0; a < count; a++) {
    for (let b = 0; b < count; b++) {
      const r = gamma[a * count + b];
      for (let o = 0; o < outputs; o++) result[a * outputs + o] += r * rest[b * outputs + o];
    }
  }
  return result;
}

/** Σ_δ D_δ · (Γ D)_δ divided by the number of outputs: the expected squared error of an output. */
export function expectedLoss(layer, target, reach, gamma = null) {
  const { rest } = difference(layer, target, reach);
  const other = correlated(rest, gamma, target[0].length);
  return rest.reduce((sum, d, i) => sum + d * other[i], 0) / target[0].length;
}

/**
 * The loss and its gradients by hand. With G_δ = ∂L/∂p_δ of a head and covariances under its attention,
 * ∂L/∂Δ = 2α Cov(δ, G), ∂L/∂α = −Cov(‖δ − Δ‖², G), and ∂L/∂s = s ∂L/∂α as α = s²/2.
 */
export function lossAndGradients(layer, target, reach, gamma = null) {
  const { rest, axes } = difference(layer, target, reach);
  const [side, outputs] = [2 * reach + 1, target[0].length];
  const other = correlated(rest, gamma, outputs);
  const loss = rest.reduce((sum, d, i) => sum + d * other[i], 0) / outputs;
  const gradients = { centers: [], spreads: [], weights: [] };
  axes.forEach(([rows, columns], h) => {
    const weights = new Array(outputs).fill(0);
    const w = layer.weights[h];
    const [y, x] = layer.centers[h];
    // Means under the attention of 1, of the two coordinates of δ − Δ, of its square, and each times G.
    let [g, ry, rx, rr, gy, gx, gr] = [0, 0, 0, 0, 0, 0, 0];
    for (let i = 0; i < side; i++) {
      for (let j = 0; j < side; j++) {
        const [p, at] = [rows[i] * columns[j], (i * side + j) * outputs];
        let slope = 0;
        for (let o = 0; o < outputs; o++) {
          weights[o] += ((2 * p) / outputs) * other[at + o];
          slope += (2 / outputs) * other[at + o] * w[o];
        }
        const [dy, dx] = [i - reach - y, j - reach - x];
        const square = dy * dy + dx * dx;
        g += p * slope;
        ry += p * dy;
        rx += p * dx;
        rr += p * square;
        gy += p * slope * dy;
        gx += p * slope * dx;
        gr += p * slope * square;
      }
    }
    const s = layer.spreads[h];
    gradients.weights.push(weights);
    gradients.centers.push([s * s * (gy - g * ry), s * s * (gx - g * rx)]);
    gradients.spreads.push(-s * (gr - g * rr));
  });
  return { loss, gradients };
}

const FIRST = 0.9; // Adam's two decay rates, as PyTorch has them
const SECOND = 0.999;

/** One step of Adam on a number: returns the new value and keeps its two means in `memory`. */
export function adam(value, gradient, memory, rate) {
  memory.t = (memory.t ?? 0) + 1;
  memory.m = FIRST * (memory.m ?? 0) + (1 - FIRST) * gradient;
  memory.v = SECOND * (memory.v ?? 0) + (1 - SECOND) * gradient * gradient;
  const [m, v] = [memory.m / (1 - FIRST ** memory.t), memory.v / (1 - SECOND ** memory.t)];
  return value - (rate * m) / (Math.sqrt(v) + 1e-8);
}

/** Adam's memory for a layer: one small object a number. */
export const memoryFor = ({ centers, weights }) =>
  centers.map((_, h) => ({ center: [{}, {}], spread: {}, weights: weights[h].map(() => ({})) }));

/** One step of gradient descent, in place; returns the loss before it. */
export function step(layer, memory, target, reach, { gamma = null, rates, decay }) {
  const { loss, gradients } = lossAndGradients(layer, target, reach, gamma);
  memory.forEach((own, h) => {
    layer.centers[h] = layer.centers[h].map((c, axis) => adam(c, gradients.centers[h][axis], own.center[axis], rates.heads));
    layer.spreads[h] = adam(layer.spreads[h], gradients.spreads[h], own.spread, rates.heads);
    layer.weights[h] = layer.weights[h].map((w, o) => adam(w, gradients.weights[h][o] + decay * w, own.weights[o], rates.weights));
  });
  return loss;
}

/** Numbers between 0 and 1 from a seed (mulberry32). */
function random(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** A layer before training: centres normal with standard deviation 2 within the picture, small random weights. */
export function startingLayer(heads, outputs, alpha, seed, limit = 4.4) {
  const draw = random(seed);
  const normal = () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
  const within = () => {
    for (;;) {
      const c = 2 * normal();
      if (Math.abs(c) < limit) return c;
    }
  };
  const list = (make) => Array.from({ length: heads }, make);
  return {
    centers: list(() => [within(), within()]),
    spreads: list(() => Math.sqrt(2 * alpha) + 0.01 * normal()),
    weights: list(() => Array.from({ length: outputs }, () => (2 * draw() - 1) / Math.sqrt(heads))),
  };
}

/** For each of the nine taps, the distance to the nearest head; and for each head, to the nearest whole shift. */
export function verdict({ centers }) {
  const taps = SHIFTS.map((tap) => Math.min(...centers.map((c) => Math.hypot(c[0] - tap[0], c[1] - tap[1]))));
  return { reached: taps.filter((d) => d < 0.25).length, farthest: Math.max(...taps) };
}

export default {
  render({ model, el }) {
    const { target, reach, autocorrelation, alpha: firstAlpha, seed: firstSeed, rates, decay, colors } = model.get("state");
    const outputs = target[0].length;
    const gamma = autocorrelationMatrix(autocorrelation, reach);
    const nothing = { centers: [], spreads: [], weights: [] };
    const [view, last] = [4, 2000]; // pixels shown around the query; steps on the curve
    const inputs = { "White noise": null, "A photograph": gamma };
    let input = null;
    let seed = firstSeed;
    let chosen = 0;
    let layer, memory, steps, curve, timer;
    timer = null;

    const plane = centersPlane("Heads: centres, 50 % and 90 % of their mass", view);
    const rest = panel("", 2 * view + 1, 2 * view + 1);
    const [across, high] = [100, 100];
    const graph = panel("Loss against steps", high, across);
    for (const one of [plane, rest, graph]) one.root.style.flex = "1 1 0";
    plane.root.style.cssText = "flex: 1 1 14rem; max-width: 24rem";
    const readout = element("output");

    const source = choice({ label: "Input", options: inputs, value: "White noise" }, (next) => ((input = next), (curve = []), update()));
    const count = choice({ label: "Heads", options: { 9: 9, 12: 12, 16: 16 }, value: "9" }, () => restart());
    const sharpness = slider({ label: "α at the start", min: -5, max: 3, step: 0.5, value: Math.log2(firstAlpha), show: (x) => (2 ** x).toPrecision(2) }, () => restart());
    const shrink = checkbox({ label: "Weight decay", checked: true }, () => update());
    const pick = slider({ label: "Head to move", min: 1, max: 9, step: 1, value: 1, show: (n) => format(n, 0) }, (n) => ((chosen = n - 1), update()));
    const train = button("Train", () => (timer === null ? start() : stop()));
    const fresh = button("New start", () => ((seed += 1), restart()));
    const again = button("Same start", () => restart());

    const squared = (rows) => rows.flat().reduce((sum, w) => sum + w * w, 0);
    const color = (h) => colors.heads[h % colors.heads.length];

    function restart() {
      stop();
      layer = startingLayer(count.select.value * 1, outputs, 2 ** sharpness.value, seed);
      memory = memoryFor(layer);
      [steps, curve] = [0, []];
      pick.input.max = layer.centers.length;
      chosen = Math.min(chosen, layer.centers.length - 1);
      update();
    }

    const options = () => ({ gamma: input, rates, decay: shrink.input.checked ? decay : 0 });
    const share = (on) => expectedLoss(layer, target, reach, on) / expectedLoss(nothing, target, reach, on);

    /** Train for so many steps, or for so many milliseconds. */
    function advance(most, milliseconds = Infinity) {
      const until = performance.now() + milliseconds;
      for (let n = 0; n < most && performance.now() < until; n++) {
        step(layer, memory, target, reach, options());
        steps += 1;
        if (steps % 10 === 0) curve.push([steps, share(input)]);
      }
    }

    function start() {
      if (reducedMotion()) {
        advance(300, 1500);
        return update();
      }
      train.textContent = "Stop";
      const end = steps + last;
      const tick = () => {
        if (timer === null || !train.isConnected) return;
        if (steps >= end) return stop();
        advance(6, 24);
        update();
        timer = requestAnimationFrame(tick);
      };
      timer = requestAnimationFrame(tick);
    }

    function stop() {
      if (timer !== null) cancelAnimationFrame(timer);
      timer = null;
      train.textContent = "Train";
    }

    function move(row, column) {
      layer.centers[chosen] = [row, column].map((c) => clamp(c, -view - 0.4, view + 0.4));
      memory[chosen] = memoryFor(layer)[chosen]; // a head put elsewhere starts afresh
      update();
    }

    pointable(plane, {
      label: "The pixels around the query. Drag a head; arrow keys move the chosen head by half a pixel.",
      onmove: ({ y, x, begins }) => {
        const [row, column] = [y, x].map((c) => c - view - 0.5);
        if (begins) {
          const away = layer.centers.map((c) => Math.hypot(c[0] - row, c[1] - column));
          chosen = away.indexOf(Math.min(...away));
        }
        move(row, column);
      },
      onstep: ({ rows, columns }) => move(layer.centers[chosen][0] + rows / 2, layer.centers[chosen][1] + columns / 2),
    });

    function drawGraph() {
      const { marks } = graph;
      marks.replaceChildren();
      const [left, top, right, bottom] = [24, 4, across - 4, high - 15];
      const decades = [0, -1, -2, -3, -4, -5, -6];
      const place = ([n, share]) => [
        left + ((right - left) * n) / Math.max(last, steps),
        top + ((bottom - top) * clamp(-Math.log10(share), 0, 6)) / 6,
      ];
      const write = (x, y, text, anchor) => {
        const label = svgElement("text", { x, y, "text-anchor": anchor, "font-size": 8, fill: "var(--ac-quiet)" });
        label.textContent = text;
        marks.append(label);
      };
      for (const power of decades) {
        const y = top + ((bottom - top) * -power) / 6;
        marks.append(svgElement("path", { d: `M${left} ${y}H${right}`, stroke: "var(--ac-line)", "stroke-width": 0.5 }));
        if (power % 2 === 0) write(left - 3, y + 3, power === 0 ? "1" : scientific(10 ** power).split("·")[1], "end");
      }
      write(left, high - 5, "0", "start");
      write(right, high - 5, `${Math.max(last, steps)} steps`, "end");
      const points = curve.map((point) => place(point).map((c) => c.toFixed(2)).join(",")).join(" ");
      marks.append(svgElement("polyline", { points, fill: "none", stroke: "var(--ac-accent)", "stroke-width": 1.6 }));
    }

    function update() {
      const { rest: remaining } = difference(layer, target, reach);
      const side = 2 * view + 1;
      const data = Array.from({ length: side * side }, (_, p) => {
        const at = ((Math.floor(p / side) + reach - view) * (2 * reach + 1) + (p % side) + reach - view) * outputs;
        return Math.hypot(...remaining.slice(at, at + outputs));
      });
      const most = Math.max(...data);
      const { reached, farthest } = verdict(layer);
      const [here, noise] = [share(input), share(null)];
      const alphas = layer.spreads.map((s) => (s * s) / 2);

      pick.set(chosen + 1);
      plane.draw(layer.centers.map((center, h) => ({ center, alpha: alphas[h], color: color(h), chosen: h === chosen })));
      paint(rest, { height: side, width: side, channels: 1, data }, { high: most, stops: colors.attention });
      rest.setTitle(`Error by shift, up to ${most < 0.01 ? scientific(most) : format(most)}`);
      rest.marks.replaceChildren(
        svgElement("rect", { x: view - 1, y: view - 1, width: 3, height: 3, fill: "none", stroke: "#ffffff", "stroke-width": 2, "vector-effect": "non-scaling-stroke" }),
      );
      drawGraph();
      const percent = (x) => (x >= 0.001 ? `${format(100 * x, 1)} %` : scientific(x));
      const [y, x] = layer.centers[chosen];
      readout.replaceChildren(
        element("div", {}, `Step ${steps}. Error ${percent(here)} of the output${input ? `; on white noise it would be ${percent(noise)}` : ""}.`),
        element("div", {}, `Weight decay is ${shrink.input.checked ? "on" : "off"}. The squared weights add up to ${format(squared(layer.weights), 1)}, those of the kernel to ${format(squared(target), 1)}.`),
        element("div", {}, `Taps with a head within ¼ pixel: ${reached} of 9. The loneliest is ${format(farthest)} pixels from the next head.`),
        element("div", {}, `Head ${chosen + 1}, drawn thick: Δ = (${format(y)}, ${format(x)}), α = ${format(alphas[chosen])}.`),
      );
      model.set("value", { steps, loss: here, noise, reached, farthest, centers: layer.centers.map((c) => [...c]), alphas, heads: alphas.length, seed });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, source.root, count.root, sharpness.root, shrink.root),
      element("div", { class: "ac-row", style: "align-items: start" }, plane.root, element("div", { class: "ac-row", style: "flex: 1 1 16rem; flex-wrap: nowrap" }, rest.root, graph.root)),
      element("div", { class: "ac-row" }, train, again, fresh, pick.root),
      readout,
    );
    restart();
  },
};
