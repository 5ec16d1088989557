"""Models in GGUF files: keys and tensors of the llama architecture, dequantised.

GGUF stores the rows of each query and key head with rotary pairs side by side (0, 1), (2, 3), ...; the decoder, like
Hugging Face's, has them half a head apart. Reading puts them back.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from evaljax.core import errors, lookup
from evaljax.models import assemble, config, family, gguf_reader, hf_config, sharding
from evaljax.models.model import Model

NAMES: dict[family.Path, str] = {
    ("embedding",): "token_embd.weight",
    ("blocks", "attention_norm"): "blk.{layer}.attn_norm.weight",
    ("blocks", "query"): "blk.{layer}.attn_q.weight",
    ("blocks", "query_bias"): "blk.{layer}.attn_q.bias",
    ("blocks", "key"): "blk.{layer}.attn_k.weight",
    ("blocks", "key_bias"): "blk.{layer}.attn_k.bias",
    ("blocks", "value"): "blk.{layer}.attn_v.weight",
    ("blocks", "value_bias"): "blk.{layer}.attn_v.bias",
    ("blocks", "output"): "blk.{layer}.attn_output.weight",
    ("blocks", "output_bias"): "blk.{layer}.attn_output.bias",
    ("blocks", "mlp_norm"): "blk.{layer}.ffn_norm.weight",
    ("blocks", "gate"): "blk.{layer}.ffn_gate.weight",
    ("blocks", "gate_bias"): "blk.{layer}.ffn_gate.bias",
    ("blocks", "up"): "blk.{layer}.ffn_up.weight",
    ("blocks", "up_bias"): "blk.{layer}.ffn_up.bias",
    ("blocks", "down"): "blk.{layer}.ffn_down.weight",
    ("blocks", "down_bias"): "blk.{layer}.ffn_down.bias",
    ("final_norm",): "output_norm.weight",
    ("head",): "output.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
ARCHITECTURES = ("llama",)
KEYS = frozenset(
    [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scaling.type",
        "vocab_size",
    ]
)


@dataclasses.dataclass(frozen=True)
class Contents:
    """An opened file: its keys without the tokenizer's, and its tensors as the gguf package gives them."""

    where: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, Any]


def read_config(file: pathlib.Path) -> config.ModelConfig:
    """The configuration that the file's keys and tensor names describe."""
    return _config(_read(file))


def read_model(file: pathlib.Path, *, dtype: str, shardings: sharding.Shardings | None = None) -> Model:
    """The file's model, dequantised to `dtype`; its parameters lie as `shardings` says."""
    contents = _read(file)
    cfg = _config(contents)
    shapes = config.parameter_shapes(cfg)
    heads = {"query": cfg.num_heads, "query_bias": cfg.num_heads, "key": cfg.num_kv_heads, "key_bias": cfg.num_kv_heads}
    tensors = {
        path: family.Tensor(NAMES[path], family.stored_shape(path, shape), heads.get(path[-1], 0))
        for path, shape in shapes.items()
    }
    source = assemble.Source(
        where=contents.where,
        shapes={name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in contents.tensors.items()},
        load=lambda name, index: _dequantise(contents, name, index),
    )
    ignored = (ROPE_FACTORS.replace(".", r"\."),)
    return assemble.load_model(cfg, source, tensors, dtype=dtype, ignored=ignored, shardings=shardings)


def _read(file: pathlib.Path) -> Contents:
    """The opened file; CheckpointError if it is missing, no GGUF file, or cut short."""
    keys, reader = gguf_reader.read_keys(file, lambda name: not name.startswith("tokenizer."))
    return Contents(str(file), keys, {tensor.name: tensor for tensor in reader.tensors})


