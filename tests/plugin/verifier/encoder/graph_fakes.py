"""vLLM's manager of encoder graphs on the CPU, over an encoder that shows who attends whom.

Capture and replay need a GPU; here a replay runs the captured forward on the buffers as they are then.
"""

from itertools import pairwise
from types import SimpleNamespace

import torch
from vllm.v1.worker.encoder_cudagraph import BudgetGraphMetadata, EncoderCudaGraphManager

from plugin.verifier.encoder.graphs import EncoderGraphs

CPU = torch.device("cpu")


class FakeEncoder:
    """States `[num_tokens, 3]`: the id, its position, and the sum of its prompt's ids, which shows who attends whom."""

    hidden_size = 3
    device = CPU

    def __init__(self):
        self.calls = []

    def __call__(self, ids, positions, cu_seqlens, max_len):
        bounds = cu_seqlens.tolist()
        self.calls.append((len(ids), bounds, max_len))
        assert bounds == sorted(bounds)
        assert bounds[-1] == len(ids)
        assert max_len >= max(b - a for a, b in pairwise(bounds))
        sums = torch.cat([ids[a:b].sum().expand(b - a) for a, b in pairwise(bounds)])
        return torch.stack((ids, positions, sums), dim=1).float()


class FakeModel(EncoderGraphs):
    def __init__(self):
        self.encoder = FakeEncoder()


def captured_manager() -> EncoderCudaGraphManager:
    """vLLM's manager with budgets of 8, 16 and 32 tokens for 4 prompts."""
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            encoder_cudagraph_token_budgets=[8, 16, 32],
            encoder_cudagraph_max_vision_items_per_batch=4,
            encoder_cudagraph_max_frames_per_batch=None,
        ),
        model_config=SimpleNamespace(
            multimodal_config=SimpleNamespace(
                get_limit_per_prompt=lambda modality: 1, mm_encoder_tp_mode="weights"
            )
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    model = FakeModel()
    made = EncoderCudaGraphManager(config, CPU, torch.float32, model)
    made.graph_pool = "a pool"
    for budget in made.token_budgets:
        values = model.prepare_encoder_cudagraph_capture_inputs(
            budget, made.max_batch_size, made.max_frames_per_batch, CPU, torch.float32
        ).values
        model.encoder_cudagraph_forward(values)
        output = torch.zeros(budget, 3)

        def replay(values=values, output=output):
            output.copy_(model.encoder_cudagraph_forward(values))

        made._get_graph_set()[budget] = BudgetGraphMetadata(
            budget,
            made.max_batch_size,
            made.max_frames_per_batch,
            SimpleNamespace(replay=replay),
            values,
            output,
        )
    model.encoder.calls.clear()
    return made


def prompts(*lengths):
    return [torch.arange(1, n + 1) + 100 * i for i, n in enumerate(lengths)]


def states_of(prompt):
    """What the fake encoder says of one prompt."""
    return torch.stack((prompt, torch.arange(len(prompt)), prompt.sum().expand(len(prompt))), dim=1).float()
