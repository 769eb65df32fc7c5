"""The tensors that a verifier's weights must hold, and the check of a folder's headers against its config.

Names are transformers'; the encoder's may have the level `text_model`. vLLM's own loader would refuse another shape
without naming tensor or key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plugin.drafts.facts import CheckpointError
from plugin.drafts.fields import Fields
from plugin.drafts.safetensors_header import Tensor

_WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
_NORMS = ("pre_self_attn", "post_self_attn", "pre_feedforward", "post_feedforward")


def check_layers(config: Fields, folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check the layers of both stacks, where the config says their widths.

    Raises:
        CheckpointError: a tensor that is absent, of another shape, or of a layer that the config does not have.
    """
    encoder = config.object("encoder")
    stacks = {
        "model.decoder.": config.object("decoder"),
        "model.encoder.": encoder.object("text_config") if "text_config" in encoder else encoder,
    }
    held = {name.replace("model.encoder.text_model.", "model.encoder."): one for name, one in tensors.items()}
    for prefix, stack in stacks.items():
        if any(stack.values.get(key) is None for key in _WIDTHS):
            continue
        shapes = {prefix + name: shape for name, shape in _shapes(stack).items()}
        for name, shape in shapes.items():
            if name not in held:
                raise CheckpointError(f"{folder}: the weights lack {name}, which config.json asks for")
            if held[name].shape != shape:
                raise CheckpointError(
                    f"{held[name].file}: {name} has shape {list(held[name].shape)}; config.json says {list(shape)}"
                )
        for name in held:
            if name.startswith(f"{prefix}layers.") and name not in shapes:
                depth = stack.integer("num_hidden_layers")
                raise CheckpointError(
                    f"{held[name].file}: {name} is not of a model with this config.json, whose"
                    f" {stack.prefix}num_hidden_layers is {depth}"
                )


def _shapes(stack: Fields) -> dict[str, tuple[int, ...]]:
    hidden, mlp, heads, kv_heads, head = (stack.integer(key) for key in _WIDTHS)
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (heads * head, hidden),
        "self_attn.k_proj.weight": (kv_heads * head, hidden),
        "self_attn.v_proj.weight": (kv_heads * head, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
        **{f"{norm}_layernorm.weight": (hidden,) for norm in _NORMS},
    }
    if stack.flag("attention_bias", default=False):
        for name in ("q", "k", "v", "o"):
            layer[f"self_attn.{name}_proj.bias"] = layer[f"self_attn.{name}_proj.weight"][:1]
    shapes = {
        f"layers.{i}.{name}": shape
        for i in range(stack.integer("num_hidden_layers"))
        for name, shape in layer.items()
    }
    return {"norm.weight": (hidden,), **shapes}
