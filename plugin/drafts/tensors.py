"""The tensors that a draft's weights must hold, and the check of a file's header against them.

The list follows the published Speculators layout; names carry no `model.` prefix.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plugin.drafts.facts import CheckpointError, DraftFacts
from plugin.drafts.safetensors_header import Tensor, read_tensors

Shape = tuple[int, ...]

_FLOATS = ("BF16", "F16", "F32")
_TEACHER_ONLY = ("verifier_lm_head.weight", "verifier_norm.weight")


def expected_tensors(facts: DraftFacts) -> dict[str, Shape]:
    """Name -> shape of every tensor that serving needs, without embedding, head and vocabulary maps."""
    hidden, head, aux = facts.hidden_size, facts.head_dim, len(facts.aux_layer_ids)
    q, kv, mlp = facts.num_attention_heads * head, facts.num_key_value_heads * head, facts.intermediate_size
    shapes: dict[str, Shape] = {"norm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    for i in range(facts.num_layers):
        layer = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, q),
            "self_attn.q_norm.weight": (head,),
            "self_attn.k_norm.weight": (head,),
            "mlp.gate_proj.weight": (mlp, hidden),
            "mlp.up_proj.weight": (mlp, hidden),
            "mlp.down_proj.weight": (hidden, mlp),
        }
        if facts.family == "dflare":
            target = (kv, facts.target_hidden_size)
            layer |= {"self_attn.k_proj_target.weight": target, "self_attn.v_proj_target.weight": target}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    if facts.family == "dflare":
        shapes["layer_fusion_weights"] = (facts.num_layers, aux)
    else:
        shapes["fc.weight"] = (hidden, aux * facts.target_hidden_size)
    return shapes | _dspark_heads(facts)


def _dspark_heads(facts: DraftFacts) -> dict[str, Shape]:
    if facts.markov_rank is None:
        return {}
    hidden, rank = facts.hidden_size, facts.markov_rank
    shapes: dict[str, Shape] = {
        "markov_head.markov_w1.weight": (facts.vocab_size, rank),
        "markov_head.markov_w2.weight": (facts.draft_vocab_size, rank),
    }
    if facts.markov_head_type == "gated":
        shapes |= {
            "markov_head.gate_proj.weight": (rank, hidden + rank),
            "markov_head.gate_proj.bias": (rank,),
        }
    if facts.markov_head_type == "rnn":
        width = 2 * rank + hidden
        shapes |= {
            "markov_head.joint_proj.weight": (3 * rank, width),
            "markov_head.joint_proj.bias": (3 * rank,),
        }
    if facts.confidence_head:
        width = hidden + (rank if facts.confidence_head_with_markov else 0)
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def check_draft(facts: DraftFacts, folder: Path) -> DraftFacts:
    """Check local weights against the config by their header; returns the facts with `has_own_*` as found.

    Raises CheckpointError naming the tensors that are absent, unexpected or of another shape or dtype, or the
    index and value in `d2t` (offsets: target id = i + d2t[i]) or `t2d` that cannot be.
    """
    tensors = read_tensors(folder)
    where = str(next(iter(tensors.values())).file) if tensors else str(folder)
    required = expected_tensors(facts)
    optional: dict[str, Shape] = {"embed_tokens.weight": (facts.vocab_size, facts.hidden_size)}
    own: dict[str, Shape] = {
        "lm_head.weight": (facts.draft_vocab_size, facts.hidden_size),
        "d2t": (facts.draft_vocab_size,),
        "t2d": (facts.vocab_size,),
    }
    (required if facts.draft_vocab_size < facts.vocab_size else optional).update(own)
    known = required | optional
    reason = f"of a {facts.architecture} with this config.json"
    if absent := [name for name in required if name not in tensors]:
        raise CheckpointError(f"{where}: lacks tensors {reason}: {_some(absent)}")
    if unexpected := [name for name in tensors if name not in known and name not in _TEACHER_ONLY]:
        raise CheckpointError(f"{where}: holds tensors that are not {reason}: {_some(unexpected)}")
    for name, shape in known.items():
        if name in tensors:
            _check_tensor(name, tensors[name], shape)
    if "d2t" in tensors:
        _check_vocabulary_map(facts, tensors)
    return replace(
        facts, has_own_head="lm_head.weight" in tensors, has_own_embedding="embed_tokens.weight" in tensors
    )


def never_zero(name: str) -> bool:
    """Whether a tensor of zeros cannot come from training: biases, heads and shares of the taps may start as zeros."""
    return not name.endswith(".bias") and not name.startswith(
        ("layer_fusion_weights", "markov_head.", "confidence_head.")
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _check_tensor(name: str, tensor: Tensor, shape: Shape) -> None:
    dtypes = {"d2t": ("I64", "I32"), "t2d": ("BOOL",)}.get(name, _FLOATS)
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.file}: {name} has shape {list(tensor.shape)}; config.json says {list(shape)}"
        )
    if tensor.dtype not in dtypes:
        raise CheckpointError(
            f"{tensor.file}: {name} has dtype {tensor.dtype}; must be {' or '.join(dtypes)}"
        )


def _check_vocabulary_map(facts: DraftFacts, tensors: dict[str, Tensor]) -> None:
    d2t, size = tensors["d2t"], facts.draft_vocab_size
    draft_ids = np.arange(size)
    targets = draft_ids + d2t.read()

    def refuse_first(bad: npt.NDArray[np.bool_], rule: str) -> None:
        for i in np.flatnonzero(bad)[:1]:
            raise CheckpointError(
                f"{d2t.file}: d2t[{i}] is {targets[i] - i}, which maps draft token {i} to target id {targets[i]};"
                f" {rule}"
            )

    refuse_first((targets < 0) | (targets >= facts.vocab_size), f"must be 0 ... {facts.vocab_size - 1}")
    if size == facts.vocab_size:
        refuse_first(targets != draft_ids, "must be itself, since draft_vocab_size is the whole vocabulary")
    if "t2d" not in tensors:
        return
    t2d = tensors["t2d"].read()
    if (count := int(t2d.sum())) != size:
        raise CheckpointError(
            f"{d2t.file}: t2d has {count} true entries; config.json's draft_vocab_size is {size}"
        )
    refuse_first(~t2d[targets], "d2t and t2d contradict")
    refuse_first(np.bincount(targets)[targets] > 1, "another draft token has it, too")
