// Chapter 10: is the map of a query the product of its row sums and its column sums? And what is that worth?
import { choice, clamp, element, format, frame, grouped, paint, panel, pointable, scientific, slider, softmax, svgElement, tabulate } from "./common.mjs";

/**
 * Score of every key of a size × size image for one query, row by row. A head is
 * {kind: "gaussian", center, alpha, elongation, angle in degrees}, or {kind: "sum", rows, columns}, or
 * {kind: "table", table} with one entry for each shift from 1 − size to size − 1.
 */
export function scores(size, [q1, q2], head) {
  const turn = ((head.angle ?? 0) * Math.PI) / 180;
  const [cosine, sine] = [Math.cos(turn), Math.sin(turn)];
  return Array.from({ length: size * size }, (_, p) => {
    const [d1, d2] = [Math.floor(p / size) - q1, (p % size) - q2];
    if (head.kind === "sum") return head.rows[d1 + size - 1] + head.columns[d2 + size - 1];
    if (head.kind === "table") return head.table[(d1 + size - 1) * (2 * size - 1) + d2 + size - 1];
    const [y, x] = [d1 - head.center[0], d2 - head.center[1]];
    const [across, along] = [cosine * y + sine * x, cosine * x - sine * y];
    return -head.alpha * (head.elongation * across ** 2 + along ** 2 / head.elongation);
  });
}

/** Sums of a size × size map over its columns (one number a row) and over its rows (one number a column). */
export function marginals(size, map) {
  const [rows, columns] = [new Array(size).fill(0), new Array(size).fill(0)];
  map.forEach((a, p) => ((rows[Math.floor(p / size)] += a), (columns[p % size] += a)));
  return { rows, columns };
}

/** The map with the entries rows[i] · columns[j]. */
export const outerProduct = (rows, columns) => rows.flatMap((r) => columns.map((c) => r * c));

/** What one head costs on an n × n image: multiplications for one channel, and numbers in its maps. */
export function counts(n) {
  const pixels = n * n;
  return { dense: pixels * pixels, separable: pixels * 2 * n, map: pixels * pixels, maps: 2 * n * n };
}

