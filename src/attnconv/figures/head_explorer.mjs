// Chapter 13: the heads of trained networks, by model, picture, layer and head.
import { blank, checkbox, choice, clamp, decode, element, format, frame, massRadius, paint, panel, pointable, ramp, slider, softmax, svgElement } from "./common.mjs";

/** Scores of a quadratic head along an axis of n tokens, for the shifts 1 − n … n − 1. */
export const quadraticTable = (n, center, alpha) => Array.from({ length: 2 * n - 1 }, (_, i) => -alpha * (i - n + 1 - center) ** 2);

/** Attention along an axis of n tokens whose scores stand in a table by shift, all scores times a factor. */
export function axisMap(n, table, factor = 1) {
  const tokens = Array.from({ length: n }, (_, k) => k);
  return tokens.map((q) => softmax(tokens.map((k) => factor * table[k - q + n - 1])));
}

/** The whole map, one row a query, of a head that looks at positions: rows times columns. */
export function positionMap(n, { rows, columns }, factor = 1) {
  const [a, b] = [axisMap(n, rows, factor), axisMap(n, columns, factor)];
  return Array.from({ length: n * n }, (_, q) => {
    const [p, r] = [a[Math.floor(q / n)], b[q % n]];
    return Float64Array.from({ length: n * n }, (_, k) => p[Math.floor(k / n)] * r[k % n]);
  });
}

/** A map that was sent as one byte an entry: rows in proportion to the bytes, all scores times a factor. */
export function sentMap(tokens, bytes, factor = 1) {
  return Array.from({ length: tokens }, (_, q) => {
    const row = Array.from(bytes.slice(q * tokens, (q + 1) * tokens));
    return Float64Array.from(softmax(row.map((b) => (b ? factor * Math.log(b) : -Infinity))));
  });
}

/** The map at which a head ends that is sharpened without end: all on the token it looks at most. */
export const sharpest = (map) =>
  map.map((row) => {
    const most = row.indexOf(row.reduce((a, b) => Math.max(a, b), 0));
    return Float64Array.from(row, (_, k) => (k === most ? 1 : 0));
  });

/** Mean of maps. */
export const meanMap = (maps) => maps[0].map((row, q) => row.map((_, k) => maps.reduce((sum, map) => sum + map[q][k], 0) / maps.length));

/** What a row of a map does: mass within one token of the query, the token most looked at, mean shift, bits. */
export function measures(row, n, [r, c]) {
  const most = row.indexOf(row.reduce((a, b) => Math.max(a, b), 0));
  const result = { near: 0, largest: row[most], at: [Math.floor(most / n) - r, (most % n) - c], mean: [0, 0], bits: 0 };
  row.forEach((p, k) => {
    const [i, j] = [Math.floor(k / n) - r, (k % n) - c];
    if (Math.max(Math.abs(i), Math.abs(j)) <= 1) result.near += p;
    result.mean[0] += p * i;
    result.mean[1] += p * j;
    if (p > 0) result.bits -= p * Math.log2(p);
  });
  return result;
}

/** Σ_k p[q][k] X_k, where a token is a square of pixels. */
export function mixTokens(image, map, n) {
  const { height, width, channels, data } = image;
  const [high, wide] = [height / n, width / n];
  const result = blank(height, width, channels);
  const at = (token, i, j) => ((Math.floor(token / n) * high + i) * width + (token % n) * wide + j) * channels;
  map.forEach((row, q) =>
    row.forEach((p, k) => {
      if (p < 1e-9) return;
      for (let i = 0; i < high; i++) {
        for (let j = 0; j < wide; j++) {
          const [to, from] = [at(q, i, j), at(k, i, j)];
          for (let c = 0; c < channels; c++) result.data[to + c] += p * data[from + c];
        }
      }
    }),
  );
  return result;
}

/** Mean distance of two images in steps of 1/255. */
export const levels = (a, b) => (255 * a.data.reduce((sum, x, i) => sum + Math.abs(x - b.data[i]), 0)) / a.data.length;

