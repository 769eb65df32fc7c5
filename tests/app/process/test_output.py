"""Nobody waits for whoever reads the output: a full pipe, none that reads it any more, one that reads again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.process.output import Backlog, Relay, _same_files
from tests.pipes import fill

LINE = b"x" * 99 + b"\n"
SOON_S = 30.0


def missing(lines: int) -> bytes:
    return b"%d missing\n" % lines


class Pipe:
    """A pipe with a descriptor of its own for whoever writes, `out`, that a relay takes over."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.out = os.dup(self.writer)

    def read(self, size: int) -> bytes:
        """So many bytes, once they are there."""
        found = b""
        while len(found) < size:
            part = os.read(self.reader, size - len(found))
            assert part, found
            found += part
        return found


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    for descriptor in (made.reader, made.writer, made.out):
        try:
            os.close(descriptor)
        except OSError:  # a test has closed it
            continue


def closed(relay: Relay, seconds: float = SOON_S) -> None:
    relay.end()
    relay.close(time.monotonic() + seconds)


def all_of(backlog: Backlog) -> bytes:
    """What is left in it."""
    backlog.end()
    return b"".join(iter(backlog.take, None))


def test_lines_and_parts_of_lines_in_their_order() -> None:
    backlog = Backlog(1000, missing)
    for data in (b"a\nb", b"c\n", b"10 %\r20 %\r", b"\n", b"end"):
        backlog.put(data)
    assert all_of(backlog) == b"a\nbc\n10 %\r20 %\r\nend"


def test_a_full_backlog_loses_whole_lines_and_counts_them() -> None:
    backlog = Backlog(1000, missing)
    for number in range(25):
        backlog.put(b"%099d\n" % number)
    first = [backlog.take() for _ in range(4)]
    backlog.put(b"lost, since half is not free\n")
    first += [backlog.take() for _ in range(3)]
    backlog.put(b"a line of two")
    backlog.put(b" parts\n")
    assert first == [b"%099d\n" % number for number in range(7)]
    left = b"".join(b"%099d\n" % number for number in range(7, 10))
    assert all_of(backlog) == left + b"16 missing\na line of two parts\n"


def test_the_count_is_told_though_nothing_follows() -> None:
    backlog = Backlog(100, missing)
    backlog.put(LINE * 3)
    assert all_of(backlog) == LINE + b"2 missing\n"


def test_a_line_whose_end_is_lost_does_not_run_into_the_next() -> None:
    backlog = Backlog(100, missing)
    backlog.put(b"begins" * 10)
    backlog.put(b"goes on" * 10)
    backlog.put(b" and on\n")
    assert backlog.take() == b"begins" * 10
    backlog.put(b"next\n")
    assert all_of(backlog) == b"\n1 missing\nnext\n"


def test_the_rest_of_a_lost_line_is_lost_too() -> None:
    """Though there is room for it by then, and its loss has been told."""
    backlog = Backlog(100, missing)
    backlog.put(LINE)
    backlog.put(b"lost" * 10)
    assert backlog.take() == LINE and backlog.take() == b"1 missing\n"
    backlog.put(b"its rest\nnext\n")
    assert all_of(backlog) == b"next\n"


def test_memory_is_bounded() -> None:
    """Whatever has no line ends, too."""
    backlog = Backlog(100_000, missing)
    for _ in range(100):
        backlog.put(b"x" * 65_536)
    assert len(all_of(backlog)) < 100_100


def test_what_is_read_is_what_was_written(pipe: Pipe) -> None:
    relay = Relay([pipe.out], missing)
    for number in range(1000):
        os.write(pipe.out, b"%d\n" % number)
        assert pipe.read(len(b"%d\n" % number)) == b"%d\n" % number
    os.write(pipe.out, b"the last, without a line end")
    closed(relay)
    os.write(pipe.out, b", and what is written afterwards")
    assert os.read(pipe.reader, 1000) == b"the last, without a line end, and what is written afterwards"


def test_nobody_waits_for_a_reader_that_does_not_read(pipe: Pipe) -> None:
    """A pipe that is full; far more than it and the backlog hold. Then somebody reads after all."""
    before, lines = fill(pipe.writer), 2000
    relay = Relay([pipe.out], missing, limit=10_000)
    for _ in range(lines):
        os.write(pipe.out, LINE)
    relay.end()
    relay._reader.join(SOON_S)
    assert not relay._reader.is_alive() and relay._writer.is_alive()
    assert pipe.read(before) == b"-" * before
    relay.close(time.monotonic() + SOON_S)
    found = os.read(pipe.reader, 65_536).splitlines(keepends=True)
    kept = found.count(LINE)
    # One is with the thread that waits, a hundred in the backlog.
    assert 100 <= kept <= 101 and found == [LINE] * kept + [missing(lines - kept)]


