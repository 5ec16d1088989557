import jax
import numpy as np
import pytest
from flax import nnx

from evaljax.models import config, decoder, model

SMALL = {
    "vocab_size": 61,
    "num_layers": 3,
    "embed_dim": 32,
    "mlp_dim": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_the_number_of_parameters_is_what_a_decoder_holds(changes):
    cfg = config.ModelConfig(**SMALL, **changes)
    params = model.of(decoder.create(cfg, nnx.Rngs(0))).params
    assert cfg.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "num_heads 5 is not a multiple of num_kv_heads 2"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"num_layers": 0}, "num_layers is 0; expected a positive integer"),
        ({"num_layers": True}, "num_layers is True; expected a positive integer"),
        ({"max_position": 0}, "max_position is 0; expected a positive integer"),
        ({"rope_theta": 0.0}, r"rope_theta is 0\.0; expected a finite number above 0"),
        ({"rope_theta": None}, "rope_theta is None; expected a finite number above 0"),
        ({"norm_eps": -1e-5}, "norm_eps is -1e-05; expected a finite number above 0"),
        ({"norm_eps": float("inf")}, "norm_eps is inf; expected a finite number above 0"),
        ({"tie_embeddings": "no"}, "tie_embeddings is 'no'; expected true or false"),
        ({"activation": "swich"}, "activation 'swich'; expected one of silu"),
        (
            {"rope_scaling": config.RopeScaling(kind="factors", factors=(1.0,))},
            "1 rope factors; expected head_dim / 2 = 8",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config.ModelConfig(**{**SMALL, **changes})


def test_an_unknown_rope_scaling_is_refused():
    with pytest.raises(ValueError, match="rope scaling 'yarn'; expected one of linear, llama3, factors"):
        config.RopeScaling(kind="yarn")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "linear", "factor": 0.0}, r"rope factor is 0\.0; expected a finite number above 0"),
        ({"kind": "linear", "factor": float("nan")}, "rope factor is nan; expected a finite number above 0"),
        ({"kind": "factors", "factors": (1.0, -2.0)}, r"a rope factor is -2\.0; expected a finite number above 0"),
        ({"kind": "llama3", "original_max_position": 0}, "original_max_position is 0; expected a positive integer"),
        (
            {"kind": "llama3", "low_freq_factor": 4.0},
            r"low_freq_factor is 4\.0; expected less than high_freq_factor, 4",
        ),
    ],
)
def test_a_rope_scaling_that_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        config.RopeScaling(**fields)


def frequencies(**changes):
    return decoder.rotary_frequencies(config.ModelConfig(**{**SMALL, "head_dim": 4}, rope_theta=100.0, **changes))


def test_frequencies_fall_from_one_by_powers_of_theta():
    np.testing.assert_allclose(frequencies(), [1.0, 0.1], rtol=1e-6)


def test_linear_scaling_divides_every_frequency():
    np.testing.assert_allclose(
        frequencies(rope_scaling=config.RopeScaling(kind="linear", factor=4.0)), [0.25, 0.025], rtol=1e-6
    )


def test_factors_divide_their_own_frequency():
    scaling = config.RopeScaling(kind="factors", factors=(1.0, 8.0))
    np.testing.assert_allclose(frequencies(rope_scaling=scaling), [1.0, 0.0125], rtol=1e-6)


def test_llama3_scaling_keeps_fast_pairs_scales_slow_ones_and_mixes_between():
    # Turns in the original context: 1.0 * 126 / 2 pi = 20.05 and 0.1 * 126 / 2 pi = 2.005.
    def scaled(low, high):
        return frequencies(
            rope_scaling=config.RopeScaling(
                kind="llama3", factor=8.0, low_freq_factor=low, high_freq_factor=high, original_max_position=126
            )
        )

    np.testing.assert_allclose(scaled(3.0, 10.0), [1.0, 0.0125], rtol=1e-6)
    share = (0.1 * 126 / (2 * np.pi) - 1) / (5 - 1)
    np.testing.assert_allclose(scaled(1.0, 5.0), [1.0, (1 - share) * 0.0125 + share * 0.1], rtol=1e-5)
