"""What a request's admission does on the GPU: the encoder, its graphs, the cross pages, and the first decoder step.

Each part against the slow way: transformers' encoder prompt by prompt, the encoder without a graph, the projection
layer by layer. And the steps that admit requests must replay graphs, or all of it would be slow without being wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.gpu.conftest import gpu_engine
from tests.gpu.test_draft_launches import launched
from tests.gpu.test_equality import differing
from tests.reference.fixtures import NEW_TOKENS
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu
Prompts = list[tuple[int, ...]]
SIZES = [16, 64, 128]
SMALL_GRAPHS = {
    "mode": 0,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "encoder_cudagraph_token_budgets": SIZES,
    "encoder_cudagraph_max_vision_items_per_batch": 4,
}
"""Sizes that the tests' prompts go below, meet and exceed, in tokens and in number."""


def relative(got: Any, want: Any) -> float:
    """|got - want| / |want| in float64."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def transformers_states(verifier: Path, prompts: Prompts, dtype: str) -> list[Any]:
    """transformers' encoder states of each prompt alone."""
    import torch
    from transformers import T5Gemma2ForConditionalGeneration

    model = (
        T5Gemma2ForConditionalGeneration.from_pretrained(verifier, dtype=getattr(torch, dtype)).cuda().eval()
    )
    encoder = model.get_encoder()
    with torch.inference_mode():
        return [
            encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            for prompt in prompts
            for ids in [torch.tensor([prompt], device="cuda")]
        ]


def packed(running: Any, prompts: Prompts) -> tuple[list[Any], list[Any]]:
    """The engine's encoder states of all prompts at once: through its graphs, and without them."""
    import torch

    state, tensors = running.runner.model_state, [torch.tensor(p) for p in prompts]
    with torch.inference_mode():
        with_graphs = [states.clone() for states in state._encode(tensors)]  # the next replay writes there
        without = running.runner.model.embed_multimodal(text=tensors)
        torch.cuda.synchronize()
    return with_graphs, without


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_encoder_equals_transformers_and_its_graphs_equal_it(
    verifier: Path, prompts: Prompts, dtype: str
) -> None:
    """Windows smaller and larger than the prompts; several graphs; prompts that fill one; prompts beyond all."""
    import torch

    asked = prompts[:32]
    exact = transformers_states(verifier, asked, "float32")
    theirs = exact if dtype == "float32" else transformers_states(verifier, asked, dtype)
    with gpu_engine(verifier, dtype=dtype, mode="graphs", compilation_config=SMALL_GRAPHS) as running:
        manager = running.runner.model_state.encoder_runner.cudagraph_manager
        assert manager is not None
        assert manager.is_captured()
        hits = manager.graph_hits
        with_graphs, without = packed(running, asked)
        assert manager.graph_hits > hits
        assert manager.graph_misses > 0, "the longest prompts are beyond the largest graph"
    assert [len(states) for states in with_graphs] == [len(prompt) for prompt in asked]
    if dtype == "float32":
        for i, prompt in enumerate(asked):
            for name, got in (("graph", with_graphs[i]), ("eager", without[i])):
                assert relative(got, exact[i]) < 1e-5, f"{name}, prompt {i} of {len(prompt)} tokens"
    # bfloat16 is judged by transformers' own bfloat16, over all prompts together.
    together = [torch.cat(states) for states in (with_graphs, without, exact, theirs)]
    bound = 1e-5 if dtype == "float32" else 1.2 * relative(together[3], together[2])
    assert relative(together[0], together[2]) < bound
    assert relative(together[1], together[2]) < bound
    assert relative(together[0], together[1]) < 1.5 * bound


