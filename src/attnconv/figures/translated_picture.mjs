// Chapter 3: move a picture; a layer with absolute positions notices, a layer with relative ones does not.
import { blank, choice, decode, element, format, frame, modulo, multiply, paint, panel, player, pointable, scientific, shiftImage, slider, softmax } from "./common.mjs";

/** The picture moved by (rows, columns) on a torus: what stood at p stands at p + (rows, columns). */
export const move = (image, [rows, columns]) => shiftImage(image, [-rows, -columns], "circular");

/** A Bᵀ, for lists of rows. */
export function productTransposed(a, b) {
  return a.map((x) => b.map((y) => {
    let sum = 0;
    for (let d = 0; d < x.length; d++) sum += x[d] * y[d];
    return sum;
  }));
}

/** The pixels as tokens: colours, centred and lifted to more channels. */
export function tokens({ height, width, channels, data }, lift) {
  const colors = Array.from({ length: height * width }, (_, p) => Array.from({ length: channels }, (_, c) => data[p * channels + c] - 0.5));
  return multiply(colors, lift);
}

const add = (a, b) => a.map((row, p) => row.map((x, d) => x + b[p][d]));

/** (X + P) W_qry W_keyᵀ (X + P)ᵀ */
export function absoluteScores(x, positions, wQry, wKey) {
  const placed = add(x, positions);
  return productTransposed(multiply(placed, wQry), multiply(placed, wKey));
}

/** The four terms of Transformer-XL on a torus; row (δ₁ mod H)·W + (δ₂ mod W) of `encodings` is r_δ. */
export function relativeScores(x, { encodings, wKeyPosition, u, v }, wQry, wKey, [height, width]) {
  const queries = multiply(x, wQry);
  const contents = productTransposed(queries.map((row) => row.map((y, d) => y + u[d])), multiply(x, wKey));
  const places = productTransposed(queries.map((row) => row.map((y, d) => y + v[d])), multiply(encodings, wKeyPosition));
  return contents.map((row, q) => row.map((score, k) => {
    const rows = modulo(Math.floor(k / width) - Math.floor(q / width), height);
    const columns = modulo((k % width) - (q % width), width);
    return score + places[q][rows * width + columns];
  }));
}

/** Every query takes the average of the pixels, weighted by its attention. */
export function attend(attention, { height, width, channels, data }) {
  const result = blank(height, width, channels);
  attention.forEach((row, q) => row.forEach((a, k) => {
    for (let c = 0; c < channels; c++) result.data[q * channels + c] += a * data[k * channels + c];
  }));
  return result;
}

/** The largest difference over the channels, at every pixel. */
export function differenceMap(a, b) {
  const result = blank(a.height, a.width, 1);
  a.data.forEach((x, i) => {
    const p = Math.floor(i / a.channels);
    result.data[p] = Math.max(result.data[p], Math.abs(x - b.data[i]));
  });
  return result;
}

/** One query's attention as a picture. */
const attentionMap = (row, height, width) => ({ height, width, channels: 1, data: Float64Array.from(row) });

