"""The llama family: what config.json means, and logits against transformers."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaljax.core import errors
from evaljax.models import checkpoint, config, decoder, model
from evaljax.models.families import llama

MINIMAL = {
    "model_type": "llama",
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def read(**changes):
    return llama.read_config({**MINIMAL, **changes}, "config.json")


def test_what_a_config_leaves_out_has_llamas_default():
    assert read() == config.ModelConfig(
        vocab_size=99,
        num_layers=2,
        embed_dim=32,
        mlp_dim=48,
        num_heads=4,
        num_kv_heads=4,
        head_dim=8,
        rope_theta=10_000.0,
        rope_scaling=None,
        norm_eps=1e-6,
        tie_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        activation="silu",
        max_position=2048,
    )


def test_old_and_new_spelling_of_rope_mean_the_same():
    old = read(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3})
    new = read(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    older = read(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3})
    assert old == new == older
    assert (old.rope_theta, old.rope_scaling.factor, old.rope_scaling.original_max_position) == (5e5, 8.0, 64)
    assert read(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == config.RopeScaling(
        kind="linear", factor=2.0
    )
    assert read(rope_scaling=None, rope_theta=7).rope_theta == 7.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_epsilon": 1e-5}, "does not know.*'rms_norm_epsilon' = 1e-05 Did you mean 'rms_norm_eps'"),
        ({"quantization_config": {"bits": 4}}, "does not know.*'quantization_config'"),
        ({"vocab_size": None}, "vocab_size is None; expected an integer"),
        ({"hidden_size": "32"}, "hidden_size is '32'; expected an integer"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True; expected a number"),
        ({"mlp_bias": 1}, "mlp_bias is 1; expected true or false"),
        ({"num_key_value_heads": 3}, "config.json: num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"hidden_act": "geluu"}, "unknown hidden_act 'geluu'. Did you mean 'gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "unknown rope type 'yarn'"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing; expected a number"),
        (
            {"rope_scaling": {"type": "linear", "factr": 2}},
            "rope type 'linear' has no key 'factr'. Did you mean 'factor'",
        ),
        ({"rope_scaling": 2}, "rope_scaling is 2; expected a mapping or null"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is 10000.0 but .* is 500000.0"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(changes, message):
    with pytest.raises(errors.CheckpointError, match=message):
        read(**changes)


def test_a_missing_key_is_named():
    with pytest.raises(errors.CheckpointError, match="vocab_size is missing; expected an integer"):
        llama.read_config({key: value for key, value in MINIMAL.items() if key != "vocab_size"}, "config.json")


CASES = {
    "gqa": {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "tied": {"tie_word_embeddings": True, "rms_norm_eps": 0.1},
    "biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "llama3": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e3, **LLAMA3}, "hidden_act": "gelu"},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e3, "factor": 3.0}},
}


def reference(folder: pathlib.Path, **changes) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, transformers' logits) of a random model saved in `folder`: large weights, norms away from 1."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    defaults = {"rms_norm_eps": 1e-2, "tie_word_embeddings": False, "max_position_embeddings": 512}
    raw = {key: value for key, value in {**MINIMAL, **defaults, **changes}.items() if key != "model_type"}
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**raw)).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3)
        module.save_pretrained(folder)
        tokens = torch.randint(0, MINIMAL["vocab_size"], (2, 130))
        return tokens.numpy(), module(tokens).logits.numpy()


def largest_difference(loaded: model.Model, tokens: np.ndarray, want: np.ndarray, **changes) -> float:
    """Largest difference of logits, as a share of the largest logit; `changes` to the configuration are mutations."""
    with jax.default_matmul_precision("highest"):
        module = model.merge(loaded.graphdef, loaded.params)
        module.config = config.ModelConfig(**{**vars(loaded.config), **changes})
        got = np.asarray(decoder.causal_logits(module, jnp.asarray(tokens, jnp.int32)))
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_and_a_wrong_setting_would_show(tmp_path, case):
    tokens, want = reference(tmp_path, **CASES[case])
    loaded = checkpoint.read_model(str(tmp_path), dtype="float32")
    assert largest_difference(loaded, tokens, want) < 1e-4
    cfg = loaded.config
    mutations = {"rope_theta": cfg.rope_theta * 1.1, "norm_eps": cfg.norm_eps * 1.5}
    if cfg.rope_scaling is not None:
        mutations["rope_scaling"] = None
    for field, value in mutations.items():
        assert largest_difference(loaded, tokens, want, **{field: value}) > 1e-3, field


@pytest.mark.parity
def test_a_head_tied_by_mistake_would_show(tmp_path):
    tokens, want = reference(tmp_path)
    loaded = checkpoint.read_model(str(tmp_path), dtype="float32")
    module = model.merge(loaded.graphdef, loaded.params)
    module.head = None
    assert largest_difference(model.of(module), tokens, want) > 1e-1
