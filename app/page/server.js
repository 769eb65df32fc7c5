/** The way to the server. Paths are relative, so that the page also works behind a proxy's prefix. */

const KEY = "t5gemma2-key";

/** The bearer key, kept for this tab alone. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** The server answered with an error. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** There was no answer, or none of this server. */
class Unreachable extends Error {}

async function answer(path, { body, signal, keepalive = false, timeout } = {}) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  const options = {
    headers,
    keepalive,
    cache: "no-store",
    signal: timeout ? AbortSignal.timeout(timeout) : signal,
  };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable(error.name === "TimeoutError" ? "no answer came in time" : "no connection");
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch {
    throw new Unreachable(`what answers here is not this server (status ${response.status})`);
  }
}

async function checked(response) {
  if (response.ok) return response;
  const told = await read(response);
  throw new Refusal(response.status, told?.error?.message ?? `status ${response.status}`);
}

/** GET, or POST with a `body`; the reply's JSON. Throws Refusal, Unreachable. */
export const ask = async (path, options) => read(await checked(await answer(path, options)));

/** What `GET /ready` says, which is 503 and open to everyone while nothing is served. */
export const readiness = async () => read(await answer("ready", { timeout: 10_000 }));

/** The events of a streamed POST, parsed. An error within the stream is thrown as a Refusal. */
export async function* events(path, body, signal) {
  const response = await checked(await answer(path, { body, signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Unreachable("the connection broke off");
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const data = frame.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Refusal(event.error.code, event.error.message);
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof TypeError) throw new Unreachable("the connection broke off");
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}
