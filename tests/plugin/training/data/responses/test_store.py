"""The file of answers: written once, gone on with, refused where it is another verifier's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin.training.data.pairs import DataError
from plugin.training.data.responses.store import ResponseFile, prompt_hash

HEADER = {"verifier": "ab", "sampling": "greedy", "max_new_tokens": 8}


def test_answers_are_kept_by_the_hash_of_their_prompts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.jsonl"
    file = ResponseFile(path, HEADER)
    file.add([([2, 5], [7, 1]), ([2, 6], [8])])
    name = hashlib.sha256(b"[2, 5]").hexdigest()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[:2] == [HEADER, {"prompt": name, "response": [7, 1]}]
    assert ResponseFile(path, HEADER).known == file.known == {name: [7, 1], prompt_hash([2, 6]): [8]}


def test_a_killed_run_leaves_whole_lines(tmp_path: Path) -> None:
    """An answer is on the disk before the next is asked for; half a line is cut off and made again."""
    path = tmp_path / "r.jsonl"

    def answers() -> Iterator[tuple[list[int], list[int]]]:
        yield [2], [7]
        assert len(path.read_text().splitlines()) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ResponseFile(path, HEADER).add(answers())
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"prompt": "ab')
    again = ResponseFile(path, HEADER)
    assert path.read_bytes() == whole and len(again.known) == 1
    again.add([([3], [9])])
    assert len(path.read_text().splitlines()) == 3


def test_a_file_with_a_header_alone_gets_no_second_one(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(HEADER) + "\n")
    ResponseFile(path, HEADER).add([([2], [7])])
    assert len(path.read_text().splitlines()) == 2
    path.write_text('{"verifier": "a')
    ResponseFile(path, HEADER).add([([2], [7])])
    header, answer = map(json.loads, path.read_text().splitlines())
    assert header == HEADER and answer["response"] == [7]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{**HEADER, "verifier": "cd"}], "another verifier or of another length"),
        ([{**HEADER, "max_new_tokens": 9}], "another verifier or of another length"),
        ([HEADER, [1, 2]], "no file of responses"),
        (["{"], "no file of responses"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: list[Any], words: str) -> None:
    path = tmp_path / "r.jsonl"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(line + "\n" for line in text))
    with pytest.raises(DataError, match=f"^{path}: .*{words}"):
        ResponseFile(path, HEADER)