def test_the_end_waits_no_longer_than_it_is_told(pipe: Pipe) -> None:
    """What is written afterwards goes nowhere, and waits for nobody either."""
    fill(pipe.writer)
    relay = Relay([pipe.out], missing)
    os.write(pipe.out, LINE)
    began = time.monotonic()
    closed(relay, 0.05)
    assert time.monotonic() - began < SOON_S / 2
    assert os.path.samestat(os.fstat(pipe.out), os.stat(os.devnull))


def test_a_reader_that_has_gone(pipe: Pipe) -> None:
    """Whatever is written is lost, and nobody hears of it."""
    relay = Relay([pipe.out], missing, limit=1000)
    os.close(pipe.reader)
    for _ in range(100):
        os.write(pipe.out, LINE)
    closed(relay)
    assert not relay._writer.is_alive()


def test_a_pipe_that_its_opener_wants_no_waiting_for(pipe: Pipe) -> None:
    """As programs of Node.js hand them on: the description is shared, a full pipe is an error there."""
    before = fill(pipe.writer)
    os.set_blocking(pipe.writer, False)
    relay = Relay([pipe.out], missing)
    os.write(pipe.out, LINE)
    relay.end()
    relay._reader.join(SOON_S)
    assert pipe.read(before + len(LINE)) == b"-" * before + LINE
    relay.close(time.monotonic() + SOON_S)


def test_a_descriptor_that_was_closed_on_purpose_stays_so(pipe: Pipe) -> None:
    """As standard error at the end of vLLM: see `plugin.quiet_logs`."""
    relay = Relay([pipe.out], missing)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, pipe.out)
    os.close(nothing)
    closed(relay)
    os.write(pipe.out, b"not to be seen")
    os.set_blocking(pipe.reader, False)
    with pytest.raises(BlockingIOError):
        os.read(pipe.reader, 1)


def test_only_what_has_a_reader_to_wait_for(pipe: Pipe, tmp_path: Path) -> None:
    """One relay for two descriptors of one pipe, so that their lines keep their order."""
    first, second = socket.socketpair()
    with open(tmp_path / "log", "wb") as file, open(os.devnull, "wb") as nothing, first, second:
        terminal, other_end = os.openpty()
        closed_one = os.dup(0)
        os.close(closed_one)
        given = [file.fileno(), pipe.out, nothing.fileno(), first.fileno(), terminal, pipe.writer, closed_one]
        assert _same_files(given) == [[pipe.out, pipe.writer], [first.fileno()]]
        os.close(terminal)
        os.close(other_end)


BEGIN = (
    "from app.logs import lost; from app.process.output import relay_output, end_relay; relay_output(lost);"
)


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A process of its own with both outputs in one pipe."""
    command = [sys.executable, *options, "-c", f"import os, sys\n{BEGIN}\n{code}"]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SOON_S
    )


@pytest.mark.parametrize(
    ("code", "words", "status"),
    [
        ("print('out', flush=True); print('err', file=sys.stderr)", ["out", "err"], 0),
        ("print('buffered')", ["buffered"], 0),
        ("sys.exit('wrong setting')", ["wrong setting"], 1),
        ("raise ValueError('unforeseen')", ["Traceback", "ValueError: unforeseen"], 1),
        ("os.write(1, b'of C\\n'); os.system('echo of a child'); print('last')", ["of C", "of a child"], 0),
        ("print('before'); end_relay(); print('behind', flush=True); os._exit(3)", ["before", "behind"], 3),
    ],
)
def test_the_last_words_of_a_process(code: str, words: list[str], status: int) -> None:
    """Whatever its end; in the order in which they were written."""
    ended = run(code)
    assert ended.returncode == status
    places = [ended.stdout.find(word) for word in words]
    assert -1 not in places and places == sorted(places), ended.stdout


def test_the_trace_of_a_crash() -> None:
    """Its process relays nothing any more."""
    ended = run("import faulthandler; faulthandler._sigsegv()", "-X", "faulthandler")
    assert ended.returncode == -signal.SIGSEGV and "Segmentation fault" in ended.stdout
    assert "most recent call first" in ended.stdout


@pytest.mark.parametrize("then", ["sys.exit(4)", "end_relay(); print('x', flush=True); os._exit(4)"])
def test_a_process_ends_though_nobody_reads(pipe: Pipe, then: str) -> None:
    fill(pipe.writer)
    code = f"import os, sys\n{BEGIN}\nfor _ in range(3000): print('x' * 99, flush=True)\n{then}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe.out, stderr=pipe.out)
    try:
        assert process.wait(SOON_S) == 4
    finally:
        process.kill()
        process.wait()


def test_what_a_child_writes_holds_up_neither(pipe: Pipe) -> None:
    """It inherits the descriptors, as an engine does."""
    fill(pipe.writer)
    child = "[print('x' * 99, flush=True) for _ in range(30000)]"
    code = f"import subprocess, sys\n{BEGIN}\nsys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe.out, stderr=pipe.out)
    try:
        assert process.wait(SOON_S) == 0
    finally:
        process.kill()
        process.wait()
