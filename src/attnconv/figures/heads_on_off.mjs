// Chapter 5: nine heads that look at one pixel each, switched on and off, and the convolution they add up to.
import { button, checkbox, choice, clamp, convolve, crop, decode, element, format, frame, largestDifference, paint, panel, player, pointable, scientific } from "./common.mjs";

/** Where a head looks that has the kernel's tap at `shift`: there, or, with the lemma read literally, opposite. */
export const lookedAt = (shift, literal) => (literal ? shift.map((d) => 0 - d) : shift);

/** Σ_h softmax(A^(h)) X w^(h) over the heads that are on; each row of softmax(A^(h)) has a single 1. */
export const headSum = (image, shifts, weights, on, literal = false) =>
  convolve(image, weights.map((w, h) => (on[h] ? w : 0)), { shifts: shifts.map((shift) => lookedAt(shift, literal)) });

/** The kernel turned over: the weight of δ becomes the weight of −δ. Shifts in reading order, symmetric about 0. */
export const turnedOver = (weights) => [...weights].reverse();

export default {
  render({ model, el }) {
    const { image: sent, shifts, kernels, start, query: first, on: startOn, colors } = model.get("state");
    const image = decode(sent);
    const { height, width, channels } = image;
    const size = Math.sqrt(shifts.length);
    const near = 2; // the close-up shows so many pixels on each side of the query
    const place = ([rows, columns]) => `(${format(rows, 0)}, ${format(columns, 0)})`;
    const distance = (x) => (x < 0.005 ? scientific(x) : format(x));
    let weights = kernels[start];
    let on = [...startOn];
    let literal = false;
    let query = [...first];

    const photo = panel("", height, width);
    const close = panel("", 2 * near + 1, 2 * near + 1);
    const sum = panel("", height, width);
    const goal = panel("The convolution", height, width);
    const missing = panel("Still missing", height, width);
    const readout = element("output");

    const switches = shifts.map((shift, h) =>
      element("button", { type: "button", class: "ac-tap", style: "touch-action: manipulation", onclick: () => turn(h), onkeydown: (event) => walk(event, h) }),
    );
    const grid = element("div", { class: "ac-taps", role: "group", "aria-label": "The nine heads, each at the place of its tap in the kernel" }, ...switches);
    grid.style.gridTemplateColumns = `repeat(${size}, max-content)`;

    const preset = choice({ label: "Kernel", options: kernels, value: start }, (next) => ((weights = next), update()));
    const play = player({ label: "Switch on one by one", count: shifts.length, milliseconds: 700 }, (i) => {
      on = shifts.map((_, h) => h <= i);
      update(true);
    });
    const all = button("All on", () => ((on = shifts.map(() => true)), update()));
    const none = button("All off", () => ((on = shifts.map(() => false)), update()));
    const reading = checkbox({ label: "Read the lemma literally (q − k)" }, (checked) => ((literal = checked), update()));

    const look = (row, column) => {
      query = [clamp(row, 0, height - 1), clamp(column, 0, width - 1)];
      update(play.running);
    };
    pointable(photo, {
      label: "The photograph. Arrow keys move the query pixel.",
      onmove: ({ row, column }) => look(row, column),
      onstep: ({ rows, columns }) => look(query[0] + rows, query[1] + columns),
    });

    function turn(h) {
      on[h] = !on[h];
      update();
    }

    function walk(event, h) {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -size, ArrowDown: size }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      switches[h + step]?.focus();
    }

    // Outside the image stands the nearest pixel, which is where a head that would leave the image looks.
    const closeUp = () => crop(image, query[0] - near, query[1] - near, 2 * near + 1, "replicate");

    function update(playing = false) {
      if (!playing) play.stop();
      const count = on.filter(Boolean).length;
      const sign = literal ? "−" : "+";
      const heads = headSum(image, shifts, weights, on, literal);
      const target = convolve(image, weights, { shifts });
      const turned = convolve(image, turnedOver(weights), { shifts });
      const rest = { ...target, data: target.data.map((x, p) => x - heads.data[p]) };
      const error = largestDifference(heads.data, target.data);
      const turnedError = largestDifference(heads.data, turned.data);

      switches.forEach((one, h) => {
        one.textContent = format(weights[h]).replace(/\.?0+$/, "");
        one.setAttribute("aria-pressed", String(on[h]));
        one.setAttribute("aria-label", `Head ${h + 1}: tap ${place(shifts[h])}, weight ${format(weights[h])}, looks at ${place(lookedAt(shifts[h], literal))}`);
        one.dataset.used = String(on[h]);
        one.style.borderColor = colors.heads[h];
        one.style.boxShadow = on[h] ? `inset 0 0 0 3px ${colors.heads[h]}` : "none";
      });

      // One scale for a kernel, whatever is on: zero is mid-gray where there are negative weights. It leaves out the
      // two per cent of the convolution that stand out most.
      const sorted = target.data.map(Math.abs).sort();
      const span = Math.max(1e-9, sorted[Math.floor(0.98 * (sorted.length - 1))]);
      const scale = { low: weights.some((w) => w < 0) ? -span : 0, high: span };
      paint(photo, image);
      paint(close, closeUp());
      paint(sum, heads, scale);
      paint(goal, target, scale);
      paint(missing, rest, { low: -span, high: span, stops: colors.diverging });

      const [i, j] = query;
      for (const one of [photo, close]) one.marks.replaceChildren();
      frame(photo, i - near, j - near, { size: 2 * near + 1 });
      frame(close, near, near);
      shifts.forEach((shift, h) => {
        const [rows, columns] = lookedAt(shift, literal);
        if (on[h]) frame(close, near + rows + 0.17, near + columns + 0.17, { size: 0.66, color: colors.heads[h] });
      });
      photo.setTitle(`X, q\u00a0=\u00a0(${i},\u00a0${j})`);
      close.setTitle(`Looking at q\u00a0${sign}\u00a0f(h)`);
      sum.setTitle(count === 1 ? "One head" : `Sum of ${count} heads`);

      const here = (i * width + j) * channels;
      readout.replaceChildren(
        `${count} of ${shifts.length} heads on. At q they give ${format(heads.data[here])}; the convolution gives ${format(target.data[here])}.`,
        element("br"),
        `Largest difference from the convolution: ${distance(error)}; from that of the kernel turned over: ${distance(turnedError)}.`,
      );
      model.set("value", { on: [...on], literal, query: [...query], error, turnedError });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, grid, element("div", { class: "ac-row", style: "flex: 1 1 14rem" }, preset.root, reading.root, play.root, all, none)),
      element("div", { class: "ac-panels" }, photo.root, close.root, sum.root, goal.root, missing.root),
      readout,
    );
    update();
  },
};
