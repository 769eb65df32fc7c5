"""The scheduler's side of the encoder's cache, step by step, on requests that are not there."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.metrics.stats import PrefillStats

from plugin.verifier.encoder.cache import PromptCacheManager
from plugin.verifier.encoder.work import EncoderWork, PassCosts

SHAPE = {"hidden_size": 8, "head_dim": 6, "num_attention_heads": 1, "num_key_value_heads": 1}


def costs(step, cross=0.0):
    """Four layers that attend to nothing: a row is a quarter of a token, in the first stage 3/8 of that, in the last
    5/8; a token's cross keys and values are `cross`."""
    text = SimpleNamespace(
        **SHAPE, intermediate_size=8, sliding_window=0, layer_types=["sliding_attention"] * 4
    )
    return PassCosts(text, SimpleNamespace(**SHAPE, num_hidden_layers=16 * cross), step)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr("plugin.verifier.encoder.work.LEAST_ROWS", 1)
    monkeypatch.setattr("plugin.verifier.encoder.work.ALIGNED_ROWS", 1)

    def manager(cache_tokens=100, *, step=1000, busy=1000, cross=0.0):
        made = PromptCacheManager(step, busy, 2 * cache_tokens, 2, costs(busy, cross))
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
    assert (counts.bytes_held, counts.requests) == (60, 3)
    manager.free(a)
    manager.free(b)
    assert manager.take_counts().requests == 1
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
    """40 tokens: a whole layer of them is what a step beside running requests may spend."""
    manager = make(busy=10)
    step(manager, Request("running", 5))
    long, short = Request("long", 40), Request("short", 6)
    works = []
    for _ in range(4):
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
    assert [(w.first_row, w.num_rows) for w in works] == [(0, 40), (40, 40), (80, 40), (120, 40), (160, 40)]
    assert [w.prompt is not None for w in works] == [True, False, False, False, False]
    assert long.encoded == 40
    assert step(manager, short, Request("other", 40))[0] == 2  # held now


def test_a_step_that_has_encoded_a_prompt_does_no_part_besides(make):
    """Whoever comes before it in the queue, as one that is resumed does: the pass goes on in the next step."""
    manager = make(busy=10)
    step(manager, Request("running", 5))
    long = Request("long", 40)
    assert step(manager, long)[2].num_rows == 40
    assert step(manager, Request("short", 6), long) == (1, [], None)
    assert step(manager, long)[2].first_row == 40


def test_cross_keys_and_values_have_a_step_of_their_own_where_they_do_not_fit(make):
    """40 tokens' are a whole step's work, and 5 tokens' are not: of a new prompt and of those that are held."""
    manager = make(busy=10, cross=0.25)
    step(manager, Request("running", 5))
    long = Request("long", 40)
    assert [step(manager, long)[0] for _ in range(5)] == [0] * 5
    assert step(manager, long, Request("short", 6)) == (1, [], None)
    assert step(manager, Request("again", 40), Request("and again", 40))[0] == 1
    assert step(manager, *(Request(f"short {i}", 5) for i in range(9)))[0] == 8


def test_a_done_pass_that_is_not_admitted_goes_with_its_request(make):
    manager = make(busy=10, cross=0.25)
    step(manager, Request("running", 5))
    long = Request("long", 40)
    assert [step(manager, long)[0] for _ in range(5)] == [0] * 5
    assert manager.can_allocate(long, 0, 0, 0)
    manager.free(long)  # no pages for it
    assert manager.get_manager_metadata() is None
    long.finished = True
    manager.free(long)
    assert step(manager) == (0, [], EncoderWork(None))
    assert step(manager, Request("long", 40))[2].first_row == 0


def test_when_the_others_are_done_the_rest_of_a_pass_is_done_at_once(make):
    manager = make(busy=10, step=40, cross=0.25)
    running, long = Request("running", 5), Request("long", 40)
    step(manager, running)
    step(manager, long)
    manager.free(running)
    admitted, _, work = step(manager, long)
    assert (admitted, work.first_row, work.num_rows) == (1, 40, 160)


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
    assert step(manager, second)[2] == EncoderWork("41", second.mm_features[0].data["text"].data, 0, 41 + 21)
    assert step(manager, first)[2].first_row == 0


def test_after_a_reset_all_is_encoded_anew(make):
    manager = make(busy=10)
    step(manager, Request("running", 5))
    step(manager, Request("long", 40))
    manager.reset()
    assert manager.counts.bytes_held == 0
    _, _, work = step(manager, Request("long", 40))
    assert work.first_row == 0
    assert step(manager, Request("a", 5))[0] == 1
    assert manager.counts.misses == 2


class Pages:
    """Who took over whose pages."""

    def __init__(self):
        self.taken = {}

    def share(self, holder, taker):
        self.taken[taker] = holder

    def give_back(self, taker):
        del self.taken[taker]


def test_pages_are_shared_with_who_runs(make):
    """In the step that writes them and later; by whoever is left of the holders; counted as a hit once admitted."""
    manager, pages = make(), Pages()
    a, b, c, d, e = (Request(name, 30) for name in "abcde")
    assert not manager.share_pages(a, pages)
    assert step(manager, a)[0] == 1
    assert not manager.share_pages(Request("other", 31), pages)
    assert manager.share_pages(b, pages) and manager.share_pages(c, pages)
    manager.free(c)  # no pages of its own decoder for it
    assert manager.counts.hits == 0
    step(manager)
    assert pages.taken == {"b": "a"}
    assert (manager.counts.hits, manager.counts.tokens_saved, b.encoded) == (1, 30, 0)
    manager.free(a)
    assert manager.share_pages(d, pages) and pages.taken["d"] == "b"
    step(manager)
    manager.free(b)
    manager.free(d)
    assert pages.taken == {"b": "a", "d": "b"}  # vLLM gives back what a running request holds
    assert not manager.share_pages(e, pages)
    assert manager.take_counts().requests == 0


def test_pages_are_shared_whether_or_not_states_are_held(make):
    manager, pages = make(20), Pages()
    step(manager, Request("a", 30))
    assert manager.share_pages(Request("b", 30), pages)
    assert step(manager) == (0, ["30"], None)


def test_samples_that_share_pages_say_what_was_encoded_for_their_request(make):
    manager, pages = make(), Pages()
    step(manager, Request("0_parent", 30))
    sample, other = Request("1_parent", 30), Request("other", 30)
    assert manager.share_pages(sample, pages) and manager.share_pages(other, pages)
    step(manager)
    assert (sample.encoded, other.encoded) == (30, 0)


def test_nothing_is_shared_without_a_cache_nor_after_a_reset(make):
    """0 bytes say that nobody may notice an equal prompt; of new weights other keys and values come."""
    for cache_tokens, reset in ((0, False), (100, True)):
        manager, pages = make(cache_tokens), Pages()
        a = Request("a", 30)
        step(manager, a)
        if reset:
            manager.reset()
        assert not manager.share_pages(Request("b", 30), pages)
        manager.free(a)
        assert manager.take_counts().requests == 0
