/** How far drafts survive, and what every K would give: two charts under one slider. */

import { fixed, milliseconds, percent, times } from "./format.js";
import { chart, scale } from "./chart.js";
import { byId, say } from "./dom.js";
import { positions, predicted } from "./worth.js";

let shown = null;
let touched = false;

/** `serve` is called with the K that the button asks for, and where to say what came of it. */
export function begin(serve) {
  byId("k").addEventListener("input", () => {
    touched = true;
    redraw();
  });
  byId("serve-k").addEventListener("click", () => serve(Number(byId("k").value), byId("served")));
  new ResizeObserver(redraw).observe(byId("curve"));
}

export function draw(now) {
  shown = now.loaded?.family && now.stats ? now : null;
  byId("curve").hidden = !shown;
  if (!shown) return;
  byId("k").max = shown.loaded.block_size - 1;
  if (!touched) byId("k").value = shown.stats.k;
  redraw();
}

function redraw() {
  if (!shown) return;
  const { stats, loaded } = shown;
  const k = Number(byId("k").value);
  const { length, seconds, measured, speedup } = predicted(stats, k);
  const note = seconds === null ? "not timed" : measured ? "measured" : "between measured K";
  say(byId("k-value"), `K = ${k}`);
  say(byId("k-length"), fixed(length));
  say(byId("k-seconds"), milliseconds(seconds));
  say(byId("k-seconds-note"), note);
  say(byId("k-speedup"), times(speedup));
  byId("k").setAttribute(
    "aria-valuetext",
    `K = ${k}: ${fixed(length)} tokens a step, decode steps ${times(speedup)} the speed`,
  );
  byId("serve-k").hidden = loaded.switch_refusal !== null;
  byId("serve-k").disabled = k === stats.asked;
  say(byId("serve-k-for"), loaded.switch_refusal === null ? "A change holds for every request of this server." : "");
  say(byId("serve-k"), k === stats.asked ? `K = ${k} is served` : `Serve K = ${k}`);
  say(
    byId("k-refusal"),
    loaded.switch_refusal ? `K cannot be changed from here: ${loaded.switch_refusal}.` : "",
  );
  survival(stats, k, loaded.block_size - 1);
  speed(stats, k, loaded.block_size - 1);
}

const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);

/** Bars of the share of drafts that are accepted up to each position; those up to the slider's K are filled. */
function survival(stats, k, last) {
  const known = positions(stats);
  byId("survival").hidden = !known;
  const top = Math.min(1, 1.1 * Math.max(0.05, ...(known?.list ?? []).map(({ rate }) => rate ?? 0)));
  const bars = (known?.list ?? []).map(({ position, rate }) => [position + 0.55, position + 1.45, rate ?? 0]);
  chart(byId("survival"), {
    series: [],
    x: { from: 0.5, to: last + 0.5, ticks: numbers(1, last).map((at) => [at, at]) },
    y: scale(100 * top, "%", 0.01),
    areas: [
      { kind: "kept", bars: bars.slice(0, k) },
      { kind: "rest", bars: bars.slice(k) },
    ],
  });
  say(
    byId("survival-text"),
    known
      ? `${percent(known.list[0].rate)} of drafts keep their first token, ${percent(known.list.at(-1).rate)} all ` +
          `${known.k}. Tokens a step are 1 plus the filled bars.`
      : "No draft was verified yet: send a prompt, and bars appear.",
  );
}

function speed(stats, k, last) {
  const all = numbers(0, last).map((at) => ({ at, ...predicted(stats, at) }));
  const best = stats.estimate.recommended_k;
  const known = all.filter(({ speedup }) => speedup !== null);
  byId("speed").hidden = !known.length;
  chart(byId("speed"), {
    series: [
      {
        kind: "speedup",
        dots: true,
        points: all.map(({ at, speedup, measured, off }) => [at, speedup, measured, off]),
      },
    ],
    x: { from: -0.3, to: last + 0.3, ticks: numbers(0, last).map((at) => [at, at]) },
    y: scale(Math.max(1.2, ...known.map(({ speedup, off }) => Math.min(speedup + off, 2 * speedup))), "×"),
    marks: [{ x: k, kind: "chosen" }],
  });
  const advice = best === null ? "" : ` Recommended: K = ${best}.`;
  const told = known
    .filter(({ at, measured }) => at && measured)
    .map(({ at, speedup }) => `${times(speedup)} at K = ${at}`);
  say(
    byId("speed-text"),
    told.length
      ? `Measured: ${told.join(", ")}, each with two standard errors of its step times; open dots lie between measured ones.${advice}`
      : "Not known before steps with and without a draft were timed.",
  );
}
