"""GGUF files hold the same model as the folder they were made from."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from evaljax.core import errors
from evaljax.models import checkpoint, config, gguf_file, sharding
from evaljax.models.families import llama

gguf = pytest.importorskip("gguf")

CONFIG = config.ModelConfig(
    vocab_size=64,
    num_layers=2,
    embed_dim=32,
    mlp_dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=500.0,
    norm_eps=0.125,
    max_position=128,
)
KEYS = {
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 500.0,
    "llama.attention.layer_norm_rms_epsilon": 0.125,
}


def tensors(cfg: config.ModelConfig) -> dict[str, np.ndarray]:
    """Random tensors by Hugging Face name."""
    rng = np.random.default_rng(0)
    made = {}
    for tensor in llama.tensors(cfg).values():
        for name in tensor.names(cfg.num_layers):
            made[name] = rng.normal(size=tensor.shape).astype(np.float32)
    return made


def paired(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads as GGUF has them: row i of a head's first half beside row i of its second half."""
    heads = rows.reshape(num_heads, rows.shape[0] // num_heads, *rows.shape[1:])
    half = heads.shape[1] // 2
    order = [index for i in range(half) for index in (i, i + half)]
    return heads[:, order].reshape(rows.shape)


def write_gguf(file: pathlib.Path, cfg: config.ModelConfig, keys: dict, extra: dict | None = None, kind=None) -> str:
    writer = gguf.GGUFWriter(file, keys.get("general.architecture", "llama"))
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value) if key != "general.architecture" else None
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    values = tensors(cfg)
    for path, tensor in llama.tensors(cfg).items():
        for layer, name in enumerate(tensor.names(cfg.num_layers)):
            array = values[name]
            if path[-1] in ("query", "key", "query_bias", "key_bias"):
                array = paired(array, cfg.num_heads if path[-1].startswith("query") else cfg.num_kv_heads)
            ours = gguf_file.NAMES[path].format(layer=layer)
            if kind is not None and array.ndim == 2:
                writer.add_tensor(ours, gguf.quantize(array, kind), raw_dtype=kind)
            else:
                writer.add_tensor(ours, array)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(file)


def changed(**changes) -> config.ModelConfig:
    return config.ModelConfig(**{**vars(CONFIG), **changes})


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_a_file_gives_what_the_folder_gives(tmp_path, changes):
    cfg = changed(**changes)
    got = checkpoint.read_model(write_gguf(tmp_path / "m.gguf", cfg, KEYS), dtype="float32")
    raw = {
        "model_type": "llama",
        "vocab_size": 64,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 500.0,
        "rms_norm_eps": 0.125,
        "max_position_embeddings": 128,
        "tie_word_embeddings": cfg.tie_embeddings,
        "attention_bias": cfg.attention_bias,
        "mlp_bias": cfg.mlp_bias,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(tensors(cfg), tmp_path / "model.safetensors")
    want = checkpoint.read_model(str(tmp_path), dtype="float32")
    assert got.config == want.config == cfg
    for (path, left), right in zip(jax.tree.leaves_with_path(got.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=jax.tree_util.keystr(path))


def test_quantised_tensors_are_dequantised(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    got = checkpoint.read_model(write_gguf(tmp_path / "m.gguf", CONFIG, KEYS, kind=kind), dtype="float32")
    want = tensors(CONFIG)["model.embed_tokens.weight"]
    difference = np.abs(np.asarray(got.params["embedding"][...]) - want)
    assert 0 < difference.max() <= np.abs(want).max() / 127


@pytest.mark.parametrize("kind", [None, gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0])
def test_a_file_is_read_into_shards(tmp_path, kind):
    cfg = changed(attention_bias=True, mlp_bias=True)
    path = write_gguf(tmp_path / "m.gguf", cfg, KEYS, kind=kind)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shardings = sharding.parameter_shardings(cfg, mesh)  # parts of 32 and of 16 columns; Q8_0 has blocks of 32
    got = checkpoint.read_model(path, dtype="float32", shardings=shardings)
    want = checkpoint.read_model(path, dtype="float32")
    for (place, left), right in zip(jax.tree.leaves_with_path(got.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=jax.tree_util.keystr(place))
    assert got.params["blocks"]["key"][...].sharding == shardings["blocks", "key"]
    assert got.params["blocks"]["key"][...].addressable_data(0).shape == (2, 1, 8, 32)


def test_rope_factors_and_linear_scaling_are_read(tmp_path):
    factors = {"rope_freqs.weight": np.array([1, 1, 2, 8], np.float32)}
    path = write_gguf(tmp_path / "factors.gguf", CONFIG, KEYS, factors)
    assert checkpoint.read_config(path).rope_scaling == config.RopeScaling(kind="factors", factors=(1.0, 1.0, 2.0, 8.0))
    assert checkpoint.read_model(path, dtype="float32").config.rope_scaling.factors == (1.0, 1.0, 2.0, 8.0)
    keys = KEYS | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "linear.gguf", CONFIG, keys)
    assert checkpoint.read_config(path).rope_scaling == config.RopeScaling(kind="linear", factor=4.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"general.architecture": "llamo"}, "unknown GGUF architecture 'llamo'. Did you mean 'llama'"),
        ({"llama.expert_count": 8}, "config keys that this model family does not know.*'expert_count' = 8"),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0},
            r"rope factor is 0\.0; expected a finite",
        ),
        ({"llama.rope.scaling.type": "yarn"}, r"unknown rope\.scaling\.type 'yarn'"),
        ({"llama.rope.dimension_count": 4}, r"rope\.dimension_count is 4; expected the head dimension, 8"),
        ({"llama.block_count": 3}, r"missing: blk\.2\.attn_norm\.weight \(32,\)"),
        ({"llama.feed_forward_length": 65}, r"shape: blk\.0\.ffn_gate\.weight is \(64, 32\), expected \(65, 32\)"),
    ],
)
def test_a_file_that_could_not_be_run_exactly_is_refused(tmp_path, keys, message):
    path = write_gguf(tmp_path / "m.gguf", CONFIG, KEYS | keys)
    with pytest.raises(errors.CheckpointError, match=message):
        checkpoint.read_model(path, dtype="float32")


@pytest.mark.parametrize("keep", [0, 3, 100, -4096])
def test_a_cut_file_is_named(tmp_path, keep):
    path = pathlib.Path(write_gguf(tmp_path / "m.gguf", CONFIG, KEYS))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(errors.CheckpointError, match=r"m\.gguf: not a readable GGUF file"):
        checkpoint.read_model(str(path), dtype="float32")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(errors.CheckpointError, match=r"nothing\.gguf: no such file"):
        checkpoint.read_config(str(tmp_path / "nothing.gguf"))


def test_without_the_gguf_package_the_error_names_the_extra(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", CONFIG, KEYS)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(errors.CheckpointError, match=r"needs the gguf package: pip install 'evaljax\[gguf\]'"):
        checkpoint.read_config(path)
