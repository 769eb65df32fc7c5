/** Tokens a step and the speed-up of decode steps since the page was opened, with the changes of K. */

import { age, fixed, times } from "./format.js";
import { chart, scale } from "./chart.js";
import { byId, say } from "./dom.js";

/** Milliseconds that the chart spans at least. */
const SHORTEST = 30_000;

let history = [];

export function begin() {
  new ResizeObserver(redraw).observe(byId("draft"));
}

export function draw(now) {
  history = now.history;
  redraw();
}

function redraw() {
  if (history.length < 2) {
    say(byId("timeline-text"), "Begins when the page is opened, and is not kept; points appear as drafts are verified.");
    return;
  }
  const to = history.at(-1).at,
    from = Math.min(history[0].at, to - SHORTEST);
  const top = Math.max(2, ...history.flatMap(({ length, speedup }) => [length ?? 0, speedup ?? 0]));
  chart(byId("timeline"), {
    series: [
      { kind: "length", points: history.map(({ at, length }) => [at, length]), dots: history.length < 60 },
      { kind: "speedup", points: history.map(({ at, speedup }) => [at, speedup]) },
    ],
    x: {
      from,
      to,
      ticks: [0.15, 0.5, 0.85].map((share) => [
        from + share * (to - from),
        `−${age(((1 - share) * (to - from)) / 1000)}`,
      ]),
    },
    y: scale(top),
    marks: history
      .filter(({ k }, i) => i && k !== history[i - 1].k)
      .map(({ at, k }) => ({ x: at, kind: "chosen", text: `K = ${k}` })),
  });
  const last = history.findLast(({ length }) => length !== null);
  say(
    byId("timeline-text"),
    last
      ? `Last: ${fixed(last.length)} tokens a step, speed-up of decode steps ${times(history.at(-1).speedup)}.`
      : "No draft was verified since the page was opened: a speed-up that is drawn is of what was served before.",
  );
}
