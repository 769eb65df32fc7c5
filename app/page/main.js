/** Puts the parts together: what the watch sees is drawn by each of them. */

import * as curve from "./curve.js";
import * as draft from "./draft.js";
import * as measure from "./measure.js";
import * as playground from "./playground.js";
import * as positions from "./positions.js";
import * as theme from "./theme.js";
import * as timeline from "./timeline.js";
import * as verdict from "./verdict.js";
import { age } from "./format.js";
import { byId, el, say } from "./dom.js";
import { askForKey, setK } from "./switching.js";
import { Watch } from "./watch.js";

/** How long it is said what a click did. */
const SAID_MS = 10_000;

function draw(now) {
  for (const part of [verdict, measure, playground, draft, positions, curve, timeline]) part.draw(now);
  const asleep = !["ready", "none"].includes(now.state);
  byId("run").disabled = asleep;
  say(
    byId("draft-title"),
    ["ready", "none", "loading"].includes(now.state) ? "The draft" : "The draft, as last seen",
  );
  drawK(now, asleep);
  document.body.dataset.state = now.state;
}

/** The playground's K, which is the server's, and whether it can be compared with K = 0. */
function drawK({ loaded, stats, temporary }, asleep) {
  const select = byId("server-k");
  const last = loaded?.family ? loaded.block_size - 1 : 0;
  if (select.options.length !== last + 2) {
    const names = ["auto", ...Array.from({ length: last + 1 }, (_, k) => String(k))];
    select.replaceChildren(
      ...names.map((name) => el("option", { value: name }, name === "0" ? "0 (no draft)" : name)),
    );
  }
  const refusal = loaded ? loaded.switch_refusal : "";
  if (document.activeElement !== select) select.value = String(stats?.asked ?? 0);
  select.disabled = refusal !== null;
  say(select.options[0], stats?.asked === "auto" ? `auto: K = ${stats.k} now` : "auto");
  say(byId("k-told"), loaded?.family && stats ? kInWords(stats, temporary) : "");
  const off = stats?.k === 0 && !temporary ? "the draft is off (K = 0), there is nothing to compare" : null;
  byId("compare").hidden = asleep || (refusal ?? off) !== null;
  say(
    byId("compare-note"),
    !loaded
      ? ""
      : refusal
        ? `“The same without draft” needs K = 0 for the time of one answer: ${refusal}.`
        : off
          ? `“The same without draft”: ${off}.`
          : "While it runs without, every request of this server has K = 0; then K is set back.",
  );
}

function kInWords({ k, asked }, temporary) {
  if (temporary)
    return `K = ${temporary.k} for ${age(temporary.seconds_left)} more, for a comparison; then ${temporary.then} again.`;
  return asked === "auto"
    ? `auto: the server moves K to what proves fastest; K = ${k} at the moment.`
    : `K = ${k} for every request of this server.`;
}

let saying;

/** Sets K, and says beside what was clicked what came of it, for a while. */
async function serve(k, told) {
  clearTimeout(saying);
  try {
    const reply = await setK(k);
    say(told, `K = ${reply.k} now, was ${reply.previous}.`);
  } catch (error) {
    say(told, `K was not changed: ${error.message}`);
  }
  saying = setTimeout(() => say(told, ""), SAID_MS);
  await watch.look(true);
}

theme.begin();
timeline.begin();
curve.begin(serve);
verdict.begin(serve);
const watch = new Watch(draw);
const look = () => watch.look(true);
measure.begin(look);
playground.begin(look);
askForKey(byId("key-form"), byId("api-key"), () => watch.look(true));
byId("server-k").addEventListener("change", ({ target }) =>
  serve(target.value === "auto" ? "auto" : Number(target.value), byId("k-changed")),
);
