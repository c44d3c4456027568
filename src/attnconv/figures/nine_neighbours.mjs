// Chapter 15: which patches the window of a pixel touches, and which entries of the blocks W_δ work for it.
import { clamp, decode, element, format, frame, paint, panel, pointable, region, slider, svgElement } from "./common.mjs";

const divide = (x, P) => Math.floor(x / P);

/** The taps of an axis: a kernel of K reads from −⌊(K−1)/2⌋ to ⌊K/2⌋. */
const tapsOf = (K) => Array.from({ length: K }, (_, i) => i - divide(K - 1, 2));

/** Shifts between patches of P × P pixels that a kernel of K × K taps needs, one head each, in reading order. */
export function patchShifts(K, P) {
  const [first, last] = [Math.ceil(divide(K - 1, 2) / P), Math.ceil(divide(K, 2) / P)];
  const axis = Array.from({ length: first + last + 1 }, (_, i) => i - first);
  return axis.flatMap((rows) => axis.map((columns) => [rows, columns]));
}

/**
 * The blocks W_δ, one a shift, each flat with a row a pixel that is read and a column a pixel that is written. An entry
 * is the number of its tap in reading order, from 1, or 0 where u = P δ + t − s is no tap.
 */
export function patchBlocks(K, P) {
  const before = divide(K - 1, 2);
  const pixels = Array.from({ length: P * P }, (_, i) => [divide(i, P), i % P]);
  return patchShifts(K, P).map((shift) =>
    pixels.flatMap((t) =>
      pixels.map((s) => {
        const [i, j] = [0, 1].map((axis) => P * shift[axis] + t[axis] - s[axis] + before);
        return i >= 0 && i < K && j >= 0 && j < K ? i * K + j + 1 : 0;
      }),
    ),
  );
}

/** The window of a pixel, cut at the borders of the patches: for every patch it touches, its shift and the pixels read. */
export function windowByPatch([row, column], K, P) {
  const parts = new Map();
  for (const i of tapsOf(K)) {
    for (const j of tapsOf(K)) {
      const shift = [divide(row + i, P) - divide(row, P), divide(column + j, P) - divide(column, P)];
      const part = parts.get(shift.join()) ?? { shift, pixels: [] };
      part.pixels.push([row + i, column + j]);
      parts.set(shift.join(), part);
    }
  }
  return [...parts.values()];
}

