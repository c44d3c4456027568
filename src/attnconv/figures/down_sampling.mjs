// Chapter 12: squares of pixels become one token each. Nothing is lost, and the maps of attention shrink.
import { blank, clamp, decode, element, format, frame, grouped, paint, panel, pointable, shiftImage, slider, svgElement, tabulate } from "./common.mjs";

/** Where a pixel goes: the token, and the plane of channels. */
export const place = ([row, column], factor) => ({
  token: [Math.floor(row / factor), Math.floor(column / factor)],
  plane: (row % factor) * factor + (column % factor),
});

/** Every factor × factor square becomes one token: channel c of its pixel number p is channel c · factor² + p. */
export function downsample({ height, width, channels, data }, factor) {
  const result = blank(height / factor, width / factor, channels * factor ** 2);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const { token: [i, j], plane } = place([row, column], factor);
      for (let c = 0; c < channels; c++) {
        result.data[(i * result.width + j) * result.channels + c * factor ** 2 + plane] = data[(row * width + column) * channels + c];
      }
    }
  }
  return result;
}

/** The way back. */
export function upsample({ height, width, channels, data }, factor) {
  const result = blank(height * factor, width * factor, channels / factor ** 2);
  for (let row = 0; row < result.height; row++) {
    for (let column = 0; column < result.width; column++) {
      const { token: [i, j], plane } = place([row, column], factor);
      for (let c = 0; c < result.channels; c++) {
        result.data[(row * result.width + column) * result.channels + c] = data[(i * width + j) * channels + c * factor ** 2 + plane];
      }
    }
  }
  return result;
}

/** The factor² planes of a down-sampled image, each a small picture, side by side in reading order. */
export function planesOf({ height, width, channels, data }, factor) {
  const result = blank(height * factor, width * factor, channels / factor ** 2);
  for (let y = 0; y < result.height; y++) {
    for (let x = 0; x < result.width; x++) {
      const plane = Math.floor(y / height) * factor + Math.floor(x / width);
      for (let c = 0; c < result.channels; c++) {
        result.data[(y * result.width + x) * result.channels + c] = data[((y % height) * width + (x % width)) * channels + c * factor ** 2 + plane];
      }
    }
  }
  return result;
}

/** How many numbers of two images differ. */
export const different = (a, b) => a.data.reduce((count, x, i) => count + (x !== b.data[i]), 0);

/** Tokens, entries of one map, and multiplications of one layer: matrices, and mixing in two ways. */
export function costs(height, width, factor, { heads, channels }) {
  const [rows, columns] = [height / factor, width / factor];
  const tokens = rows * columns;
  return {
    tokens,
    map: tokens ** 2,
    matrices: heads * tokens * channels ** 2,
    dense: heads * tokens ** 2 * channels,
    separable: heads * tokens * (rows + columns) * channels,
  };
}

const FACTORS = [1, 2, 4];
const COLORS = { Red: [255, 70, 70], Green: [70, 220, 90], Blue: [90, 140, 255] };

