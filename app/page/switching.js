/** K of the server, which holds for all its requests: set it, or be without a draft for the time of one answer. */

import { ask, key } from "./server.js";

const LONGEST_S = 600;

/** With `seconds` for a time; then the server goes back to what was asked for before. */
export const setK = (k, { seconds, ...options } = {}) =>
  ask("drafts/k", { body: seconds === undefined ? { k } : { k, seconds }, ...options });

/** Runs `work` while the server has K = 0, then sets what was asked for before, also when the page is left meanwhile.
 * Somebody else's choice in between stays. `like`: how many milliseconds such an answer took at K = `k`; after the
 * longest that it can take without a draft the server goes back by itself, should this page be no more.
 */
export async function without(like, k, work) {
  const seconds = Math.min(LONGEST_S, Math.ceil(30 + ((k + 1) * like) / 1000));
  const { temporary } = await setK(0, { seconds });
  // For a moment, after which the server has what was chosen last, by this page or by somebody meanwhile.
  const back = () => setK(temporary.then, { seconds: 0.1, keepalive: true });
  addEventListener("pagehide", back);
  try {
    return await work();
  } finally {
    removeEventListener("pagehide", back);
    const now = await ask("drafts/stats").catch(() => null);
    if (now?.temporary && now.asked === 0) await setK(temporary.then).catch(() => {});
  }
}

/** The key's form: shown while one is needed. */
export function askForKey(form, field, look) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    field.value = "";
    look();
  });
}
