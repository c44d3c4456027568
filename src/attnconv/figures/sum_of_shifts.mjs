// Chapter 1: a convolution as a sum of shifted copies, one tap after the other.
import { choice, clamp, convolve, crop, decode, element, format, frame, paint, panel, player, pointable, slider } from "./common.mjs";

/** The sum of the first `count` terms w_δ shift_δ(X). */
export const partialSum = (image, shifts, weights, count) =>
  convolve(image, weights.map((w, t) => (t < count ? w : 0)), { shifts, padding: "zeros" });

export default {
  render({ model, el }) {
    const { image: sent, shifts, kernels, start, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    const size = Math.sqrt(shifts.length);
    let weights = [...kernels[start]];
    let count = 1;
    let query = [Math.floor(height / 2), Math.floor(width / 2)];
    const near = 4; // the close-up shows so many pixels on each side of the query

    const photo = panel("X", height, width);
    const close = panel("", 2 * near + 1, 2 * near + 1);
    const term = panel("", height, width);
    const sum = panel("", height, width);
    const whole = panel("All nine: convolution", height, width);
    const readout = element("output");

    const taps = shifts.map(([rows, columns], t) =>
      element("button", {
        type: "button",
        class: "ac-tap",
        onclick: () => update(t + 1),
        onpointerdown: (event) => drag(event, t),
        onkeydown: (event) => walk(event, t),
        "aria-label": `tap (${format(rows, 0)}, ${format(columns, 0)})`,
      }),
    );
    const grid = element("div", { class: "ac-taps", role: "group", "aria-label": "The kernel" }, ...taps);
    grid.style.gridTemplateColumns = `repeat(${size}, max-content)`;

    const terms = slider({ label: "Terms in the sum", min: 1, max: shifts.length, step: 1, value: 1, show: (n) => `${n} of ${shifts.length}` }, (n) => update(n));
    const weight = slider({ label: "Weight of the last tap", min: -4, max: 4, step: 0.05, value: 0 }, (w) => setWeight(w));
    const preset = choice({ label: "Kernel", options: kernels, value: start }, (kernel) => ((weights = [...kernel]), update(count)));
    const play = player({ label: "Add the terms one by one", count: shifts.length, milliseconds: 700 }, (i) => update(i + 1, true));

    const look = (row, column) => {
      query = [clamp(row, 0, height - 1), clamp(column, 0, width - 1)];
      update(count);
    };
    pointable(photo, {
      label: "The photograph. Arrow keys move the query pixel.",
      onmove: ({ row, column }) => look(row, column),
      onstep: ({ rows, columns }) => look(query[0] + rows, query[1] + columns),
    });

    function setWeight(w) {
      weights[count - 1] = clamp(Math.round(w * 20) / 20, -4, 4);
      update(count);
    }

    function drag(event, t) {
      const [y, w] = [event.clientY, weights[t]];
      const tap = taps[t];
      let moved = false;
      const move = (e) => {
        if (!moved && Math.abs(e.clientY - y) < 4) return;
        moved = true;
        count = t + 1;
        setWeight(w + (y - e.clientY) / 60);
      };
      tap.setPointerCapture(event.pointerId);
      tap.addEventListener("pointermove", move);
      tap.addEventListener("lostpointercapture", () => tap.removeEventListener("pointermove", move), { once: true });
    }

    function walk(event, t) {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -size, ArrowDown: size }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      if (t + step < 0 || t + step >= taps.length) return;
      taps[t + step].focus();
      update(t + step + 1);
    }

    function update(n, playing = false) {
      if (!playing) play.stop();
      count = n;
      const [rows, columns] = shifts[count - 1];
      const name = `(${format(rows, 0)}, ${format(columns, 0)})`;
      const complete = partialSum(image, shifts, weights, shifts.length);
      const partial = partialSum(image, shifts, weights, count);
      const signed = weights.some((w) => w < 0);
      const span = Math.max(1e-9, ...weights.map(Math.abs), ...complete.data.map(Math.abs));
      const scale = signed ? { low: -span, high: span, stops: colors.diverging } : { low: 0, high: span };

      terms.set(count);
      weight.set(weights[count - 1]);
      taps.forEach((tap, t) => {
        tap.textContent = format(weights[t]);
        tap.setAttribute("aria-pressed", String(t === count - 1));
        tap.dataset.used = String(t < count);
      });
      term.setTitle(`Term ${count}: shift ${name} × ${format(weights[count - 1])}`);
      sum.setTitle(`Sum of ${count} of ${shifts.length} terms`);
      paint(photo, image);
      paint(term, partialSum(image, [shifts[count - 1]], [weights[count - 1]], 1), scale);
      paint(sum, partial, scale);
      paint(whole, complete, scale);

      const [i, j] = query;
      close.setTitle(`Around q = (${i}, ${j})`);
      paint(close, crop(image, i - near, j - near, 2 * near + 1));
      for (const one of [photo, close]) one.marks.replaceChildren();
      frame(photo, i - near, j - near, { size: 2 * near + 1 });
      frame(close, near, near);
      frame(close, near + rows, near + columns, { color: colors.heads[(count - 1) % colors.heads.length] });
      const rest = partial.data.reduce((total, x, p) => total + Math.abs(x - complete.data[p]), 0) / partial.data.length;
      readout.textContent = `δ = ${name}, w = ${format(weights[count - 1])}. Mean distance from the convolution: ${format(rest, 4)}.`;
      model.set("value", { weights: [...weights], count });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-row" }, grid, element("div", { class: "ac-row", style: "flex: 1 1 14rem" }, preset.root, terms.root, weight.root, play.root)),
      element("div", { class: "ac-panels" }, photo.root, close.root, term.root, sum.root, whole.root),
      readout,
    );
    update(1);
  },
};