/** A number of bytes for reading. */
export function bytes(count) {
  const power = count < 1000 ? 0 : Math.floor(Math.log10(count) / 3);
  return `${Number((count / 1000 ** power).toPrecision(2))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

/** A strip of bars: one a row, to the right of a map, or one a column, below it. */
function bars(size, side, color) {
  const below = side === "below";
  const strip = svgElement("svg", { viewBox: below ? `0 0 ${size} 1` : `0 0 1 ${size}`, preserveAspectRatio: "none", role: "img" });
  strip.style.cssText = `position: absolute; inset: 0; width: 100%; height: 100%; border-${below ? "top" : "left"}: 1px solid var(--ac-quiet)`;
  const marks = Array.from({ length: size }, (_, i) => {
    const thick = { [below ? "x" : "y"]: i + 0.12, [below ? "width" : "height"]: 0.76 };
    return svgElement("rect", { x: 0, y: 0, ...thick, fill: color });
  });
  strip.append(...marks);
  const set = (values, largest, label) => {
    strip.setAttribute("aria-label", label);
    marks.forEach((mark, i) => mark.setAttribute(below ? "height" : "width", values[i] / largest));
  };
  return { root: element("div", { style: "position: relative" }, strip), set };
}

export default {
  render({ model, el }) {
    const { size, rows, columns, table, center: first, alpha, elongation, angle, colors } = model.get("state");
    const middle = Math.floor(size / 2);
    const kinds = { Gaussian: "gaussian", "row + column": "sum", "table of shifts": "table" };
    let center = [...first];
    let query = [middle, middle];

    const map = panel("", size, size);
    const product = panel("Blue × orange bars", size, size);
    const rest = panel("", size, size);
    const rowBars = bars(size, "right", colors.heads[0]);
    const columnBars = bars(size, "below", colors.heads[1]);
    map.root.append(
      element("div", { style: "display: grid; grid-template: auto 2.4rem / minmax(0, 1fr) 2.4rem; gap: 0.2rem" }, map.frame, rowBars.root, columnBars.root),
    );
    // The map is wider by its bars, so that the three pictures are of one size.
    map.root.style.cssText = "flex: 1 1 11.6rem; max-width: 19.6rem";
    const pair = element("div", { style: "display: flex; flex: 2 1 19.2rem; gap: 1.2rem; max-width: 35.2rem" }, product.root, rest.root);
    for (const one of [product, rest]) one.root.style.flex = "1 1 0";
    const readout = element("output");

    const kind = choice({ label: "Score", options: kinds, value: "Gaussian" }, () => update());
    const axes = ["Δ, rows", "Δ, columns"].map((label, axis) =>
      slider({ label, min: -6, max: 6, step: 0.5, value: center[axis], show: (x) => format(x, 1) }, (x) => ((center[axis] = x), update())),
    );
    const sharpness = slider({ label: "Sharpness α", min: -7, max: 3, step: 0.25, value: Math.log2(alpha), show: (x) => (2 ** x).toPrecision(2) }, () => update());
    const ratio = slider({ label: "Length : width", min: 1, max: 4, step: 0.1, value: elongation, show: (x) => format(x, 1) }, () => update());
    const turn = slider({ label: "Angle", min: 0, max: 180, step: 5, value: angle, show: (x) => `${x}°` }, () => update());

    const controls = [kind, ...axes, sharpness, ratio, turn];
    for (const one of controls) one.root.style.flexBasis = "9rem";

    const look = (row, column) => {
      query = [row, column].map((x) => clamp(x, 0, size - 1));
      update();
    };
    pointable(map, {
      label: "The map of one query. Drag, or use the arrow keys, to move the query.",
      onmove: ({ row, column }) => look(row, column),
      onstep: (step) => look(query[0] + step.rows, query[1] + step.columns),
    });

    function update() {
      const chosen = kinds[kind.select.value];
      const heads = {
        gaussian: { center, alpha: 2 ** sharpness.value, elongation: ratio.value, angle: turn.value },
        sum: { rows, columns },
        table: { table },
      };
      for (const one of controls.slice(1)) one.input.disabled = chosen !== "gaussian";
      const attention = softmax(scores(size, query, { kind: chosen, ...heads[chosen] }));
      const sums = marginals(size, attention);
      const together = outerProduct(sums.rows, sums.columns);
      const difference = attention.map((a, p) => a - together[p]);
      const largest = difference.reduce((most, d) => Math.max(most, Math.abs(d)), 0);
      const moved = difference.reduce((total, d) => total + Math.abs(d), 0) / 2;
      const peak = Math.max(...attention);
      const best = attention.indexOf(peak);
      const [i, j] = [Math.floor(best / size), best % size];

      const picture = (data) => ({ height: size, width: size, channels: 1, data });
      paint(map, picture(attention), { high: peak, stops: colors.attention });
      paint(product, picture(together), { high: peak, stops: colors.attention });
      paint(rest, picture(difference), { low: -peak / 2, high: peak / 2, stops: colors.diverging });
      const scale = Math.max(...sums.rows, ...sums.columns);
      const highest = (values) => `largest ${format(Math.max(...values), 3)} at ${values.indexOf(Math.max(...values))}`;
      rowBars.set(sums.rows, scale, `Sums of the rows: ${highest(sums.rows)}`);
      columnBars.set(sums.columns, scale, `Sums of the columns: ${highest(sums.columns)}`);
      map.setTitle(`Attention of q = (${query.join(", ")})`);
      rest.setTitle(`Difference, ±${peak / 2 < 0.001 ? scientific(peak / 2) : format(peak / 2, 3)}`);
      for (const one of [map, product, rest]) one.marks.replaceChildren();
      frame(map, ...query);

      const verdict = moved < 1e-9
        ? `The map is the product: the largest difference is ${scientific(largest)}, rounding.`
        : `The map is not the product: the largest difference is ${scientific(largest)}, and ${format(100 * moved, moved < 0.001 ? 4 : 1)} % of the attention is in the wrong place.`;
      readout.replaceChildren(
        element("div", {}, `At its largest, pixel (${i}, ${j}): map ${format(peak, 4)}, bars ${format(sums.rows[i], 4)} × ${format(sums.columns[j], 4)} = ${format(together[best], 4)}.`),
        element("div", {}, verdict),
      );
      model.set("value", { kind: chosen, query: [...query], center: [...center], largest, moved });
      model.save_changes();
    }

    const price = element("output", { style: "min-width: 0; overflow-x: auto" });
    const side = slider({ label: "Side n of an n × n image", min: 3, max: 10, step: 0.25, value: 4, show: (x) => String(Math.round(2 ** x)) }, () => reckon());
    function reckon() {
      const n = Math.round(2 ** side.value);
      const { dense, separable, map: entries, maps } = counts(n);
      price.replaceChildren(
        tabulate([`${n} × ${n} pixels`, "one map", "rows, columns", "saved"], [
          ["Multiplications", grouped(dense), grouped(separable), `× ${Number((dense / separable).toPrecision(3))}`],
          ["Numbers to keep", grouped(entries), grouped(maps), `× ${grouped(Number((entries / maps).toPrecision(3)))}`],
          ["In float32", bytes(4 * entries), bytes(4 * maps), ""],
        ]),
      );
    }

    el.append(
      element("div", { class: "ac-row" }, ...controls.map((one) => one.root)),
      element("div", { class: "ac-row", style: "align-items: start" }, map.root, pair),
      readout,
      element("div", { class: "ac-row" }, side.root),
      price,
    );
    update();
    reckon();
  },
};
