// Chapter 8: the fewest attention heads that compute a 3 × 3 kernel with one or two output channels.
import { blank, button, checkbox, choice, clamp, convolve, decode, element, format, frame, largestDifference, paint, panel, pointable, ramp, scientific, slider, svgElement } from "./common.mjs";

/** Σ_δ w_δ X_{q+δ} with zeros outside: a convolution, or what a head with the pattern w sees. */
export const windowSum = (image, weights) => convolve(image, weights, { padding: "zeros" });

const cross = ([a, b], [c, d]) => a * d - b * c;
const dot = ([a, b], [c, d]) => a * c + b * d;
const unit = (angle) => [Math.cos(angle), Math.sin(angle)];

/** Angles of the two edges of the narrowest cone around the points, or null if no half-plane holds them all. */
export function halfPlane(points) {
  const angles = points.map(([a, b]) => Math.atan2(b, a)).sort((s, t) => s - t);
  let [widest, start] = [-1, 0];
  angles.forEach((angle, i) => {
    const gap = i + 1 < angles.length ? angles[i + 1] - angle : angles[0] + 2 * Math.PI - angle;
    if (gap > widest) [widest, start] = [gap, i];
  });
  if (widest <= Math.PI + 1e-9) return null;
  const first = angles[(start + 1) % angles.length];
  return [first, first + 2 * Math.PI - widest];
}

/**
 * Fewest heads for a kernel whose tap t has the weights points[t] = (channel 1, channel 2).
 *
 * A head is a direction in the plane with a non-negative coordinate for every tap. Returns the rank of the kernel,
 * the edges of the cone if the taps lie in a half-plane, and the heads: a pattern with sum 1 and a matrix each.
 */
export function fewestHeads(points) {
  const sizes = points.map(([a, b]) => Math.hypot(a, b));
  const largest = Math.max(...sizes);
  if (largest === 0) return { rank: 0, cone: null, heads: [] };
  const used = points.filter((_, t) => sizes[t] > 1e-9 * largest);
  const longest = points[sizes.indexOf(largest)];
  const rank = used.some((p) => Math.abs(cross(longest, p)) > 1e-9 * largest * largest) ? 2 : 1;

  let [directions, cone] = [[], null];
  if (rank === 1) {
    const along = longest.map((x) => x / largest);
    const sign = along[0] > 0 || (along[0] === 0 && along[1] > 0) ? 1 : -1;
    directions = [sign, -sign].filter((s) => used.some((p) => s * dot(along, p) > 0)).map((s) => along.map((x) => s * x));
  } else {
    cone = halfPlane(used);
    directions = cone ? cone.map(unit) : [0, 1, 2].map((h) => unit((2 * Math.PI * h) / 3));
  }

  const coordinates = points.map((p) => {
    const shares = directions.map(() => 0);
    if (Math.hypot(...p) <= 1e-9 * largest) return shares;
    if (rank === 1) {
      directions.forEach((d, h) => (shares[h] = Math.max(0, dot(d, p))));
      return shares;
    }
    // The point lies between two neighbouring directions and is the sum of its parts along them.
    for (let h = 0; h < directions.length; h++) {
      const next = (h + 1) % directions.length;
      const area = cross(directions[h], directions[next]);
      const [one, other] = [cross(p, directions[next]) / area, cross(directions[h], p) / area];
      if (one < -1e-9 * largest || other < -1e-9 * largest) continue;
      const rounding = 1e-14 * largest;
      [shares[h], shares[next]] = [one > rounding ? one : 0, other > rounding ? other : 0];
      break;
    }
    return shares;
  });
  const heads = directions.map((direction, h) => {
    const total = coordinates.reduce((sum, shares) => sum + shares[h], 0);
    return { pattern: coordinates.map((shares) => shares[h] / total), matrix: direction.map((x) => x * total) };
  });
  return { rank, cone, heads };
}

