"""What a draft's author publishes: the protocol of the published drafts, and the results in the draft's own folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.bench.arms import Arm
from app.bench.errors import BenchError
from app.bench.prompts import Cut
from app.bench.report import csv_table, html
from app.bench.report.markdown import markdown, throughput
from app.bench.store import write_whole
from app.config.settings import PREFIX
from plugin.drafts.checkpoint import CheckpointError, resolve

KS: Final = (3, 7)
PUBLISHED_KS: Final = ("3", "3:short", "7")
"""At K = 3 the published drafts filled a block as short; this server fills the trained one unless it is told to."""
SETTINGS: Final = {
    "MAX_MODEL_LEN": "2048",
    "MAX_NUM_BATCHED_TOKENS": "4096",
    "GPU_MEMORY_UTILIZATION": "0.85",
}
"""Of the servers that the published drafts were measured on, where nothing else is set."""

_BEGIN, _END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def draft_of(folder: Path) -> tuple[str, tuple[int, ...]]:
    """Family of the checkpoint in `folder` and the K to measure it at: the published ones that it allows, and its own.

    Raises:
        BenchError: it is no draft's folder.
    """
    try:
        draft = resolve(None, str(folder), None, None).draft
    except CheckpointError as error:
        raise BenchError(f"--into {folder}: {error}") from None
    if draft is None or not folder.is_dir():
        raise BenchError(f"--into {folder}: is no folder of a draft")
    return draft.family, tuple(sorted({k for k in KS if k <= draft.max_k} | {draft.default_k}))


def published_settings() -> None:
    """Puts them into the environment, from which the servers get theirs."""
    for name, value in SETTINGS.items():
        if not os.environ.get(PREFIX + name):
            os.environ[PREFIX + name] = value


def cutter(arms: Sequence[Arm], folder: Path | None) -> Cut:
    """Cuts texts by the tokenizer in `folder`, else by that of the arms' verifier.

    Raises:
        BenchError: when a text is cut and there is none.
    """
    found: list[Any] = []

    def cut(text: str, tokens: int) -> str:
        if not found:
            found.append(_tokenizer(folder or _verifier(arms)))
        (tokenizer,) = found
        ids = tokenizer.encode(text).ids
        return text if len(ids) <= tokens else str(tokenizer.decode(ids[:tokens]))

    return cut


def _verifier(arms: Sequence[Arm]) -> Path:
    """The folder with the tokenizer of the first arm that is served here."""
    for arm in arms:
        settings = {name: value or None for name, value in arm.settings}
        if arm.url is None:
            found = resolve(settings["MODEL"], settings["DRAFT"], settings["VERIFIER"], None)
            if Path(found.verifier.path).is_dir():
                return Path(found.verifier.path)
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(found.verifier.path, "tokenizer.json")).parent
    raise BenchError("the prompts of ultrachat are cut by the verifier's tokenizer: give --tokenizer FOLDER")


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise BenchError(f"{path}: {error}") from None


def write_report(report: Mapping[str, Any], folder: Path, drawn: list[str]) -> Path:
    """report.md, report.html and comparison.csv, with the plots that were drawn; the first's path."""
    shown = markdown(report, drawn)
    write_whole(folder / "report.html", html.page(shown, folder))
    write_whole(folder / "comparison.csv", csv_table.comparison(report["rows"]))
    return write_whole(folder / "report.md", shown)


def into(
    folder: Path,
    report: Mapping[str, Any],
    records: Mapping[str, Mapping[str, Any]],
    draw: Callable[[Mapping[str, Any], Path], list[str]],
) -> None:
    """Writes `benchmarks/bs1`, `benchmarks/bs4` and so on into the draft's folder, one for each concurrency, and the
    table of speeds into its README.md.

    Args:
        folder: the draft's.
        report: as `report.build` makes it.
        records: the cells' records by slug, whose requests become CSV files.
        draw: draws a report's plots into a folder and gives their names.
    """
    for at_once in sorted({row["concurrency"] for row in report["rows"]}):
        rows = [row for row in report["rows"] if row["concurrency"] == at_once]
        part = {**report, "rows": rows, "protocol": {**report["protocol"], "concurrency": [at_once]}}
        place = folder / "benchmarks" / f"bs{at_once}"
        (place / "requests").mkdir(parents=True, exist_ok=True)
        write_report(part, place, draw(part, place))
        write_whole(place / "report.json", json.dumps(part, indent=2, ensure_ascii=False) + "\n")
        for slug, record in records.items():
            if record["concurrency"] == at_once:
                write_whole(place / "requests" / f"{slug}.csv", csv_table.requests(record["requests"]))
    card = folder / "README.md"
    if card.is_file():
        write_whole(card, _with_table(card.read_text(encoding="utf-8"), report))


def _with_table(card: str, report: Mapping[str, Any]) -> str:
    """The card with the table of speeds between its marks, in the place of an older one or at the end."""
    machine = report["client"]["hardware"]
    where = "; ".join(machine["gpus"]) or machine["cpu"]
    lines = [
        _BEGIN, "", "## Benchmarks", "", f"On {where}; how, and everything else: `benchmarks/`.", "",
        *throughput(report["rows"]), "", _END,
    ]  # fmt: skip
    kept = re.sub(f"\n*{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", "\n", card, flags=re.DOTALL)
    return kept.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n"
