"""Scores against one plain forward per request, on a tiny random decoder."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.core import config, errors
from evaljax.engine import encode, executor, hooks, loglikelihood, numerics
from evaljax.models import config as model_config
from evaljax.models import decoder, model, sharding

LONGEST = 24
VOCABULARY = 40
# Few shapes, so that the property tests compile a handful of executables: chunks shorter and longer than sequences.
OPTIONS = [
    config.EngineOptions(chunk_length=5, num_rows=1),
    config.EngineOptions(chunk_length=16, num_rows=3),
    config.EngineOptions(chunk_length=16, num_rows=3, share_prefixes=False),
    config.EngineOptions(chunk_length=70, num_rows=1),
]


@pytest.fixture(scope="module")
def module() -> decoder.Decoder:
    """Large weights and unusual constants, so that a wrong mask or position shows."""
    settings = model_config.ModelConfig(
        vocab_size=VOCABULARY,
        num_layers=2,
        embed_dim=16,
        mlp_dim=24,
        num_heads=4,
        num_kv_heads=2,
        head_dim=6,
        rope_theta=50.0,
    )
    return decoder.create(settings, nnx.Rngs(0), std=0.3)


@pytest.fixture(scope="module")
def tiny(module: decoder.Decoder) -> model.Model:
    return model.of(module)


class Plain:
    """One request at a time: one causal forward, padded on the right to one length, everything else in float64."""

    def __init__(self, module: decoder.Decoder):
        graphdef, params = nnx.split(module)
        self.forward = jax.jit(lambda tokens: decoder.causal_logits(nnx.merge(graphdef, params), tokens))
        self.logits = functools.cache(self._logits)

    def _logits(self, tokens: tuple[int, ...]) -> np.ndarray:
        padded = np.zeros((1, LONGEST), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(self.forward(jnp.asarray(padded)))[0, : len(tokens)].astype(np.float64)

    def __call__(self, sequence: encode.Encoded) -> tuple[float, bool]:
        logits = self.logits(tuple(sequence.tokens[:-1].tolist()))[-sequence.num_targets :]
        targets = sequence.tokens[-sequence.num_targets :]
        logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return float(logprobs[np.arange(len(targets)), targets].sum()), bool((logits.argmax(axis=-1) == targets).all())


@pytest.fixture(scope="module")
def plain(module: decoder.Decoder) -> Plain:
    return Plain(module)


def sequence(tokens: list[int], num_targets: int) -> encode.Encoded:
    return encode.Encoded(np.asarray(tokens, np.int32), num_targets)


def score(
    tiny: model.Model, sequences: list[encode.Encoded], options: config.EngineOptions
) -> list[tuple[float, bool]]:
    return loglikelihood.score(tiny, sequences, options=options, max_length=LONGEST, precision="highest")[0]


@st.composite
def multisets(draw: st.DrawFn) -> list[encode.Encoded]:
    """Requests in any order: unrelated, prefix-nested, duplicates, and the same tokens split at different points."""
    letter = st.integers(0, draw(st.sampled_from([2, 5, VOCABULARY])) - 1)
    base = draw(st.lists(st.lists(letter, min_size=2, max_size=LONGEST), min_size=1, max_size=8))
    nested = [tokens[: draw(st.integers(2, len(tokens)))] for tokens in base]
    header = draw(st.lists(letter, min_size=1, max_size=12))
    headed = [(header + tokens)[:LONGEST] for tokens in base]
    chosen = draw(st.lists(st.sampled_from(base + nested + headed), min_size=1, max_size=20))
    return [sequence(tokens, draw(st.integers(1, len(tokens) - 1))) for tokens in chosen]


@pytest.mark.parametrize("options", OPTIONS, ids=["short-chunks", "rows", "unshared", "one-chunk"])
@settings(deadline=None, max_examples=60)
@given(sequences=multisets())
def test_every_request_scores_as_if_it_were_alone(
    tiny: model.Model, plain: Plain, options: config.EngineOptions, sequences: list[encode.Encoded]
) -> None:
    """C31, and the cases behind C02: whatever else is asked, in whatever order, the answer is the request's own."""
    for answer, expected in zip(score(tiny, sequences, options), map(plain, sequences), strict=True):
        assert answer[0] == pytest.approx(expected[0], abs=1e-5)
        assert answer[1] == expected[1]


def test_greedy_continuations_are_flagged(tiny: model.Model, plain: Plain) -> None:
    tokens = [3, 1]
    for _ in range(6):
        tokens.append(int(plain.logits(tuple(tokens))[-1].argmax()))
    spoilt = [*tokens[:-1], (tokens[-1] + 1) % VOCABULARY]
    answers = score(tiny, [sequence(tokens, 6), sequence(spoilt, 6), sequence(spoilt[:-1], 5)], OPTIONS[0])
    assert [greedy for _, greedy in answers] == [True, False, True]


