"""In bfloat16 we are as near to float32 as transformers' own bfloat16 is.

Which token comes first at a near tie is not ours to say: on a random model transformers' own bfloat16 differs from
float32 in nearly every answer, as ours does. What can be asked is the error of the log probabilities, and that the
demo, whose answers are clear, gives them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from plugin.drafts.families import FAMILIES
from tests.gpu.answers import Prompts, ids, in_batches
from tests.gpu.conftest import BATCHES, Mode, gpu_engine
from tests.reference.greedy import GreedyReference

pytestmark = pytest.mark.gpu

OF_TRANSFORMERS = 1.1
"""Our mean error over that of transformers in bfloat16; measured were 0.97 (tiny) and 0.42 (demo)."""
QUESTIONS = 30
SEED = 991


@pytest.fixture(scope="module")
def half(verifier: Path) -> Any:
    """transformers' own model in bfloat16, on the GPU."""
    import torch
    from transformers import T5Gemma2ForConditionalGeneration

    return T5Gemma2ForConditionalGeneration.from_pretrained(verifier, dtype=torch.bfloat16).cuda().eval()


def errors(
    half: Any, reference: GreedyReference, prompts: Prompts, answers: Sequence[Any]
) -> tuple[float, float]:
    """Mean |log probability - float32| of the answers' own tokens, ours and transformers' in bfloat16."""
    import torch

    start = int(half.config.decoder.bos_token_id)
    ours, theirs = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = list(answer.tokens)
        exact = reference.logprobs(prompt, tokens[:-1])
        with torch.inference_mode():
            logits = half(
                input_ids=torch.tensor([prompt], device="cuda"),
                decoder_input_ids=torch.tensor([[start, *tokens[:-1]]], device="cuda"),
            ).logits[0]
        rough = logits.float().cpu().log_softmax(-1)
        for step, token in enumerate(tokens):
            ours.append(abs(answer.logprobs[step][token].logprob - float(exact[step, token])))
            theirs.append(abs(float(rough[step, token] - exact[step, token])))
    return statistics.mean(ours), statistics.mean(theirs)


@pytest.mark.parametrize(
    ("family", "mode"),
    [(None, "eager"), *((family, "graphs") for family in (None, *FAMILIES)), ("dflash", "eager")],
)
def test_error_is_not_above_transformers_own(
    verifier: Path,
    reference: GreedyReference,
    prompts: Prompts,
    fitted: Callable[[str], Path],
    half: Any,
    family: str | None,
    mode: Mode,
) -> None:
    """Teacher forced along our answers, in batches of 1 to 32 (B01)."""
    asked = prompts[: sum(BATCHES)]
    with gpu_engine(verifier, fitted(family) if family else None, dtype="bfloat16", mode=mode) as running:
        answers = in_batches(running, asked, logprobs=0)
    ours, theirs = errors(half, reference, asked, answers)
    print(f"bfloat16 {family or 'raw'} {mode}: error {ours:.4f}, transformers' {theirs:.4f}")
    assert ours <= OF_TRANSFORMERS * theirs


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_the_demo_answers_as_in_float32(family: str | None) -> None:
    """The bundled checkpoints, as served: bfloat16 and graphs."""
    from transformers import AutoTokenizer

    import plugin
    from plugin.training.data.problems.generate import generate
    from tests.engine.harness import Job

    demo = Path(plugin.__file__).parent / "demo"
    tokenizer = AutoTokenizer.from_pretrained(demo / "verifier")
    prompts = [tuple(tokenizer(p.question).input_ids) for p in islice(generate(SEED, "fresh"), QUESTIONS)]
    draft = demo / family if family else None
    with gpu_engine(demo / "verifier", draft, dtype="bfloat16", mode="graphs") as running:
        got = [answer.tokens for answer in running.run([Job(prompt, 128) for prompt in prompts])]
    reference = GreedyReference(demo / "verifier")
    assert got == [reference.answer(prompt, 128).tokens for prompt in prompts]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_draft_weights_of_another_type(
    verifier: Path, prompts: Prompts, fitted: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    """A draft stored in another type is cast to the bfloat16 verifier's; acceptance within 0.02 (B32)."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    def acceptance(draft: Path) -> float:
        with gpu_engine(verifier, draft, dtype="bfloat16") as running:
            ids(running, prompts[: sum(BATCHES)])
            return float(running.counters.acceptance)

    draft = fitted("dflash")
    cast = shutil.copytree(draft, tmp_path / dtype)
    tensors = load_file(draft / "model.safetensors")
    wanted = getattr(torch, dtype)
    save_file(
        {name: t.to(wanted) if t.is_floating_point() else t for name, t in tensors.items()},
        cast / "model.safetensors",
    )
    assert acceptance(cast) == pytest.approx(acceptance(draft), abs=0.02)