export default {
  render({ model, el }) {
    const { image: sent, patches, largest, start, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    let { kernel: K, patch: P, pixel } = start;
    let tap = [0, divide(K, 2)]; // u, whose entry is framed

    // A head has the colour of its place among the nine; farther shifts repeat them.
    const place = ([i, j]) => 3 * ((((i + 1) % 3) + 3) % 3) + ((((j + 1) % 3) + 3) % 3);
    const colorOf = (shift) => colors.heads[place(shift)];
    const tint = colors.heads.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255));
    const reach = (taps, size) => Math.ceil(taps / size) * size;
    const ring = () => Math.max(P, reach(divide(K, 2), P)); // pixels around the image, whole patches

    const grid = panel("", 1, 1);
    const tiles = panel("", 1, 1);
    const readouts = [element("output"), element("output"), element("output")];
    const sizes = slider({ label: "Kernel", min: 1, max: largest, step: 1, value: K, show: (k) => `K = ${k}` }, (k) => ((K = k), look(...pixel)));
    const cut = slider({ label: "Patch", min: 0, max: patches.length - 1, step: 1, value: patches.indexOf(P), show: (i) => `P = ${patches[i]}` }, (i) => ((P = patches[i]), look(...pixel)));

    const isTap = (u) => u.every((x) => tapsOf(K).includes(x));
    const look = (row, column) => {
      pixel = [clamp(row, 0, height - 1), clamp(column, 0, width - 1)];
      if (!isTap(tap)) tap = [0, 0]; // only a click among the blocks chooses an entry without a tap
      update();
    };
    pointable(grid, {
      label: "The image in patches. Arrow keys move the output pixel.",
      onmove: ({ row, column }) => look(row - ring(), column - ring()),
      onstep: ({ rows, columns }) => look(pixel[0] + rows, pixel[1] + columns),
    });
    pointable(tiles, {
      label: "The blocks. Arrow keys move the framed entry, and the output pixel with its column.",
      onmove: ({ row, column }) => choose(row, column),
      onstep: ({ rows, columns }) => {
        const [row, column] = entryOf();
        choose(clamp(row + rows, 0, tiles.canvas.height - 1), clamp(column + columns, 0, tiles.canvas.width - 1));
      },
    });

    /** The first shift of an axis; blocks are laid out from there. */
    const first = () => patchShifts(K, P)[0][0];

    /** Row and column, over all blocks, of the entry that takes the tap to the output pixel. */
    function entryOf() {
      const read = pixel.map((x, axis) => (x % P) + tap[axis]);
      const [i, j] = read.map((x) => divide(x, P) - first());
      const t = read.map((x) => x - P * divide(x, P));
      return [i * P * P + t[0] * P + t[1], j * P * P + (pixel[0] % P) * P + (pixel[1] % P)];
    }

    /** Frame an entry: its column is an output pixel of the same patch, and u = P δ + t − s. */
    function choose(row, column) {
      const [t, s] = [row, column].map((x) => [divide(x % (P * P), P), x % P]);
      const shift = [row, column].map((x) => divide(x, P * P) + first());
      pixel = pixel.map((x, axis) => divide(x, P) * P + s[axis]);
      tap = shift.map((x, axis) => P * x + t[axis] - s[axis]);
      update();
    }

    function resize({ canvas, marks }, rows, columns) {
      if (canvas.height === rows && canvas.width === columns) return;
      [canvas.height, canvas.width] = [rows, columns];
      marks.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    }

    function box({ marks }, x, y, columns, rows, attributes) {
      marks.append(svgElement("rect", { x, y, width: columns, height: rows, "vector-effect": "non-scaling-stroke", ...attributes }));
    }

    function drawGrid(shifts, parts) {
      const { marks } = grid;
      const margin = ring();
      const [rows, columns] = [height + 2 * margin, width + 2 * margin];
      const [i, j] = pixel.map((x) => margin + divide(x, P) * P); // the query's patch
      resize(grid, rows, columns);
      paint(grid, region(image, -margin, -margin, rows, columns, "zeros"));
      marks.replaceChildren();
      let lines = "";
      if (P > 1) {
        for (let x = 0; x <= columns; x += P) lines += `M${x} 0V${rows}`;
        for (let y = 0; y <= rows; y += P) lines += `M0 ${y}H${columns}`;
      }
      marks.append(svgElement("path", { d: lines, stroke: "#8d949e", "stroke-width": 1, "vector-effect": "non-scaling-stroke" }));
      box(grid, margin, margin, width, height, { fill: "none", stroke: "#c9ced6", "stroke-width": 1.5 });
      const used = new Set(parts.map(({ shift }) => shift.join()));
      for (const shift of shifts.filter((one) => !used.has(one.join()))) {
        const at = [j + shift[1] * P, i + shift[0] * P, P, P];
        box(grid, ...at, { fill: "none", stroke: "#ffffff", "stroke-width": 3 });
        box(grid, ...at, { fill: "none", stroke: colorOf(shift), "stroke-width": 1.5, "stroke-dasharray": "4 3" });
      }
      for (const { shift, pixels } of parts) {
        const [down, right] = [0, 1].map((axis) => pixels.map((one) => one[axis]));
        const [y, x] = [Math.min(...down), Math.min(...right)];
        const sides = [Math.max(...right) - x + 1, Math.max(...down) - y + 1];
        box(grid, margin + x, margin + y, ...sides, { fill: colorOf(shift), "fill-opacity": 0.8 });
      }
      for (const { shift } of parts) {
        const at = [j + shift[1] * P, i + shift[0] * P, P, P];
        box(grid, ...at, { fill: "none", stroke: "#ffffff", "stroke-width": 4 });
        box(grid, ...at, { fill: "none", stroke: colorOf(shift), "stroke-width": 2.5 });
      }
      const read = pixel.map((x, axis) => x + tap[axis]);
      frame(grid, margin + read[0], margin + read[1], { color: colorOf(read.map((x, axis) => divide(x, P) - divide(pixel[axis], P))) });
      frame(grid, margin + pixel[0], margin + pixel[1]);
    }

    function drawTiles(shifts, blocks) {
      const across = Math.sqrt(shifts.length);
      const side = P * P;
      const size = across * side;
      resize(tiles, size, size);
      const column = (pixel[0] % P) * P + (pixel[1] % P);
      const picture = { height: size, width: size, channels: 3, data: new Float64Array(size * size * 3) };
      blocks.forEach((block, h) => {
        const color = tint[place(shifts[h])];
        block.forEach((tap, e) => {
          const [t, s] = [divide(e, side), e % side];
          const at = ((divide(h, across) * side + t) * size + (h % across) * side + s) * 3;
          const rest = s === column ? 0.78 : 0.96;
          const strength = tap === 0 ? 0 : s === column ? 1 : 0.42;
          for (let c = 0; c < 3; c++) picture.data[at + c] = rest + strength * (color[c] - rest);
        });
      });
      paint(tiles, picture);
      tiles.marks.replaceChildren();
      for (let h = 0; h < shifts.length; h++) {
        box(tiles, (h % across) * side, divide(h, across) * side, side, side, { fill: "none", stroke: "#57606a", "stroke-width": across > 7 ? 0.5 : 1.5 });
      }
      frame(tiles, ...entryOf());
    }

    const pair = (x) => `(${x.map((n) => format(n, 0)).join(",\u00a0")})`;
    const many = (n, one) => `${n} ${one}${n === 1 ? "" : one.endsWith("ch") ? "es" : "s"}`;

    function update() {
      const shifts = patchShifts(K, P);
      const blocks = patchBlocks(K, P);
      const parts = windowByPatch(pixel, K, P);
      drawGrid(shifts, parts);
      drawTiles(shifts, blocks);

      const across = Math.sqrt(shifts.length);
      const entries = blocks.reduce((sum, block) => sum + block.filter((tap) => tap > 0).length, 0);
      const all = shifts.length * P ** 4;
      const within = pixel.map((x) => x % P);
      const outside = parts.flatMap(({ pixels }) => pixels).filter(([i, j]) => i < 0 || j < 0 || i >= height || j >= width).length;
      const list = parts.length <= 9 ? `: ${parts.map(({ shift, pixels }) => `${pixels.length} at δ\u00a0=\u00a0${pair(shift)}`).join(", ")}` : "";
      grid.setTitle(`The window of the pixel ${pair(pixel)}`);
      tiles.setTitle(P === 1 ? "The blocks, one number each" : `The blocks, ${P * P} × ${P * P} each; column ${within[0] * P + within[1]} is lit`);
      const read = pixel.map((x, axis) => x + tap[axis]);
      const shift = read.map((x, axis) => divide(x, P) - divide(pixel[axis], P));
      readouts[0].textContent = `K = ${K}, P = ${P}: n = ${across} shifts an axis, ${many(shifts.length, "head")}. Of ${all} entries of the blocks ${entries} are not zero.`;
      readouts[1].textContent = `This pixel takes its ${many(K * K, "tap")} from ${many(parts.length, "patch")}${list}.${outside ? ` Outside the image, where the ring holds zeros: ${outside}.` : ""}`;
      const name = `The framed entry stands at δ\u00a0=\u00a0${pair(shift)}, t\u00a0=\u00a0${pair(read.map((x) => x - P * divide(x, P)))}, s\u00a0=\u00a0${pair(within)}`;
      readouts[2].textContent = `${name}: ${isTap(tap) ? "it is the tap" : "zero, for there is no tap"} u\u00a0=\u00a0${pair(tap)}${isTap(tap) ? `, which reads the pixel ${pair(read)}` : ""}.`;
      model.set("value", { kernel: K, patch: P, pixel, tap, heads: shifts.length, touched: parts.length, entries, outside });
      model.save_changes();
    }

    const sized = (node) => ((node.style.flex = "1 1 13rem"), (node.style.maxWidth = "22rem"), node);
    el.append(
      element("div", { class: "ac-row" }, sizes.root, cut.root),
      element("div", { class: "ac-row", style: "align-items: start" }, sized(grid.root), sized(tiles.root)),
      ...readouts,
    );
    update();
  },
};
