// Chapter 2: four heads of content-only attention, and what happens to them when the pixels are shuffled.
import { choice, clamp, convolve, decode, element, format, frame, multiply, paint, panel, player, pointable, reducedMotion, scientific, slider, softmax } from "./common.mjs";

/** Row q of the scores of one head: factor · X_q W_qry W_keyᵀ X_kᵀ for all k; `queries` is X W_qry, `keys` is X W_key. */
export function scoresOf(query, keys, factor) {
  const scores = new Float64Array(keys.length);
  for (let k = 0; k < keys.length; k++) {
    for (let i = 0; i < query.length; i++) scores[k] += query[i] * keys[k][i];
    scores[k] *= factor;
  }
  return scores;
}

/**
 * The layer: concat_h [softmax(factor · A^(h)) X W_val^(h)] W_out + b_out. `weights` holds `qry`, `key` and `val`, a
 * matrix a head, and `out`, `bias`. Returns one row a token.
 */
export function attentionLayer(tokens, weights, factor) {
  const heads = weights.qry.map((qry, h) => {
    const [queries, keys, values] = [qry, weights.key[h], weights.val[h]].map((matrix) => multiply(tokens, matrix));
    return queries.map((query) => {
      const result = new Array(values[0].length).fill(0);
      const shares = softmax(scoresOf(query, keys, factor));
      for (let k = 0; k < shares.length; k++) {
        for (let c = 0; c < result.length; c++) result[c] += shares[k] * values[k][c];
      }
      return result;
    });
  });
  const concatenated = tokens.map((_, q) => heads.flatMap((head) => head[q]));
  return multiply(concatenated, weights.out).map((row) => row.map((x, c) => x + weights.bias[c]));
}

/** The mean over 3 × 3 pixels, a convolution; outside the image stands the nearest pixel. */
export const blur = (image) => convolve(image, Array(9).fill(1 / 9));

/** The rows in a new order: row p of the result is row order[p]. This is Π times a matrix. */
export const reorder = (rows, order) => order.map((p) => rows[p]);

/** Undo `reorder`: Πᵀ times a matrix. */
export function putBack(rows, order) {
  const result = new Array(rows.length);
  order.forEach((p, position) => (result[p] = rows[position]));
  return result;
}

