"""A step's tokens in one tensor: views that kernels take for tensors of their own, and copies that are used again."""

from types import SimpleNamespace

import pytest
import torch

from plugin.vllm_hooks.v2.step_tokens import HostCopy, StepTokens


@pytest.mark.parametrize("num_requests", [1, 2, 3, 4, 5, 32, 255])
@pytest.mark.parametrize("width", [1, 2, 8])
def test_views_are_all_of_one_tensor_each_its_own_part_and_aligned_as_new_tensors_are(num_requests, width):
    tokens = StepTokens.allocate(num_requests, width)
    sampled, num_sampled, num_rejected = tokens.of(num_requests)
    assert (sampled.dtype, num_sampled.dtype, num_rejected.dtype) == (torch.int64, torch.int32, torch.int32)
    assert sampled.shape == (num_requests, width)
    assert num_sampled.shape == num_rejected.shape == (num_requests,)
    begin = tokens.packed.data_ptr()
    for view in (tokens.sampled, tokens.num_sampled, tokens.num_rejected):
        assert (view.data_ptr() - begin) % 16 == 0
    tokens.sampled.fill_(-5)
    tokens.num_sampled.fill_(3)
    tokens.num_rejected.fill_(7)
    assert (sampled == -5).all() and (num_sampled == 3).all() and (num_rejected == 7).all()
    other = StepTokens.allocate(num_requests, width)
    other.packed.copy_(tokens.packed)
    assert torch.equal(other.sampled, tokens.sampled) and torch.equal(other.num_rejected, tokens.num_rejected)


def test_a_copy_is_read_behind_its_event_row_by_row_and_taken_anew(monkeypatch):
    told = []

    class Event:
        def __init__(self, blocking):
            assert blocking

        def record(self, stream):
            told.append(stream)

        def synchronize(self):
            told.append("waited")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    tokens, copy = StepTokens.allocate(3, 4), HostCopy(3, 4)
    for step in range(2):
        tokens.sampled[:3] = torch.arange(12).view(3, 4) + 100 * step
        tokens.num_sampled[:3] = torch.tensor([1, 4, 2], dtype=torch.int32)
        copy.begin(tokens, f"stream {step}")
        tokens.packed.fill_(-1)  # the next step's
        at = 100 * step
        assert copy.read(3) == [[at], [at + 4, at + 5, at + 6, at + 7], [at + 8, at + 9]]
        assert copy.read(1) == [[at]]
    assert told == ["stream 0", "waited", "waited", "stream 1", "waited", "waited"]


@pytest.mark.gpu
def test_gpu_a_copy_holds_its_step_though_the_next_one_writes_at_once():
    """The next step's writes are given to the stream before the host has read; the copy began first."""
    tokens = StepTokens.allocate(200, 8, device="cuda")
    stream, copies = torch.cuda.current_stream(), [HostCopy(200, 8) for _ in range(3)]
    busy = torch.randn(4096, 4096, device="cuda")
    for turn in range(20):
        for i, copy in enumerate(copies):
            for _ in range(3):
                busy = torch.tanh(busy @ busy)  # the copy has to wait for it
            tokens.sampled.fill_(10 * turn + i)
            tokens.num_sampled.fill_(1 + i)
            copy.begin(tokens, stream)
        tokens.packed.fill_(-1)
        for i, copy in enumerate(copies):
            assert copy.read(200) == [[10 * turn + i] * (1 + i)] * 200


def test_control_a_step_without_an_event_of_its_own_would_be_seen(monkeypatch):
    """What the event stands for: read before the copy, the tokens are those of a step before."""
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: SimpleNamespace(synchronize=lambda: None))
    assert HostCopy(2, 2).read(2) == [[], []]
