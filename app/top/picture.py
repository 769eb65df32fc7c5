"""What `t5gemma2 top` shows, drawn for the width that the terminal has now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from app.bench.report.text import DASH, number, percent, speedup
from app.drafts.report import Acceptance, Estimate, Stats
from app.top.history import History, sparkline
from app.top.server import Look

SIDE_BY_SIDE, TWO_BARS = 76, 60
"""Columns from which the tables stand side by side, and from which both rates of a position have a bar."""
_LABEL = 12
_BAR = 12
_STATES = {
    "ready": ("ready", "green"),
    "draining": ("draining: running requests end, new ones are refused", "yellow"),
    "failed": ("failed: the engine did not start", "red"),
    "dead": ("dead: the engine is lost", "red"),
    "stopped": ("stopped", "red"),
    "key_required": ("key required", "yellow"),
    "unreachable": ("unreachable", "red"),
}
_COUNTS = {"running": "running", "waiting": "queued", "in_flight": "in the gateway"}


@dataclass(frozen=True, slots=True)
class Picture:
    """The last look at the server at `url`, and what happened before."""

    url: str
    look: Look
    history: History

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _head(self.url, self.look)
        stats, drafts = self.look.stats, self.look.drafts
        if stats is None or drafts is None:
            return
        yield _facts(self.look, stats, drafts, self.history, options.max_width)
        if stats.family is not None:
            yield Text()
            yield _tables(stats, options.max_width)
        if drafts.get("available"):
            yield Text()
            yield _available(drafts["available"])


def _head(url: str, look: Look) -> Iterator[RenderableType]:
    yield Text(f"t5gemma2 top · {plain(url)} · {time.strftime('%H:%M:%S')}", "bold")
    if look.state == "loading":
        words, colour = f"loading: {plain(look.stage)}, {number(look.seconds, 0)} s so far", "yellow"
    else:
        words, colour = _STATES[look.state]
    yield Text(f"{words}: {plain(look.reason)}" if look.reason else words, colour)


def _facts(
    look: Look, stats: Stats, drafts: Mapping[str, Any], history: History, width: int
) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL, style="dim")
    grid.add_column(overflow="fold")
    verifier = drafts["verifier"]
    if stats.family is None:
        grid.add_row("draft", "none: the verifier alone is served")
    else:
        how = " (auto)" if stats.asked == "auto" else ""
        if (temporary := stats.temporary) is not None:
            how += f" (for {temporary.seconds_left:.0f} s more, then {temporary.then})"
        k = f"K = {stats.k}{how} of block {drafts.get('block_size')}"
        grid.add_row("draft", plain(f"{stats.family}, {k}, {drafts.get('draft')}"))
        grid.add_row("checkpoint", plain(drafts.get("draft_path")))
    grid.add_row("verifier", plain(f"{verifier.get('name')}, {drafts.get('dtype')}"))
    if stats.family is not None:
        grid.add_row("speed-up", _worth(stats.estimate))
        if stats.estimate.speedup is not None:
            grid.add_row("baseline", _baseline(stats.estimate))
        grid.add_row("recommended", _recommended(stats.estimate))
        if warning := (drafts.get("probe") or {}).get("warning"):
            grid.add_row("probe", Text(plain(warning), "yellow"))
        window = f"{stats.window.seconds:g} s"
        grid.add_row(
            "accepted", f"{_accepted(stats.window)} in {window}; {_accepted(stats.lifetime)} since start"
        )
    room = width - _LABEL - 10
    tokens, acceptance = history.tokens, history.acceptance
    grid.add_row("tokens/s", _line(number(_last(tokens)), sparkline(tokens, room)))
    if stats.family is not None:
        grid.add_row("acceptance", _line(percent(_last(acceptance)), sparkline(acceptance, room, 1.0)))
    grid.add_row("requests", _requests(look.engine))
    encoder = stats.encoder
    asked = encoder.hits + encoder.misses
    share = f", {percent(encoder.hits / asked)}" if asked else ""
    held = f"{encoder.bytes_held / 2**20:.1f} MiB held"
    grid.add_row(
        "encoder",
        f"{encoder.hits} of {asked} prompts cached{share}; {encoder.tokens_saved} tokens saved; {held}",
    )
    return grid


def _line(value: str, line: str) -> Text:
    return Text(f"{value:>8} {line}", no_wrap=True, overflow="crop")


def _last(values: Any) -> float | None:
    return values[-1] if values else None


def _worth(estimate: Estimate) -> Text:
    found = estimate.speedup
    if found is None:
        return Text(f"not known: {plain(estimate.speedup_reason)}")
    colour = "green" if found.low > 1 else "red" if found.high < 1 else "yellow"
    return Text.assemble(
        (speedup(found.value), f"bold {colour}"),
        f" tokens/s over no draft ({number(found.low, 2)} … {number(found.high, 2)});"
        f" {speedup(found.overall)} with what no draft shortens",
    )


def _baseline(estimate: Estimate) -> str:
    assert estimate.speedup is not None
    origin = {"live": "live traffic", "stored": "a stored benchmark"}[estimate.speedup.origin]
    return f"{origin}, {age(estimate.speedup.age_s)} old, batches of up to {estimate.batch}"


def _recommended(estimate: Estimate) -> Text:
    why = plain(estimate.recommended_reason)
    if estimate.recommended_k is None:
        return Text(f"not known: {why}")
    return Text.assemble((f"K = {estimate.recommended_k}", "bold"), f": {why}")


def _accepted(of: Acceptance) -> str:
    return f"{percent(of.acceptance_rate)}, {number(of.mean_acceptance_length, 2)} tokens a step"


def _requests(engine: Mapping[str, int]) -> str:
    told = [f"{engine[name]} {words}" for name, words in _COUNTS.items() if name in engine]
    return ", ".join(told) or DASH


def _tables(stats: Stats, width: int) -> RenderableType:
    parts = [_positions(stats, width)]
    if stats.estimate.by_k:
        parts.append(_by_k(stats))
    if width < SIDE_BY_SIDE:
        return Group(parts[0], *(line for part in parts[1:] for line in (Text(), part)))
    grid = Table.grid(padding=(0, 3))
    grid.add_row(*parts)
    return grid


def _positions(stats: Stats, width: int) -> Table:
    of = stats.window if stats.window.drafts else stats.lifetime
    bars = width >= TWO_BARS
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("pos", justify="right")
    table.add_column("accepted" if of is stats.window else "since start")
    table.add_column(justify="right")
    if bars:
        table.add_column("if reached")
    table.add_column("" if bars else "reached", justify="right")
    for position in of.per_position:
        row: list[RenderableType] = [str(position.position), _bar(position.rate), percent(position.rate)]
        if bars:
            row.append(_bar(position.conditional_rate))
        table.add_row(*row, percent(position.conditional_rate))
    return table


def _bar(share: float | None) -> Bar:
    return Bar(1.0, 0.0, share or 0.0, width=_BAR)


def _by_k(stats: Stats) -> Table:
    """K = 0 is what the others are compared with."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name in ("K", "speed-up", "tokens", "step ms"):
        table.add_column(name, justify="right")
    for step in stats.estimate.by_k:
        mark = "*" if step.k == stats.estimate.recommended_k else ""
        table.add_row(
            f"{mark}{step.k}",
            speedup(step.speedup if step.k else 1.0),
            number(step.mean_acceptance_length, 2),
            number(step.step_seconds * 1000, 2),
            style="bold" if step.k == stats.k else "",
        )
    return table


def _available(found: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name in ("available", "family", "K"):
        table.add_column(name, overflow="fold")
    table.add_column("", overflow="fold", ratio=1)
    for one in found:
        fits = "active" if one.get("active") else "fits" if one.get("fits") else plain(one.get("misfit"))
        k = one.get("default_k")
        table.add_row(
            plain(one.get("name")),
            plain(one.get("family") or DASH),
            DASH if k is None else str(k),
            Text(fits, "green" if one.get("fits") else "red"),
        )
    return table


def age(seconds: float) -> str:
    """Seconds in the unit that leaves the fewest digits."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def plain(words: object) -> str:
    """What a server says, without characters that a terminal obeys."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(words))
