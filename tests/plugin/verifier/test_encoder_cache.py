"""The scheduler's side of the encoder's cache, step by step, on requests that are not there."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.metrics.stats import PrefillStats

from plugin.verifier import encoder_work
from plugin.verifier.encoder_cache import PromptCacheManager
from plugin.verifier.encoder_work import EncoderWork, TileCosts

TILE = 10


def text_config(layers=4):
    """No attention at all: every tile costs its tokens over the layers."""
    return SimpleNamespace(
        hidden_size=8, head_dim=0, num_attention_heads=0, num_key_value_heads=0, intermediate_size=8,
        layer_types=["full_attention"] * layers,
    )  # fmt: skip


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(encoder_work, "MOST_TILE_TOKENS", TILE)

    def manager(cache_tokens=100, *, step=1000, busy=1000):
        made = PromptCacheManager(step, busy, 2 * cache_tokens, 2, TileCosts(text_config(), busy))
        assert made.get_manager_metadata() == EncoderWork(None)  # the worker starts with nothing, too
        return made

    return manager


class Request:
    """A prompt that is nothing but its length, or is told from others of that length by `mark`."""

    def __init__(self, name, length, mark=""):
        self.request_id, self.length, self.finished = name, length, False
        self.prefill_stats = PrefillStats()
        data = {"text": SimpleNamespace(data=torch.arange(length))}
        self.mm_features = [SimpleNamespace(identifier=f"{mark}{length}", data=data)]

    def get_num_encoder_embeds(self, _):
        return self.length

    def is_finished(self):
        return self.finished

    @property
    def encoded(self):
        """What the front end will be told that the encoder ran over."""
        self.prefill_stats.finalize(1)
        return self.prefill_stats.num_cache_creation_tokens


def step(manager, *requests):
    """One step that admits requests in order until one has to wait: (how many, freed, work)."""
    admitted = 0
    for request in requests:
        if not manager.can_allocate(request, 0, 0, 0):
            break
        manager.allocate(request, 0)
        admitted += 1
    return admitted, manager.get_freed_mm_hashes(), manager.get_manager_metadata()


def test_equal_prompts_are_hits_in_their_step_and_later(make):
    manager = make()
    a, b, c = (Request(name, 30) for name in "abc")
    assert step(manager, a, b) == (2, [], None)
    assert step(manager, c) == (1, [], None)
    assert (a.encoded, b.encoded, c.encoded) == (30, 0, 0)
    counts = manager.take_counts()
    assert (counts.hits, counts.misses, counts.tokens_saved, counts.tokens_encoded) == (2, 1, 60, 30)
    assert counts.bytes_held == 60
    assert manager.take_counts().bytes_held == 60 and manager.counts.hits == 0


def test_samples_of_one_request_say_the_same(make):
    """Each is a request of its own for the scheduler; any of them may be asked."""
    manager = make()
    samples = [Request(f"{i}_parent", 30) for i in range(3)]
    step(manager, *samples[:2])
    step(manager, samples[2])
    assert [one.encoded for one in samples] == [30, 30, 30]
    again = [Request(f"{i}_other", 30) for i in range(2)]
    step(manager, *again)
    assert [one.encoded for one in again] == [0, 0]


def test_the_least_recently_used_goes_first(make):
    manager = make(100)
    step(manager, Request("a", 40), Request("b", 41))
    step(manager, Request("c", 40))  # used again
    assert step(manager, Request("d", 42)) == (1, ["41"], None)
    assert step(manager, Request("e", 40)) == (1, [], None)
    assert manager.counts.hits == 2
    assert manager.counts.bytes_held == 2 * (40 + 42)


def test_what_a_step_reads_goes_after_it(make):
    """Two prompts of a step do not fit together, and one does not fit at all: the worker needs them in this step."""
    manager = make(50)
    assert step(manager, Request("a", 40), Request("b", 41)) == (2, [], None)
    assert step(manager, Request("c", 90), Request("d", 90)) == (2, ["40"], None)
    assert manager.counts.hits == 1
    assert step(manager, Request("e", 90)) == (1, ["90"], None)  # gone before it is encoded anew
    assert step(manager) == (0, ["90"], None)
    assert manager.counts.misses == 4 and manager.counts.bytes_held == 2 * 41


def test_without_room_nothing_stays(make):
    manager = make(0)
    assert step(manager, Request("a", 4), Request("b", 4)) == (2, [], None)
    assert step(manager, Request("c", 4)) == (1, ["4"], None)
    assert (manager.counts.hits, manager.counts.misses, manager.counts.bytes_held) == (1, 2, 0)


def test_a_steps_encoder_work_is_bounded_beside_running_requests(make):
    manager = make(1000, busy=50)
    running = Request("a", 60)
    assert step(manager, running, Request("b", 61))[0] == 2  # nobody waits for them
    assert step(manager, Request("c", 30), Request("d", 31)) == (1, [], None)
    assert step(manager, Request("d", 31), Request("e", 60), Request("f", 62))[0] == 2  # the second is held
    for request in ("a", "b", "c", "d", "e"):
        manager.free(Request(request, 1))
    assert step(manager, Request("g", 90, "new"))[0] == 1


def test_a_long_prompt_is_encoded_over_steps(make):
    """40 tokens: 4 tiles in each of 4 layers, 2.5 tokens each, of which four fit beside running requests."""
    manager = make(busy=10)
    step(manager, Request("running", 5))
    long, short = Request("long", 40), Request("short", 6)
    works = []
    for _ in range(3):
        admitted, freed, work = step(manager, long, short)
        assert (admitted, freed) == (0, [])
        works.append(work)
    # The last part is done in the step that admits the request, if it is admitted.
    assert manager.can_allocate(long, 0, 0, 0)
    manager.free(long)  # no pages for it
    assert manager.get_manager_metadata() is None
    admitted, _, work = step(manager, long, short)
    works.append(work)
    assert admitted == 1
    assert [(w.first_tile, w.num_tiles) for w in works] == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert [w.prompt is not None for w in works] == [True, False, False, False]
    assert long.encoded == 40
    assert step(manager, short, Request("other", 40))[0] == 2  # held now


def test_when_the_others_are_done_the_rest_of_a_pass_is_done_at_once(make):
    manager = make(busy=10)
    running, long = Request("running", 5), Request("long", 40)
    step(manager, running)
    step(manager, long)
    manager.free(running)
    admitted, _, work = step(manager, long)
    assert (admitted, work.first_tile, work.num_tiles) == (1, 4, 12)


def test_an_aborted_requests_pass_is_forgotten(make):
    manager = make(busy=10)
    step(manager, Request("running", 5))
    long = Request("long", 40)
    step(manager, long)
    manager.free(Request("running", 5))
    long.finished = True
    manager.free(long)
    assert step(manager) == (0, [], EncoderWork(None))
    assert step(manager, Request("again", 40)) == (1, [], None)


def test_one_pass_at_a_time(make):
    """Whoever comes to the head of the queue has it; the other begins again."""
    manager = make(busy=10)
    step(manager, Request("running", 5))
    first, second = Request("first", 40), Request("second", 41)
    assert step(manager, first)[2].key == "40"
    assert step(manager, second)[2] == EncoderWork("41", second.mm_features[0].data["text"].data, TILE, 0, 4)
    assert step(manager, first)[2].first_tile == 0


def test_after_a_reset_all_is_encoded_anew(make):
    manager = make(busy=10)
    step(manager, Request("running", 5))
    step(manager, Request("long", 40))
    manager.reset()
    assert manager.counts.bytes_held == 0
    _, _, work = step(manager, Request("long", 40))
    assert work.first_tile == 0
    assert step(manager, Request("a", 5))[0] == 1
    assert manager.counts.misses == 2


def test_costs_grow_with_the_prompt_in_full_layers_only():
    """At 1B and 8192 tokens the attention of a full layer multiplies 0.62 times as often as its weights do."""
    config = SimpleNamespace(
        hidden_size=1152, head_dim=256, num_attention_heads=4, num_key_value_heads=1, intermediate_size=6912,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    assert [TileCosts(config, tokens).tile_tokens for tokens in (1, 1000, 10_000)] == [64, 500, 2048]
    costs = TileCosts(config, 10_000)
    assert costs.num_tiles(8192) == 8
    assert costs.cost(8192, 0) == 1024
    assert costs.cost(8192, 4) == pytest.approx(1024 * 1.6256, rel=1e-3)
    assert costs.cost(2049, 1) == pytest.approx(0.5)
    assert [costs.fit(8192, first, 2100) for first in (0, 3, 4, 7)] == [2, 1, 1, 1]
    assert costs.fit(8192, 0, 1) == 1
