"""The V2 runner's hooks on fakes of what they touch: which steps may replay a decode graph, and which graph."""

from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import cudagraph_utils
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu.model_runner import BatchReqState

from plugin.verifier.decode_graphs import FEW_REQUESTS, DecodeGraphManager, mixed_sizes
from plugin.vllm_hooks.v2.runner import (
    first_token_as_decode,
    mixed_decode_graphs,
    taps_where_the_draft_reads_them,
)

K = 3


def batch_state(scheduled, drafts, computed, prefill):
    """A batch as vLLM gathers it, with vLLM's own verdict: no prefill over nothing runs as a decode."""
    scheduled, prefill = np.array(scheduled, np.int32), np.array(prefill, np.int32)
    prefilling = np.minimum(computed, prefill) < prefill
    return BatchReqState(
        req_ids=[f"r{i}" for i in range(len(scheduled))],
        num_scheduled_tokens=scheduled,
        num_tokens=int(scheduled.sum()),
        num_draft_tokens_np=None if drafts is None else np.array(drafts, np.int32),
        idx_mapping_np=np.arange(len(scheduled)),
        prefill_len_np=prefill,
        num_computed_prefill_tokens_np=np.minimum(computed, prefill),
        is_prefilling_np=prefilling,
        max_seq_len_np=None,
        has_prefill=bool(prefilling.any()),
        prefill_runs_as_decode_np=np.zeros(len(scheduled), bool) if prefilling.any() else None,
        decode_graph_eligible=not prefilling.any(),
    )


@pytest.fixture
def gather(monkeypatch):
    """`gather(state, ours)`: what the hooked runner makes of a batch, and the bound that it leaves for the graphs."""
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def gather_batch_req_state(self, scheduler_output, dummy_run):
            return self.state, None if self.state is None or self.state.has_prefill else 1 + K

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    first_token_as_decode()

    def run(state, ours=True):
        runner = GPUModelRunner()
        runner.state = state
        runner.model_state = SimpleNamespace(**({"cross_kv_before_decoder": True} if ours else {}))
        runner.cudagraph_manager = SimpleNamespace(longest_query=99)
        counts = {} if state is None else dict(zip(state.req_ids, state.num_scheduled_tokens, strict=True))
        found, uniform = runner.gather_batch_req_state(
            SimpleNamespace(num_scheduled_tokens=counts), state is None
        )
        return found, uniform, runner.cudagraph_manager.longest_query

    return run


def test_fresh_requests_alone_are_a_uniform_step_of_one_token(gather):
    state, uniform, longest = gather(batch_state([1, 1], None, [0, 0], [1, 1]))
    assert (uniform, longest) == (1, 1)
    assert state.decode_graph_eligible
    assert state.prefill_runs_as_decode_np.tolist() == [True, True]
    assert state.has_prefill  # its input ids still come from the prompt


def test_a_fresh_request_beside_running_ones_without_drafts_is_uniform(gather):
    state, uniform, longest = gather(batch_state([1, 1, 1], None, [7, 9, 0], [1, 1, 1]))
    assert (uniform, longest, state.decode_graph_eligible) == (1, 1, True)


def test_a_fresh_request_beside_verifying_ones_is_bounded_but_not_uniform(gather):
    state, uniform, longest = gather(batch_state([1 + K, 1 + K, 1], [K, K, 0], [7, 9, 0], [1, 1, 1]))
    assert uniform is None
    assert longest == 1 + K
    assert state.prefill_runs_as_decode_np.tolist() == [False, False, True]


def test_a_resumed_request_computes_its_tokens_anew_and_keeps_the_step_out_of_graphs(gather):
    """Preempted after 5 tokens: its prefill has 6."""
    state, uniform, longest = gather(batch_state([1, 6, 1], None, [7, 0, 0], [1, 6, 1]))
    assert (uniform, longest, state.decode_graph_eligible) == (None, None, False)
    assert state.prefill_runs_as_decode_np.tolist() == [False, False, True]


def test_steps_without_prefills_dummy_runs_and_other_models_stay_as_they_are(gather):
    running = batch_state([1 + K, 1 + K], [K, K], [7, 9], [1, 1])
    assert gather(running) == (running, 1 + K, None)
    assert gather(None) == (None, None, None)
    whisper = batch_state([1], None, [0], [1])
    state, uniform, _ = gather(whisper, ours=False)
    assert state is whisper
    assert uniform is None


