/** The numbers of one answer: exact at its end, by its events while it comes or where it was stopped. Knows no page. */

import { count, fixed, percent, rate } from "./format.js";
import { guessed } from "./origins.js";

const specOf = (answer) => answer.metrics?.speculative_decoding;

/** Draft tokens that were proposed for it. */
export const drafted = (answer) => specOf(answer)?.num_draft_tokens ?? 0;

/** The K that its steps had, most first: "K = 7 in 23 steps, K = 0 in 25"; "" where there is none. */
export function lengths(answer) {
  const found = Object.entries(specOf(answer)?.steps_by_k ?? {}).sort((a, b) => b[1] - a[1]);
  return found.map(([k, steps], i) => `K = ${k} in ${count(steps)}${i ? "" : " steps"}`).join(", ");
}

/** Tokens a second and milliseconds to the first: the server's where it measured them, else as seen here. */
export function speed(answer) {
  const metrics = answer.metrics ?? {};
  return {
    first: metrics.time_to_first_token_ms ?? answer.first,
    perSecond: metrics.tokens_per_second ?? (answer.ms ? (1000 * answer.ids.length) / answer.ms : null),
  };
}

/** `[term, value, note]` for each; `k` is the server's, to go by while the answer comes. */
export function numbers(answer, k) {
  const { first, perSecond } = speed(answer);
  const total = answer.ids.length;
  const { steps, accepted, length } = answer.finish ? counted(answer) : seenLive(answer, k);
  return [
    ["Tokens", count(total)],
    ["Steps", ...steps],
    ["Tokens/s", rate(perSecond)],
    ["First token", first === null ? null : `${fixed(first, 1)}\u00a0ms`],
    ["Accepted", ...accepted],
    ["Tokens a step", steps[2] ? fixed(total / steps[2]) : null, length],
  ].map(([term, value, note]) => [term, value ?? "–", note]);
}

function counted(answer) {
  const spec = specOf(answer);
  const steps = spec?.per_step_accepted ? spec.per_step_accepted.length + 1 : answer.ids.length;
  const of = lengths(answer);
  return {
    steps: [count(steps), of && `the first; then ${of}`, steps],
    accepted: drafted(answer)
      ? [
          percent(spec.draft_acceptance_rate),
          `${count(spec.num_accepted_draft_tokens)} of ${count(spec.num_draft_tokens)} drafted`,
        ]
      : [null, "no draft step"],
    length: drafted(answer) ? `${fixed(spec.mean_acceptance_length)} in those with a draft` : null,
  };
}

function seenLive(answer, k) {
  const events = guessed(answer.events, k);
  const accepted = events.reduce((sum, one) => sum + one.accepted, 0);
  const steps = answer.ids.length - accepted; // each has one token of the verifier's own
  return {
    steps: [count(steps), "live, by event", steps],
    accepted: [count(accepted), "tokens, live"],
    length: "live",
  };
}

/** One sentence at its end. */
export function ended(answer) {
  if (answer.error) return `Failed: ${answer.error.message}`;
  const total = count(answer.ids.length);
  if (answer.stopped) {
    return `Stopped after ${total} tokens; colours and numbers are as seen live, for the exact ones come at the end.`;
  }
  const why = answer.finish === "length" ? "max tokens reached" : "complete";
  if (!drafted(answer)) return `Done, ${why}: ${total} tokens, a step each. No draft took part.`;
  const several = Object.keys(specOf(answer).steps_by_k).length > 1;
  const mixed = several ? ` ${lengths(answer)}: the server measured another K meanwhile, or K was changed.` : "";
  return `Done, ${why}: ${count(specOf(answer).num_accepted_draft_tokens)} of ${total} tokens came from the draft.${mixed}`;
}
