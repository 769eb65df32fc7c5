"""What the documents say is there: links, paths, commands and their flags, settings, and the worked example."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import _parser
from app.config.settings import PREFIX, Settings, variable
from app.drafts.ledger import Counts

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md")]
DOCUMENTS = [*PAGES, *sorted(ROOT.glob("docs/*.md"))]
COMMANDED = [*DOCUMENTS, ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
"""What names make targets, too."""
ROOMS = ("app", "plugin", "benchmarks", "tests", "config", "docs", ".ci")
README_LINES = 160
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


def slugs(path: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found: Counter[str] = Counter()
    result = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        result.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return result


def code(text: str) -> list[str]:
    """Every piece of code, line by line in fences: what a reader may type."""
    fenced = [line for _, block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`]+)`", FENCE.sub("", text))
    return [*fenced, *(" ".join(span.split()) for span in spans)]


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The words after `program` in each command of a text, without assignments before it and comments after it."""
    for line in code(text):
        words = re.match(rf"(?:\w+=\S+ )*{re.escape(program)}(?: (.*))?$", line.split(" #")[0].strip())
        if words:
            yield shlex.split(words[1] or "")


@every_document
def test_links_resolve(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", document.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        assert place.exists(), f"{target}: no such file"
        assert not anchor or anchor in slugs(place), f"{target}: no such heading"


@every_document
def test_paths_exist(document: Path) -> None:
    """What looks like a path of the repository is one; what stands behind `=` may be a file to write."""
    if document.name == "CHANGELOG.md":
        return  # it also tells of what is gone
    for piece in code(document.read_text()):
        for path in re.findall(rf"(?<![\w./=-])((?:{'|'.join(map(re.escape, ROOMS))})/[\w./-]*)", piece):
            assert (ROOT / path.rstrip(".")).exists(), path


def exists(module: str) -> bool:
    """Whether `python -m module` finds something to run, found without importing any package of it."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return False
    place = Path(spec.origin).parent.joinpath(*rest)
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


@every_document
def test_modules_can_be_run(document: Path) -> None:
    for words in commands(document.read_text(), "python -m"):
        assert exists(words[0]), words[0]
        if words[0].split(".")[0] not in ROOMS:
            continue
        place = ROOT.joinpath(*words[0].split("."))
        source = (place / "__main__.py" if place.is_dir() else place.with_suffix(".py")).read_text()
        for flag in [word for word in words[1:] if word.startswith("--")]:
            assert f'"{flag}"' in source, f"{words[0]} has no {flag}"


@every_document
def test_commands_are_understood(document: Path) -> None:
    """Each `t5gemma2 ...` with its arguments is one that its command line takes; names alone exist."""
    parser = _parser()
    for words in commands(document.read_text(), "t5gemma2"):
        *given, last = words or [""]
        if last in ("...", "--help"):
            words = [*given, "--help"]
        elif len(words) < 2 or words == ["train", "demo"]:
            words = [*words, "--help"]  # named, not given as an example
        if "--help" not in words:
            parser.parse_args(words)
            continue
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(words)
        assert not ended.value.code, f"t5gemma2 {shlex.join(words)}"


@pytest.mark.parametrize("document", COMMANDED, ids=name_of)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = document.read_text()
    named = {next(word for word in words if "=" not in word) for words in commands(text, "make") if words}
    named |= set(re.findall(r"^exec make ([\w-]+)", text, re.MULTILINE))
    assert named <= targets, named - targets


def test_continuous_integration_runs_the_readmes_tests() -> None:
    assert "\nmake test && exit\n" in (ROOT / ".ci" / "run").read_text()
    assert "make test " in (ROOT / "README.md").read_text()


@every_document
def test_settings_exist(document: Path) -> None:
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]+\b(?!\*)", document.read_text()))
    known = {variable(field) for field in Settings.model_fields}
    assert named - {PREFIX} <= known, named - known


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(([^)\s#]+)", (ROOT / "README.md").read_text()))
    assert linked >= {name_of(document) for document in DOCUMENTS} - {"README.md"}


def test_worked_example() -> None:
    """docs/drafts.md: its steps lead from anchor to anchor, and its numbers are those of the ledger's arithmetic."""
    text = (ROOT / "docs" / "drafts.md").read_text()
    rows = re.findall(r"^\| \d \| `(\S+)` \| (.+?) \| (\d) \| (?:`(\S+)`|–) \|$", text, re.MULTILINE)
    kept = [int(row[2]) for row in rows]
    counts = Counts.of(7)
    for anchor, drafted, count, _ in rows:
        tokens, accepted = re.findall(r"`([^`]+)`", drafted), int(count)
        assert len(tokens) == 7 and len(re.findall(r"`([^`]+)`", drafted.split("~~")[0])) == accepted, anchor
        counts.add(1, [1] * accepted)
    assert [row[3] for row in rows[:-1]] == [row[0] for row in rows[1:]]
    text = " ".join(text.split())
    assert f"{' + '.join(map(str, kept))} = {sum(kept)} accepted tokens" in text
    assert f"{counts.accepted_tokens} / {counts.draft_tokens} = **{counts.acceptance_rate:.3f}**" in text
    assert f"{counts.accepted_tokens} / {counts.drafts} = **{counts.mean_acceptance_length:.3f}**" in text
    rates = " ".join(f"{counts.rate(i):.3f}".replace("0.", ".") for i in range(7))
    assert rates in text
    reached = [counts.drafts, *counts.accepted]
    assert ", ".join(f"{counts.accepted[i]}/{reached[i]}" for i in range(7)) in text
