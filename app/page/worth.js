/** What the draft is worth at any K, out of /drafts/stats. Knows no page.
 *
 * speedup(k) = L(k) * t_0 / t_k: tokens of a step, times how long a step without a draft takes, over how long one with
 * a draft does.
 */

import { times } from "./format.js";

const ENOUGH = 50;

/** Positions to go by: of the largest K with enough drafts, of the window or else since the start. */
export function positions(stats) {
  const usable = [...stats.by_k].filter(({ k }) => k > 0).reverse();
  for (const span of ["window", "lifetime"]) {
    const found = usable.find((one) => one[span].drafts >= ENOUGH);
    if (found) return { k: found.k, span, drafts: found[span].drafts, list: found[span].per_position };
  }
  const some = usable.find(({ lifetime }) => lifetime.drafts > 0);
  return some
    ? { k: some.k, span: "lifetime", drafts: some.lifetime.drafts, list: some.lifetime.per_position }
    : null;
}

/** Duration of a step without a draft: `{ seconds, origin, age }` at the present batch size, or null. */
export function baseline({ estimate }) {
  const found = estimate.by_k.find(({ k }) => k === 0);
  if (found) return { seconds: found.step_seconds, origin: "live", age: found.age_s };
  const stored = estimate.baselines.find(({ batch }) => batch === estimate.batch);
  return stored ? { seconds: stored.step_seconds, origin: stored.origin, age: stored.age_s } : null;
}

/** Seconds of a step at K = k, measured or read off the line between its measured neighbours; null beyond them. */
function duration({ estimate }, k) {
  const timed = estimate.by_k;
  const here = timed.find((one) => one.k === k);
  if (here) return { seconds: here.step_seconds, measured: true };
  const below = timed.filter((one) => one.k < k).at(-1);
  const above = timed.find((one) => one.k > k);
  if (!below || !above) return null;
  const share = (k - below.k) / (above.k - below.k);
  return { seconds: below.step_seconds + share * (above.step_seconds - below.step_seconds), measured: false };
}

/** `{ length, seconds, measured, speedup, off }` at K = k; what is not known is null. `off`: two standard errors of the
 * speed-up, as far as the durations of steps make them.
 */
export function predicted(stats, k) {
  const known = positions(stats);
  const timed = stats.estimate.by_k.find((one) => one.k === k);
  const rates = known && k <= known.k ? known.list.slice(0, k).map(({ rate }) => rate) : null;
  const summed =
    k === 0
      ? 1
      : rates && rates.every((rate) => rate !== null)
        ? rates.reduce((sum, rate) => sum + rate, 1)
        : null;
  const length = timed?.mean_acceptance_length ?? summed;
  const step = duration(stats, k);
  const without = baseline(stats);
  const speedup =
    k === 0
      ? without
        ? 1
        : null
      : length !== null && step && without
        ? (length * without.seconds) / step.seconds
        : null;
  const errors = [0, k].map((each) => stats.estimate.by_k.find((one) => one.k === each));
  const off =
    k && speedup !== null && errors.every(Boolean)
      ? 2 * speedup * Math.hypot(...errors.map((one) => one.error_seconds / one.step_seconds))
      : 0;
  return { length, seconds: step?.seconds ?? null, measured: step?.measured ?? false, speedup, off };
}

/** Whether so much lies between the ends of a speed-up's range that one number would say too much. */
export const wide = ({ low, high }) => high > 1.3 * low;

export const range = ({ low, high }) => `${times(low)} to ${times(high)}`;

/** Does it pay: yes, no, even, off or unknown; yes and no only where the whole range of the decode steps says so.
 * `overall` is what a client sees.
 */
export function answer({ k, estimate }) {
  if (k === 0) return "off";
  const found = estimate.speedup;
  if (found === null) return "unknown";
  if (found.high < 1) return "no";
  return found.low > 1 && found.overall > 1 ? "yes" : "even";
}