def test_an_order_of_requests_is_as_good_as_any(tiny: model.Model) -> None:
    """C31, bitwise: the plan sorts, so the device does the same work."""
    random = np.random.default_rng(1)
    sequences = [
        sequence(random.integers(0, 6, n).tolist(), int(random.integers(1, n))) for n in random.integers(2, 24, 50)
    ]
    order = random.permutation(50)
    answers = score(tiny, sequences, OPTIONS[1])
    assert score(tiny, [sequences[i] for i in order], OPTIONS[1]) == [answers[i] for i in order]


def test_one_context_with_four_one_token_choices_is_one_forward_row(tiny: model.Model, plain: Plain) -> None:
    """C02."""
    sequences = [sequence([9, 8, 7, 6, choice], 1) for choice in (11, 12, 13, 14)]
    answers, figures = loglikelihood.score(tiny, sequences, options=OPTIONS[3], max_length=LONGEST, precision="highest")
    assert (figures["request_tokens"], figures["unique_tokens"]) == (16, 4)
    assert [answer.logprob for answer in answers] == pytest.approx([plain(s)[0] for s in sequences], abs=1e-5)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=["short-chunks", "rows", "unshared"])
def test_a_planted_neighbour_changes_nothing(tiny: model.Model, options: config.EngineOptions) -> None:
    """The canary's tokens change, its length does not: every other answer stays the same, bit for bit."""
    random = np.random.default_rng(2)
    sequences = [sequence([20, *random.integers(0, 9, 11).tolist()], 4) for _ in range(30)]
    first, second = ([*sequences, sequence([20, 19, *canary], 3)] for canary in ([30] * 9, [31] * 9))
    before, after = score(tiny, first, options), score(tiny, second, options)
    assert before[-1] != after[-1]
    assert before[:-1] == after[:-1]


def test_a_canary_that_is_not_a_number_stays_alone(module: decoder.Decoder, tiny: model.Model) -> None:
    """A NaN in the embedding of one token reaches the requests that read the token, and no other."""
    table = module.embedding[...].at[39].set(jnp.nan)
    broken = decoder.create(module.config, nnx.Rngs(0), std=0.3)
    broken.embedding[...] = table
    broken.head[...] = module.head[...]
    sequences = [
        sequence([1, 2, 3, 4], 2),
        sequence([1, 2, 39, 4, 5], 2),
        sequence([1, 2, 3, 9], 1),
        sequence([7, 8], 1),
    ]
    options = dataclasses.replace(OPTIONS[0], allow_nonfinite=True)
    answers, figures = loglikelihood.score(
        model.of(broken), sequences, options=options, max_length=LONGEST, precision="highest"
    )
    healthy = score(tiny, sequences, OPTIONS[0])
    assert np.isnan(answers[1].logprob)
    assert figures["nonfinite"] == 1
    assert [answers[i] for i in (0, 2, 3)] == [healthy[i] for i in (0, 2, 3)]
    with pytest.raises(errors.RequestError, match="request 1: its log-probability is nan"):
        score(model.of(broken), sequences, OPTIONS[0])


def test_every_transfer_is_explicit(tiny: model.Model) -> None:
    with jax.transfer_guard("disallow"):
        assert len(score(tiny, [sequence([1, 2, 3], 1)] * 3, OPTIONS[1])) == 3


def test_no_request_is_no_answer(tiny: model.Model) -> None:
    answers, figures = loglikelihood.score(tiny, [], options=OPTIONS[0], max_length=LONGEST, precision="highest")
    assert answers == []
    assert figures["steps"] == 0


def test_one_program_serves_every_job_of_one_shape(tiny: model.Model) -> None:
    executor.compiled.cache_clear()
    before = len(executor.COMPILED)
    for length in (6, 24):
        score(tiny, [sequence([(i * k) % VOCABULARY for k in range(length)], 2) for i in range(9)], OPTIONS[0])
    assert [name for name, _ in executor.COMPILED[before:]] == ["score_step"]


def test_progress_grows_to_the_end(tiny: model.Model) -> None:
    calls: list[tuple[str, int, int, str]] = []
    sequences = [sequence([i % VOCABULARY, *range(20)], 2) for i in range(VOCABULARY)]
    loglikelihood.score(
        tiny,
        sequences,
        options=OPTIONS[0],
        max_length=LONGEST,
        precision="highest",
        hooks=hooks.Hooks(progress=lambda *call: calls.append(call)),
    )
    done = [call[1] for call in calls]
    assert len(done) > 10
    assert done == sorted(done)
    assert calls[-1][1] == calls[-1][2]
    assert {(call[0], call[3]) for call in calls} == {("scoring", "tokens")}