export default {
  render({ model, el }) {
    const { image: sent, lift, w_qry: wQry, w_key: wKey, absolute, relative, query, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    let shift = [0, 0];
    let begun = { row: 0, column: 0, shift };

    const scoresOf = {
      absolute: (x) => absoluteScores(x, absolute[layers.absolute.picker.select.value], wQry, wKey),
      relative: (x) => relativeScores(x, relative[layers.relative.picker.select.value], wQry, wKey, [height, width]),
    };
    const layer = (kind, name, encodings) => ({
      name,
      verdict: element("output"),
      picker: choice({ label: `${name} encoding`, options: encodings, value: Object.keys(encodings)[0] }, () => (rest(kind), update())),
      moveFirst: panel("Moved, then attended", height, width),
      attendFirst: panel("Attended, then moved", height, width),
      difference: panel("Their difference", height, width),
      attention: panel("Where q looks", height, width),
    });
    const layers = { absolute: layer("absolute", "Absolute", absolute), relative: layer("relative", "Relative", relative) };

    const photo = panel("The picture, on a torus", height, width);
    const range = (n) => ({ min: -Math.floor(n / 2), max: Math.ceil(n / 2) - 1, step: 1, value: 0, show: (x) => format(x, 0) });
    const down = slider({ label: "Moved down", ...range(height) }, (rows) => go([rows, shift[1]]));
    const right = slider({ label: "Moved right", ...range(width) }, (columns) => go([shift[0], columns]));
    const play = player({ label: "Move it once around", count: width + 1, milliseconds: 350 }, (i) => go([shift[0], i], true));
    pointable(photo, {
      label: "The picture. Drag it, or move it with the arrow keys.",
      onmove({ row, column, begins }) {
        if (begins) begun = { row, column, shift };
        go([begun.shift[0] + row - begun.row, begun.shift[1] + column - begun.column]);
      },
      onstep: ({ rows, columns }) => go([shift[0] + rows, shift[1] + columns]),
    });

    /** What each layer does to the picture where it stands at first. */
    function rest(kind) {
      const attention = scoresOf[kind](tokens(image, lift)).map(softmax);
      layers[kind].rest = { attention, output: attend(attention, image) };
    }

    function go([rows, columns], playing = false) {
      if (!playing) play.stop();
      const centered = (x, n) => modulo(x + Math.floor(n / 2), n) - Math.floor(n / 2);
      shift = [centered(rows, height), centered(columns, width)];
      down.set(shift[0]);
      right.set(shift[1]);
      update();
    }

    /** Words for the largest difference of the outputs and for the share of q's attention that changed its place. */
    function verdict(difference, elsewhere) {
      if (shift.every((n) => n === 0)) return ["Nothing has moved yet:", `the two outputs differ by ${scientific(difference)}.`];
      return [
        difference < 1e-9 ? `The two outputs differ by ${scientific(difference)}, which is rounding.` : `The two outputs differ by up to ${format(difference)}.`,
        elsewhere < 1e-9 ? "What q looks at has moved along." : `Of q’s attention, ${format(100 * elsewhere, 0)}\u00a0% looks at something else.`,
      ];
    }

    function update() {
      const moved = move(image, shift);
      const x = tokens(moved, lift);
      const [row, column] = [modulo(query[0] + shift[0], height), modulo(query[1] + shift[1], width)];
      const differences = {};
      paint(photo, moved);
      for (const [kind, one] of Object.entries(layers)) {
        const attention = scoresOf[kind](x).map(softmax);
        const output = attend(attention, moved);
        const expected = move(one.rest.output, shift);
        const difference = differenceMap(output, expected);
        const seen = attentionMap(attention[row * width + column], height, width);
        const before = move(attentionMap(one.rest.attention[query[0] * width + query[1]], height, width), shift);
        const elsewhere = seen.data.reduce((sum, a, p) => sum + Math.abs(a - before.data[p]), 0) / 2;
        differences[kind] = Math.max(...difference.data);

        paint(one.attention, seen, { high: Math.max(...seen.data), stops: colors.attention });
        paint(one.moveFirst, output);
        paint(one.attendFirst, expected);
        paint(one.difference, difference, { high: 0.4, stops: colors.attention });
        const [differs, looks] = verdict(differences[kind], elsewhere);
        one.verdict.replaceChildren(element("strong", {}, `${one.name} positions. `), `${differs} ${looks}`);
        for (const each of [one.moveFirst, one.attendFirst, one.attention]) {
          each.marks.replaceChildren();
          frame(each, row, column);
        }
      }
      photo.marks.replaceChildren();
      frame(photo, row, column);
      model.set("value", { shift: [...shift], differences });
      model.save_changes();
    }

    const controls = element("div", { style: "display: grid; gap: 0.6rem; flex: 2 1 12rem" }, down.root, right.root, element("div", {}, play.root));
    photo.root.style.flex = "1 1 9rem";
    photo.root.style.maxWidth = "13rem";
    el.append(element("div", { class: "ac-row", style: "align-items: center" }, photo.root, controls));
    for (const { verdict: words, moveFirst, attendFirst, difference, attention } of Object.values(layers)) {
      el.append(words, element("div", { class: "ac-panels" }, moveFirst.root, attendFirst.root, difference.root, attention.root));
    }
    el.append(element("div", { class: "ac-row" }, layers.absolute.picker.root, layers.relative.picker.root));
    Object.keys(layers).forEach(rest);
    update();
  },
};
