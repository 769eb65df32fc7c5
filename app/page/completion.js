/** One streamed completion, and the texts of its tokens. */

import { ask, events } from "./server.js";

const AT_ONCE = 128;
const known = new Map();

/** An answer of which nothing came yet; times in milliseconds, as seen here. */
export const nothing = () => ({
  text: "",
  ids: [],
  events: [],
  metrics: null,
  usage: null,
  finish: null,
  first: null,
  ms: 0,
  stopped: false,
  error: null,
});

/** What came so far is told to `told` with each event; the whole is returned. An abort or a failure keeps what came:
 * `stopped` and `error` say so.
 */
export async function complete(request, signal, told = () => {}) {
  const got = nothing();
  const began = performance.now();
  try {
    const body = {
      ...request,
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
      request_metrics: "detailed",
    };
    for await (const event of events("v1/completions", body, signal)) {
      got.ms = performance.now() - began;
      got.metrics = event.metrics ?? got.metrics;
      got.usage = event.usage ?? got.usage;
      const [choice] = event.choices;
      if (!choice) continue;
      got.first ??= got.ms;
      const ids = choice.token_ids ?? [];
      got.text += choice.text;
      got.ids.push(...ids);
      got.finish = choice.finish_reason ?? got.finish;
      if (ids.length || choice.text) got.events.push({ ids, text: choice.text });
      told(got);
    }
  } catch (error) {
    got.stopped = error.name === "AbortError";
    if (!got.stopped) got.error = error;
  }
  return got;
}

/** The text of each token alone. Each id is asked for once, by an echo, for which no engine runs. */
export async function textsOf(ids) {
  const missing = [...new Set(ids)].filter((id) => !known.has(id));
  for (let i = 0; i < missing.length; i += AT_ONCE) {
    const some = missing.slice(i, i + AT_ONCE);
    const reply = await ask("v1/completions", {
      body: { prompt: some.map((id) => [id]), echo: true, max_tokens: 0 },
    });
    for (const { index, text } of reply.choices) known.set(some[index], text);
  }
  return ids.map((id) => known.get(id));
}
