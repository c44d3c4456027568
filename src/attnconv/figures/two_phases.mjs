// Chapter 16: how well four ways to spend a budget do, every seed of them, with how much data.
import { checkbox, choice, clamp, element, format, panel, pointable, svgElement } from "./common.mjs";

/** Mean and standard deviation (n − 1) of a list. */
export function meanAndSpread(values) {
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length;
  const squares = values.reduce((sum, x) => sum + (x - mean) ** 2, 0);
  return { mean, spread: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0 };
}

/** The value of a curve, a list of [x, y] with x rising, at a place: straight between points, level outside. */
export function valueAt(curve, x) {
  const n = curve.findIndex(([right]) => right >= x);
  if (n === -1) return curve.at(-1)[1];
  if (n === 0) return curve[0][1];
  const [[x0, y0], [x1, y1]] = [curve[n - 1], curve[n]];
  return y0 + ((x - x0) / (x1 - x0)) * (y1 - y0);
}

export default {
  render({ model, el }) {
    const { ways, results, change, start, colors } = model.get("state");
    const palette = [0, 1, 2, 7].map((n) => colors.heads[n]);
    const dashes = ["", "", "7 3", "2 3"];
    let [fraction, spent] = [start, 1];
    const shown = ways.map(() => true);
    const [width, height] = [150, 100];
    const [left, right, top, bottom] = [22, width - 4, 4, height - 11];

    const graph = panel("", height, width);
    const ends = panel("", height, 108);
    const readout = element("output");
    graph.frame.style.maxWidth = ends.frame.style.maxWidth = "none";
    graph.root.style.cssText = "flex: 5 1 17rem";
    ends.root.style.cssText = "flex: 3.6 1 12.2rem; max-width: 20rem";

    const pick = choice({ label: "Training pictures", options: Object.fromEntries(results.map(({ name }, i) => [name, i])), value: results[start].name }, (i) => ((fraction = i), update()));
    const boxes = ways.map((way, w) => {
      const box = checkbox({ label: way, checked: true }, (on) => ((shown[w] = on), update()));
      box.root.append(element("span", { style: `width: 1.6rem; border-top: 4px ${["solid", "solid", "dashed", "dotted"][w]} ${palette[w]}`, "aria-hidden": "true" }));
      return box.root;
    });
    const move = (x) => ((spent = clamp(x, 0.03, 1)), update());
    pointable(graph, {
      label: "Learning curves. Arrow keys move the line at which they are read.",
      onmove: ({ x }) => move((x - left) / (right - left)),
      onstep: ({ rows, columns }) => move(spent + (columns - rows) / 32),
    });

    const add = (one, tag, attributes) => one.marks.append(svgElement(tag, attributes));
    function write(one, x, y, text, anchor) {
      const label = svgElement("text", { x, y, "text-anchor": anchor, "font-size": 5.5, fill: "var(--ac-quiet)" });
      label.textContent = text;
      one.marks.append(label);
    }

    function update() {
      const { runs, name } = results[fraction];
      const all = runs.flat();
      const lowest = Math.floor(10 * Math.min(...all.map(({ test }) => test), ...all.flatMap(({ curve }) => curve.slice(1).map(([, y]) => y)))) / 10;
      const at = (y) => bottom - ((bottom - top) * (clamp(y, lowest, 1) - lowest)) / (1 - lowest);
      const across = (x) => left + (right - left) * x;
      for (const one of [graph, ends]) {
        one.marks.replaceChildren();
        for (let tick = lowest; tick < 1.001; tick += lowest < 0.55 ? 0.2 : 0.1) {
          add(one, "path", { d: `M${left} ${at(tick)}H${one === graph ? right : 104}`, stroke: "var(--ac-line)", "stroke-width": 0.5 });
          write(one, left - 2, at(tick) + 2, `${format(100 * tick, 0)} %`, "end");
        }
      }
      write(graph, left, height - 3, "0", "start");
      write(graph, right, height - 3, "all of the budget", "end");
      add(graph, "path", { d: `M${across(change)} ${top}V${bottom}`, stroke: "var(--ac-quiet)", "stroke-width": 0.5, "stroke-dasharray": "2 2" });
      add(graph, "path", { d: `M${across(spent)} ${top}V${bottom}`, stroke: "var(--ac-ink)", "stroke-width": 1 });

      const rows = ways.map((way, w) => {
        const [color, x] = [palette[w], 32 + 20.5 * w];
        const { mean, spread } = meanAndSpread(runs[w].map(({ test }) => test));
        const here = meanAndSpread(runs[w].map(({ curve }) => valueAt(curve, spent)));
        if (shown[w]) {
          for (const { curve, test } of runs[w]) {
            const points = curve.map(([c, y]) => `${across(c).toFixed(1)},${at(y).toFixed(1)}`).join(" ");
            add(graph, "polyline", { points, fill: "none", stroke: color, "stroke-width": 1.1, "stroke-dasharray": dashes[w] });
            add(ends, "circle", { cx: x, cy: at(test), r: 1.8, fill: color, stroke: "var(--ac-paper)", "stroke-width": 0.4 });
          }
          add(ends, "path", { d: `M${x - 7} ${at(mean)}h14M${x + 4} ${at(mean - spread)}V${at(mean + spread)}`, stroke: color, "stroke-width": 1.4, fill: "none" });
        }
        write(ends, x, height - 3, `${w + 1}`, "middle");
        return { way, mean, spread, here: here.mean };
      });
      graph.setTitle("Validation accuracy against what was spent");
      ends.setTitle("Test accuracy, a dot a seed");
      const line = ({ way, mean, spread, here }, w) => element("div", {}, `${w + 1}. ${way}: here ${format(100 * here, 1)} %; at the end ${format(100 * mean, 1)} ± ${format(100 * spread, 1)} %`);
      readout.replaceChildren(element("div", {}, `${name}; line at ${format(100 * spent, 0)} % of the budget`), ...rows.map(line).filter((_, w) => shown[w]));
      model.set("value", { fraction, spent, rows });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, pick.root, ...boxes),
      element("div", { class: "ac-row", style: "align-items: start" }, graph.root, ends.root),
      readout,
    );
    update();
  },
};
