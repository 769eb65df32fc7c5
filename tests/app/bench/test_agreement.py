"""Agreement with `vllm bench serve`, which knows nothing of us, on one server (see `agreement`)."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from app.bench.prompts import load
from plugin.drafts.checkpoint import DEMO
from tests.app.bench.agreement import METRICS, interleaved, ratio
from tests.app.bench.scripted import Script, running
from tests.engine.gateway.process import gateway

RUNS = 5


def write_tokenizer(folder: Path) -> Path:
    """A word tokenizer, for a server that has none."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_against_a_server_of_known_speed(tmp_path: Path) -> None:
    """Medians of five interleaved runs within 3 %, of each other and of the truth; counters exactly."""
    script = Script(
        delays_s=lambda number: [0.025] * 40, tokens_per_chunk=3, k=3, accepted=2, family="dflash"
    )
    prompts = [f"what is {i} and {i} more" for i in range(20)]
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    with running(script) as url:
        pairs = interleaved(url, tokenizer, prompts, RUNS, 4, 120, tmp_path)
    for name in ("output_tokens_per_s", "tpot_ms", "itl_ms"):
        assert ratio(pairs, name) == pytest.approx(1, abs=0.03), name
    assert all(pair.counters_agree() for pair in pairs)
    assert pairs[0].ours["acceptance"]["drafts"] == 20 * 40
    truth = 4 * 120 / 1.0
    ours = statistics.median(pair.ours["output_tokens_per_s"] for pair in pairs)
    assert ours == pytest.approx(truth, rel=0.03)


@pytest.mark.slow
@pytest.mark.engine
def test_against_the_demo(tmp_path: Path) -> None:
    """Medians of five interleaved runs on the demo within 10 %; counters exactly."""
    prompts = load("problems", 64, 0, {}).prompts
    with gateway(draft=DEMO / "dflash") as server:
        pairs = interleaved(server.url, DEMO / "verifier", prompts, RUNS, 1, 128, tmp_path)
    assert all(pair.counters_agree() for pair in pairs)
    assert ratio(pairs, "output_tokens_per_s") == pytest.approx(1, abs=0.1)
    assert set(METRICS) == {"output_tokens_per_s", "ttft_ms", "tpot_ms", "itl_ms"}
