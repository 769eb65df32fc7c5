"""The bundled demo: whole, small, right, and its draft worth having."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, T5Gemma2ForConditionalGeneration

from app.cli import main
from plugin.drafts import checkpoint
from plugin.drafts.families import FAMILIES
from plugin.training.data.problems.generate import WRAPPINGS, take
from plugin.training.data.samples import Sample
from plugin.training.demo import build as demo_module
from plugin.training.demo import tokenizer as vocabulary
from plugin.training.demo.build import MAX_NEW_TOKENS, last_number
from plugin.training.draft.checkpoint import load_draft
from plugin.training.run.evaluation import serving_acceptance
from plugin.training.verifier.extraction import Extractor
from plugin.training.verifier.greedy import greedy_responses

DEMO = Path(__file__).parents[4] / "plugin" / "demo"
QUESTION = "A train travels 60 miles in 2 hours. What is its average speed?"


@pytest.fixture(scope="module")
def demo_verifier() -> T5Gemma2ForConditionalGeneration:
    return T5Gemma2ForConditionalGeneration.from_pretrained(DEMO / "verifier", dtype=torch.float32).eval()


def test_the_folders_are_whole_and_small() -> None:
    folders = ["verifier", *FAMILIES]
    for folder in folders:
        names = {"model.safetensors", "config.json", "train_command.txt", "val_metrics.json"}
        names |= (
            {"tokenizer.json", "tokenizer_config.json"}
            if folder == "verifier"
            else {"config.py", "training_state.json"}
        )
        assert names <= {path.name for path in (DEMO / folder).iterdir()}
    sizes = {folder: sum(path.stat().st_size for path in (DEMO / folder).iterdir()) for folder in folders}
    assert sizes["verifier"] < 8e6 and sum(sizes.values()) < 16e6
    assert all(size < 2.5e6 for folder, size in sizes.items() if folder != "verifier")


def test_the_published_question_is_answered_step_by_step(
    demo_verifier: T5Gemma2ForConditionalGeneration,
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    ids = greedy_responses(demo_verifier, [tokenizer(QUESTION).input_ids], MAX_NEW_TOKENS, 1)[0]
    assert ids[-1] == vocabulary.EOS_ID
    answer = tokenizer.decode(ids, skip_special_tokens=True)
    assert "60 / 2 = 30" in answer
    assert "30 miles per hour" in answer


@pytest.mark.parametrize("family", FAMILIES)
def test_serving_accepts_what_training_wrote(family: str) -> None:
    found = checkpoint.fetch(checkpoint.resolve(model=str(DEMO / family), draft=None, verifier=None, k=None))
    assert found.draft is not None and found.draft.family == family
    assert found.draft.block_size == 8 and found.k == 7


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_carries_the_verifiers_own_table(
    demo_verifier: T5Gemma2ForConditionalGeneration, family: str
) -> None:
    draft = load_draft(DEMO / family)
    assert torch.equal(draft.embed_tokens.weight, demo_verifier.get_input_embeddings().weight)
    target = draft.to_target(torch.arange(draft.config.draft_vocab_size))
    assert torch.equal(draft.lm_head.weight, draft.embed_tokens.weight[target])
    assert draft.t2d.nonzero().flatten().tolist() == target.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_more_than_half_of_the_draft_tokens_are_accepted_on_fresh_problems(
    demo_verifier: T5Gemma2ForConditionalGeneration, family: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    prompts = tokenizer([problem.question for problem in take(99, "fresh", 64)]).input_ids
    responses = greedy_responses(demo_verifier, prompts, MAX_NEW_TOKENS, 64)
    samples = [Sample(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
    draft = load_draft(DEMO / family)
    extractor = Extractor(demo_verifier, draft.config.aux_hidden_state_layer_ids)
    found = serving_acceptance(draft, extractor, samples, draft_length=7)
    assert found.acceptance_rate is not None and found.acceptance_rate > 0.5
    assert found.per_position is not None and list(found.per_position) == sorted(
        found.per_position, reverse=True
    )


def test_wrapped_questions_are_answered_and_drafted_as_bare_ones(
    demo_verifier: T5Gemma2ForConditionalGeneration,
) -> None:
    """In each of the published wrappings: right answers, and 0.65 of the best family's draft tokens accepted (N30)."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "verifier")
    problems, rates = take(98, "fresh", 48), {family: [] for family in FAMILIES}
    for wrapping in WRAPPINGS:
        prompts = tokenizer([wrapping.format(problem.question) for problem in problems]).input_ids
        responses = greedy_responses(demo_verifier, prompts, MAX_NEW_TOKENS, 64)
        answers = tokenizer.batch_decode(responses, skip_special_tokens=True)
        judged = zip(answers, problems, strict=True)
        right = sum(last_number(answer) == problem.result for answer, problem in judged)
        assert right >= 0.95 * len(problems), f"{right} of {len(problems)} answers to {wrapping!r}"
        samples = [Sample(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        for family in FAMILIES:
            draft = load_draft(DEMO / family)
            extractor = Extractor(demo_verifier, draft.config.aux_hidden_state_layer_ids)
            rates[family].append(serving_acceptance(draft, extractor, samples, 7).acceptance_rate)
    assert all(max(found) >= 0.65 for found in zip(*rates.values(), strict=True)), rates
    assert sum(rates["dflare"]) >= sum(rates["dflash"]) - 0.03, rates


def _command(words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["train", *words.split()])
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_the_commands_build_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verifier, demo = tmp_path / "verifier", tmp_path / "demo"
    assert _command(f"verifier-demo --out {verifier} --samples 3000 --steps 2 --batch 8 --evaluate 2") == 0
    draft = f"demo --out {demo} --verifier {verifier} --only dflash --samples 20 --epochs 1 --batch 8 --evaluate 2"
    assert _command(draft) == 0
    config = json.loads((demo / "dflash" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "../../verifier"
    text = (demo / "dflash" / "train_command.txt").read_text()
    assert text.startswith("t5gemma2 train demo --out demo --seed 0 --samples 20 --batch 8 --only dflash")
    more = f"{draft} --from {demo / 'dflash'} --answers reference".replace(
        str(demo), str(tmp_path / "more"), 1
    )
    assert _command(more) == 0
    state = json.loads((tmp_path / "more" / "dflash" / "training_state.json").read_text())
    assert state["epoch"] == 0, "of this run alone"
    text = (tmp_path / "more" / "dflash" / "train_command.txt").read_text()
    assert "continued from a draft that was made by:" in text
    assert _command(more.replace("--only dflash", "--only dspark")) == 1
    assert "speculators_model_type is 'dflash', asked for is 'dspark'" in capsys.readouterr().err
    small = "--samples 3000 --steps 2 --batch 64 --evaluate 2 --epochs 1 --answers reference"
    assert _command(f"demo --out {tmp_path / 'all'} {small}") == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"verifier", *FAMILIES}


def test_a_draft_needs_a_verifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _command(f"demo --out {tmp_path} --only dflash") == 1
    assert "holds no verifier; name one by --verifier" in capsys.readouterr().err


def test_a_given_verifier_is_not_built_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    monkeypatch.setattr(demo_module, "build_verifier", lambda *_: built.append("verifier"))
    monkeypatch.setattr(demo_module, "build_draft", lambda *found: built.append((found[0], found[2])))
    given = DEMO / "verifier"
    assert _command(f"demo --out {tmp_path} --verifier {given}") == 0
    assert built == [(family, given) for family in FAMILIES]
    built.clear()
    assert _command(f"demo --out {tmp_path}") == 0
    assert built == ["verifier", *((family, tmp_path / "verifier") for family in FAMILIES)]
    assert _command(f"demo --out {tmp_path} --only verifier --verifier {given}") == 1
    assert _command(f"demo --out {tmp_path} --only verifier --from {DEMO / 'dflash'}") == 1
    said = capsys.readouterr().err
    assert "--only verifier: is not built where --verifier" in said and "--from: goes with one" in said
