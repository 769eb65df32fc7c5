"""A request's own sampling parameters are what vLLM's deep copy is, and nothing in them is another's."""

import copy
from inspect import unwrap

import numpy as np
import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from plugin.vllm_hooks import front_end

GIVEN = {
    "nothing": {},
    "greedy": {"temperature": 0, "max_tokens": 1, "output_kind": RequestOutputKind.FINAL_ONLY},
    "lists": {"stop": ["a", "b"], "stop_token_ids": [3, 4], "bad_words": ["c"], "allowed_token_ids": [5]},
    "nested": {
        "logit_bias": {3: 1.5}, "extra_args": {"a": {"b": [1, {"c": 2}]}}, "logprobs": 2, "seed": 7,
        "structured_outputs": StructuredOutputsParams(json={"type": "object", "properties": {}}),
        "repetition_detection": RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=2, min_count=3),
    },
    "an array": {"prompt_logprob_token_ids": np.arange(6).reshape(3, 2)},
}  # fmt: skip


@pytest.fixture(autouse=True)
def hooked():
    front_end.sampling_parameters_by_what_can_change()


def changeable(value, found):
    """What can be changed in a value, by its place."""
    if isinstance(value, dict | list | set | np.ndarray) or hasattr(value, "__dataclass_fields__"):
        found.append(value)
    if isinstance(value, dict):
        for each in value.values():
            changeable(each, found)
    elif isinstance(value, list):
        for each in value:
            changeable(each, found)
    elif hasattr(value, "__dataclass_fields__"):
        for each in vars(value).values():
            changeable(each, found)
    return found


@pytest.mark.parametrize("name", GIVEN)
def test_a_copy_equals_vllms_and_shares_nothing_that_can_be_changed(name):
    given = SamplingParams(**GIVEN[name])
    given._all_stop_token_ids.add(9)
    assert given.sampling_type is not None  # kept, once it was asked for
    ours, vllms = given.clone(), unwrap(SamplingParams.clone)(given)
    assert type(ours) is type(vllms)
    assert vars(ours) == vars(vllms) == {}
    mine, original = [], []
    for field in SamplingParams.__struct_fields__:
        one, other, source = (getattr(each, field) for each in (ours, vllms, given))
        assert type(one) is type(other), field
        assert np.array_equal(one, other) if isinstance(other, np.ndarray) else one == other, field
        changeable(one, mine)
        changeable(source, original)
    assert len(mine) == len(original)
    assert not {id(each) for each in mine} & {id(each) for each in original}


def test_what_was_shared_within_is_shared_within_the_copy():
    shared = [1, 2]
    given = SamplingParams(extra_args={"a": shared, "b": shared})
    made = given.clone().extra_args
    assert made["a"] is made["b"] is not shared


def test_a_copy_checks_itself_as_vllms_does():
    """Parameters that were changed since they were made."""
    for name, value in (("max_tokens", 0), ("top_p", 7.0), ("n", 3)):
        given = SamplingParams(temperature=0.5 if name != "n" else 0)
        setattr(given, name, value)
        with pytest.raises(VLLMValidationError) as vllms:
            copy.deepcopy(given)
        with pytest.raises(VLLMValidationError) as ours:
            given.clone()
        assert str(ours.value) == str(vllms.value)
    given = SamplingParams(temperature=0.5, top_p=0.5)
    given.temperature = 0.0
    assert given.clone().top_p == copy.deepcopy(given).top_p == 1.0


def test_where_no_copy_is_wanted_vllms_shallow_one_is_made():
    given = SamplingParams(stop=["a"], skip_clone=True)
    assert given.clone().stop is given.stop


def test_control_a_shallow_copy_would_be_seen():
    given = SamplingParams(**GIVEN["lists"])
    given.skip_clone = True
    assert {id(each) for each in changeable(given.clone().stop, [])} & {id(given.stop)}