export default {
  render({ model, el }) {
    const { image: sent, shifts, kernels, start, colors } = model.get("state");
    const image = decode(sent);
    const { height, width } = image;
    const [limit, side, strip] = [5, 220, 90]; // largest weight; pixels of the plane, height of the line
    let weights, channels, scale;
    let chosen = { channel: 0, tap: 0 };

    const planes = [panel("", strip, side), panel("", side, side)]; // one output channel, two
    const photo = panel("X, the photograph", height, width);
    const heads = [0, 1, 2].map((h) => {
      const [pattern, seen] = [panel("", 3, 3), panel("", height, width)];
      const root = element("div", { class: "ac-card" }, pattern.root, seen.root);
      root.style.borderColor = colors.heads[h];
      return { root, pattern, seen };
    });
    const outputs = [0, 1].map(() => {
      const [sum, whole] = [panel("", height, width), panel("", height, width)];
      return { root: element("div", { class: "ac-card" }, sum.root, whole.root), sum, whole };
    });
    const verdict = element("div", { class: "ac-verdict" });
    const readout = element("output");

    const grids = [0, 1].map((channel) => {
      const taps = shifts.map(([rows, columns], tap) =>
        element("button", {
          type: "button",
          class: "ac-tap",
          onclick: () => choose(channel, tap),
          onpointerdown: (event) => drag(event, channel, tap),
          onkeydown: (event) => walk(event, channel, tap),
          "aria-label": `kernel ${channel + 1}, tap (${format(rows, 0)}, ${format(columns, 0)})`,
        }),
      );
      const heading = element("div", { class: "ac-title" });
      const grid = element("div", { class: "ac-taps", role: "group", "aria-label": `Kernel ${channel + 1}` }, ...taps);
      grid.style.gridTemplateColumns = "repeat(3, max-content)";
      return { root: element("div", {}, heading, grid), heading, taps };
    });

    const preset = choice({ label: "Kernel", options: kernels, value: start }, load);
    const weight = slider({ label: "Weight of the chosen tap", min: -limit, max: limit, step: 0.05, value: 0 }, (w) => setWeight(w));
    const second = checkbox({ label: "Second output channel" }, (on) => {
      channels = on ? 2 : 1;
      if (on && weights[1].every((w) => w === 0)) weights[1] = shifts.map((_, t) => weights[0][3 * (t % 3) + Math.floor(t / 3)]);
      if (!on) chosen.channel = 0;
      update();
    });

    function load(kernel) {
      channels = kernel.length;
      weights = [[...kernel[0]], channels === 2 ? [...kernel[1]] : kernel[0].map(() => 0)];
      chosen = { channel: 0, tap: Math.max(0, weights[0].findIndex((w) => w !== 0)) };
      update();
    }

    function choose(channel, tap) {
      chosen = { channel, tap };
      update();
    }

    const rounded = (w) => clamp(Math.round(w * 20) / 20, -limit, limit);

    function setWeight(w, keepScale = false) {
      weights[chosen.channel][chosen.tap] = rounded(w);
      update(keepScale);
    }

    function drag(event, channel, tap) {
      const [y, w, button] = [event.clientY, weights[channel][tap], grids[channel].taps[tap]];
      let moved = false;
      const move = (e) => {
        if (!moved && Math.abs(e.clientY - y) < 4) return;
        moved = true;
        chosen = { channel, tap };
        setWeight(w + (y - e.clientY) / 60);
      };
      button.setPointerCapture(event.pointerId);
      button.addEventListener("pointermove", move);
      button.addEventListener("lostpointercapture", () => button.removeEventListener("pointermove", move), { once: true });
    }

    function walk(event, channel, tap) {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -3, ArrowDown: 3 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      if (tap + step < 0 || tap + step >= shifts.length) return;
      grids[channel].taps[tap + step].focus();
      choose(channel, tap + step);
    }

    const points = () => shifts.map((_, t) => [weights[0][t], channels === 2 ? weights[1][t] : 0]);
    const middle = () => planes[channels - 1].canvas.height / 2;
    const place = ([a, b]) => [side / 2 + (a / scale) * (side / 2), middle() - (b / scale) * (side / 2)];

    const pointing = {
      label: "The taps as points. Arrow keys move the chosen tap.",
      onmove: ({ row, column, begins }) => {
        if (begins) {
          const away = points().map((p) => Math.hypot(place(p)[0] - column, place(p)[1] - row));
          chosen.tap = away.indexOf(Math.min(...away));
          if (Math.min(...away) > 18) return update();
        }
        const snap = scale > 2 ? 4 : 20; // quarters, or twentieths for small weights
        const [a, b] = [((column - side / 2) / side) * 2 * scale, ((middle() - row) / side) * 2 * scale];
        weights[0][chosen.tap] = rounded(Math.round(a * snap) / snap);
        if (channels === 2) weights[1][chosen.tap] = rounded(Math.round(b * snap) / snap);
        update(true);
      },
      onstep: ({ rows, columns }) => {
        const step = scale > 2 ? 0.25 : 0.05;
        weights[0][chosen.tap] = rounded(weights[0][chosen.tap] + columns * step);
        if (channels === 2) weights[1][chosen.tap] = rounded(weights[1][chosen.tap] - rows * step);
        update(true);
      },
    };
    planes.forEach((plane) => pointable(plane, pointing));

    function drawPlane({ cone, heads: found }) {
      const plane = planes[channels - 1];
      const { marks } = plane;
      marks.replaceChildren();
      const [centre, level, height] = [side / 2, middle(), plane.canvas.height];
      const far = 1.5 * side;
      const write = (x, y, text, anchor = "middle", fill = "var(--ac-quiet)") => {
        const label = svgElement("text", { x, y, "text-anchor": anchor, "font-size": 14, fill });
        label.textContent = text;
        marks.append(label);
      };
      marks.append(svgElement("rect", { x: 0, y: 0, width: side, height, fill: "none", stroke: "var(--ac-line)" }));
      const clip = svgElement("svg", { x: 0, y: 0, width: side, height, style: "overflow: hidden" });
      marks.append(clip);
      const inside = (tag, attributes) => clip.append(svgElement(tag, attributes));
      if (cone) {
        const corners = cone.map((angle) => [centre + far * Math.cos(angle), level - far * Math.sin(angle)]);
        const inner = unit((cone[0] + cone[1]) / 2);
        const tip = [centre + far * inner[0], level - far * inner[1]];
        inside("polygon", {
          points: [[centre, level], corners[0], tip, corners[1]].map((p) => p.join(",")).join(" "),
          fill: "var(--ac-accent)", "fill-opacity": 0.16,
        });
        const [dx, dy] = [-inner[1] * far, -inner[0] * far];
        inside("line", { x1: centre - dx, y1: level - dy, x2: centre + dx, y2: level + dy, stroke: "var(--ac-ink)", "stroke-dasharray": "6 5", "stroke-width": 1.5 });
      }
      inside("line", { x1: 0, y1: level, x2: side, y2: level, stroke: "var(--ac-line)" });
      if (channels === 2) inside("line", { x1: centre, y1: 0, x2: centre, y2: side, stroke: "var(--ac-line)" });
      found.forEach(({ matrix }, h) => {
        const length = Math.hypot(...matrix);
        const [a, b] = matrix.map((x) => (x / length) * 0.86 * centre);
        const [x, y, color] = [centre + a, level - b, colors.heads[h]];
        inside("line", { x1: centre, y1: level, x2: x, y2: y, stroke: color, "stroke-width": 5 });
        const turn = (Math.atan2(-b, a) * 180) / Math.PI;
        inside("path", { d: "M 0 -8 L 15 0 L 0 8 Z", fill: color, transform: `translate(${x} ${y}) rotate(${turn})` });
      });
      const groups = new Map();
      points().forEach((p, t) => {
        const key = p.map((x) => x.toFixed(3)).join();
        groups.set(key, [...(groups.get(key) ?? []), t]);
      });
      for (const members of groups.values()) {
        const [x, y] = place(points()[members[0]]);
        inside("circle", { cx: x, cy: y, r: 5.5, fill: "var(--ac-ink)", stroke: "var(--ac-paper)", "stroke-width": 1.5 });
        if (members.includes(chosen.tap)) inside("circle", { cx: x, cy: y, r: 10, fill: "none", stroke: "var(--ac-ink)", "stroke-width": 2 });
        if (channels === 1) write(clamp(x, 14, side - 14), level + 27, String(Number(points()[members[0]][0].toFixed(2))).replace("-", "−"), "middle", "var(--ac-ink)");
        if (members.length > 1) write(clamp(x + 14, 8, side - 12), clamp(y - 10, 14, height - 4), `×${members.length}`, "middle", "var(--ac-ink)");
      }
      if (channels === 2) {
        write(side - 5, level + 17, "kernel 1", "end");
        write(centre - 5, 15, "kernel 2", "end");
      }
      plane.setTitle(channels === 2 ? "The taps as points in the plane" : "The taps as points on a line");
      planes.forEach(({ root }, c) => (root.hidden = c !== channels - 1));
    }

    function drawPattern({ marks, canvas }, pattern) {
      const largest = Math.max(...pattern);
      paint({ canvas }, { height: 3, width: 3, channels: 1, data: pattern }, { high: largest, stops: colors.attention });
      marks.replaceChildren();
      pattern.forEach((p, t) => {
        const light = dot(ramp(colors.attention, p / largest).slice(0, 2), [0.35, 0.65]) > 110;
        const text = svgElement("text", { x: (t % 3) + 0.5, y: Math.floor(t / 3) + 0.6, "text-anchor": "middle", "font-size": 0.29, fill: light ? "#000000" : "#ffffff" });
        text.textContent = p === 0 ? "0" : format(Math.round(p * 1e9) / 1e9);
        marks.append(text);
      });
      frame({ marks }, Math.floor(chosen.tap / 3), chosen.tap % 3);
    }

    function update(keepScale = false) {
      const taps = points();
      const span = Math.max(1e-9, ...taps.flat().map(Math.abs));
      if (!keepScale || scale === undefined || span > scale) scale = 1.3 * span;
      const result = fewestHeads(taps);
      const pictures = result.heads.map(({ pattern }) => windowSum(image, pattern));
      const sums = [0, 1].map((c) => {
        const sum = blank(height, width, 1);
        result.heads.forEach(({ matrix }, h) => pictures[h].data.forEach((x, p) => (sum.data[p] += matrix[c] * x)));
        return sum;
      });
      const wholes = [0, 1].map((c) => windowSum(image, weights[c]));

      grids.forEach(({ root, heading, taps: buttons }, channel) => {
        root.hidden = channel >= channels;
        heading.textContent = channels === 1 ? "The kernel" : `Kernel ${channel + 1}`;
        buttons.forEach((tap, t) => {
          tap.textContent = format(weights[channel][t]);
          tap.setAttribute("aria-pressed", String(channel === chosen.channel && t === chosen.tap));
        });
      });
      weight.set(weights[chosen.channel][chosen.tap]);
      second.input.checked = channels === 2;

      drawPlane(result);
      paint(photo, image);
      heads.forEach(({ root, pattern, seen }, h) => {
        root.hidden = h >= result.heads.length;
        if (root.hidden) return;
        const { pattern: where, matrix } = result.heads[h];
        const factor = channels === 1 ? format(matrix[0]) : `(${format(matrix[0])}, ${format(matrix[1])})`;
        pattern.setTitle(`Head ${h + 1} looks here`);
        seen.setTitle(`and sees this, times ${factor}`);
        drawPattern(pattern, where);
        paint(seen, pictures[h]);
      });
      outputs.forEach(({ root, sum, whole }, c) => {
        root.hidden = c >= channels;
        root.style.gridColumnStart = c === 0 && result.heads.length === 3 ? "1" : "";
        const signed = weights[c].some((w) => w < 0);
        // The border, where zeros meet the photograph, would outshine everything else.
        const inside = wholes[c].data.filter((_, p) => p % width > 0 && p % width < width - 1 && p >= width && p < (height - 1) * width);
        const high = Math.max(1e-9, ...inside.map(Math.abs));
        const range = signed ? { low: -high, high, stops: colors.diverging } : { high };
        sum.setTitle(channels === 1 ? "Sum of the heads" : `Sum of the heads, ${c + 1}`);
        whole.setTitle(channels === 1 ? "Convolution" : `Convolution, ${c + 1}`);
        paint(sum, sums[c], range);
        paint(whole, wholes[c], range);
      });

      const count = result.heads.length;
      const needed = count === 1 ? "one head" : `${["no", "", "two", "three"][count]} heads`;
      const why = {
        "0,0": "The kernel is zero",
        "1,1": channels === 1 ? "All weights have the same sign" : "All points lie on one ray",
        "1,2": channels === 1 ? "There are positive and negative weights" : "All points lie on a line, on both sides of zero",
        "2,2": "All points lie on one side of the dashed line",
        "2,3": "The points do not fit on one side of any line through zero",
      }[[result.rank, count]];
      verdict.textContent = `${why}: ${needed}.`;
      const error = Math.max(...sums.slice(0, channels).map((sum, c) => largestDifference(sum.data, wholes[c].data)));
      readout.textContent = `ρ = ${result.rank}, heads: ${count}. Largest difference between their sum and the convolution: ${scientific(error)}.`;
      model.set("value", { weights: weights.slice(0, channels).map((w) => [...w]), heads: count, rank: result.rank });
      model.save_changes();
    }

    const sized = (node, flex) => ((node.style.flex = flex), node);
    el.append(
      element(
        "div",
        { class: "ac-row" },
        ...grids.map(({ root }) => root),
        element("div", { class: "ac-row", style: "flex: 1 1 14rem" }, preset.root, weight.root, second.root),
      ),
      element(
        "div",
        { class: "ac-row", style: "align-items: start" },
        ...planes.map(({ root }) => sized(root, "0 1 15rem")),
        sized(photo.root, "0 1 9rem"),
        sized(element("div", {}, verdict, readout), "1 1 9rem"),
      ),
      element("div", { class: "ac-cards" }, ...heads.map(({ root }) => root), ...outputs.map(({ root }) => root)),
    );
    load(kernels[start]);
  },
};
