// The front page: nine quadratic heads, from wide to sharp, next to the convolution they become.
import { blank, choice, convolve, decode, element, format, largestDifference, nineHeads, paint, panel, player, reducedMotion, scientific, SHIFTS, slider, softmax } from "./common.mjs";

export default {
  render({ model, el }) {
    const { image: sent, kernels, start, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    const zoom = 9;
    let weights = kernels[start];
    let target = convolve(image, weights);

    const heads = panel("Where the nine heads look", zoom, zoom);
    const output = panel("Self-attention", height, width);
    const goal = panel("Convolution", height, width);
    const readout = element("output");
    const alphaOf = (x) => 0.05 * 200 ** x;
    const sharpness = slider({ label: "Sharpness α", min: 0, max: 1, step: 0.01, value: 0.4, show: (x) => format(alphaOf(x)) }, () => update());
    const kernel = choice({ label: "Kernel", options: kernels, value: start }, (next) => {
      weights = next;
      target = convolve(image, weights);
      update();
    });
    const frames = 100;
    const play = player({ label: "Sharpen the heads", count: frames + 1, milliseconds: 50 }, (i) => {
      sharpness.set(i / frames);
      update(true);
    });

    function update(playing = false) {
      if (!playing) play.stop();
      const alpha = alphaOf(sharpness.value);
      const result = nineHeads(image, weights, alpha);
      const signed = weights.reduce((a, b) => a + b, 0) < 0.5;
      const show = signed ? { low: -1, high: 1 } : {};
      paint(output, result, show);
      paint(goal, target, show);

      // Each head's map in its own colour on the colour of the page, mixed by how much it attends.
      const middle = (zoom - 1) / 2;
      const picture = blank(zoom, zoom, 3);
      const maps = SHIFTS.map((shift) => shift.map((d) => softmax(Array.from({ length: zoom }, (_, k) => -alpha * (k - middle - d) ** 2))));
      const tint = colors.heads.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255));
      for (let p = 0; p < zoom * zoom; p++) {
        const shares = maps.map(([row, column]) => row[Math.floor(p / zoom)] * column[p % zoom]);
        const strength = Math.max(...shares);
        const total = shares.reduce((a, b) => a + b, 0) || 1;
        for (let c = 0; c < 3; c++) {
          const color = shares.reduce((sum, s, h) => sum + (s / total) * tint[h][c], 0);
          picture.data[3 * p + c] = 0.93 + Math.sqrt(strength) * (color - 0.93);
        }
      }
      paint(heads, picture);
      const error = largestDifference(result.data, target.data);
      readout.textContent = `α = ${format(alpha)}: the largest difference between self-attention and convolution is ${scientific(error)}.`;
      model.set("value", { alpha, error });
      model.save_changes();
    }

    el.append(
      element("div", { class: "ac-panels" }, heads.root, output.root, goal.root),
      element("div", { class: "ac-row" }, sharpness.root, kernel.root, play.root),
      readout,
    );
    update();
    // Move once, when the figure comes into view, unless the reader asked for less motion.
    if (!reducedMotion()) {
      const seen = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        seen.disconnect();
        play.start();
      });
      seen.observe(el);
    }
  },
};
