"""The V2 runner's state on fakes: encoder lengths by slot, admitted prompts in batch order, what is captured."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.kv_cache_interface import CrossAttentionSpec
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.model_states.encoder_decoder import EncoderDecoderModelState

from plugin.verifier import model_state
from plugin.verifier.encoder.capture import PassSizes
from plugin.verifier.encoder.states import EncoderStates
from plugin.verifier.model_state import T5Gemma2ModelState

SELF, CROSS = 0, 1


def feature(length):
    return SimpleNamespace(
        identifier=f"{length} tokens",
        mm_position=SimpleNamespace(get_num_embeds=lambda: length),
        data={"text": SimpleNamespace(data=torch.arange(length))},
    )


@pytest.fixture
def state(monkeypatch):
    """A state with four request slots and no model behind it."""
    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)
    made = T5Gemma2ModelState.__new__(T5Gemma2ModelState)
    made.max_num_reqs = 4
    made.max_encoder_len = 500
    made.encoder_seq_lens_gpu = torch.full((4,), 77, dtype=torch.int32)
    made.encoder_cache = SimpleNamespace(mm_features={})
    made.encoder_lens = buffer_utils.UvaBackedTensor(4, dtype=torch.int32)
    made.gathered, made._graphs_need_metadata, made._pass_graphs = None, False, None
    return made


def add(state, req_id, slot, length):
    state.encoder_cache.mm_features[req_id] = [feature(length)]
    state.add_request(slot, SimpleNamespace(mm_features=[feature(length)]))
    state.apply_staged_writes()


def lengths(state, req_ids, slots, *, padded=None, capture=False):
    state._batch = SimpleNamespace(
        idx_mapping=torch.tensor(slots), idx_mapping_np=np.array(slots), num_reqs=len(slots)
    )
    spec = CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32)
    groups = [[SimpleNamespace(kv_cache_spec=object())], [SimpleNamespace(kv_cache_spec=spec)]]
    found = state._get_encoder_seq_lens(req_ids, groups, capture, padded or len(slots))
    assert set(found) == {CROSS}
    on_device, on_host = found[CROSS]
    assert on_device.data_ptr() == state.encoder_seq_lens_gpu.data_ptr()  # what graphs were captured with
    assert on_device.tolist() == on_host.tolist()
    return on_device.tolist()


def test_lengths_follow_the_batchs_slots_and_padding_is_empty(state):
    for slot, (req_id, length) in enumerate({"a": 5, "b": 33, "c": 7}.items()):
        add(state, req_id, slot, length)
    assert lengths(state, ["c", "a"], [2, 0]) == [7, 5]
    assert lengths(state, ["b"], [1], padded=4) == [33, 0, 0, 0]


def test_a_slot_that_changes_hands_has_the_new_requests_length(state):
    """Preemption and join: the request comes back in another slot, its old slot is another's."""
    add(state, "a", 0, 5)
    del state.encoder_cache.mm_features["a"]
    add(state, "b", 0, 9)
    add(state, "a", 3, 5)
    assert lengths(state, ["a", "b"], [3, 0]) == [5, 9]


def test_a_dummy_batch_reads_nobodys_prompt_and_a_capture_the_longest(state):
    add(state, "a", 0, 5)
    assert lengths(state, ["req_0_x"], [0]) == [0]
    assert lengths(state, ["req_0_x"], [0], capture=True) == [500]


def test_a_step_that_replays_a_graph_gathers_lengths_once_a_batch_and_builds_no_metadata(state, monkeypatch):
    stock = []
    monkeypatch.setattr(
        EncoderDecoderModelState, "prepare_attn", lambda *_: stock.append("built") or {"layer": "metadata"}
    )
    add(state, "a", 0, 5)
    add(state, "b", 2, 9)
    buffer, slots = state.encoder_seq_lens_gpu, torch.tensor([2, 0])

    def prepare(slots, mode=CUDAGraphMode.FULL, capture=False):
        batch = SimpleNamespace(idx_mapping=slots, max_query_len=None)
        return state.prepare_attn(batch, mode, (), None, [], None, for_capture=capture)

    assert prepare(slots) == {}
    assert buffer.tolist() == [9, 5, 0, 0]
    buffer[0] = 77
    assert prepare(slots) == {}
    assert buffer[0] == 77  # an unchanged batch is not gathered again
    add(state, "c", 2, 4)
    prepare(slots)
    assert buffer.tolist() == [4, 5, 0, 0]
    prepare(torch.tensor([0]))
    assert buffer.tolist() == [5, 0, 0, 0]
    assert stock == []
    assert prepare(slots, CUDAGraphMode.NONE) == prepare(slots, capture=True) == {"layer": "metadata"}
    state._graphs_need_metadata = True
    assert prepare(slots) == {"layer": "metadata"}


def test_a_dummy_batch_between_two_steps_has_the_lengths_gathered_again(state):
    add(state, "a", 0, 5)
    slots = [0]
    assert lengths(state, ["a"], slots) == [5]
    kept = state.gathered
    lengths(state, ["req_0_x"], slots, capture=True)
    state._batch = SimpleNamespace(idx_mapping=kept)
    state._gather_encoder_lens()
    assert state.encoder_seq_lens_gpu.tolist() == [5, 0, 0, 0]


def request(name, length):
    return SimpleNamespace(req_id=name, mm_features=[feature(length)])


