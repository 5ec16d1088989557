"""Llama 1 to 3.x, and the models that publish in its format (SmolLM2, TinyLlama, Yi, ...)."""

from collections.abc import Mapping
from typing import Any

from evaljax.models import config as config_lib
from evaljax.models import family, hf_config

KEYS = frozenset(
    [
        "attention_bias",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "mlp_bias",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
        "vocab_size",
    ]
)

NAMES: dict[family.Path, str] = {
    ("embedding",): "model.embed_tokens.weight",
    ("blocks", "attention_norm"): "model.layers.{layer}.input_layernorm.weight",
    ("blocks", "query"): "model.layers.{layer}.self_attn.q_proj.weight",
    ("blocks", "query_bias"): "model.layers.{layer}.self_attn.q_proj.bias",
    ("blocks", "key"): "model.layers.{layer}.self_attn.k_proj.weight",
    ("blocks", "key_bias"): "model.layers.{layer}.self_attn.k_proj.bias",
    ("blocks", "value"): "model.layers.{layer}.self_attn.v_proj.weight",
    ("blocks", "value_bias"): "model.layers.{layer}.self_attn.v_proj.bias",
    ("blocks", "output"): "model.layers.{layer}.self_attn.o_proj.weight",
    ("blocks", "output_bias"): "model.layers.{layer}.self_attn.o_proj.bias",
    ("blocks", "mlp_norm"): "model.layers.{layer}.post_attention_layernorm.weight",
    ("blocks", "gate"): "model.layers.{layer}.mlp.gate_proj.weight",
    ("blocks", "gate_bias"): "model.layers.{layer}.mlp.gate_proj.bias",
    ("blocks", "up"): "model.layers.{layer}.mlp.up_proj.weight",
    ("blocks", "up_bias"): "model.layers.{layer}.mlp.up_proj.bias",
    ("blocks", "down"): "model.layers.{layer}.mlp.down_proj.weight",
    ("blocks", "down_bias"): "model.layers.{layer}.mlp.down_proj.bias",
    ("final_norm",): "model.norm.weight",
    ("head",): "lm_head.weight",
}


def read_config(raw: Mapping[str, Any], where: str) -> config_lib.ModelConfig:
    """The configuration that config.json describes; missing keys have Llama's defaults."""
    hf_config.check_keys(raw, KEYS, where)
    theta, scaling = hf_config.rope(raw, where, default_theta=10_000.0)
    num_heads = hf_config.integer(raw, "num_attention_heads", where)
    embed_dim = hf_config.integer(raw, "hidden_size", where)
    fields = {
        "vocab_size": hf_config.integer(raw, "vocab_size", where),
        "num_layers": hf_config.integer(raw, "num_hidden_layers", where),
        "embed_dim": embed_dim,
        "mlp_dim": hf_config.integer(raw, "intermediate_size", where),
        "num_heads": num_heads,
        "num_kv_heads": hf_config.integer(raw, "num_key_value_heads", where, num_heads),
        "head_dim": hf_config.integer(raw, "head_dim", where, embed_dim // max(num_heads, 1)),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "norm_eps": hf_config.number(raw, "rms_norm_eps", where, 1e-6),
        "tie_embeddings": hf_config.flag(raw, "tie_word_embeddings", where, False),
        "attention_bias": hf_config.flag(raw, "attention_bias", where, False),
        "mlp_bias": hf_config.flag(raw, "mlp_bias", where, False),
        "activation": hf_config.activation(raw, "hidden_act", where, "silu"),
        "max_position": hf_config.integer(raw, "max_position_embeddings", where, 2048),
    }
    return hf_config.build(where, fields)


def tensors(config: config_lib.ModelConfig) -> dict[family.Path, family.Tensor]:
    """The tensors of a checkpoint, by parameter path."""
    shapes = config_lib.parameter_shapes(config)
    return {path: family.Tensor(NAMES[path], family.stored_shape(path, shape)) for path, shape in shapes.items()}


FAMILY = family.Family(
    read_config=read_config,
    tensors=tensors,
    ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    tied_head=NAMES[("head",)],
)