/** A picture lit where a map is: dark where it is small. */
function lit({ height, width, channels, data }, row, n) {
  const most = row.reduce((a, b) => Math.max(a, b), 0);
  const result = blank(height, width, channels);
  data.forEach((x, i) => {
    const pixel = Math.floor(i / channels);
    const token = Math.floor((Math.floor(pixel / width) * n) / height) * n + Math.floor(((pixel % width) * n) / width);
    const light = Math.sqrt(row[token] / most);
    result.data[i] = x * (0.3 + 0.7 * light) + 0.35 * light * (1 - x);
  });
  return result;
}

export default {
  render({ model, el }) {
    const { groups, models, colors } = model.get("state");
    const named = (list) => Object.fromEntries(list.map((one) => [one.name, one]));
    const pictures = Object.fromEntries(
      Object.entries(groups).map(([name, list]) => [name, list.map((one, number) => ({ ...one, number, image: decode(one.image) }))]),
    );
    const bytes = Object.fromEntries(models.filter((one) => one.maps).map((one) => [one.name, Uint8Array.from(atob(one.maps), (c) => c.charCodeAt(0))]));
    const first = models[0];
    let net = first;
    const shown = Object.fromEntries(Object.entries(pictures).map(([name, list]) => [name, list[0]]));
    let query = [Math.floor(net.tokens / 2), Math.floor(net.tokens / 2)];

    const whole = (x) => format(x, 0);
    const which = choice({ label: "Network", options: named(models), value: net.name }, (next) => change(next));
    const choices = Object.fromEntries(
      Object.entries(pictures).map(([name, list]) => [name, choice({ label: "Picture", options: named(list), value: list[0].name }, (next) => ((shown[name] = next), update()))]),
    );
    const epoch = slider({ label: "After epoch", min: 0, max: 1, step: 1, value: 0, show: (i) => String(net.epochs?.[i] ?? "") }, () => update());
    const layer = slider({ label: "Layer", min: 1, max: net.layers, step: 1, value: 1, show: whole }, () => update());
    const head = slider({ label: "Head", min: 1, max: net.heads, step: 1, value: 1, show: whole }, () => update());
    const all = checkbox({ label: "All heads together" }, () => update());
    const sharpen = slider({ label: "Sharpen: scores", min: -3, max: 7, step: 0.5, value: 0, show: (x) => `× ${(2 ** x).toPrecision(2)}` }, () => update());

    const lamp = panel("", 1, 1);
    const tiles = panel("", 1, 1);
    const result = panel("", 1, 1);
    const limit = panel("", 1, 1);
    for (const one of [lamp, tiles]) one.root.style.cssText = "flex: 1 1 14rem; max-width: 22rem";
    for (const one of [result, limit]) one.root.style.cssText = "flex: 1 1 7rem; max-width: 11rem";
    const readout = element("output", { style: "flex: 1 1 17rem; min-width: 0" });

    const look = (row, column) => {
      query = [row, column].map((x) => clamp(x, 0, net.tokens - 1));
      update();
    };
    const token = (pixel) => Math.floor((pixel * net.tokens) / lamp.canvas.height);
    pointable(lamp, {
      label: "The picture. Arrow keys move the query.",
      onmove: ({ row, column }) => look(token(row), token(column)),
      onstep: ({ rows, columns }) => look(query[0] + rows, query[1] + columns),
    });
    let held = false; // a click of the mouse holds the query where it is, the next one lets it go
    lamp.frame.addEventListener("pointerdown", (event) => (held = event.pointerType === "mouse" && !held));
    lamp.frame.addEventListener("pointermove", (event) => {
      if (held || event.pointerType !== "mouse" || event.buttons) return;
      const { left, top, width, height } = lamp.canvas.getBoundingClientRect();
      const place = [(event.clientY - top) / height, (event.clientX - left) / width].map((x) => Math.floor(x * net.tokens));
      if (place[0] !== query[0] || place[1] !== query[1]) look(...place);
    });
    const across = 3;
    const take = (number) => (head.set(clamp(number, 1, net.heads)), (all.input.checked = false), update());
    pointable(tiles, {
      label: "All heads of the layer. Arrow keys choose one.",
      onmove: ({ row, column }) => take(Math.floor(row / (net.tokens + 1)) * across + Math.floor(column / (net.tokens + 1)) + 1),
      onstep: ({ rows, columns }) => take(head.value + across * rows + columns),
    });

    function size({ canvas, marks }, height, width) {
      [canvas.height, canvas.width] = [height, width];
      marks.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }

    function change(next) {
      query = query.map((x) => Math.floor(((x + 0.5) * next.tokens) / net.tokens));
      net = next;
      const list = pictures[net.group];
      for (const [name, one] of Object.entries(choices)) one.root.hidden = name !== net.group;
      epoch.root.hidden = !net.epochs;
      if (net.epochs) {
        epoch.input.max = net.epochs.length - 1;
        epoch.set(net.epochs.length - 1);
      }
      layer.input.max = net.layers;
      head.input.max = net.heads;
      layer.set(Math.min(layer.value, net.layers));
      head.set(Math.min(head.value, net.heads));
      const { height, width } = list[0].image;
      for (const one of [lamp, result, limit]) size(one, height, width);
      size(tiles, Math.ceil(net.heads / across) * (net.tokens + 1) - 1, across * (net.tokens + 1) - 1);
      look(...query);
    }

    /** Centre and sharpness of the heads of the layer, where they have them. */
    function gaussians() {
      if (!net.epochs) return null;
      const { centers, alphas } = net.history[epoch.value][layer.value - 1];
      return centers.map((center, h) => ({ center, alpha: alphas[h] * 2 ** sharpen.value }));
    }

    function mapsOfLayer(factor) {
      const n = net.tokens;
      if (net.maps) {
        const count = n ** 4;
        const start = ((shown[net.group].number * net.layers + layer.value - 1) * net.heads) * count;
        return Array.from({ length: net.heads }, (_, h) => sentMap(n * n, bytes[net.name].subarray(start + h * count, start + (h + 1) * count), factor));
      }
      if (net.tables) return net.tables[layer.value - 1].map(([rows, columns]) => positionMap(n, { rows, columns }, factor));
      return gaussians().map(({ center: [y, x], alpha }) => positionMap(n, { rows: quadraticTable(n, y, alpha), columns: quadraticTable(n, x, alpha) }));
    }

    function drawTiles(maps, q) {
      const n = net.tokens;
      const image = blank(tiles.canvas.height, tiles.canvas.width, 3);
      image.data.fill(0.82);
      tiles.marks.replaceChildren();
      maps.forEach((map, h) => {
        const [top, left] = [Math.floor(h / across) * (n + 1), (h % across) * (n + 1)];
        const most = map[q].reduce((a, b) => Math.max(a, b), 0);
        map[q].forEach((p, k) => {
          const at = ((top + Math.floor(k / n)) * image.width + left + (k % n)) * 3;
          ramp(colors.attention, p / most).forEach((c, i) => (image.data[at + i] = c / 255));
        });
        frame(tiles, top + query[0], left + query[1]);
        if (all.input.checked || h + 1 === head.value) {
          const color = colors.heads[h % colors.heads.length];
          tiles.marks.append(svgElement("rect", { x: left - 0.25, y: top - 0.25, width: n + 0.5, height: n + 0.5, fill: "none", stroke: color, "stroke-width": 4, "vector-effect": "non-scaling-stroke" }));
        }
      });
      paint(tiles, image);
      tiles.setTitle(`All ${net.heads} heads of layer ${layer.value}, this query`);
    }

    function drawCircles(heads, side) {
      const [width, height] = [lamp.canvas.width, lamp.canvas.height];
      const clip = svgElement("svg", { x: 0, y: 0, width, height, style: "overflow: hidden" });
      for (const { center, alpha, h } of heads) {
        const [cy, cx] = center.map((c, axis) => (query[axis] + 0.5 + c) * side);
        const color = colors.heads[h % colors.heads.length];
        const line = (attributes) => clip.append(svgElement("circle", { fill: "none", "vector-effect": "non-scaling-stroke", cx, cy, ...attributes }));
        for (const [share, dashes] of alpha > 1e-3 ? [[0.5, "none"], [0.9, "5 4"]] : []) {
          const r = massRadius(share, alpha) * side;
          line({ r, stroke: "#ffffff", "stroke-width": 4, "stroke-dasharray": dashes });
          line({ r, stroke: color, "stroke-width": 2.2, "stroke-dasharray": dashes });
        }
        clip.append(svgElement("circle", { cx: clamp(cx, 0.5, width - 0.5), cy: clamp(cy, 0.5, height - 0.5), r: 0.16 * side, fill: color, stroke: "#ffffff", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }));
      }
      lamp.marks.append(clip);
    }

    function update() {
      const n = net.tokens;
      const picture = shown[net.group];
      const { image } = picture;
      const q = query[0] * n + query[1];
      const maps = mapsOfLayer(2 ** sharpen.value);
      const chosen = all.input.checked ? maps.map((_, h) => h) : [head.value - 1];
      const map = meanMap(chosen.map((h) => maps[h]));
      const end = meanMap(chosen.map((h) => sharpest(maps[h])));
      const side = image.height / n;

      paint(lamp, lit(image, map[q], n));
      lamp.marks.replaceChildren();
      frame(lamp, query[0] * side, query[1] * side, { size: side });
      const heads = gaussians();
      if (heads) drawCircles(chosen.map((h) => ({ ...heads[h], h })), side);
      lamp.setTitle(`Lit: where the query looks${chosen.length > 1 ? ", mean of all heads" : ""}`);
      drawTiles(maps, q);
      const [seen, moved] = [mixTokens(image, map, n), mixTokens(image, end, n)];
      paint(result, seen);
      result.setTitle("What attention makes of the picture");
      paint(limit, moved);
      limit.setTitle("Sharpened without end");

      const found = measures(map[q], n, query);
      const pair = (x, digits = 2) => `(${x.map((c) => format(c, digits)).join(", ")})`;
      const lines = [
        `Query ${pair(query, 0)}. ${format(100 * found.near, 0)} % of its attention is on itself and its neighbours, within one token.`,
        `Most, ${format(100 * found.largest, 0)} %, is on the token at the shift ${pair(found.at, 0)}. Mean shift ${pair(found.mean)}. Spread: ${format(found.bits, 1)} bits of ${format(Math.log2(n * n), 0)}.`,
      ];
      if (heads && chosen.length === 1) {
        const { center, alpha } = heads[chosen[0]];
        const radius = alpha > 1e-3 ? `half of the mass within ${format(massRadius(0.5, alpha))} tokens` : "no circle: it does not fall off with distance";
        lines.push(`Δ = ${pair(center)}, α = ${format(alpha, 3)}; ${radius}.`);
      }
      const apart = levels(seen, moved);
      lines.push(`The two small pictures differ by ${format(apart, 1)} of 255 levels.`);
      readout.replaceChildren(...lines.map((line) => element("div", {}, line)));
      model.set("value", { network: net.name, picture: picture.name, layer: layer.value, heads: chosen.map((h) => h + 1), query: [...query], factor: 2 ** sharpen.value, apart, ...found });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, which.root, ...Object.values(choices).map((one) => one.root), epoch.root, layer.root, head.root, sharpen.root, all.root),
      element("div", { class: "ac-row", style: "align-items: start" }, lamp.root, tiles.root),
      element("div", { class: "ac-row", style: "align-items: start" },
        element("div", { style: "display: flex; flex: 1 1 15rem; max-width: 22rem; gap: 0.8rem; align-items: end" }, result.root, limit.root),
        readout,
      ),
    );
    change(net);
  },
};
