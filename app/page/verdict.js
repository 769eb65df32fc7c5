/** The first thing that one sees: does the draft pay, and why; or what state the server is in. */

import { age, fixed, milliseconds, times } from "./format.js";
import { byId, el, say } from "./dom.js";
import { key } from "./server.js";
import { answer, baseline, predicted, range, wide } from "./worth.js";

const STATES = {
  waiting: () => ["Asking the server …", ""],
  offline: ({ error }) => [
    "Offline: the server does not answer.",
    `It may have ended, be restarting, or be out of reach (${error}). This page goes on asking.`,
  ],
  loading: ({ status }) => [
    `Loading: ${status.stage}, ${Math.round(status.seconds)} s so far.`,
    status.stage === "drain"
      ? "Requests that were accepted end first, then another draft is loaded."
      : "Requests are answered as soon as the model is there; then the draft can be judged.",
  ],
  draining: () => [
    "Draining: the server is shutting down.",
    "It ends the requests that run and takes no new ones.",
  ],
  dead: ({ status }) => [
    "Dead: the engine is lost.",
    `Phase "${status.phase}". The process ends, so that whatever watches over it can start it again; its log says why.`,
  ],
  key: () => [
    key.get() ? "That key was not accepted." : "A key is needed.",
    "This server answers to its API keys. The key stays in this tab and is forgotten with it.",
  ],
  none: ({ loaded }) => [
    "No draft is served.",
    `${loaded.verifier.name} answers alone, one token a step. With a draft (T5GEMMA_DRAFT) this page says whether it pays.`,
  ],
};

const PILLS = { waiting: "asking", key: "key needed", none: "no draft" };

/** As many figures as mean something. */
const faster = (value) => times(value, value < 2 ? 2 : 1);

function ready({ stats, loaded, temporary }) {
  const found = stats.estimate.speedup;
  switch (answer(stats)) {
    case "yes":
      return [
        wide(found)
          ? `Yes: decode steps are about ${faster(found.value)} as fast with the draft, at least ${faster(found.low)}.`
          : `Yes: whole answers come ${faster(found.overall)} as fast with the draft.`,
        because(stats),
      ];
    case "no":
      return [
        wide(found)
          ? `No: decode steps have about ${times(found.value)} the speed that they have without the draft, at most ${times(found.high)}.`
          : `No: whole answers come at ${times(found.overall)} the speed that they have without the draft.`,
        `${because(stats)} With K = 0, or T5GEMMA_DRAFT=none, this server is faster.`,
      ];
    case "even":
      return [even(found), because(stats)];
    case "off":
      return ["The draft is off: K = 0.", off(stats, temporary)];
    default:
      return ["Not known yet: too little was served to tell.", unknown(stats, loaded)];
  }
}

function even(found) {
  if (wide(found)) return `Not certain yet: decode steps have ${range(found)} the speed without the draft.`;
  return found.low > 1
    ? `Too close to call: decode steps are faster (${range(found)}), whole answers are not.`
    : `Too close to call: decode steps have ${range(found)} the speed without the draft.`;
}

function off({ asked }, temporary) {
  const why = temporary
    ? "For a comparison, and soon on again. "
    : asked === "auto"
      ? "T5GEMMA_K=auto chose so, since no draft proved faster. "
      : "";
  return `${why}The verifier writes one token a step.`;
}

function because(stats) {
  const { length, seconds } = predicted(stats, stats.k);
  const without = baseline(stats);
  if (length === null || seconds === null || !without) return "";
  const slower = seconds / without.seconds;
  const cost =
    slower >= 1.005
      ? `takes ${fixed(slower)} times as long`
      : "was measured to take no longer, within the scatter";
  return `A step gives ${fixed(length)} tokens instead of 1 and ${cost}.`;
}

function unknown(stats, loaded) {
  const probe = loaded.probe;
  const length = probe?.mean_acceptance_length;
  const before = length
    ? ` On ${probe.prompts} canned prompts before the first request it gave ${fixed(length)} tokens a step.`
    : "";
  return `The server: ${stats.estimate.speedup_reason}.${before}`;
}

