/** Line charts in SVG, redrawn to the width that there is, so that their text keeps its size. */

import { svg } from "./dom.js";

const HEIGHT = 190;
const LEFT = 44,
  RIGHT = 10,
  TOP = 10,
  BOTTOM = 24;

/** A chart in `node`: `series` are `{ kind, points: [[x, y]], dots, steps }` with y null for a gap, `x` and `y`
 * `{ from, to, ticks: [[value, text]] }`, `marks` vertical lines `{ x, kind, text }`, `areas`
 * `{ kind, bars: [[x0, x1, y]] }`. Points of a series with dots are `[x, y, measured, off]`: open where not measured, with
 * a line from y - off to y + off.
 */
export function chart(node, { series, x, y, marks = [], areas = [] }) {
  const width = Math.max(200, node.clientWidth);
  const px = (value) => LEFT + ((value - x.from) / (x.to - x.from || 1)) * (width - LEFT - RIGHT);
  const py = (value) => HEIGHT - BOTTOM - ((value - y.from) / (y.to - y.from || 1)) * (HEIGHT - TOP - BOTTOM);
  const parts = [];
  for (const [value, text] of y.ticks) {
    parts.push(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: py(value), y2: py(value) }));
    parts.push(svg("text", { x: LEFT - 6, y: py(value) + 4, "text-anchor": "end" }, text));
  }
  for (const [value, text] of x.ticks) {
    parts.push(svg("text", { x: px(value), y: HEIGHT - 6, "text-anchor": "middle" }, text));
  }
  for (const { kind, bars } of areas) {
    for (const [from, to, top] of bars) {
      parts.push(
        svg("rect", {
          class: kind,
          x: px(from),
          y: py(top),
          width: px(to) - px(from),
          height: py(y.from) - py(top),
        }),
      );
    }
  }
  for (const { x: at, kind, text = "" } of marks) {
    parts.push(svg("line", { class: `mark ${kind}`, x1: px(at), x2: px(at), y1: TOP, y2: HEIGHT - BOTTOM }));
    const right = px(at) > width / 2; // then its text stands on the left, within the chart
    const anchor = { x: px(at) + (right ? -4 : 4), y: TOP + 10, "text-anchor": right ? "end" : "start" };
    if (text) parts.push(svg("text", anchor, text));
  }
  for (const { kind, points, dots } of series) {
    parts.push(svg("path", { class: `line ${kind}`, d: path(points, px, py) }));
    if (!dots) continue;
    for (const [at, value, measured = true, off = 0] of points) {
      if (value === null) continue;
      const [low, high] = [Math.max(y.from, value - off), Math.min(y.to, value + off)];
      if (off)
        parts.push(svg("line", { class: `line ${kind}`, x1: px(at), x2: px(at), y1: py(low), y2: py(high) }));
      parts.push(
        svg("circle", { class: `dot ${kind} ${measured ? "" : "open"}`, cx: px(at), cy: py(value), r: 4 }),
      );
    }
  }
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" },
    ...parts,
  );
  node.replaceChildren(drawing);
}

function path(points, px, py) {
  let pen = "M";
  return points
    .map(([at, value]) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const word = `${pen}${px(at).toFixed(1)} ${py(value).toFixed(1)}`;
      pen = "L";
      return word;
    })
    .join("");
}

/** Round numbers from 0 to at least `top`, about four of them, each standing for `worth` of what is drawn:
 * `{ from, to, ticks }`.
 */
export function scale(top, unit = "", worth = 1) {
  const rough = Math.max(top, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const ticks = [];
  for (let i = 0; i * step < top + step; i++)
    ticks.push([i * step * worth, `${Number((i * step).toPrecision(3))}${unit}`]);
  return { from: 0, to: ticks.at(-1)[0], ticks };
}
