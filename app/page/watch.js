/** Asks the server how it is: one or two small questions every two seconds, and none while nobody looks. */

import { Refusal, ask, readiness } from "./server.js";

/** Milliseconds between two looks, by state. */
const EVERY = { ready: 2000, none: 2000, key: 5000 };
const OTHERWISE = 1000;
/** What is loaded is asked for every so many looks. */
const LOADED_EVERY = 15;
/** Points of the time line. */
const KEPT = 300;

/** `state`: waiting, offline, loading, draining, dead, key, none (no draft) or ready; with `status` of /ready,
 * `loaded` of /drafts, `stats` of /drafts/stats, the `history` of the latter since the page was opened, and `error`.
 * While K is another for a time, `temporary` is `{ k, seconds_left, then }`, and `stats` goes on to be what was said of
 * the K before, so that nothing that is shown jumps; what was counted and who runs is of now all the same.
 */
export class Watch {
  #told;
  #timer;
  #looking = null;
  #since = 0;
  now = { state: "waiting", status: null, loaded: null, stats: null, temporary: null, history: [], error: null };

  constructor(told) {
    this.#told = told;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.#timer);
      else this.look();
    });
    this.look();
  }

  /** At once; `anew` also asks what is loaded. */
  async look(anew = false) {
    if (anew) {
      await this.#looking; // which may have seen what was before
      this.#since = 0;
    }
    clearTimeout(this.#timer);
    await (this.#looking ??= this.#look().finally(() => (this.#looking = null)));
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.look(), EVERY[this.now.state] ?? OTHERWISE);
  }

  async #look() {
    const now = { ...this.now, error: null };
    try {
      now.status = await readiness();
      const phase = now.status.phase;
      now.state = { ready: "ready", loading: "loading", draining: "draining" }[phase] ?? "dead";
      if (now.state === "ready" || now.loaded === null) await this.#ask(now);
      if (now.state !== "ready")
        this.#since = 0; // another draft may be served afterwards
      else if (now.loaded.family === null) now.state = "none";
    } catch (error) {
      now.state = error instanceof Refusal && error.status === 401 ? "key" : "offline";
      now.error = error.message;
    }
    this.now = now;
    this.#told(now);
  }

  async #ask(now) {
    const changed = () => !now.temporary && now.stats.k !== now.loaded.k;
    const fresh = await ask("drafts/stats", { timeout: 10_000 });
    const { temporary, by_k, encoder, sequences } = fresh;
    now.stats = temporary && now.stats ? { ...now.stats, by_k, encoder, sequences } : fresh;
    now.temporary = temporary && { ...temporary, k: fresh.k };
    if (this.#since === 0 || now.loaded === null || changed())
      now.loaded = await ask("drafts", { timeout: 10_000 });
    this.#since = (this.#since + 1) % LOADED_EVERY;
    now.history = [...now.history, moment(now)].slice(-KEPT);
  }
}

/** One point of the time line; `length` is of the drafts since the point before. */
function moment({ stats, history }) {
  const sums = [0, 0];
  for (const { lifetime } of stats.by_k) {
    sums[0] += lifetime.drafts;
    sums[1] += lifetime.accepted_tokens;
  }
  const before = history.at(-1);
  const drafts = before ? sums[0] - before.sums[0] : 0;
  return {
    at: Date.now(),
    k: stats.k,
    sums,
    length: drafts > 0 ? 1 + (sums[1] - before.sums[1]) / drafts : null,
    speedup: stats.estimate.speedup?.value ?? null,
  };
}
