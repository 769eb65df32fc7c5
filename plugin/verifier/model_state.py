"""The V2 runner's per-model state: encoder and cross K/V are done before the decoder runs, so that the decoder's
step is the same for fresh and running requests.

vLLM's own encoder-decoder state hands the encoder's outputs to the decoder, which then has to run eagerly in every step
that admits a request. Here the outputs go straight into the cross pages of all layers; the decoder sees them only
through its pages and may replay its graphs.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed.parallel_state import graph_capture
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import CrossAttentionSpec
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.model_states.encoder_decoder import EncoderDecoderModelState

from plugin.verifier.cross_kv import CrossKV
from plugin.verifier.encoder.cache import keeps_states
from plugin.verifier.encoder.capture import pass_graph_sizes
from plugin.verifier.encoder.pass_graphs import PassGraphs
from plugin.verifier.encoder.prompt_graphs import PromptGraphs
from plugin.verifier.encoder.states import EncoderStates, Pass
from plugin.verifier.processing import MODALITY


class T5Gemma2ModelState(EncoderDecoderModelState):
    """Chosen by `T5Gemma2ForConditionalGeneration.get_model_state_cls`.

    vLLM's own finds every request's encoder length anew in every step, in a Python loop and a new pinned buffer. It
    never changes: here it is kept by request slot, written when the request is added, gathered on the device.
    """

    cross_kv_before_decoder = True
    """Read by `plugin.vllm_hooks.v2.runner`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cross_kv = CrossKV(self.model.model)
        self.encoder_states = EncoderStates(
            self.encoder_cache.encoder_outputs,
            self._encode,
            self._begin,
            keeps_states(self.vllm_config),
        )
        self._pass_graphs: PassGraphs | None = None
        self._prompt_graphs: PromptGraphs | None = None
        self._begun: dict[str, torch.Tensor] = {}
        """States of the prompts that the step under way admits, by request."""
        self.encoder_lens = UvaBackedTensor(self.max_num_reqs, dtype=torch.int32)
        self.batch: Any = None
        """The batch that is about to run, be it a dummy: read by `plugin.vllm_hooks.v2.graph_sampling`."""
        self._batch: Any = None
        """The one that attention was last prepared for; another than `batch` only while graphs are captured."""
        self.gathered: torch.Tensor | None = None
        """The slots whose encoder lengths stand in the buffer on the device, by whoever wrote them there
        (`plugin.vllm_hooks.v2.decode_batch`)."""
        speculative = self.vllm_config.speculative_config
        self._graphs_need_metadata = speculative is not None and speculative.method != "dflash"
        self._block_tables: tuple[torch.Tensor, ...] = ()
        self._cross_group = 0

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        super().initialize_kv_cache(kv_cache_config, block_tables)
        groups = [
            i
            for i, group in enumerate(kv_cache_config.kv_cache_groups)
            if self.cross_kv.layers[0].attn.cross_name in group.layer_names
        ]
        self._cross_group = groups[0]
        missing = {layer.attn.cross_name for layer in self.cross_kv.layers}.difference(
            kv_cache_config.kv_cache_groups[self._cross_group].layer_names
        )
        if missing:
            raise RuntimeError(f"the cross caches are in more than one group: {sorted(missing)[:3]}")
        self.cross_kv.bind()
        with torch.inference_mode():  # no request waits for Triton; a token of row -1 is stored nowhere
            table = block_tables.input_block_tables[self._cross_group]
            self.cross_kv.write(
                [self.cross_kv.weight.new_zeros(1, self.cross_kv.weight.shape[1])], [-1], table
            )

    def capture_inner_cudagraphs(
        self, input_buffers: Any, block_tables: Any, attn_groups: Any, kv_cache_config: Any
    ) -> None:
        """And the way from states to cross pages, at the encoder's sizes, and the encoder's passes in parts. No two of
        them run at once, and none leaves anything behind in the memory that they share."""
        super().capture_inner_cudagraphs(input_buffers, block_tables, attn_groups, kv_cache_config)
        self._pass_graphs = None  # of the run that measured the memory
        manager = self._encoder_graphs()
        if manager is None:
            return
        pool = current_platform.graph_pool_handle()
        with graph_capture(device=self.device):
            self.cross_kv.capture(
                manager.token_budgets, block_tables.input_block_tables[self._cross_group], pool
            )
            sizes = pass_graph_sizes(self.vllm_config)
            if sizes.whole:
                made = PassGraphs(self.model.encoder, sizes, self.dtype)
                made.capture(pool)
                self._pass_graphs = made
            torch.accelerator.synchronize()

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        self.encoder_lens.np[req_index] = sum(
            feature.mm_position.get_num_embeds() for feature in new_req_data.mm_features
        )
        self.gathered = None

    def apply_staged_writes(self) -> None:
        super().apply_staged_writes()
        self.encoder_lens.copy_to_uva()

    def prepare_attn(
        self,
        input_batch: Any,
        cudagraph_mode: Any,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
        ubatch_idx: int = 0,
    ) -> dict[str, Any]:
        """vLLM's metadata by layer. A step that replays a graph needs none: the graph reads buffers, and of vLLM's
        speculators only those read the step's metadata that draft along the verifier's tokens."""
        self._batch, self._block_tables = input_batch, block_tables
        if cudagraph_mode == CUDAGraphMode.FULL and not for_capture and not self._graphs_need_metadata:
            self._gather_encoder_lens()
            return {}
        if input_batch.max_query_len is not None:
            # A graph that must serve longer queries than it is captured with; vLLM's own state would capture it for
            # the dummy batch's.
            longest = np.array([input_batch.max_query_len], dtype=np.int32)
            input_batch = replace(input_batch, num_scheduled_tokens=longest)
        return super().prepare_attn(
            input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups, kv_cache_config, for_capture,
            ubatch_idx,
        )  # fmt: skip

    def _get_encoder_seq_lens(
        self, req_ids: list[str], attn_groups: Any, for_capture: bool, num_reqs: int
    ) -> dict[int, tuple[torch.Tensor, np.ndarray]]:
        """Encoder lengths of the batch, `[num_reqs]` on the device (always in the same buffer) and on the host."""
        on_host = np.zeros(num_reqs, dtype=np.int32)
        if for_capture:
            on_host[:] = self.max_encoder_len
            self.gathered = None
            self.encoder_seq_lens_gpu.fill_(self.max_encoder_len)
        elif req_ids[0] in self.encoder_cache.mm_features:
            on_host[: self._batch.num_reqs] = self.encoder_lens.np[self._batch.idx_mapping_np]
            self._gather_encoder_lens()
        else:  # a dummy batch, whose slots belong to others
            self.gathered = None
            self.encoder_seq_lens_gpu.zero_()
        on_device = self.encoder_seq_lens_gpu[:num_reqs]
        return {
            i: (on_device, on_host)
            for i, groups in enumerate(attn_groups)
            if any(isinstance(group.kv_cache_spec, CrossAttentionSpec) for group in groups)
        }

    def _gather_encoder_lens(self) -> None:
        """Put the batch's encoder lengths into the buffer, zeros behind them, unless they stand there from the step
        before: the slots of an unchanged batch are the same tensor (`plugin.vllm_hooks.v2.batches`)."""
        slots = self._batch.idx_mapping
        if slots is self.gathered:
            return
        self.gathered = slots
        num_reqs = slots.shape[0]
        torch.index_select(self.encoder_lens.gpu, 0, slots, out=self.encoder_seq_lens_gpu[:num_reqs])
        self.encoder_seq_lens_gpu[num_reqs:].zero_()

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        self.batch = input_batch
        inputs: dict[str, Any] = super().prepare_inputs(input_batch, req_states)
        return inputs

    def begin_prompts(self, new_requests: Sequence[Any], scheduled_encoder_inputs: Any) -> None:
        """Run the encoder over the admitted prompts whose states are not there yet. It reads nothing but ids: called
        before all else in the step, the GPU computes while the host prepares the rest.

        Args:
            new_requests: vLLM's `NewRequestData`.
            scheduled_encoder_inputs: the scheduler's, by request.
        """
        self._begun = {}
        if scheduled_encoder_inputs:
            admitted = [each for each in new_requests if scheduled_encoder_inputs.get(each.req_id)]
            prompts = [(f.identifier, f.data[MODALITY].data) for f in (r.mm_features[0] for r in admitted)]
            with self.encoder_runner.timed_encoder_operation(scheduled_encoder_inputs.keys()):
                states = self.encoder_states.of(prompts)
            self._begun = {each.req_id: own for each, own in zip(admitted, states, strict=True)}

    def prepare_inputs_embeds(
        self, scheduled_encoder_inputs: dict[str, list[int]], input_batch: Any, req_states: Any
    ) -> None:
        """Store the cross K/V of the prompts that were begun.

        vLLM calls this after `prepare_attn` of the same step, which has the block tables.

        Raises:
            RuntimeError: a prompt was not begun.
        """
        begun, self._begun = self._begun, {}
        if not scheduled_encoder_inputs:
            return
        if begun.keys() != scheduled_encoder_inputs.keys():
            raise RuntimeError(
                f"prompts of {list(begun)} are encoded, not of {list(scheduled_encoder_inputs)}"
            )
        rows = {name: row for row, name in enumerate(input_batch.req_ids) if name in begun}
        self.cross_kv.write(
            list(begun.values()), [rows[name] for name in begun], self._block_tables[self._cross_group]
        )

    def _encoder_graphs(self) -> Any:
        """vLLM's manager of the captured encoder; None where it is not captured."""
        manager = self.encoder_runner.cudagraph_manager
        return manager if manager is not None and manager.is_captured() else None

    def _encode(self, prompts: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Encoder states `[length, hidden_size]` of each prompt, through the captured graphs where there are any; those
        may be gone with the next call.

        vLLM's runner would first send each prompt's ids to the device on its own.
        """
        manager = self._encoder_graphs()
        if manager is None:
            return list(self.model.embed_multimodal(**{MODALITY: prompts}))
        if self._prompt_graphs is None:
            self._prompt_graphs = PromptGraphs(manager)
        states = self._prompt_graphs.run(prompts)
        if states is None:
            return list(manager.execute({MODALITY: prompts}))
        return states.split([len(prompt) for prompt in prompts])

    def _begin(self, prompt: torch.Tensor) -> Pass:
        """A pass over one prompt's token ids, `[length]`: captured, if there is a size that holds it."""
        if self._pass_graphs is not None and (captured := self._pass_graphs.begin(prompt)):
            return captured
        return self.model.begin_encoder_pass(prompt)
