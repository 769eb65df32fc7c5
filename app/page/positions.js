/** Acceptance by position of the block, as bars in a table: of all drafts, and of those that came so far. */

import { count, percent } from "./format.js";
import { byId, el, say } from "./dom.js";
import { positions } from "./worth.js";

function bar(value, kind) {
  const filled = el("span", { class: `bar ${kind}` });
  filled.style.inlineSize = `${100 * (value ?? 0)}%`;
  return el(
    "td",
    {},
    el("span", { class: "track", "aria-hidden": "true" }, filled),
    el("span", { class: "number" }, percent(value)),
  );
}

export function draw({ stats }) {
  const known = stats && positions(stats);
  const span = known?.span === "window" ? `the last ${stats.window.seconds} s` : "since the start";
  byId("positions").hidden = !known;
  say(
    byId("positions-from"),
    known
      ? `These bars: ${count(known.drafts)} drafts at K = ${known.k}, ${span}${known.k === stats.k ? "" : `; K is ${stats.k} now`}.`
      : "No draft was verified yet: send a prompt, and bars appear.",
  );
  if (!known) return;
  byId("position-rows").replaceChildren(
    ...known.list.map(({ position, rate, conditional_rate: conditional }) =>
      el("tr", {}, el("th", { scope: "row" }, position + 1), bar(rate, "all"), bar(conditional, "reached")),
    ),
  );
}