def test_graphs_do_not_remember_the_batch_before(verifier: Path, prompts: Prompts) -> None:
    """A replay with fewer and shorter prompts gives what it gives alone: padding is nobody's."""
    with gpu_engine(verifier, mode="graphs", compilation_config=SMALL_GRAPHS) as running:
        alone, _ = packed(running, prompts[2:3])
        packed(running, prompts[4:8])
        again, _ = packed(running, prompts[2:3])
    assert bool((alone[0] == again[0]).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cross_pages_hold_what_each_layer_projects(verifier: Path, prompts: Prompts, dtype: str) -> None:
    """Every admission of a staggered run, through joins and a batch of prompts at once, by graphs as far as they go."""
    import torch

    from tests.engine.harness import Job

    errors: list[float] = []
    steps: list[int] = []
    with gpu_engine(
        verifier, dtype=dtype, mode="graphs", compilation_config=SMALL_GRAPHS, max_num_seqs=8
    ) as running:
        cross = running.runner.model_state.cross_kv
        stock = cross.write

        def checked(states: Sequence[Any], rows: Sequence[int], table: Any) -> None:
            stock(states, rows, table)
            lengths = [len(each) for each in states]
            steps.append(sum(lengths))
            for layer in cross.layers:
                cache = layer.attn.cross_cache.kv_cache
                k, v = (x.split(lengths) for x in layer.cross_kv(torch.cat(list(states))))
                for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                    page = cache.shape[2]
                    stored = (
                        cache[table[row, : -(-length // page)].long()].transpose(1, 2).flatten(0, 1)[:length]
                    )
                    errors.append(relative(stored, torch.cat((k[i], v[i]), dim=-1)))

        cross.write = checked
        with (
            mock.patch(
                "plugin.verifier.cross_graphs.MOST_PIECES", 1
            ),  # else nothing here is beyond the graphs
            mock.patch.object(cross, "store", wraps=cross.store) as eagerly,
        ):
            running.run([Job(p, 4, join_at=i // 3, ignore_eos=True) for i, p in enumerate(prompts[:24])])
    assert eagerly.call_count == sum(tokens > SIZES[-1] for tokens in steps)
    assert 0 < eagerly.call_count < len(steps)
    assert len(errors) == 24 * len(cross.layers)
    assert max(errors) < (1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("family", [None, "dflash"])
def test_admission_steps_replay_full_graphs(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    family: str | None,
) -> None:
    """Alone, several at once, and beside running requests, with and without K = 7 drafts."""
    from tests.engine.harness import Job

    asked = prompts[:24]
    jobs = [Job(p, NEW_TOKENS, join_at=5 * (i // 4), ignore_eos=True) for i, p in enumerate(asked)]
    replayed: set[int] = set()
    with gpu_engine(verifier, fitted(family) if family else None, mode="compiled") as running:
        manager = running.runner.cudagraph_manager
        stock = manager.run_fullgraph

        def counting(desc: Any) -> Any:
            replayed.add(len(running.scheduled) - 1)
            return stock(desc)

        manager.run_fullgraph = counting
        answers = [list(answer.tokens) for answer in running.run(jobs)]
        admitting = {i for i, step in enumerate(running.scheduled) if step.scheduled_new_reqs}
        steps = {i for i, step in enumerate(running.scheduled) if step.total_num_scheduled_tokens}
    assert differing(answers, reference, asked) == []
    assert len(admitting) >= 6
    assert admitting <= replayed, f"steps without a graph: {sorted(admitting - replayed)}"
    assert len(replayed) > 0.9 * len(steps)


MOST_LAUNCHES = 16
"""Of the host in a step that admits a request: the encoder's inputs and graph, its states, their places and the graph
that stores them, what the request and the others bring, the batch, the step's inputs, its graph, its tokens' copy, the
draft's."""


@pytest.mark.parametrize("family", [None, "dflash"])
def test_a_step_that_admits_a_short_prompt_is_few_launches(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], family: str | None
) -> None:
    """Beside three running requests; how many it takes does not depend on the model's layers."""
    from tests.engine.harness import Job

    short = [prompt for prompt in prompts if len(prompt) <= 64][:6]
    jobs = [Job(p, NEW_TOKENS, ignore_eos=True) for p in short[:3]]
    jobs += [Job(p, 4, join_at=3 + 3 * i, ignore_eos=True) for i, p in enumerate(short[3:])]
    counts: list[dict[str, int]] = []
    with gpu_engine(verifier, fitted(family) if family else None, mode="graphs") as running:
        runner = running.runner
        execute, sample = runner.execute_model, runner.sample_tokens
        admits = False

        def executing(output: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal admits
            admits = len(output.scheduled_new_reqs) == 1 < len(output.num_scheduled_tokens)
            if not admits:
                return execute(output, *args, **kwargs)
            found, names = launched(lambda: execute(output, *args, **kwargs))
            counts.append(dict(names))
            return found

        def sampling(*args: Any) -> Any:
            if not admits:
                return sample(*args)
            found, names = launched(lambda: sample(*args))
            for name, number in names.items():
                counts[-1][name] = counts[-1].get(name, 0) + number
            return found

        with mock.patch.multiple(runner, execute_model=executing, sample_tokens=sampling):
            running.run(jobs)
    assert len(counts) == 3
    for names in counts[1:]:  # the first may compile
        assert names["cudaGraphLaunch"] == (4 if family else 3), names
        assert sum(names.values()) <= MOST_LAUNCHES, names
