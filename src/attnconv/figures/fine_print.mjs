// Chapter 7: a convolution as self-attention, with every condition of the theorem in the reader's hand.
import { blank, choice, decode, element, format, modulo, paint, panel, scientific, shiftImage, slider } from "./common.mjs";

/**
 * Attention of a quadratic head along one axis of n pixels, before it is divided by the sum: `weights[q][k]` is
 * exp(−α d²) for the distance d of the key k from q + Δ, and `totals[q]` the sum over the keys. What stands around the
 * image decides which keys there are: `bare`, none but the pixels; `ring`, `margin` more on each side, which hold
 * zeros; `circular`, the pixels of a ring; `sink`, the pixels, and one more key that `headOutput` adds.
 */
export function axisWeights(n, center, alpha, border, margin = Math.abs(center)) {
  const half = Math.floor(n / 2);
  const distance = (q, k) => {
    const shift = border === "circular" ? modulo(k - q + half, n) - half : k - q;
    return (shift - center) ** 2;
  };
  const around = border === "ring" ? margin : 0;
  const [weights, totals] = [[], []];
  for (let q = 0; q < n; q++) {
    const all = Array.from({ length: n + 2 * around }, (_, k) => distance(q, k - around));
    // Subtract the smallest, which softmax does not see. A sink would see it.
    const least = border === "sink" ? 0 : Math.min(...all);
    const row = all.map((d) => (alpha === Infinity ? Number(d === least) : Math.exp(-alpha * (d - least))));
    weights.push(row.slice(around, n + around));
    totals.push(row.reduce((sum, w) => sum + w, 0));
  }
  return { weights, totals };
}

/**
 * softmax(A) X for a quadratic head. The weights over the image are those over its rows times those over its columns,
 * so the head needs no table of all pairs (chapter 10). With a sink of score 0 and value 0, the head's matrix counts
 * double, which the result includes.
 */
export function headOutput({ height, width, channels, data }, [down, right], alpha, border) {
  const rows = axisWeights(height, down, alpha, border, 1);
  const columns = axisWeights(width, right, alpha, border, 1);
  const half = blank(height, width, channels);
  const result = blank(height, width, channels);
  const across = width * channels;
  for (let q = 0; q < height; q++) {
    for (let k = 0; k < height; k++) {
      const w = rows.weights[q][k];
      if (w < 1e-30) continue;
      for (let p = 0; p < across; p++) half.data[q * across + p] += w * data[k * across + p];
    }
  }
  for (let i = 0; i < height; i++) {
    for (let q = 0; q < width; q++) {
      const inside = rows.totals[i] * columns.totals[q];
      const total = border === "sink" ? (inside + 1) / 2 : inside;
      for (let k = 0; k < width; k++) {
        const w = columns.weights[q][k] / total;
        if (w < 1e-30) continue;
        for (let c = 0; c < channels; c++) result.data[i * across + q * channels + c] += w * half.data[i * across + k * channels + c];
      }
    }
  }
  return result;
}

/** Add image · matrix to a sum; the matrix is flat, row by row. */
function addProduct(sum, image, matrix) {
  const { channels, data } = image;
  const out = sum.channels;
  for (let p = 0; p < data.length / channels; p++) {
    for (let c = 0; c < channels; c++) {
      for (let o = 0; o < out; o++) sum.data[p * out + o] += data[p * channels + c] * matrix[c * out + o];
    }
  }
}

/** The layer: Σ_h softmax(A^(h)) X W^(h), over the heads that are used. */
export function attentionLayer(image, shifts, matrices, alpha, border, used = shifts.map(() => true)) {
  const result = blank(image.height, image.width, matrices[0].length / image.channels);
  shifts.forEach((shift, h) => {
    if (used[h] && matrices[h].some((w) => w !== 0)) addProduct(result, headOutput(image, shift, alpha, border), matrices[h]);
  });
  return result;
}

/** The convolution Σ_δ shift_δ(X) W_δ, with a matrix a tap. */
export function matrixConvolution(image, shifts, matrices, padding) {
  const result = blank(image.height, image.width, matrices[0].length / image.channels);
  shifts.forEach((shift, h) => addProduct(result, shiftImage(image, shift, padding), matrices[h]));
  return result;
}

/** The best matrices for heads of a given width: of each W_δ the first terms of its singular value decomposition. */
export const narrowMatrices = (pieces, width) =>
  pieces.map((terms) => terms.slice(0, width).reduce((sum, term) => sum.map((x, i) => x + term[i]), terms[0].map(() => 0)));

/** For every pixel the largest difference in a channel, and the largest of all: at the border and inside. */
export function compare(a, b) {
  const map = blank(a.height, a.width, 1);
  let [border, inside] = [0, 0];
  for (let p = 0; p < map.data.length; p++) {
    for (let c = 0; c < a.channels; c++) map.data[p] = Math.max(map.data[p], Math.abs(a.data[p * a.channels + c] - b.data[p * a.channels + c]));
    const [i, j] = [Math.floor(p / a.width), p % a.width];
    const outer = i === 0 || j === 0 || i === a.height - 1 || j === a.width - 1;
    if (outer) border = Math.max(border, map.data[p]);
    else inside = Math.max(inside, map.data[p]);
  }
  return { map, border, inside };
}

const BORDERS = { "the pixels alone": "bare", "and a ring of zeros": "ring", "and a sink": "sink", "the pixels, as a torus": "circular" };
const PADDINGS = { "zeros": "zeros", "replicate": "replicate", "circular": "circular" };
const FITS = { bare: "replicate", ring: "zeros", sink: "zeros", circular: "circular" };
const OWN = "what I set below";

