/** Numbers for people. Null, which the server sends for what is not known, is a dash. */

const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

export const fixed = (value, digits = 2) => (known(value) ? value.toFixed(digits) : NONE);
export const count = (value) => (known(value) ? value.toLocaleString("en") : NONE);
export const percent = (value, digits = 0) =>
  known(value) ? `${(100 * value).toFixed(digits)}\u00a0%` : NONE;
export const times = (value, digits = 2) => (known(value) ? `${value.toFixed(digits)}×` : NONE);
/** Seconds as milliseconds, three figures. */
export const milliseconds = (seconds) => (known(seconds) ? `${(1000 * seconds).toPrecision(3)}\u00a0ms` : NONE);
export const rate = (value) =>
  known(value) ? (value < 100 ? value.toFixed(1) : count(Math.round(value))) : NONE;

export function bytes(value) {
  if (!known(value)) return NONE;
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** A time that has passed, in its largest unit. */
export function age(seconds) {
  if (!known(seconds)) return NONE;
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}
