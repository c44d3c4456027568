// Chapter 16: a head that was handed over from a convolution, before and after the transformer trained on.
import { checkbox, choice, clamp, decode, element, format, frame, paint, panel, pointable, slider, softmax, svgElement } from "./common.mjs";

/** Attention that a head leaves to other keys when it scores the one wanted α and the others 0. */
export const leakage = (alpha, keys) => (keys - 1) / (keys - 1 + Math.exp(alpha));

/** The table of scores over shifts from −side to side that a head starts from: α at its shift, or 0 everywhere. */
export function startTable(shift, alpha, side) {
  const wide = 2 * side + 1;
  const table = new Array(wide * wide).fill(0);
  if (shift) table[(shift[0] + side) * wide + shift[1] + side] = alpha;
  return table;
}

/**
 * Attention of one query over the patches of an image and a ring of empty ones around it, in reading order. `content`
 * has the products of the query with the patches; a ring's keys have none.
 */
export function attentionRow(table, content, [row, column], side) {
  const [keys, wide] = [side + 2, 2 * side + 1];
  return softmax(
    Array.from({ length: keys * keys }, (_, k) => {
      const [i, j] = [Math.floor(k / keys) - 1, (k % keys) - 1];
      const inside = i >= 0 && i < side && j >= 0 && j < side;
      return table[(i - row + side) * wide + j - column + side] + (inside && content ? content[i * side + j] : 0);
    }),
  );
}

/** Mean attention on the patch at a shift, over the queries whose patch there is in the image. */
export function massAt(shift, table, content, side) {
  let [total, count] = [0, 0];
  for (let q = 0; q < side * side; q++) {
    const query = [Math.floor(q / side), q % side];
    const [i, j] = [0, 1].map((axis) => query[axis] + shift[axis]);
    if (i < 0 || i >= side || j < 0 || j >= side) continue;
    total += attentionRow(table, content && content[q], query, side)[(i + 1) * (side + 2) + j + 1];
    count += 1;
  }
  return total / count;
}