def random_sequences(seed: int, number: int) -> list[encode.Encoded]:
    """Requests that share prefixes and end anywhere."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, LONGEST, number)
    return [sequence(random.integers(0, 3, n).tolist(), int(random.integers(1, n))) for n in lengths]


def test_answers_are_told_as_they_come_each_once(tiny: model.Model) -> None:
    sequences = random_sequences(3, 60)
    told: list[tuple[int, loglikelihood.Answer]] = []
    sizes: list[int] = []

    def found(places, answers) -> None:
        sizes.append(len(places))
        told.extend(zip(places, answers, strict=True))

    answers, figures = loglikelihood.score(
        tiny,
        sequences,
        options=OPTIONS[0],
        max_length=LONGEST,
        precision="highest",
        hooks=hooks.Hooks(found=found),
    )
    assert dict(told) == dict(enumerate(answers))
    assert len(told) == 60
    assert len(sizes) == figures["steps"] > 10
    assert max(sizes) < 60


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["short-chunks", "rows"])
def test_what_is_known_is_not_asked_again_and_the_rest_gets_the_same_bits(
    tiny: model.Model, options: config.EngineOptions
) -> None:
    """A run that was stopped anywhere goes on as if it had not been."""
    sequences = random_sequences(9, 60)
    whole = score(tiny, sequences, options)
    random = np.random.default_rng(0)
    for share in (0.0, 0.5, 0.97, 1.0):
        known = [answer if keep else None for answer, keep in zip(whole, random.random(60) < share, strict=True)]
        told: list[int] = []
        answers, figures = loglikelihood.score(
            tiny,
            sequences,
            options=options,
            max_length=LONGEST,
            precision="highest",
            known=known,
            hooks=hooks.Hooks(found=lambda places, _, told=told: told.extend(places)),
        )
        assert answers == whole
        assert sorted(told) == [place for place, answer in enumerate(known) if answer is None]
        assert (figures["steps"] == 0) == (share == 1.0)
    assert figures["steps_kept"] > 0


def test_a_run_stopped_after_any_step_goes_on_with_the_next_one(tiny: model.Model) -> None:
    """Beside the steps that are left, only those are run again that hold what they begin with."""
    header = [1, 2, 0, 1, 2, 0, 1]
    sequences = [sequence([*header, i % VOCABULARY, i % 7, 5], 1) for i in range(60)]
    told: list[tuple[int, ...]] = []

    def run(known=()):
        return loglikelihood.score(
            tiny,
            sequences,
            options=OPTIONS[0],
            max_length=LONGEST,
            precision="highest",
            known=known,
            hooks=hooks.Hooks(found=lambda places, _: told.append(tuple(places))),
        )

    whole, figures = run()
    after_each, steps = told[:], figures["steps"]
    for stop in range(1, steps):
        done = {place for places in after_each[:stop] for place in places}
        answers, again = run([answer if place in done else None for place, answer in enumerate(whole)])
        assert answers == whole
        assert again["steps"] <= steps - stop + 3  # a path of ten tokens lies in three steps of five


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_deterministic_answers_are_the_same_bits_whatever_else_is_asked(tiny: model.Model, rows: int) -> None:
    """Any subset, in any order, on any number of rows: what a run that goes on after a crash asks."""
    sequences = random_sequences(4, 60)
    options = config.EngineOptions(deterministic=True, chunk_length=8)
    whole = score(tiny, sequences, options)
    random = np.random.default_rng(rows)
    for size in (1, 7, 40):
        some = random.permutation(60)[:size]
        assert score(tiny, [sequences[i] for i in some], dataclasses.replace(options, num_rows=rows)) == [
            whole[i] for i in some
        ]


def test_a_device_without_room_gets_smaller_steps_and_answers_what_is_left(tiny: model.Model) -> None:
    sequences = random_sequences(5, 40)
    options = config.EngineOptions(num_rows=8, chunk_length=64)
    room = loglikelihood.score(tiny, sequences, options=OPTIONS[1], max_length=LONGEST, precision="highest")[1][
        "memory"
    ]
    options = dataclasses.replace(options, memory_bytes=2 * room["step"])
    answers, figures = loglikelihood.score(tiny, sequences, options=options, max_length=LONGEST, precision="highest")
    assert figures["halved"] >= 1
    assert figures["memory"]["step"] <= 2 * room["step"]
    for answer, expected in zip(answers, score(tiny, sequences, OPTIONS[1]), strict=True):
        assert answer[0] == pytest.approx(expected[0], abs=1e-5)


def test_a_step_that_fails_for_memory_half_way_loses_no_answer(tiny: model.Model, monkeypatch) -> None:
    """A device may run full in any step: what was answered stays, the rest is answered in smaller steps."""
    sequences = random_sequences(6, 80)
    told: list[int] = []
    steps = executor.run

    def fails_once(model, job, *rest):
        for answers in steps(model, job, *rest):
            if answers.step == 3 and job.shape.num_rows == 2:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
            yield answers

    monkeypatch.setattr(executor, "run", fails_once)
    options = config.EngineOptions(num_rows=2, chunk_length=16)
    told_to = hooks.Hooks(found=lambda places, _: told.extend(places))
    answers, figures = loglikelihood.score(
        tiny, sequences, options=options, max_length=LONGEST, precision="highest", hooks=told_to
    )
    assert figures["halved"] == 1
    assert sorted(told) == list(range(80))
    for answer, expected in zip(answers, score(tiny, sequences, OPTIONS[0]), strict=True):
        assert answer[0] == pytest.approx(expected[0], abs=1e-5)


def test_a_device_too_small_for_the_smallest_step_says_so(tiny: model.Model) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED: a step needs [\d,]+ bytes of a device"):
        score(tiny, random_sequences(7, 3), config.EngineOptions(memory_bytes=1))


@pytest.mark.parametrize(("data", "heads"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_every_layout_of_eight_devices_scores_as_one_device_does(
    module: decoder.Decoder, plain: Plain, data: int, heads: int
) -> None:
    """Seven requests on eight devices, and many: the same numbers, each once."""
    mesh = jax.make_mesh((data, heads), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spread = decoder.create(
        module.config, nnx.Rngs(0), std=0.3, shardings=sharding.parameter_shardings(module.config, mesh)
    )
    for number in (7, 60):
        sequences = random_sequences(number, number)
        answers = score(model.of(spread), sequences, config.EngineOptions(chunk_length=16))
        for answer, expected in zip(answers, map(plain, sequences), strict=True):
            assert answer[0] == pytest.approx(expected[0], abs=1e-5)
            assert answer[1] == expected[1]


def test_a_callers_own_mesh_and_shardings_are_taken_as_they_are(module: decoder.Decoder, plain: Plain) -> None:
    """A training job's fsdp x tensor mesh: parameters stay where they lie."""
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    graphdef, params = nnx.split(module)

    def spread(leaf: jax.Array) -> jax.Array:
        axis = next((i for i, size in enumerate(leaf.shape) if size % 2 == 0), None)
        spec = () if axis is None else (*[None] * axis, "fsdp")
        return jax.device_put(leaf, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))

    mine = model.of(nnx.merge(graphdef, jax.tree.map(spread, params)))
    before = [leaf.sharding for leaf in jax.tree.leaves(mine.params)]
    sequences = random_sequences(8, 20)
    for answer, expected in zip(score(mine, sequences, OPTIONS[0]), map(plain, sequences), strict=True):
        assert answer[0] == pytest.approx(expected[0], abs=1e-5)
    assert [leaf.sharding for leaf in jax.tree.leaves(mine.params)] == before


