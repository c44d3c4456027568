// Chapter 14: parameters and operations of a network of your choice, part by part, beside the published ones.
import { checkbox, choice, element, format, slider } from "./common.mjs";

/** The parts of a network of attention, in the order of the bars. */
export const PARTS = ["head matrices", "output", "mlp", "queries, keys", "maps", "the rest"];

/**
 * Parameters of each part, and multiply–accumulate operations of one picture. `kind` is quadratic, learned, content
 * or convolution, with as many taps as there are heads; `separable` is how maps of positions are applied.
 */
export function costs({ kind, side, downsample, layers, heads, width, intermediate, keyDim, separable, channels = 3, classes = 10 }) {
  const edge = side / downsample;
  const tokens = edge * edge;
  const entries = channels * downsample ** 2;
  const content = kind === "content";
  const half = Math.floor(keyDim / 2);
  const positions = {
    quadratic: 3 * heads,
    learned: 2 * (2 * edge - 1) * width + 2 * heads * width,
    content: 2 * (2 * edge - 1) * half,
    convolution: 0,
  }[kind];
  const keys = separable && !content ? 2 * edge : tokens;
  const rows = heads * tokens;
  const scores = content ? tokens * keyDim + edge * keyDim : 0;
  const parameters = {
    "head matrices": layers * (heads * width ** 2 + width),
    output: layers * (width ** 2 + width),
    mlp: layers * (2 * width * intermediate + intermediate + width),
    "queries, keys": content ? layers * 2 * (width + 1) * heads * keyDim : 0,
    maps: layers * positions,
    "the rest": layers * 4 * width + (entries + 1) * width + (width + 1) * classes,
  };
  const operations = {
    "head matrices": layers * rows * width ** 2,
    output: layers * tokens * width ** 2,
    mlp: layers * tokens * 2 * width * intermediate,
    "queries, keys": content ? layers * rows * 2 * width * keyDim : 0,
    maps: kind === "convolution" ? 0 : layers * rows * (keys * width + scores),
    "the rest": tokens * entries * width + width * classes,
  };
  return { parameters, operations };
}

/** Parameters and operations of ResNet-18 for small pictures of side × side pixels. */
export function resnet(side, { channels = 3, classes = 10, width = 64 } = {}) {
  let [parameters, operations, edge, before] = [0, 0, side, channels];
  const convolution = (from, to, taps) => {
    parameters += from * to * taps + 2 * to; // and a batch normalisation
    operations += from * to * taps * edge ** 2;
  };
  convolution(channels, width, 9);
  before = width;
  for (const [stage, size] of [1, 2, 4, 8].entries()) {
    const after = size * width;
    if (stage) edge = Math.ceil(edge / 2);
    convolution(before, after, 9);
    for (let n = 0; n < 3; n++) convolution(after, after, 9);
    if (stage) convolution(before, after, 1);
    before = after;
  }
  return { parameters: parameters + (before + 1) * classes, operations: operations + before * classes };
}

export const total = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);

/** What a count of linear layers alone leaves out of the operations: the maps. */
export const linear = (operations) => total(operations) - operations.maps;

/** A large number for reading: three digits and a letter. */
export function short(x) {
  const power = Math.min(Math.max(Math.floor(Math.log10(Math.max(x, 1)) / 3), 0), 5);
  const digits = Number((x / 1000 ** power).toPrecision(3));
  return digits >= 1000 && power < 5 ? `1 ${"kMGTP"[power]}` : `${digits}${power ? ` ${"kMGTP"[power - 1]}` : ""}`;
}

const SIDES = [8, 16, 32, 64, 128, 256];
const FACTORS = [1, 2, 4, 8];
const exact = (x) => x.toLocaleString("en-GB");

/** A chart of stacked bars, one a network; `set` takes [{name, parts: {part: number}, mark}], with colours by part. */
function chart(title, colors) {
  const body = element("div", { style: "display: grid; gap: 0.5rem" });
  const root = element("div", { style: "min-width: 0; flex: 1 1 19rem" }, element("div", { class: "ac-title" }, title), body);
  const set = (rows) => {
    const largest = Math.max(...rows.map(({ parts }) => total(parts)));
    body.replaceChildren(...rows.map(({ name, parts, mark, bold }) => {
      const all = total(parts);
      const bar = element("div", { style: "position: relative; display: flex; height: 1.15rem; background: transparent" });
      for (const [part, x] of Object.entries(parts)) {
        if (x) bar.append(element("div", { title: `${part}: ${short(x)}`, style: `width: ${(100 * x) / largest}%; background: ${colors[part]}` }));
      }
      if (mark) bar.append(element("div", { style: `position: absolute; left: calc(${(100 * mark) / largest}% - 1px); top: -3px; bottom: -3px; width: 3px; background: var(--ac-ink)` }));
      const weight = bold ? "font-weight: 700" : "";
      const line = element("div", { style: `display: flex; justify-content: space-between; gap: 1rem; font-size: 0.85em; ${weight}` }, element("span", {}, name), element("span", { style: "font-variant-numeric: tabular-nums" }, short(all)));
      const words = Object.entries(parts).filter(([, x]) => x).map(([part, x]) => `${part} ${short(x)}`).join(", ");
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", `${name}: ${words}`);
      return element("div", {}, line, bar);
    }));
  };
  return { root, set };
}

