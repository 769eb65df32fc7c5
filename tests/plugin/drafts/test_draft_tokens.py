"""The runner's draft tokens: a batch that is written is not written again, everything else is a tensor's."""

import inspect

import pytest
import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from plugin.drafts.draft_tokens import DraftTokens

REQUESTS, K = 5, 3


@pytest.fixture
def tokens():
    return torch.arange(REQUESTS * K).view(REQUESTS, K).as_subclass(DraftTokens)


@pytest.fixture
def batch():
    return torch.tensor([3, 0])


def test_a_written_batch_is_not_written_again(tokens, batch):
    tokens.written = batch
    tokens[batch] = torch.full((2, 2), 9)
    assert tokens.tolist() == torch.arange(REQUESTS * K).view(REQUESTS, K).tolist()


@pytest.mark.parametrize("written", ["no batch", "another batch", "not any more"])
def test_every_other_batch_is(tokens, batch, written):
    if written != "no batch":
        tokens.written = batch.clone() if written == "another batch" else batch
    if written == "not any more":
        tokens.written = None
    tokens[batch] = torch.tensor([[7, 8, 9], [4, 5, 6]])
    assert tokens[batch, :2].tolist() == [[7, 8], [4, 5]]
    assert tokens[3].tolist() == [7, 8, 9]


def test_other_keys_than_a_written_batch_are_a_tensors(tokens, batch):
    tokens.written = batch
    tokens[3].zero_()  # as where a request is added
    tokens[None] += 1
    assert tokens[batch, :2].tolist() == [[1, 1], [1, 2]]


def test_it_is_the_same_memory_and_what_is_computed_of_it_is_plain():
    plain = torch.zeros(2, 2)
    over = plain.as_subclass(DraftTokens)
    assert over.data_ptr() == plain.data_ptr()
    assert type(over + 1) is type(over[0]) is torch.Tensor


def test_vllms_runner_scatters_by_the_batchs_own_tensor():
    """Where it no longer does, the class saves nothing and may go."""
    source = inspect.getsource(inspect.unwrap(GPUModelRunner.sample_tokens))
    assert "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens" in source
