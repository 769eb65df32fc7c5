/** What is loaded, what it achieved, what runs now, and which other drafts there are. */

import { age, bytes, count, fixed, milliseconds, percent, times } from "./format.js";
import { byId, el, facts, say } from "./dom.js";
import { baseline, range } from "./worth.js";

function loadedFacts({ loaded, stats }) {
  const { verifier, probe } = loaded;
  const k = stats?.k ?? loaded.k;
  const rows = [
    ["Family", loaded.family ?? "none"],
    ["K", k ?? "none", stats?.asked === "auto" ? "auto: what proves fastest" : "draft tokens that a step checks"],
    [
      "Block",
      loaded.block_size ?? "none",
      loaded.block_size ? `the last token and up to ${loaded.block_size - 1} draft tokens after it` : null,
    ],
    ["Draft", loaded.draft ?? "none", loaded.draft_path],
    [
      "Verifier",
      verifier.name,
      `${verifier.num_encoder_layers} + ${verifier.num_decoder_layers} layers, ${loaded.dtype}`,
    ],
    [
      "Limits",
      `${count(loaded.max_encoder_len)} + ${count(loaded.max_model_len - 1)}`,
      `prompt and answer tokens, ${loaded.max_num_seqs} at a time`,
    ],
  ];
  if (probe)
    rows.push([
      "Before the first request",
      `${fixed(probe.mean_acceptance_length)} tokens a step`,
      `${percent(probe.acceptance_rate)} accepted on ${probe.prompts} canned prompts`,
    ]);
  return facts(rows);
}

function nowFacts({ stats, loaded }) {
  const { encoder, sequences } = stats;
  const asked = encoder.hits + encoder.misses;
  const found = stats.estimate.speedup;
  const base = loaded.family ? baseline(stats) : null;
  return facts([
    ["Running", count(sequences?.running)],
    ["Queued", count(sequences?.waiting)],
    [
      "Encoder cache hits",
      asked ? percent(encoder.hits / asked) : "–",
      `${count(encoder.hits)} of ${count(asked)}; ${count(encoder.tokens_saved)} prompt tokens saved, ${bytes(encoder.bytes_held)} held`,
    ],
    [
      "Speed-up of decode steps",
      found ? times(found.value) : "not known",
      found ? `${range(found)}; whole answers ${times(found.overall)}` : stats.estimate.speedup_reason,
    ],
    [
      "Step without draft",
      base ? milliseconds(base.seconds) : "not known",
      base ? `${base.origin === "live" ? "live traffic" : "stored benchmark"}, ${age(base.age)} ago` : null,
    ],
    ["Recommended K", stats.estimate.recommended_k ?? "not known", stats.estimate.recommended_reason],
  ]);
}

function acceptance({ stats }) {
  return [
    ["window", `Last ${stats.window.seconds} s`],
    ["lifetime", "Since the server’s start"],
  ].map(([span, name]) => {
    const one = stats[span];
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", {}, percent(one.acceptance_rate, 1)),
      el("td", {}, fixed(one.mean_acceptance_length)),
      el("td", {}, count(one.drafts)),
    );
  });
}

function others({ loaded }) {
  return loaded.available.map((one) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, one.name),
      el("td", {}, one.family ?? "–"),
      el("td", {}, one.block_size === null ? "–" : one.block_size - 1),
      el(
        "td",
        { class: one.fits ? "good" : "bad" },
        one.active ? "served now" : one.fits ? "fits" : `does not fit: ${one.misfit}`,
      ),
    ),
  );
}

export function draw(now) {
  byId("draft").hidden = !now.loaded;
  if (!now.loaded) return;
  byId("loaded-facts").replaceChildren(...loadedFacts(now));
  byId("now-facts").replaceChildren(...(now.stats ? nowFacts(now) : []));
  say(byId("positions-title"), `Acceptance of drafts at K = ${now.stats?.k ?? now.loaded.k}`);
  byId("acceptance-rows").replaceChildren(...(now.stats && now.loaded.family ? acceptance(now) : []));
  for (const part of document.querySelectorAll(".needs-draft")) part.hidden = !now.loaded.family;
  byId("available-rows").replaceChildren(...others(now));
  byId("available").hidden = !now.loaded.available.length;
  byId("none-available").hidden = now.loaded.available.length > 0;
}
