/** The playground: a prompt, its answer coloured by origin, its numbers, and the same without the draft. */

import { count, rate } from "./format.js";
import { byId, el, facts, say } from "./dom.js";
import { drafted, ended, lengths, numbers, speed } from "./numbers.js";
import { exact, live } from "./tokens.js";
import { complete, nothing, textsOf } from "./completion.js";
import { EXAMPLES } from "./examples.js";
import { firstDifference } from "./origins.js";
import { without } from "./switching.js";

const narrow = matchMedia("(max-width: 50rem)");
let running = null;
let seen = null;
/** K of the server at the last look. */
let served = 0;

function request() {
  const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
  const stop = byId("stop-text").value;
  return {
    prompt: byId("prompt").value,
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    seed: number("seed"),
    stop: stop ? [stop.replaceAll("\\n", "\n")] : null,
  };
}

/** Shows an answer at K = `k` in `column` as it comes, and exactly at its end. The column keeps its height meanwhile. */
async function show(column, title, fields, signal, k) {
  const output = el("div", {
    class: "answer",
    tabindex: "0",
    role: "region",
    "aria-label": `Answer ${title}`,
  });
  const dl = el("dl", { class: "tiles" }, facts(numbers(nothing(), k)));
  column.style.minBlockSize = `${column.offsetHeight}px`;
  column.replaceChildren(...(title ? [el("h3", {}, title)] : []), output, dl);
  const draw = (got) => {
    output.replaceChildren(...live(got.events, k));
    dl.replaceChildren(...facts(numbers(got, k)));
  };
  let frame = 0;
  const answer = await complete(fields, signal, (got) => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw(got);
    });
  });
  cancelAnimationFrame(frame);
  draw(answer);
  if (answer.error) dl.replaceChildren();
  if (answer.finish && answer.ids.length) {
    answer.pieces = await textsOf(answer.ids).catch(() => null);
    if (answer.pieces) output.replaceChildren(...exact(answer, answer.pieces));
  }
  column.style.minBlockSize = "";
  answer.output = output;
  return answer;
}

/** One piece of work at a time; it returns what to say in the end. */
async function busy(work) {
  if (running || !byId("form").reportValidity()) return;
  running = new AbortController();
  byId("run").hidden = true;
  byId("halt").hidden = false;
  byId("compare").disabled = true;
  const held = document.activeElement === byId("run") || document.activeElement === byId("compare");
  if (held) byId("halt").focus();
  say(byId("told"), "Running …");
  say(byId("told-more"), "");
  try {
    say(byId("told"), await work(running.signal));
  } catch (error) {
    say(byId("told"), error.name === "AbortError" ? "Stopped." : `Failed: ${error.message}`);
  } finally {
    running = null;
    byId("halt").hidden = true;
    byId("run").hidden = false;
    byId("compare").disabled = false;
    if (held && document.activeElement === document.body) byId("run").focus();
    byId("legend").hidden = false;
    seen?.();
  }
}

const run = (signal) => {
  byId("other").hidden = true;
  return show(byId("one"), "", request(), signal, served).then(ended);
};

/** With the server's K, then at K = 0, side by side. A token of it before, so that neither waits for the encoder. */
async function compare(signal) {
  const fields = request();
  const k = served;
  byId("other").hidden = false;
  byId("other").replaceChildren();
  say(byId("told"), `Comparing, 1 of 2: with the draft, K = ${k} …`);
  const before = await complete({ ...fields, max_tokens: 1 }, signal);
  const one = before.finish ? await show(byId("one"), "With the draft", fields, signal, k) : before;
  if (!one.finish) return ended(one);
  say(byId("told"), "Comparing, 2 of 2: without, K = 0 for every request of this server …");
  const other = await without(one.ms, k, () => {
    const answer = show(byId("other"), "Without, K = 0", fields, signal, 0);
    if (narrow.matches) byId("other").scrollIntoView({ block: "nearest" });
    return answer;
  });
  if (!other.finish) return ended(other);
  const meanwhile = drafted(other) ? " Somebody changed K in the second." : "";
  say(
    byId("told-more"),
    `${rate(speed(one).perSecond)} tokens/s with the draft (${lengths(one)}), ${rate(speed(other).perSecond)} without ` +
      `(${lengths(other)}).${meanwhile} One pair of answers is no measurement: the top of this page goes by all that was served.`,
  );
  return verdict(one, other, fields);
}

function verdict(one, other, fields) {
  const at = firstDifference(one.ids, other.ids);
  if (at === null) return `Equal, token by token: all ${count(one.ids.length)}.`;
  for (const answer of [one, other])
    if (answer.pieces) answer.output.replaceChildren(...exact(answer, answer.pieces, at));
  const drawn = fields.temperature > 0 || fields.temperature === null;
  const why = drawn
    ? "At a temperature above 0 each run draws its own tokens, by the same probabilities: set it to 0 to compare."
    : "Greedy answers should be equal; where two tokens are all but equally likely, rounding may decide.";
  return `They differ from token ${at + 1} on. ${why}`;
}

export function draw({ loaded, stats, temporary }) {
  served = temporary?.k ?? stats?.k ?? 0;
  if (!loaded) return;
  byId("max-tokens").max = loaded.max_model_len - 1;
  say(byId("most-tokens"), `≤ ${count(loaded.max_model_len - 1)}`);
}

/** `done` is called after each run. */
export function begin(done) {
  seen = done;
  byId("examples").append(
    ...EXAMPLES.map(({ name, prompt }) =>
      el(
        "button",
        {
          type: "button",
          class: "chip",
          onclick: () => {
            byId("prompt").value = prompt;
            byId("prompt").focus();
          },
          title: prompt,
        },
        name,
      ),
    ),
  );
  byId("prompt").value = EXAMPLES[0].prompt;
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    busy(run);
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  });
  byId("halt").addEventListener("click", () => running?.abort());
  byId("compare").addEventListener("click", () => busy(compare));
}
