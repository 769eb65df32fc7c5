"""Arms: the ways to serve that a benchmark compares, as they are written on the command line.

`verifier` is the verifier alone, `dflash:7` the draft of that name at K = 7, `dflash` the same at its checkpoint's own
K, and `dflash:auto` leaves K to the server; `dflash:3:short` has it draft a block as short as K instead of the trained
one, of which else the first K are verified. A name is looked up among `--draft NAME=CHECKPOINT`, then among the bundled
demo's families, and is else itself a path or hub id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.errors import BenchError
from plugin.drafts.checkpoint import DEMO, CheckpointError, resolve
from plugin.drafts.families import FAMILIES

VERIFIER = "verifier"
SHORT, AUTO = ":short", ":auto"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve. With `url` the server is somebody else's; without, `settings` start one here.

    `settings` are T5GEMMA_* variables without the prefix; "" unsets what the environment has. `files` are the
    size and time of every file of the checkpoints, by which a resumed run notices that they were replaced.
    """

    name: str
    family: str | None = None
    k: int | None = None
    url: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, int, int], ...] = ()

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^\w.-]+", "_", self.name).strip("_")

    def identity(self) -> dict[str, Any]:
        """What makes two arms the same for a resumed run; JSON-ready."""
        return {
            "name": self.name,
            "url": self.url,
            "settings": dict(self.settings),
            "files": [list(file) for file in self.files],
        }


def split_name(text: str) -> tuple[str, int | None]:
    """`dflash:7` and `dflash:7:short` -> ("dflash", 7), `dflash` and `dflash:auto` -> ("dflash", None)."""
    text = text.removesuffix(AUTO)
    name, colon, k = text.removesuffix(SHORT).rpartition(":")
    return (name, int(k)) if colon and k.isdecimal() else (text, None)


def given_arms(urls: Sequence[str]) -> list[Arm]:
    """Arms of servers that run already: `NAME=URL`, or a URL alone, which is named by host and port."""
    arms = []
    for text in urls:
        name, url = (None, text) if text.startswith(("http://", "https://")) else _pair("--url", text)
        if not re.match(r"https?://[^/]+", url):
            raise BenchError(f"--url {text}: {url!r} is no http:// or https:// address")
        url = url.rstrip("/").removesuffix("/v1")
        name = name or url.partition("://")[2]
        family, k = split_name(name)
        arms.append(Arm(name, family if family in FAMILIES else None, k, url))
    return _distinct(arms)


def own_arms(names: str, drafts: Mapping[str, str], verifier: str | None) -> list[Arm]:
    """Arms whose servers this run starts, from a comma list; every checkpoint is read and checked first.

    Raises:
        BenchError: an arm is named twice, or its checkpoints do not fit: one line with arm and reason.
    """
    texts = [text.strip() for text in names.split(",") if text.strip()]
    if not texts:
        raise BenchError("--arms names no arm")
    checkpoints = {text: _checkpoint(split_name(text)[0], drafts) for text in texts if text != VERIFIER}
    model = verifier or next(iter([*checkpoints.values(), *drafts.values()]), str(DEMO / "dflash"))
    arms = []
    for text in texts:
        settings = {"MODEL": model, "DRAFT": "none", "VERIFIER": "", "K": "", "SHORT_BLOCK": ""}
        settings["ADAPTIVE_VERIFICATION"] = ""  # refused without a draft
        if text != VERIFIER:
            k, short = split_name(text)[1], text.endswith(SHORT)
            if short and k is None:
                raise BenchError(f"arm {text}: say how short, as in {text.removesuffix(SHORT)}:3{SHORT}")
            settings = {
                "MODEL": "",
                "DRAFT": checkpoints[text],
                "VERIFIER": verifier or "",
                "K": "auto" if text.endswith(AUTO) else str(k or ""),
                "SHORT_BLOCK": "true" if short else "",
            }
        arms.append(_checked(text, settings))
    return _distinct(arms)


def named_drafts(pairs: Sequence[str]) -> dict[str, str]:
    """`NAME=CHECKPOINT` pairs; a name may not be `verifier` or hold a colon or comma."""
    drafts = {}
    for text in pairs:
        name, checkpoint = _pair("--draft", text)
        if name == VERIFIER or set(name) & {":", ","}:
            raise BenchError(f"--draft {text}: {name!r} cannot name a draft")
        drafts[name] = absolute(checkpoint)
    return drafts


def absolute(checkpoint: str) -> str:
    """An existing path made absolute, since servers run in another folder; a hub id as it is."""
    path = Path(checkpoint).expanduser()
    return str(path.absolute()) if path.exists() else checkpoint


def _checkpoint(name: str, drafts: Mapping[str, str]) -> str:
    if name in drafts:
        return drafts[name]
    return str(DEMO / name) if name in FAMILIES else absolute(name)


def _checked(name: str, settings: dict[str, str]) -> Arm:
    model, draft, verifier, k = (settings[key] or None for key in ("MODEL", "DRAFT", "VERIFIER", "K"))
    folder = os.environ.get("T5GEMMA_CHECKPOINTS_DIR") or None
    try:
        found = resolve(model, draft, verifier, int(k) if k and k != "auto" else None, folder)
    except CheckpointError as error:
        raise BenchError(f"arm {name}: {error}") from None
    paths = [found.verifier.path, *([found.draft.path] if found.draft else [])]
    files = tuple(file for path in paths for file in _files(Path(path)))
    family = found.draft.family if found.draft else None
    return Arm(name, family, None if k == "auto" else found.k, None, tuple(sorted(settings.items())), files)


def _files(folder: Path) -> list[tuple[str, int, int]]:
    if not folder.is_dir():
        return []
    return [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name != "README.md"  # which a benchmark writes its figures into
    ]


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BenchError(f"{flag} {text}: write NAME=VALUE")
    return name, value


def _distinct(arms: list[Arm]) -> list[Arm]:
    slugs = [arm.slug for arm in arms]
    for arm in arms:
        if slugs.count(arm.slug) > 1:
            raise BenchError(f"arm {arm.name} is named twice")
    return arms