/** A random order of 0 … n − 1 (Fisher and Yates); the same seed gives the same order. */
export function shuffledOrder(n, seed) {
  let state = seed >>> 0;
  const random = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const order = Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

const farthest = (a, b) => a.reduce((most, row, p) => row.reduce((m, x, c) => Math.max(m, Math.abs(x - b[p][c])), most), 0);

export default {
  render({ model, el }) {
    const { image: sent, tokens, weights, names, query: start, colors } = model.get("state");
    const { height, width, channels, data } = decode(sent);
    const n = height * width;
    const pixels = Array.from({ length: n }, (_, p) => [...data.slice(p * channels, (p + 1) * channels)]);
    const toImage = (rows) => ({ height, width, channels: rows[0].length, data: Float64Array.from(rows.flat()) });
    const toRows = (image) => Array.from({ length: n }, (_, p) => [...image.data.slice(p * image.channels, (p + 1) * image.channels)]);

    let order = Array.from({ length: n }, (_, p) => p); // order[p] is the token that stands at p
    let token = start[0] * width + start[1]; // the query; it stays the same token when the pixels move
    let seed = 0;
    const blurred = toRows(blur(toImage(pixels)));
    let [before, after, blurredAfter] = [null, null, null]; // outputs; null is to be computed

    const photo = panel("X, the pixels", height, width);
    const heads = names.map((name) => panel(name, height, width));
    const output = panel("Attention", height, width);
    const outputBack = panel("Attention, put back", height, width);
    const smooth = panel("3 × 3 blur", height, width);
    const smoothBack = panel("Blur, put back", height, width);
    const readout = element("output");

    // From pale over the head's colour to black: on the light and on the dark page, dark is where the head looks.
    const ramps = names.map((_, h) => {
      const hue = [1, 3, 5].map((at) => parseInt(colors.heads[h].slice(at, at + 2), 16));
      return [[240, 241, 243], hue, hue.map((c) => 0.35 * c)];
    });

    const factorOf = (t) => 1e5 * t ** 5;
    const digits = (factor) => (factor < 100 ? format(factor) : Math.round(factor).toLocaleString("en"));
    const views = { "probabilities": "probabilities", "scores": "scores" };
    let view = "probabilities";
    const shown = choice({ label: "The heads show", options: views, value: view }, (next) => ((view = next), update()));
    const sharpness = slider({ label: "Scores times", min: 0, max: 1, step: 0.005, value: 0.1, show: (t) => digits(factorOf(t)) }, () => ((before = after = null), update()));
    const row = slider({ label: "Query row", min: 0, max: height - 1, step: 1, value: start[0], show: (x) => format(x, 0) }, () => look(row.value, column.value));
    const column = slider({ label: "Query column", min: 0, max: width - 1, step: 1, value: start[1], show: (x) => format(x, 0) }, () => look(row.value, column.value));

    // Every frame exchanges a few pixels, so that each picture on the way is a permutation, too.
    const frames = reducedMotion() ? 1 : 24;
    let plan = [];
    const walk = (target) => (i) => {
      if (i === 0) plan = exchanges(order, target());
      for (const [a, b] of plan.slice(Math.floor((i * plan.length) / frames), Math.floor(((i + 1) * plan.length) / frames))) {
        [order[a], order[b]] = [order[b], order[a]];
      }
      after = blurredAfter = null;
      update(true);
    };
    const shuffle = player({ label: "Shuffle the pixels", count: frames, milliseconds: 60 }, walk(() => shuffledOrder(n, ++seed)));
    const back = player({ label: "Put them back", count: frames, milliseconds: 60 }, walk(() => Array.from({ length: n }, (_, p) => p)));
    shuffle.root.addEventListener("click", () => back.stop());
    back.root.addEventListener("click", () => shuffle.stop());

    function exchanges(from, to) {
      const [now, where] = [[...from], []];
      now.forEach((t, p) => (where[t] = p));
      const list = [];
      to.forEach((t, p) => {
        if (now[p] === t) return;
        const [q, other] = [where[t], now[p]];
        [now[p], now[q], where[t], where[other]] = [t, other, p, q];
        list.push([p, q]);
      });
      return list;
    }

    const look = (r, c) => {
      token = order[clamp(r, 0, height - 1) * width + clamp(c, 0, width - 1)];
      update();
    };
    pointable(photo, {
      label: "The pixels. Arrow keys move the query.",
      onmove: ({ row: r, column: c }) => look(r, c),
      onstep: ({ rows, columns }) => {
        const at = order.indexOf(token);
        look(Math.floor(at / width) + rows, (at % width) + columns);
      },
    });

    function update(playing = false) {
      if (!playing) (shuffle.stop(), back.stop());
      const factor = factorOf(sharpness.value);
      const here = reorder(tokens, order);
      const at = order.indexOf(token);
      const [i, j] = [Math.floor(at / width), at % width];
      row.set(i);
      column.set(j);

      // The output for the pixels in their places, then for the shuffled ones: two separate computations.
      before ??= attentionLayer(tokens, weights, factor);
      after ??= attentionLayer(here, weights, factor);
      blurredAfter ??= toRows(blur(toImage(reorder(pixels, order))));
      const difference = farthest(after, reorder(before, order));
      const blurDifference = farthest(blurredAfter, reorder(blurred, order));

      paint(photo, toImage(reorder(pixels, order)));
      paint(output, toImage(after));
      paint(outputBack, toImage(putBack(after, order)));
      paint(smooth, toImage(blurredAfter));
      paint(smoothBack, toImage(putBack(blurredAfter, order)));
      for (const one of [photo, ...heads]) one.marks.replaceChildren();
      const largest = heads.map((one, h) => {
        const [query] = multiply([here[at]], weights.qry[h]);
        const scores = scoresOf(query, multiply(here, weights.key[h]), factor);
        const probabilities = softmax(scores);
        const values = view === "scores" ? scores : probabilities;
        const [low, high] = [Math.min(...values), Math.max(...values)];
        // All alike is a plain colour, not noise of the last digit blown up.
        const flat = high - low < 1e-9;
        paint(one, { height, width, channels: 1, data: flat ? values.map(() => 0.5) : values }, flat ? { stops: ramps[h] } : { low: view === "scores" ? low : 0, high, stops: ramps[h] });
        const range = view === "scores" ? `spread ${high - low < 1e5 ? digits(high - low) : scientific(high - low)}` : `at most ${format(100 * high, 1)}\u00a0%`;
        one.setTitle(`${names[h]}, ${range}`);
        frame(one, i, j);
        const best = probabilities.indexOf(Math.max(...probabilities));
        if (!flat) frame(photo, Math.floor(best / width), best % width, { color: colors.heads[h] });
        return Math.max(...probabilities);
      });
      frame(photo, i, j);

      const place = `(${Math.floor(token / width)}, ${token % width})`;
      const moved = token === at ? "is in its place" : `now stands at (${i}, ${j})`;
      readout.textContent = `Query: pixel ${place}, which ${moved}. Largest difference between the output of the shuffled pixels and the shuffled output: attention ${scientific(difference)}, blur ${blurDifference > 1e-9 ? format(blurDifference) : scientific(blurDifference)}.`;
      model.set("value", { token, factor, view, order: [...order], largest, difference, blurDifference });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, shuffle.root, back.root, shown.root),
      element("div", { class: "ac-panels" }, photo.root, ...heads.map((one) => one.root)),
      element("div", { class: "ac-row" }, sharpness.root, row.root, column.root),
      element("div", { class: "ac-panels" }, output.root, outputBack.root, smooth.root, smoothBack.root),
      readout,
    );
    update();
  },
};