/** `length × t_0 ÷ t_k = speedup`, as boxes. */
function equation(stats) {
  const { length, seconds } = predicted(stats, stats.k);
  const without = baseline(stats);
  const { speedup } = stats.estimate;
  const [steps, whole] = wide(speedup)
    ? [`decode steps (${range(speedup)})`, "whole answers, as uncertain"]
    : ["decode steps", "whole answers"];
  const box = (value, text, kind = "") =>
    el("div", { class: `box ${kind}` }, el("b", {}, value), el("span", {}, text));
  const sign = (text) => el("span", { class: "sign", "aria-hidden": "true" }, text);
  return [
    box(fixed(length), "tokens a step"),
    sign("×"),
    box(milliseconds(without.seconds), "a step without draft"),
    sign("÷"),
    box(milliseconds(seconds), `a step at K = ${stats.k}`),
    sign("="),
    box(times(speedup.value), steps),
    sign("→"),
    box(times(speedup.overall), whole, "result"),
  ];
}

function notes(stats) {
  const { speedup, batch } = stats.estimate;
  const origin =
    speedup.origin === "live"
      ? "measured on this server's traffic"
      : "from a stored benchmark of this machine";
  const together = batch === 1 ? "one request" : `up to ${batch} requests`;
  return [
    `Decode steps: ${range(speedup)}, two standard errors each way, with ${together} at a time.`,
    "Whole answers: counting what no draft shortens, too: admitting requests, and the way to the client.",
    `A step without draft: ${origin}, ${age(speedup.age_s)} ago.`,
  ].map((text) => el("li", {}, text));
}

/** What the server recommends, or why it recommends nothing. */
function recommended({ k: now, estimate: { recommended_k: k, recommended_reason: why } }) {
  if (k === null) return `No K is recommended: ${why}.`;
  return `Recommended: K = ${k}${k === now ? ", as it is" : k === 0 ? ", no draft" : ""} (${why}).`;
}

/** The K that a click shall serve, or null: the recommended one, or none where the draft does not pay. */
function advised(judged, { loaded, stats }) {
  if (loaded?.switch_refusal !== null || !stats || stats.asked === "auto") return null;
  const k = stats.estimate.recommended_k ?? (judged === "no" ? 0 : null);
  return k === stats.k ? null : k;
}

/** `serve` is called with the K that the button asks for, and where to say what came of it. */
export function begin(serve) {
  byId("advised").addEventListener("click", ({ target }) =>
    serve(Number(target.dataset.k), byId("advised-told")),
  );
}

export function draw(now) {
  const judged = now.state === "ready" ? answer(now.stats) : now.state;
  const [head, text] = now.state === "ready" ? ready(now) : STATES[now.state](now);
  const hero = byId("verdict");
  hero.dataset.answer = judged;
  say(byId("answer"), head);
  say(byId("why"), text);
  say(byId("state"), PILLS[now.state] ?? now.state);
  byId("state").dataset.state = now.state;
  const serves = now.state === "ready";
  const known = serves && now.stats.estimate.speedup !== null && now.stats.k !== 0;
  byId("equation").replaceChildren(...(known ? equation(now.stats) : []));
  byId("notes").replaceChildren(...(known ? notes(now.stats) : []));
  byId("how").hidden = !known;
  say(byId("recommended"), known || judged === "off" ? recommended(now.stats) : "");
  const k = serves ? advised(judged, now) : null;
  byId("advice").hidden = k === null && byId("advised-told").textContent === "";
  byId("advised").hidden = k === null;
  byId("advised").dataset.k = k;
  say(byId("advised"), `Serve K = ${k}`);
  const { temporary } = now;
  say(
    byId("temporary"),
    temporary ? `K = ${temporary.k} now for a comparison, soon ${temporary.then} again` : "",
  );
  byId("measure").hidden = !["unknown", "even"].includes(judged) && !("running" in byId("measure").dataset);
  byId("key-form").hidden = now.state !== "key";
  // What was measured since says more.
  const warning = ["yes", "even"].includes(judged) ? null : now.loaded?.probe?.warning;
  say(byId("warning"), warning ? `Before the first request: ${warning}.` : "");
  const found = serves ? now.stats.estimate.speedup : null;
  const title = found && !wide(found) ? faster(found.overall) : now.loaded?.family;
  document.title = serves ? `${title} · T5Gemma 2` : "T5Gemma 2";
}