export default {
  render({ model, el }) {
    const { image: sent, shifts, kernels, start, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    const most = kernels[start][0].length; // D_out
    const alphaOf = (t) => (t >= 1 ? Infinity : 0.25 * 100 ** t);
    const intact = { border: "ring", padding: "zeros", width: most, sharpness: 1, used: shifts.map(() => true) };
    const right = shifts.map(([down, across]) => !(down === 0 && across === 1));
    const cases = {
      "the border: bare keys": { border: "bare" },
      "the width: D_h = 1": { width: 1 },
      "the sharpness: α near 1": { sharpness: 0.3 },
      "the heads: none at (0, 1)": { used: right },
      "nothing": {},
    };
    let setting = { ...intact, ...Object.values(cases)[0] };
    let pieces = kernels[start];

    const photo = panel("X", height, width);
    const output = panel("Self-attention", height, width);
    const goal = panel("Convolution", height, width);
    const error = panel("Largest error", height, width);
    const readout = element("output");
    const scale = panel("Error: 10⁻³ or less at the left, 1 or more at the right", 1, 64);
    paint(scale, { height: 1, width: 64, channels: 1, data: Float64Array.from({ length: 64 }, (_, i) => i / 63) }, { stops: colors.attention });
    scale.canvas.style.height = "0.6rem";

    const broken = choice({ label: "Break", options: { ...cases, [OWN]: null }, value: Object.keys(cases)[0] }, (next) => next && set({ ...intact, ...next }));
    const kernel = choice({ label: "Kernel", options: kernels, value: start }, (next) => ((pieces = next), update()));
    const padding = choice({ label: "Wanted padding", options: PADDINGS, value: "zeros" }, (next) => change({ padding: next }));
    const border = choice({ label: "Keys of the heads", options: BORDERS, value: "the pixels alone" }, (next) => change({ border: next }));
    const headWidth = slider({ label: "Head width D_h", min: 1, max: most, step: 1, value: most, show: (n) => format(n, 0) }, (n) => change({ width: n }));
    const sharpness = slider({ label: "Sharpness α", min: 0, max: 1, step: 0.02, value: 1, show: (t) => (t >= 1 ? "∞, the limit" : format(alphaOf(t))) }, (t) => change({ sharpness: t }));

    const heads = shifts.map(([down, right], h) => {
      const name = `${format(down, 0)}, ${format(right, 0)}`;
      const toggle = () => change({ used: setting.used.map((use, i) => (i === h ? !use : use)) });
      const node = element("button", { type: "button", class: "ac-tap", "aria-label": `head at (${name})`, onclick: toggle }, name.replace(" ", ""));
      node.style.borderColor = colors.heads[h % colors.heads.length];
      return node;
    });
    const grid = element("div", { class: "ac-taps", role: "group", "aria-label": "Heads in use, by their shift" }, ...heads);
    grid.style.gridTemplateColumns = `repeat(${Math.sqrt(shifts.length)}, max-content)`;

    function change(next) {
      broken.select.value = OWN;
      set({ ...setting, ...next });
    }

    function set(next) {
      setting = next;
      padding.select.value = Object.keys(PADDINGS).find((name) => PADDINGS[name] === setting.padding);
      border.select.value = Object.keys(BORDERS).find((name) => BORDERS[name] === setting.border);
      headWidth.set(setting.width);
      sharpness.set(setting.sharpness);
      update();
    }

    function update() {
      const alpha = alphaOf(setting.sharpness);
      const matrices = narrowMatrices(pieces, setting.width);
      const whole = narrowMatrices(pieces, most);
      const result = attentionLayer(image, shifts, matrices, alpha, setting.border, setting.used);
      const wanted = matrixConvolution(image, shifts, whole, setting.padding);
      const { map, border: outer, inside } = compare(result, wanted);

      heads.forEach((node, h) => {
        node.setAttribute("aria-pressed", String(setting.used[h]));
        node.dataset.used = String(setting.used[h]);
        node.style.textDecoration = setting.used[h] ? "" : "line-through";
      });
      paint(photo, image);
      paint(output, result);
      paint(goal, wanted);
      const logarithm = { ...map, data: map.data.map((x) => Math.log10(Math.max(x, 1e-3)) / 3 + 1) };
      paint(error, logarithm, { stops: colors.attention });
      const number = (x) => (x >= 0.005 ? format(x) : scientific(x));
      error.setTitle(`Error, at most ${number(Math.max(outer, inside))}`);

      const narrow = pieces.some((terms) => terms.slice(setting.width).some((term) => term.some((w) => Math.abs(w) > 1e-9)));
      const missing = setting.used.some((use, h) => !use && whole[h].some((w) => w !== 0));
      const conditions = { "border": FITS[setting.border] !== setting.padding, "width": narrow, "sharpness": alpha < Infinity, "heads": missing };
      const names = Object.keys(conditions).filter((name) => conditions[name]);
      const verdict = names.length ? `Broken: ${names.join(", ")}.` : "All conditions hold.";
      readout.textContent = `${verdict} Largest error in the outermost pixels ${number(outer)}, inside ${number(inside)}.`;
      model.set("value", { ...setting, alpha: alpha === Infinity ? null : alpha, outer, inside, broken: names });
      model.save_changes();
    }

    const fields = [padding, border, headWidth, sharpness].map((one) => one.root);
    el.append(
      element("div", { class: "ac-row" }, broken.root, kernel.root),
      element("div", { class: "ac-panels" }, photo.root, output.root, goal.root, error.root),
      scale.root,
      readout,
      element("div", { class: "ac-row" }, grid, element("div", { class: "ac-row", style: "flex: 1 1 14rem" }, ...fields)),
    );
    set(setting);
  },
};