def test_a_position_with_many_targets_and_a_long_table_are_reduced_in_several_blocks(
    tiny: model.Model, plain: Plain
) -> None:
    prefixes = [[a, b] for a in range(20) for b in range(20)]
    sequences = [sequence([*prefix, target], 2) for prefix in prefixes for target in range(0, VOCABULARY, 4)]
    answers = score(tiny, sequences, OPTIONS[1])
    assert len(answers) == 4000
    for i in range(0, 4000, 97):
        assert answers[i].logprob == pytest.approx(plain(sequences[i])[0], abs=1e-5)


@pytest.mark.parametrize(("vocabulary", "rows"), [(50, 64), (49_152, 64), (524_288, 32), (1 << 26, 1)])
def test_logits_held_at_once_are_bounded_whatever_the_vocabulary(vocabulary: int, rows: int) -> None:
    assert executor.block_rows(vocabulary, 2048) == rows
    assert executor.block_rows(vocabulary, 16) == min(rows, 16)


def test_the_parity_precision_is_float32() -> None:
    """C34."""
    assert numerics.matmul_error("highest") < 1e-6


def test_an_unknown_precision_names_the_nearest() -> None:
    with pytest.raises(errors.ConfigError, match=r"unknown precision 'higest'\. Did you mean 'highest'"):
        numerics.matmul_precision("higest")


def test_bfloat16_scores_are_near_float32_ones(module: decoder.Decoder, tiny: model.Model) -> None:
    """Log-probabilities are float32 whatever the weights: in bfloat16 they could not be told apart to 0.1 at -20."""
    graphdef, params = nnx.split(module)
    narrow = model.of(nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)))
    sequences = [sequence([7, *range(i, i + 12)], 8) for i in range(10)]
    for answer, expected in zip(score(narrow, sequences, OPTIONS[1]), score(tiny, sequences, OPTIONS[1]), strict=True):
        assert answer[0] == pytest.approx(expected[0], abs=1.0)
        assert answer[0] != float(jnp.bfloat16(answer[0]))