export default {
  render({ model, el }) {
    const { pictures, names, shifts, tables, content, side, start, colors } = model.get("state");
    const images = pictures.map(decode);
    const keys = side + 2;
    const layers = Object.fromEntries(tables.map((_, l) => [`${l + 1}`, l]));
    const patch = images[0].height / side;
    let [picture, layer, head, query] = [0, start.layer, start.head, [...start.query]];
    let [alpha, useContent] = [start.alpha, true];

    const photo = panel("", images[0].height, images[0].width);
    const before = panel("", keys, keys);
    const after = panel("", keys, keys);
    const panels = element("div", { class: "ac-panels", style: "flex: 1 1 16rem" }, photo.root, before.root, after.root);
    const readout = element("output");
    const percent = (x) => `${format(100 * x, x < 0.01 ? 2 : 0)}\u00a0%`;
    const place = ([rows, columns]) => `(${format(rows, 0)},\u00a0${format(columns, 0)})`;
    const productsOf = (h) => (useContent ? content[picture][layer][h] : null);
    const massAfter = (h) => massAt(shifts[h], tables[layer][h], productsOf(h), side);

    const digit = choice({ label: "Picture", options: Object.fromEntries(names.map((name, i) => [name, i])), value: names[0] }, (i) => ((picture = i), update()));
    const depth = choice({ label: "Layer", options: layers, value: `${layer + 1}` }, (l) => ((layer = l), update()));
    const sharp = slider({ label: "Start with α", min: 0, max: 12, step: 0.25, value: alpha }, (x) => ((alpha = x), update()));
    const read = checkbox({ label: "Content (after)", checked: true }, (on) => ((useContent = on), update()));
    const buttons = tables[0].map((_, h) => element("button", { type: "button", class: "ac-tap", onclick: () => ((head = h), update()) }));
    const nine = element("div", { class: "ac-taps", role: "group", "aria-label": "Heads, each at the place of its shift" }, ...buttons.slice(0, shifts.length));
    nine.style.gridTemplateColumns = `repeat(${Math.sqrt(shifts.length)}, max-content)`;
    const rest = element("div", { class: "ac-taps" }, ...buttons.slice(shifts.length));

    const look = (row, column) => {
      query = [clamp(row, 0, side - 1), clamp(column, 0, side - 1)];
      update();
    };
    pointable(photo, {
      label: "The picture in patches. Arrow keys move the query patch.",
      onmove: ({ row, column }) => look(Math.floor(row / patch), Math.floor(column / patch)),
      onstep: ({ rows, columns }) => look(query[0] + rows, query[1] + columns),
    });
    for (const one of [before, after]) {
      pointable(one, {
        label: "Where the query looks. Arrow keys move the query patch.",
        onmove: ({ row, column }) => look(row - 1, column - 1),
        onstep: ({ rows, columns }) => look(query[0] + rows, query[1] + columns),
      });
    }

    function draw(one, row, wanted) {
      paint(one, { height: keys, width: keys, channels: 1, data: row }, { high: Math.max(...row), stops: colors.attention });
      one.marks.replaceChildren(
        svgElement("rect", { x: 1, y: 1, width: side, height: side, fill: "none", stroke: "#c9ced6", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }),
      );
      frame(one, query[0] + 1, query[1] + 1);
      if (wanted) frame(one, wanted[0] + 1.12, wanted[1] + 1.12, { size: 0.76, color: colors.heads[head] });
    }

    function update() {
      const shift = shifts[head] ?? null;
      const wanted = shift && query.map((x, axis) => x + shift[axis]);
      const table = startTable(shift, alpha, side);
      const rows = [attentionRow(table, null, query, side), attentionRow(tables[layer][head], productsOf(head)?.[query[0] * side + query[1]], query, side)];
      const at = wanted && (wanted[0] + 1) * keys + wanted[1] + 1;
      const leak = leakage(alpha, keys * keys);

      paint(photo, images[picture]);
      photo.marks.replaceChildren();
      let lines = "";
      for (let n = patch; n < images[0].height; n += patch) lines += `M${n} 0V${images[0].height}M0 ${n}H${images[0].width}`;
      photo.marks.append(svgElement("path", { d: lines, stroke: "#8d949e", "stroke-width": 1, "vector-effect": "non-scaling-stroke" }));
      frame(photo, query[0] * patch, query[1] * patch, { size: patch });
      photo.setTitle(`Query patch (${query[0]}, ${query[1]})`);
      draw(before, rows[0], wanted);
      draw(after, rows[1], wanted);
      before.setTitle(`Handed over, α\u00a0=\u00a0${format(alpha)}`);
      after.setTitle("After fine-tuning");

      const masses = shifts.map((_, h) => massAfter(h));
      buttons.forEach((one, h) => {
        one.textContent = h < shifts.length ? percent(masses[h]) : "even";
        one.style.borderColor = colors.heads[h % colors.heads.length];
        one.setAttribute("aria-pressed", String(h === head));
        one.style.boxShadow = h === head ? `inset 0 0 0 3px ${colors.heads[h % colors.heads.length]}` : "none";
        one.setAttribute("aria-label", h < shifts.length ? `Head ${h + 1}: shift ${place(shifts[h])}, ${percent(masses[h])} of its attention there` : `Head ${h + 1}: looked everywhere alike`);
      });

      const strongest = rows[1].indexOf(Math.max(...rows[1]));
      const found = [Math.floor(strongest / keys) - 1, (strongest % keys) - 1].map((x, axis) => x - query[axis]);
      const average = shift ? massAt(shift, table, null, side) : 0;
      const started = shift
        ? `Head ${head + 1} wants δ = ${place(shift)}. At α = ${format(alpha)} it leaks ${percent(leak)}, and gives its patch ${percent(rows[0][at])}.`
        : `Head ${head + 1} looks at all ${keys * keys} patches alike, and takes away what the others leak.`;
      const now = shift
        ? `After fine-tuning this query gives it ${percent(rows[1][at])}, all queries together ${percent(masses[head])}.`
        : "";
      readout.replaceChildren(
        element("div", {}, started),
        element("div", {}, `${now} It looks most at δ = ${place(found)}.`),
      );
      model.set("value", { picture, layer, head, query: [...query], alpha, leak, mass: average, after: shift ? masses[head] : 0, masses });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, digit.root, depth.root, sharp.root, read.root),
      element("div", { class: "ac-row", style: "align-items: center" }, element("div", { style: "display: grid; gap: 3px" }, nine, rest), panels),
      readout,
    );
    update();
  },
};
