/** Sends the examples until the server can tell what its draft is worth. */

import { age } from "./format.js";
import { ask } from "./server.js";
import { byId, say } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { without } from "./switching.js";
import { answer, range, wide } from "./worth.js";

const AT_MOST = 60;
/** One of so many requests runs without the draft, beside those that it is compared with. */
const TURNS = 3;
const LOOK_EVERY = 2 * TURNS;

let untouched = true;

/** What the button will do, until it is clicked. */
export function draw({ loaded }) {
  if (!untouched) return;
  const turns =
    loaded?.switch_refusal === null ? ", every third with K = 0 for all requests of this server" : "";
  say(byId("measured"), `Sends example requests, one at a time${turns}, until it is known.`);
}

/** `look` shows the news. */
export function begin(look) {
  let stopping = null;
  byId("measure-run").addEventListener("click", async () => {
    if (stopping) return stopping.abort();
    stopping = new AbortController();
    untouched = false;
    byId("measure").dataset.running = "";
    byId("measure-run").textContent = "Stop";
    try {
      say(byId("measured"), await measure(stopping.signal, look));
    } catch (error) {
      say(byId("measured"), error.name === "AbortError" ? "Stopped." : `Failed: ${error.message}`);
    }
    stopping = null;
    delete byId("measure").dataset.running;
    byId("measure-run").textContent = "Find out now";
    await look();
  });
}

/** The draft and K = 0 take turns where K may be changed: a machine whose speed drifts is then the same for both. */
async function measure(signal, look) {
  const { switch_refusal: refusal, k } = await ask("drafts");
  const began = performance.now();
  let took = 0;
  for (let sent = 0; sent < AT_MOST; sent++) {
    const alone = refusal === null && sent % TURNS === TURNS - 1;
    const left = sent ? ((performance.now() - began) / sent / 1000) * (AT_MOST - sent) : null;
    say(
      byId("measured"),
      `Example request ${sent + 1} of at most ${AT_MOST}${alone ? ", without the draft" : ""}` +
        `${left === null ? "" : `; ${age(left)} left at most`}.`,
    );
    const { prompt } = EXAMPLES[sent % EXAMPLES.length];
    const send = () => ask("v1/completions", { body: { prompt, max_tokens: 64, temperature: 0 }, signal });
    const at = performance.now();
    await (alone ? without(took, k, send) : send());
    took = Math.max(took, performance.now() - at);
    if ((sent + 1) % LOOK_EVERY) continue;
    await look();
    const said = answer(await ask("drafts/stats"));
    if (said === "yes" || said === "no") return `Known after ${sent + 1} example requests.`;
  }
  const { estimate } = await ask("drafts/stats");
  return `Still not certain after ${AT_MOST} example requests: ${why(estimate)}.`;
}

function why({ speedup, speedup_reason: reason }) {
  if (speedup === null) return reason;
  const found = `decode steps are ${range(speedup)} as fast with the draft`;
  return wide(speedup)
    ? `the speed of this machine changes too much to tell; ${found}`
    : `it makes little difference; ${found}`;
}
