/** Where each token of an answer came from, and what part of the text it is. Knows no page. */

/** Steps of an answer of `total` tokens: `[{ accepted, drafted, tokens }]`, the first the one without a draft.
 * The first token comes before any draft; each step then adds those that it accepted and one of the verifier's own.
 */
export function steps(total, perStepAccepted, perStepDrafted) {
  const found = total ? [{ accepted: 0, drafted: 0, tokens: 1 }] : [];
  let left = total - 1;
  perStepAccepted.forEach((accepted, i) => {
    if (left <= 0) return;
    const tokens = Math.min(accepted + 1, left);
    found.push({ accepted: Math.min(accepted, tokens), drafted: perStepDrafted[i], tokens });
    left -= tokens;
  });
  return found;
}

/** The same while the answer still comes: each event is taken for as few steps at K = `k` as can have brought it, each
 * with one token of the verifier's own. At K = 0 nothing was accepted, however many tokens came at once.
 */
export const guessed = (events, k) =>
  events.map(({ ids }, i) => ({
    accepted: i ? ids.length - Math.ceil(ids.length / (k + 1)) : 0,
    drafted: null,
    tokens: ids.length,
  }));

/** `[{ id, origin, first }]`, one for each token; `first` begins a step. Tokens that no step tells of are unknown. */
export function origins(ids, stepList) {
  const found = [];
  for (const { accepted, tokens } of stepList) {
    for (let i = 0; i < tokens; i++)
      found.push({ origin: i < accepted ? "accepted" : "verifier", first: i === 0 });
  }
  return ids.map((id, i) => ({ id, ...(found[i] ?? { origin: "unknown", first: false }) }));
}

/** The text of each token within `text`, which they make together. `pieces` are the tokens' own texts, which may lack
 * a space in front; a character that several tokens make goes to the last of them; special ones have no part.
 */
export function divided(text, pieces) {
  const parts = [];
  let at = 0,
    open = 0; // tokens before this one that have no text yet
  pieces.forEach((piece, i) => {
    const broken = piece === "" || piece.includes("\ufffd");
    const found = broken
      ? -1
      : ([piece, ` ${piece}`]
          .map((one) => [text.indexOf(one, at), one])
          .filter(([where]) => where === at || (open && where > at && where - at <= 4 * open))
          .sort((a, b) => a[0] - b[0])[0] ?? -1);
    parts.push("");
    if (found === -1) {
      open = broken ? open + 1 : open;
      return;
    }
    if (found[0] > at) parts[i - 1] += text.slice(at, found[0]);
    parts[i] = found[1];
    at = found[0] + found[1].length;
    open = 0;
  });
  if (at < text.length && parts.length) parts[parts.length - 1] += text.slice(at);
  return parts;
}

/** Index of the first token in which two answers differ, or null. */
export function firstDifference(one, other) {
  for (let i = 0; i < Math.max(one.length, other.length); i++) if (one[i] !== other[i]) return i;
  return null;
}
