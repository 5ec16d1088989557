"""Checkpoints in every format give the same parameters; one that does not fit is refused, and the file named."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from evaljax.core import errors
from evaljax.models import assemble, checkpoint, config, decoder, model

CONFIG = config.ModelConfig(
    vocab_size=64,
    num_layers=2,
    embed_dim=32,
    mlp_dim=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=500.0,
    norm_eps=1e-3,
    max_position=128,
)
HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_theta": 500.0,
    "rms_norm_eps": 1e-3,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
BLOCK = {
    "input_layernorm": (32,),
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "post_attention_layernorm": (32,),
    "mlp.gate_proj": (64, 32),
    "mlp.up_proj": (64, 32),
    "mlp.down_proj": (32, 64),
}


def hf_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (64, 32), "model.norm": (32,), "lm_head": (64, 32)}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in BLOCK.items()}
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: pathlib.Path, tensors: dict[str, np.ndarray], **changes) -> str:
    folder.mkdir(exist_ok=True)
    raw = {key: value for key, value in {**HF_CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return str(folder)


def leaves(loaded: model.Model) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(loaded.params)}


def assert_same(first: model.Model, second: model.Model) -> None:
    assert first.config == second.config
    assert first.graphdef == second.graphdef
    left, right = leaves(first), leaves(second)
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_a_folder_gives_its_configuration_and_every_tensor_in_its_place(tmp_path):
    tensors = hf_tensors()
    path = write_folder(tmp_path / "m", tensors)
    assert checkpoint.read_config(path) == CONFIG
    params = checkpoint.read_model(path, dtype="float32").params
    np.testing.assert_array_equal(params["embedding"][...], tensors["model.embed_tokens.weight"])
    np.testing.assert_array_equal(params["head"][...], tensors["lm_head.weight"])
    query = params["blocks"]["query"][...]
    assert query.shape == (2, 4, 8, 32)
    np.testing.assert_array_equal(query[1, 2, 3], tensors["model.layers.1.self_attn.q_proj.weight"][2 * 8 + 3])
    output = params["blocks"]["output"][...]
    assert output.shape == (2, 32, 4, 8)
    np.testing.assert_array_equal(output[0, :, 2, 3], tensors["model.layers.0.self_attn.o_proj.weight"][:, 2 * 8 + 3])


def test_shards_under_an_index_give_the_same_model(tmp_path):
    tensors = hf_tensors()
    whole = checkpoint.read_model(write_folder(tmp_path / "whole", tensors), dtype="float32")
    path = pathlib.Path(write_folder(tmp_path / "shards", {}))
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in shards.items():
        safetensors.numpy.save_file({name: tensors[name] for name in members}, path / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(checkpoint.read_model(str(path), dtype="float32"), whole)

    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        errors.CheckpointError, match=r"index\.json: names files that are missing .*model-00002-of-00002"
    ):
        checkpoint.read_model(str(path), dtype="float32")


def test_bfloat16_tensors_widen_exactly_and_float32_ones_round(tmp_path):
    narrow = {name: t.astype(ml_dtypes.bfloat16) for name, t in hf_tensors().items()}
    path = write_folder(tmp_path / "m", narrow)
    wide = checkpoint.read_model(path, dtype="float32")
    np.testing.assert_array_equal(wide.params["embedding"][...], narrow["model.embed_tokens.weight"].astype(np.float32))
    same = checkpoint.read_model(path, dtype="bfloat16")
    assert same.dtype == "bfloat16"
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(same.params)} == {"bfloat16"}


def test_a_tied_head_may_be_absent_or_stored_equal_but_not_different(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "TIED_ROWS", 60)  # compared in two parts
    tensors = hf_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    stored = checkpoint.read_model(write_folder(tmp_path / "a", tensors, tie_word_embeddings=True), dtype="float32")
    head = tensors.pop("lm_head.weight")
    absent = checkpoint.read_model(write_folder(tmp_path / "b", tensors, tie_word_embeddings=True), dtype="float32")
    assert_same(stored, absent)
    for other in (head + np.eye(64, 32, k=-63), head[:5]):  # one value of the last row; too few rows
        path = write_folder(tmp_path / "c", {**tensors, "lm_head.weight": other}, tie_word_embeddings=True)
        with pytest.raises(errors.CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
            checkpoint.read_model(path, dtype="float32")


def test_missing_extra_and_misshapen_tensors_are_one_error(tmp_path):
    tensors = hf_tensors()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = np.ones(31, np.float32)
    tensors["model.layers.0.self_attn.q_norm.weight"] = np.ones(8, np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)  # carries nothing
    with pytest.raises(errors.CheckpointError, match="do not fit the configuration") as caught:
        checkpoint.read_model(write_folder(tmp_path / "m", tensors), dtype="float32")
    assert str(caught.value).splitlines()[1:] == [
        "  missing: model.layers.1.mlp.up_proj.weight (64, 32)",
        "  shape: model.norm.weight is (31,), expected (32,)",
        "  not used by this configuration: model.layers.0.self_attn.q_norm.weight (8,)",
    ]


def test_integer_tensors_are_refused(tmp_path):
    tensors = hf_tensors() | {"model.norm.weight": np.ones(32, np.int8)}
    with pytest.raises(errors.CheckpointError, match=r"model\.norm\.weight is int8; expected float32"):
        checkpoint.read_model(write_folder(tmp_path / "m", tensors), dtype="float32")


@pytest.mark.parametrize("keep", [0, 5, 300, -10])
def test_a_cut_weight_file_is_named(tmp_path, keep):
    path = write_folder(tmp_path / "m", hf_tensors())
    file = pathlib.Path(path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(errors.CheckpointError, match=r"m/model\.safetensors: not a readable safetensors file"):
        checkpoint.read_model(path, dtype="float32")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "no config.json; expected a Hugging Face model folder"),
        ("config.json", "{", r"config\.json: not readable as JSON"),
        ("config.json", "[]", r"config\.json: holds a list; expected a mapping"),
        ("config.json", "[" * 100_000, r"config\.json: not readable as JSON"),
        ("model.safetensors", None, r"no weights; expected model\.safetensors or model\.safetensors\.index\.json"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path, file, content, message):
    path = write_folder(tmp_path / "m", hf_tensors())
    target = pathlib.Path(path) / file
    target.unlink() if content is None else target.write_text(content)
    with pytest.raises(errors.CheckpointError, match=message):
        checkpoint.read_model(path, dtype="float32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": -1}, r"config\.json: rope_theta is -1\.0; expected a finite number above 0"),
        ({"rope_theta": float("nan")}, r"config\.json: rope_theta is nan; expected a finite number above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, r"config\.json: rope factor is 0\.0; expected a finite"),
        ({"max_position_embeddings": 0}, r"config\.json: max_position is 0; expected a positive integer"),
        ({"hidden_act": ""}, r"config\.json: unknown hidden_act ''"),
    ],
)
def test_a_number_that_cannot_be_meant_names_its_file(tmp_path, changes, message):
    path = write_folder(tmp_path / "m", hf_tensors(), **changes)
    with pytest.raises(errors.CheckpointError, match=message):
        checkpoint.read_config(path)


def test_any_wrong_number_of_layers_is_found_at_once(tmp_path):
    path = write_folder(tmp_path / "m", hf_tensors(), num_hidden_layers=10**12)
    with pytest.raises(errors.CheckpointError, match="m: 21 tensors cannot make the configuration's 1000000000000 lay"):
        checkpoint.read_model(path, dtype="float32")


@pytest.mark.parametrize("stored", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_values_beyond_the_dtype_are_refused(tmp_path, stored):
    tensors = hf_tensors() | {"model.norm.weight": np.full(32, 1e6, stored)}
    path = write_folder(tmp_path / "m", tensors)
    with pytest.raises(
        errors.CheckpointError, match=r"model\.norm\.weight holds values beyond the largest float16, 65504"
    ):
        checkpoint.read_model(path, dtype="float16")
    assert checkpoint.read_model(path, dtype="float32").dtype == "float32"


def test_an_unknown_architecture_names_the_nearest(tmp_path):
    path = write_folder(tmp_path / "m", hf_tensors(), model_type="lama")
    with pytest.raises(
        errors.CheckpointError, match=r"config\.json: unknown model_type 'lama'\. Did you mean 'llama'\?"
    ):
        checkpoint.read_config(path)


@pytest.mark.parametrize("path", ["/no/such/folder", "./nowhere/at/all", "a model"])
def test_a_path_that_is_neither_folder_nor_hub_id_is_refused(path):
    with pytest.raises(
        errors.CheckpointError, match=r"no such folder; expected a model folder, a \.gguf file or a hub id"
    ):
        checkpoint.read_config(path)


def test_a_hub_id_that_cannot_be_fetched_is_refused():  # conftest keeps the hub offline
    with pytest.raises(
        errors.CheckpointError, match="nobody/nothing: no such folder, and not to be had from the hub at rev"
    ):
        checkpoint.read_config("nobody/nothing", revision="main")


@pytest.mark.parametrize("name", ["m", "m.gguf"])
def test_a_revision_of_a_local_path_is_refused(tmp_path, name):
    write_folder(tmp_path / "m", hf_tensors())
    with pytest.raises(errors.ConfigError, match=f"{name}: revision 'main' of a local path; expected a hub id"):
        checkpoint.read_config(str(tmp_path / name), revision="main")


def test_an_unknown_dtype_is_refused():
    with pytest.raises(errors.ConfigError, match=r"unknown dtype 'float23'\. Did you mean 'float32'\?"):
        checkpoint.read_model("anywhere", dtype="float23")


SCALINGS = [
    None,
    config.RopeScaling(kind="llama3", factor=8.0, original_max_position=64),
    config.RopeScaling(kind="factors", factors=(1.0, 2.0, 3.0, 4.0)),
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s and s.kind)
@pytest.mark.parametrize("tie", [True, False])
def test_our_own_layout_gives_back_what_was_written(tmp_path, scaling, tie):
    cfg = config.ModelConfig(**{**vars(CONFIG), "rope_scaling": scaling, "tie_embeddings": tie, "mlp_bias": True})
    made = model.of(decoder.create(cfg, nnx.Rngs(0)))
    path = str(tmp_path / "ours")
    checkpoint.write_orbax(made, path)
    assert checkpoint.read_config(path) == cfg
    assert_same(checkpoint.read_model(path, dtype="float32"), made)
    assert checkpoint.read_model(path, dtype="bfloat16").dtype == "bfloat16"


def test_a_model_is_never_written_over_another(tmp_path):
    made = model.of(decoder.create(CONFIG, nnx.Rngs(0)))
    checkpoint.write_orbax(made, str(tmp_path / "ours"))
    with pytest.raises(errors.OutputError, match="ours: already holds a model"):
        checkpoint.write_orbax(made, str(tmp_path / "ours"))


def damage_config(folder: pathlib.Path, **changes) -> None:
    file = folder / "evaljax.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({**raw, "config": {**raw["config"], **changes}}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: damage_config(f, num_layer=3),
            r"evaljax\.json: unknown field 'num_layer'\. Did you mean 'num_layers'",
        ),
        (
            lambda f: damage_config(f, num_layers=3),
            r"shape: blocks\.query is \(2, 4, 8, 32\), expected \(3, 4, 8, 32\)",
        ),
        (lambda f: damage_config(f, tie_embeddings=True), r"not used by this configuration: head \(64, 32\)"),
        (lambda f: damage_config(f, head_dim=7), r"evaljax\.json: head_dim 7 is odd"),
        (lambda f: damage_config(f, norm_eps="x"), r"evaljax\.json: norm_eps is 'x'; expected a finite number above 0"),
        (lambda f: damage_config(f, rope_scaling=5), r"evaljax\.json: rope_scaling is 5; expected a mapping or null"),
        (lambda f: (f / "evaljax.json").write_text("[" * 100_000), r"evaljax\.json: not a model configuration"),
        (lambda f: (f / "evaljax.json").write_text('{"format": 99, "config": {}}'), "format 99; expected 1"),
        (lambda f: (f / "evaljax.json").write_text("{"), r"evaljax\.json: not a model configuration"),
        (lambda f: shutil.rmtree(f / "params"), r"no params/ beside evaljax\.json"),
        (lambda f: (f / "params" / "_METADATA").unlink(), "params: not a readable Orbax checkpoint"),
        (lambda f: [p.write_bytes(b"") for p in f.rglob("d/*")], "params: not a readable Orbax checkpoint"),
    ],
)
def test_a_damaged_folder_of_ours_is_refused(tmp_path, damage, message):
    folder = tmp_path / "ours"
    checkpoint.write_orbax(model.of(decoder.create(CONFIG, nnx.Rngs(0))), str(folder))
    damage(folder)
    with pytest.raises(errors.CheckpointError, match=message):
        checkpoint.read_model(str(folder), dtype="float32")


def test_the_shipped_formats_agree_on_logits(tmp_path):
    loaded = checkpoint.read_model(write_folder(tmp_path / "hf", hf_tensors()), dtype="float32")
    checkpoint.write_orbax(loaded, str(tmp_path / "ours"))
    again = checkpoint.read_model(str(tmp_path / "ours"), dtype="float32")
    tokens = jnp.arange(10)[None]
    first, second = (decoder.causal_logits(model.merge(m.graphdef, m.params), tokens) for m in (loaded, again))
    np.testing.assert_array_equal(first, second)
