"""A verifier's configs as transformers and vLLM read them: what these refuse is said in one line with the file."""

from __future__ import annotations

from typing import Any

from plugin.drafts.checkpoint import CheckpointError, VerifierFacts


def check_config(verifier: VerifierFacts) -> None:
    """Ask transformers, which checks the type of every field, the vision tower's too, and refuses in several lines.

    Raises:
        CheckpointError: transformers cannot read the verifier's config; its own words, in one line.
    """
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(verifier.path)
    except Exception as error:  # whatever a wrong type ends in
        words = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{verifier.config_file}: transformers cannot read it: {words}") from None


def check_generation_config(model_config: Any, verifier: VerifierFacts) -> None:
    """Its values are what requests get that leave the fields out.

    Raises:
        CheckpointError: vLLM would refuse each of these requests.
    """
    from vllm.sampling_params import SamplingParams

    try:
        SamplingParams.from_optional(**model_config.get_diff_sampling_param())
    except Exception as error:  # vLLM's own kinds, and whatever a wrong type ends in
        words = next(iter(str(error).splitlines()), "")[:300]
        raise CheckpointError(f"{verifier.path}/generation_config.json: cannot be used: {words}") from None
