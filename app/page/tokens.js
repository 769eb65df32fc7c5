/** An answer's text with its origins: accepted draft tokens look different from the verifier's, steps stand apart. */

import { divided, guessed, origins, steps } from "./origins.js";
import { el } from "./dom.js";

const WORDS = {
  accepted: "accepted draft token",
  verifier: "the verifier's token",
  unknown: "origin unknown",
};

/** While it comes, at K = `k`: as `guessed` has it, the text of an event not divided any further. */
export function live(events, k) {
  const found = guessed(events, k);
  return events.map(({ text }, i) =>
    el("span", { class: found[i].accepted ? "accepted step" : "verifier step" }, text),
  );
}

/** At the end: `pieces` are the texts of the tokens alone, `differs` the index of a token to point at. */
export function exact(answer, pieces, differs = null) {
  const spec = answer.metrics?.speculative_decoding;
  const list = spec?.per_step_accepted
    ? steps(answer.ids.length, spec.per_step_accepted, spec.per_step_drafted)
    : spec === undefined && answer.finish
      ? answer.ids.map(() => ({ accepted: 0, tokens: 1 }))
      : [];
  const parts = divided(answer.text, pieces);
  return origins(answer.ids, list).map(({ origin, first }, i) => {
    const classes = [origin, first && "step", i === differs && "differs", !parts[i] && "silent"].filter(
      Boolean,
    );
    const title = `${WORDS[origin]}${parts[i] ? "" : `, no text: ${pieces[i] || "part of a character"}`}`;
    return el("span", { class: classes.join(" "), title }, parts[i] || "·");
  });
}