@pytest.fixture
def encoding(state):
    """What encoded and written to pages is, by calls."""
    calls = SimpleNamespace(encoded=[], written=[])

    def embed(text):
        calls.encoded.append([len(prompt) for prompt in text])
        return [prompt[:, None].float() for prompt in text]

    state.encoder_runner = SimpleNamespace(
        cudagraph_manager=None, timed_encoder_operation=lambda _: nullcontext()
    )
    state.model = SimpleNamespace(embed_multimodal=embed)
    state.encoder_states = EncoderStates({}, state._encode, None, keep=False)
    state._block_tables, state._cross_group = ("self table", "cross table"), CROSS
    state.cross_kv = SimpleNamespace(write=lambda *args: calls.written.append(args))
    state._begun = {}
    return calls


def test_admitted_prompts_are_encoded_first_and_stored_by_their_rows(state, encoding):
    """The scheduler names a resumed request after a new one; the batch has them the other way round, and one that
    shares another's pages brings no encoder input."""
    inputs = {"new": [0], "resumed": [0]}
    state.begin_prompts([request("new", 3), request("sharing", 3), request("resumed", 6)], inputs)
    assert (encoding.encoded, encoding.written) == ([[3, 6]], [])
    batch = SimpleNamespace(req_ids=["running", "resumed", "sharing", "new"])
    assert state.prepare_inputs_embeds(inputs, batch, None) is None
    [(states, rows, table)] = encoding.written
    assert (rows, table) == ([3, 1], "cross table")
    assert [each.flatten().tolist() for each in states] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]


def test_a_prompt_that_was_not_begun_is_told(state, encoding):
    state.begin_prompts([request("new", 3)], {"new": [0]})
    with pytest.raises(RuntimeError, match=r"prompts of \['new'\] are encoded, not of \['other'\]"):
        state.prepare_inputs_embeds({"other": [0]}, SimpleNamespace(req_ids=["other"]), None)
    state.begin_prompts([request("new", 3)], {"new": [0]})
    state.begin_prompts([], {})  # the step behind one that failed
    with pytest.raises(RuntimeError, match="prompts of"):
        state.prepare_inputs_embeds({"new": [0]}, SimpleNamespace(req_ids=["new"]), None)


def test_what_is_behind_the_encoder_is_captured_again_after_the_memory_was_measured(state, monkeypatch):
    """Where the encoder is captured: storing its states at the same sizes, and passes if prompts are parted; a prompt
    that no captured size holds has a pass of its own."""
    made, current = [], []

    class Graphs:
        def __init__(self, encoder, sizes, dtype):
            made.append((encoder, sizes, dtype))
            assert state._pass_graphs is None  # its memory is free by now

        def capture(self, pool):
            made.append(pool)

        def begin(self, prompt):
            return "captured" if len(prompt) < 9 else None

    @contextmanager
    def graph_capture(device):
        current.append(device)
        yield
        current.clear()

    def capture(*args):
        assert current == ["a device"]
        made.append(args)

    monkeypatch.setattr(model_state, "PassGraphs", Graphs)
    monkeypatch.setattr(model_state, "graph_capture", graph_capture)
    monkeypatch.setattr(model_state.current_platform, "graph_pool_handle", lambda: "a pool")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    manager = SimpleNamespace(token_budgets=[64, 128], is_captured=lambda: True)
    state.encoder_runner = SimpleNamespace(cudagraph_manager=None)
    state.cross_kv, state._cross_group = SimpleNamespace(capture=capture), CROSS
    state.model = SimpleNamespace(encoder="the encoder", begin_encoder_pass=lambda prompt: "its own")
    state.vllm_config, state.dtype, state.device = None, torch.bfloat16, "a device"
    tables = SimpleNamespace(input_block_tables=["self table", "cross table"])
    stored, passes = (
        [([64, 128], "cross table", "a pool")],
        [("the encoder", PassSizes((256,)), torch.bfloat16), "a pool"],
    )
    for captured, sizes, expected in (
        (None, (), []),
        (manager, (), stored),
        (manager, (256,), stored + passes),
        (manager, (256,), stored + passes),
    ):
        state.encoder_runner.cudagraph_manager = captured
        monkeypatch.setattr(model_state, "pass_graph_sizes", lambda config, sizes=sizes: PassSizes(sizes))
        made.clear()
        state.capture_inner_cudagraphs(None, tables, None, None)
        assert made == expected
        assert state._begin(torch.arange(9)) == "its own"
        assert state._begin(torch.arange(8)) == ("captured" if sizes else "its own")


def test_a_step_that_admits_nobody_does_nothing(state, encoding):
    state.begin_prompts([request("sharing", 3)], {})
    assert state.prepare_inputs_embeds({}, SimpleNamespace(req_ids=["running"]), None) is None
    assert encoding.encoded == encoding.written == []


def test_the_program_that_stores_is_there_before_the_first_request(state):
    """And stores nothing then."""
    written = []
    layer = SimpleNamespace(attn=SimpleNamespace(cross_name="cross.0"))
    state.cross_kv = SimpleNamespace(
        layers=[layer], bind=lambda: written.append("bound"), weight=torch.ones(6, 12),
        write=lambda states, *others: written.append(([each.shape for each in states], *others)),
    )  # fmt: skip
    groups = [SimpleNamespace(layer_names=[name]) for name in ("self.0", "cross.0")]
    tables = SimpleNamespace(input_block_tables=["self table", "cross table"])
    state.initialize_kv_cache(SimpleNamespace(kv_cache_groups=groups), tables)
    assert written == ["bound", ([(1, 12)], [-1], "cross table")]