export default {
  render({ model, el }) {
    const { image: sent, pixel: start, heads, channels } = model.get("state");
    const original = decode(sent);
    const { height, width } = original;
    let pixel = [...start];

    const whole = (n) => format(n, 0);
    const photo = panel("", height, width);
    const planes = panel("", height, width);
    const back = panel("", height, width);
    const squares = Object.keys(COLORS).map((name) => panel(name, 1, 1));
    for (const one of squares) one.root.style.cssText = "flex: 1 1 4.6rem; max-width: 6.4rem";
    const readout = element("output", { style: "flex: 1 1 15rem; min-width: 0" });
    const price = element("div", { style: "min-width: 0; overflow-x: auto" });

    const factors = slider({ label: "Squares of", min: 0, max: 2, step: 1, value: 1, show: (t) => `${FACTORS[t]} × ${FACTORS[t]} pixels` }, () => update());
    const move = slider({ label: "Move the picture to the right by", min: 0, max: 4, step: 1, value: 0, show: whole }, () => update());
    const look = (row, column) => {
      pixel = [clamp(row, 0, height - 1), clamp(column, 0, width - 1)];
      update();
    };
    pointable(photo, {
      label: "The picture. Arrow keys move the pixel.",
      onmove: ({ row, column }) => look(row, column),
      onstep: ({ rows, columns }) => look(pixel[0] + rows, pixel[1] + columns),
    });

    /** Lines at every multiple of `step`. */
    function lines({ marks }, step) {
      const parts = [];
      for (let x = step; x < width; x += step) parts.push(`M${x} 0V${height}`);
      for (let y = step; y < height; y += step) parts.push(`M0 ${y}H${width}`);
      const path = { d: parts.join(""), fill: "none", "vector-effect": "non-scaling-stroke" };
      marks.append(svgElement("path", { ...path, stroke: "#ffffff", "stroke-width": step > 4 ? 2 : 0.6 }));
    }

    function update() {
      const factor = FACTORS[factors.value];
      const image = shiftImage(original, [0, -move.value], "circular");
      const tokens = downsample(image, factor);
      const again = upsample(tokens, factor);
      const lost = different(again, image);
      const { token: [i, j], plane } = place(pixel, factor);
      const [r, c] = [Math.floor(plane / factor), plane % factor];

      for (const one of [photo, planes, back]) one.marks.replaceChildren();
      paint(photo, image);
      if (factor > 1) lines(photo, factor);
      frame(photo, i * factor, j * factor, { size: factor });
      if (factor > 1) frame(photo, ...pixel, { color: "#ffd23f" });
      photo.setTitle(`The picture, ${height} × ${width} pixels`);
      paint(planes, planesOf(tokens, factor));
      if (factor > 1) lines(planes, height / factor);
      frame(planes, r * tokens.height + i, c * tokens.width + j, { color: "#ffd23f" });
      planes.setTitle(factor > 1 ? `${factor ** 2} planes of ${tokens.height} × ${tokens.width} tokens` : "One plane, the picture");
      paint(back, again);
      back.setTitle("Put back together");

      squares.forEach((one, channel) => {
        const [name, color] = Object.entries(COLORS)[channel];
        one.canvas.width = one.canvas.height = factor;
        one.marks.setAttribute("viewBox", `0 0 ${factor} ${factor}`);
        one.marks.replaceChildren();
        const first = channel * factor ** 2;
        const at = (i * tokens.width + j) * tokens.channels + first;
        paint(one, { height: factor, width: factor, channels: 1, data: tokens.data.slice(at, at + factor ** 2) }, { stops: [[0, 0, 0], color] });
        frame(one, r, c, { color: "#ffd23f" });
        one.setTitle(factor > 1 ? `${name} ${first}–${first + factor ** 2 - 1}` : `${name} ${first}`);
      });

      // Is there a move of the tokens that does what the move of the picture did?
      const still = downsample(original, factor);
      const misses = Array.from({ length: tokens.width }, (_, s) => different(shiftImage(still, [0, -s], "circular"), tokens));
      const least = Math.min(...misses);
      const steps = misses.indexOf(least);
      const numbers = height * width * original.channels;
      const own = Array.from({ length: original.channels }, (_, channel) => channel * factor ** 2 + plane);
      const moved = {
        none: "",
        exact: `The picture moved by ${move.value}, the tokens by ${steps}; nothing else happened.`,
        other: `The picture moved by ${move.value}. No move of the tokens does that: the best one leaves ${grouped(least)} of ${grouped(numbers)} numbers wrong.`,
      }[move.value === 0 ? "none" : least === 0 ? "exact" : "other"];
      readout.replaceChildren(
        element("div", {}, `Pixel (${pixel.join(", ")}) is in token (${i}, ${j}), number ${i * tokens.width + j} of 0 … ${tokens.height * tokens.width - 1}, in channels ${own.slice(0, -1).join(", ")} and ${own.at(-1)} of 0 … ${tokens.channels - 1}.`),
        element("div", {}, `Put back: ${lost} of ${grouped(numbers)} numbers differ. ${moved}`),
      );

      const prices = FACTORS.map((f) => costs(height, width, f, { heads, channels }));
      const line = (name, key) => [name, ...prices.map((one) => grouped(one[key]))];
      price.replaceChildren(
        tabulate(["Squares of", ...FACTORS.map((f) => `${f} × ${f}`)], [
          line("Tokens", "tokens"),
          line("Entries of one map", "map"),
          line("Products, head matrices", "matrices"),
          line("Products, whole maps", "dense"),
          line("Products, rows × columns", "separable"),
        ], { chosen: factors.value + 1 }),
      );
      model.set("value", { factor, pixel: [...pixel], token: [i, j], channels: own, lost, moved: move.value, wrong: least });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, factors.root, move.root),
      element("div", { class: "ac-panels" }, photo.root, planes.root, back.root),
      element("div", { class: "ac-row", style: "align-items: center" },
        element("div", { style: "display: flex; flex: 1 1 16rem; max-width: 20.8rem; gap: 0.8rem" }, ...squares.map((one) => one.root)),
        readout,
      ),
      price,
    );
    update();
  },
};