def _dequantise(contents: Contents, name: str, index: sharding.Index) -> np.ndarray:
    """The values of a part of a tensor, as floats; no more is dequantised than the blocks that it touches."""
    import gguf

    tensor = contents.tensors[name]
    block, _ = gguf.GGML_QUANT_SIZES[tensor.tensor_type]  # values along the last axis that are quantised together
    items = tensor.data.shape[-1] * block // int(tensor.shape[0])  # of the stored array, bytes or floats, a block
    first, last = index[-1].start // block, -(-index[-1].stop // block)
    stored = tensor.data[(*index[:-1], slice(first * items, last * items))]
    try:
        values = gguf.dequantize(stored, tensor.tensor_type)
    except NotImplementedError as error:
        raise errors.CheckpointError(f"{contents.where}: {name}: cannot dequantise: {error}") from error
    return values[..., index[-1].start - first * block : index[-1].stop - first * block]


def _config(contents: Contents) -> config.ModelConfig:
    """The configuration; CheckpointError for an architecture or key that is not known."""
    where = contents.where
    architecture = str(contents.keys.get("general.architecture"))
    lookup.check(ARCHITECTURES, architecture, what="GGUF architecture", where=where, error=errors.CheckpointError)
    prefix = f"{architecture}."
    keys = {name.removeprefix(prefix): value for name, value in contents.keys.items() if name.startswith(prefix)}
    hf_config.check_keys(keys, KEYS, where)
    num_heads = hf_config.integer(keys, "attention.head_count", where)
    embed_dim = hf_config.integer(keys, "embedding_length", where)
    head_dim = hf_config.integer(keys, "attention.key_length", where, embed_dim // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if hf_config.integer(keys, key, where, head_dim) != head_dim:
            raise errors.CheckpointError(f"{where}: {key} is {keys[key]}; expected the head dimension, {head_dim}")
    return hf_config.build(
        where,
        {
            "vocab_size": hf_config.integer(keys, "vocab_size", where, _num_embeddings(contents)),
            "num_layers": hf_config.integer(keys, "block_count", where),
            "embed_dim": embed_dim,
            "mlp_dim": hf_config.integer(keys, "feed_forward_length", where),
            "num_heads": num_heads,
            "num_kv_heads": hf_config.integer(keys, "attention.head_count_kv", where, num_heads),
            "head_dim": head_dim,
            "rope_theta": hf_config.number(keys, "rope.freq_base", where, 10_000.0),
            "rope_scaling": _scaling(contents, keys),
            "norm_eps": hf_config.number(keys, "attention.layer_norm_rms_epsilon", where),
            "tie_embeddings": NAMES[("head",)] not in contents.tensors,
            "attention_bias": "blk.0.attn_q.bias" in contents.tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in contents.tensors,
            "max_position": hf_config.integer(keys, "context_length", where),
        },
    )


def _num_embeddings(contents: Contents) -> int | None:
    """Rows of the embedding table; None if there is none (the tensors' check will say so)."""
    table = contents.tensors.get(NAMES[("embedding",)])
    return None if table is None else int(table.shape[1])


def _scaling(contents: Contents, keys: Mapping[str, Any]) -> config.RopeScaling | None:
    """The rotary scaling: a tensor of factors (how GGUF stores llama3's), or a linear factor."""
    kind = str(keys.get("rope.scaling.type", "none"))
    if ROPE_FACTORS in contents.tensors:
        size = int(contents.tensors[ROPE_FACTORS].shape[0])
        factors = _dequantise(contents, ROPE_FACTORS, (slice(0, size),)).astype(np.float32)
        return hf_config.scaling(contents.where, {"kind": "factors", "factors": tuple(float(f) for f in factors)})
    kinds = {"none": None, "linear": "linear"}
    known = lookup.find(kinds, kind, what="rope.scaling.type", where=contents.where, error=errors.CheckpointError)
    if known is None:
        return None
    factor = hf_config.number(keys, "rope.scaling.factor", contents.where, 1.0)
    return hf_config.scaling(contents.where, {"kind": known, "factor": factor})