def manager(
    monkeypatch, *, model_type="t5gemma2", k=K, max_num_seqs=8, sizes=(1, 2, 4, 8, 16, 24, 32),
    mode=CUDAGraphMode.FULL_AND_PIECEWISE,
):  # fmt: skip
    """A manager as the runner makes it, with nothing captured but all descriptions there."""
    monkeypatch.setattr(
        cudagraph_utils, "get_pp_group", lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True)
    )
    monkeypatch.setattr(
        cudagraph_utils, "current_platform", SimpleNamespace(get_global_graph_pool=lambda: None)
    )
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=list(sizes), max_cudagraph_capture_size=max(sizes)
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=1),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type=model_type)),
        speculative_config=None,
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
    )
    made = DecodeGraphManager(config, None, mode, 1 + k)
    made._graphs_captured = True
    return made


def chosen(made, query_lens, bound):
    total = sum(query_lens)
    uniform = query_lens[0] if bound and set(query_lens) == {query_lens[0]} else None
    found = made.dispatch(len(query_lens), total, uniform, 0, max_query_len=bound)
    return found.cg_mode.name, found.num_tokens, found.num_reqs, found.uniform_token_count


def test_uniform_steps_have_graphs_of_their_own_and_mixed_ones_get_the_next_larger(monkeypatch):
    made = manager(monkeypatch)
    assert chosen(made, [4], 4) == ("FULL", 4, 1, 4)
    assert chosen(made, [4] * 4, 4) == ("FULL", 16, 4, 4)
    assert chosen(made, [1], 1) == ("FULL", 1, 1, 1)
    assert chosen(made, [1] * 8, 1) == ("FULL", 8, 8, 1)
    assert chosen(made, [3] * 3, 3) == ("FULL", 12, 4, 3)
    assert chosen(made, [4, 4, 1], 4) == ("FULL", 16, 8, None)
    assert chosen(made, [2, 1], 2) == ("FULL", 4, 4, None)
    assert chosen(made, [4] * 7 + [1], 4) == ("FULL", 32, 8, None)


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 64, 256])
def test_every_k_and_batch_size_has_a_graph_and_there_are_not_many(monkeypatch, max_num_seqs):
    """As vLLM sizes them for a block of eight: 512 tokens at most."""
    sizes = [n for n in (1, 2, 4, *range(8, 513, 8)) if n <= 16 * max_num_seqs]
    made = manager(monkeypatch, k=7, max_num_seqs=max_num_seqs, sizes=sizes)
    for query_len in range(1, 9):
        for num_reqs in range(1, min(max_num_seqs, 512 // query_len) + 1):
            mode, num_tokens, padded, uniform = chosen(made, [query_len] * num_reqs, query_len)
            assert mode == "FULL"
            assert padded >= num_reqs and num_tokens <= max(8, 2 * query_len * num_reqs)
            assert uniform == query_len or (num_reqs > 32 or num_reqs > max_num_seqs // 2)
    graphs = made._capture_descs[CUDAGraphMode.FULL]
    shorter = [d for d in graphs if d.uniform_token_count not in (None, 8)]
    assert len(shorter) <= 7 * len(FEW_REQUESTS)


def test_real_prefills_stay_out_of_decode_graphs(monkeypatch):
    made = manager(monkeypatch)
    assert chosen(made, [1, 3], None)[0] == "PIECEWISE"


def test_the_largest_graph_is_captured_first(monkeypatch):
    tokens = [d.num_tokens for d in manager(monkeypatch)._capture_descs[CUDAGraphMode.FULL]]
    assert tokens == sorted(tokens, reverse=True)
    assert len(set(manager(monkeypatch)._capture_descs[CUDAGraphMode.FULL])) == len(tokens)


def test_other_models_and_engines_without_drafts_get_no_graphs_of_ours(monkeypatch):
    for made in (manager(monkeypatch, model_type="gemma3"), manager(monkeypatch, k=0)):
        assert {d.uniform_token_count for d in made._capture_descs[CUDAGraphMode.FULL]} == {
            made.decode_query_len
        }
        assert all(d.max_query_len is None for descs in made._capture_descs.values() for d in descs)


def test_mixed_sizes_double_up_to_a_full_batch():
    assert mixed_sizes(8, 256) == [8, 16, 32, 64, 128, 256]
    assert mixed_sizes(8, 96) == [8, 16, 32, 64, 96]
    assert mixed_sizes(8, 8) == [8]
    assert mixed_sizes(8, 4) == []


def test_the_bound_reaches_the_dispatch_unless_vllm_has_one(monkeypatch):
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    def dispatch_cg_and_sync_dp(
        cudagraph_manager, num_reqs, num_tokens, uniform_token_count, dp_size, dp_rank, max_query_len=None,
        need_eager=False, num_active_loras=0, parallel_config=None, allow_ubatching=False, uniform_decode=False,
        dp_sync_state=None,
    ):  # fmt: skip
        return max_query_len

    module.dispatch_cg_and_sync_dp = dispatch_cg_and_sync_dp
    module.ModelCudaGraphManager = object
    from vllm.v1.worker import gpu

    monkeypatch.setattr(gpu, "model_runner", module)
    mixed_decode_graphs()
    assert module.ModelCudaGraphManager is DecodeGraphManager
    ours, other = SimpleNamespace(longest_query=4), SimpleNamespace()

    def bound(manager, **given):
        return module.dispatch_cg_and_sync_dp(manager, 1, 1, None, 1, 0, need_eager=False, **given)

    assert bound(ours, max_query_len=None) == 4
    assert bound(ours, max_query_len=2) == 2
    assert bound(other, max_query_len=None) is None
    assert bound(None, max_query_len=None) is None


def test_graphs_leave_the_taps_in_the_drafts_buffer(monkeypatch):
    """vLLM's own manager captures, with our hook before it, and replays: it copies taps and returns no copy of them."""
    utils, made = cudagraph_utils, manager(monkeypatch)
    graph = utils.BatchExecutionDescriptor(CUDAGraphMode.FULL, 8, 2, uniform_token_count=4)
    monkeypatch.setattr(utils, "has_compiled_submodule", lambda model: True)
    monkeypatch.setattr(utils, "prepare_inputs_to_capture", lambda *_, **__: ({}, {}))
    monkeypatch.setattr(utils, "set_forward_context", lambda *_, **__: nullcontext())
    monkeypatch.setattr(
        utils.CudaGraphManager, "capture", lambda self, create, _: create(graph, False)(CUDAGraphMode.NONE)
    )
    module = ModuleType("vllm.v1.worker.gpu.model_runner")
    found = torch.randn(8, 6)

    class GPUModelRunner:
        model_state = SimpleNamespace(cross_kv_before_decoder=True, prepare_dummy_inputs=lambda *_: {})

        def capture_model(self, *, profile_only=False):
            utils.ModelCudaGraphManager.capture(
                self.cudagraph_manager, lambda **_: (torch.ones(8, 3), [found]), self.model_state,
                InputBuffers(8, 32, torch.device("cpu")), None, None, [], None, use_aux_hidden_state_outputs=True,
            )  # fmt: skip
            return profile_only

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    taps_where_the_draft_reads_them()
    runner = GPUModelRunner()
    runner.cudagraph_manager, runner.speculator = made, SimpleNamespace(taps=torch.zeros(20, 6))
    assert runner.capture_model(profile_only=True) is True
    assert torch.equal(runner.speculator.taps[:8], found)
    made.graphs[graph] = SimpleNamespace(replay=lambda: None)
    _, (taps,) = made.run_fullgraph(graph)
    assert taps.shape == (8, 6) and taps.data_ptr() == runner.speculator.taps.data_ptr()


@pytest.mark.parametrize(
    ("speculator", "state"),
    [(None, {"cross_kv_before_decoder": True}), (SimpleNamespace(), {"cross_kv_before_decoder": True}),
     (SimpleNamespace(taps=torch.zeros(2, 2)), {})],
)  # fmt: skip
def test_other_engines_have_the_managers_own_buffers(monkeypatch, speculator, state):
    module = ModuleType("vllm.v1.worker.gpu.model_runner")

    class GPUModelRunner:
        def capture_model(self, *, profile_only=False):
            return self.cudagraph_manager.aux_hidden_states

    module.GPUModelRunner = GPUModelRunner
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    taps_where_the_draft_reads_them()
    runner = GPUModelRunner()
    runner.speculator, runner.model_state = speculator, SimpleNamespace(**state)
    runner.cudagraph_manager = SimpleNamespace(aux_hidden_states=[])
    assert runner.capture_model() == []