export default {
  render({ model, el }) {
    const { published, presets, colors: { heads: palette } } = model.get("state");
    const colors = Object.fromEntries(PARTS.map((part, n) => [part, palette[[0, 8, 2, 3, 7, 4][n]]]));
    colors.convolutions = palette[6];
    const kinds = { quadratic: "quadratic", learned: "learned", "learned with content": "content", "none, a convolution": "convolution" };
    const own = "your own";

    const preset = choice({ label: "Sizes", options: { ...presets, [own]: null }, value: Object.keys(presets)[0] }, (sizes) => sizes && take(sizes));
    const change = () => ((preset.select.value = own), update());
    const kind = choice({ label: "Scores", options: kinds, value: "quadratic" }, () => update());
    const count = (label, min, max, step) => slider({ label, min, max, step, value: min, show: String }, change);
    const side = slider({ label: "Picture", min: 0, max: SIDES.length - 1, step: 1, value: 0, show: (t) => `${SIDES[t]} × ${SIDES[t]}` }, change);
    const factor = slider({ label: "Squares", min: 0, max: FACTORS.length - 1, step: 1, value: 0, show: (t) => `${FACTORS[t]} × ${FACTORS[t]}` }, change);
    const sizes = {
      layers: count("Blocks", 1, 24, 1),
      heads: count("Heads", 1, 25, 1),
      width: count("Width", 16, 800, 16),
      intermediate: count("Inside the mlp", 32, 3200, 32),
      keyDim: count("Width of a key", 8, 800, 8),
    };
    const separable = checkbox({ label: "Apply maps as rows × columns" }, () => update());
    const parameters = chart("Parameters", colors);
    const operations = chart("Operations for one picture", colors);
    const readout = element("output");
    const swatch = ([part, color]) =>
      element("span", { style: "display: inline-flex; align-items: center; gap: 0.4rem" }, element("span", { style: `width: 0.9rem; height: 0.9rem; background: ${color}` }), part);
    const legend = element("div", { class: "ac-row", style: "gap: 0.3rem 1rem; font-size: 0.85em" }, ...Object.entries(colors).map(swatch));

    function take(one) {
      side.set(SIDES.indexOf(one.side));
      factor.set(FACTORS.indexOf(one.downsample));
      for (const [name, control] of Object.entries(sizes)) control.set(one[name]);
      update();
    }

    function update() {
      const chosen = {
        kind: kinds[kind.select.value],
        side: SIDES[side.value],
        downsample: FACTORS[factor.value],
        ...Object.fromEntries(Object.entries(sizes).map(([name, control]) => [name, control.value])),
        separable: separable.input.checked,
      };
      sizes.keyDim.input.disabled = chosen.kind !== "content";
      separable.input.disabled = chosen.kind === "content" || chosen.kind === "convolution";
      const twice = (parts) => Object.fromEntries(Object.entries(parts).map(([part, x]) => [part, 2 * x]));
      const yours = costs(chosen);
      const convolutional = resnet(chosen.side);
      const theirs = published.map(({ accuracy, flops, ...paper }) =>
        ({ name: `Paper, ${paper.kind}: ${format(100 * accuracy, 1)} %`, mark: flops, ...costs({ ...paper, separable: chosen.separable }) }));
      const others = [...theirs, { name: `ResNet-18, ${chosen.side} × ${chosen.side} pixels`, parameters: { convolutions: convolutional.parameters }, operations: { convolutions: convolutional.operations } }];
      parameters.set([{ name: "Yours", parts: yours.parameters, bold: true }, ...others.map(({ name, parameters: parts }) => ({ name, parts }))]);
      operations.set([{ name: "Yours", parts: twice(yours.operations), bold: true }, ...others.map(({ name, mark, operations: parts }) => ({ name, parts: twice(parts), mark }))]);

      const tokens = (chosen.side / chosen.downsample) ** 2;
      const [all, counted] = [2 * total(yours.operations), 2 * linear(yours.operations)];
      const share = yours.operations.maps / total(yours.operations);
      const times = all / (2 * convolutional.operations);
      readout.replaceChildren(
        element("div", {}, `Yours: ${exact(tokens)} ${tokens === 1 ? "token" : "tokens"}, ${exact(total(yours.parameters))} parameters, ${short(all)} operations, ${Number(times.toPrecision(3))} times those of ResNet-18.`),
        element("div", {}, `Linear layers alone: ${short(counted)}. The maps, which a count of layers leaves out, are ${format(100 * share, 1)} % of all.`),
      );
      model.set("value", { ...chosen, parameters: total(yours.parameters), operations: all, linear: counted });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, ...[preset, kind, side, factor, ...Object.values(sizes), separable].map((one) => one.root)),
      legend,
      element("div", { class: "ac-row", style: "align-items: start" }, parameters.root, operations.root),
      readout,
    );
    for (const one of [preset, kind, side, factor, ...Object.values(sizes)]) one.root.style.flexBasis = "9rem";
    take(Object.values(presets)[0]);
  },
};
