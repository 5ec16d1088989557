import shutil

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from evaljax import testing
from evaljax.backends import table
from evaljax.core import config, errors, request

SHORT = request.Sampling(max_gen_toks=2)
CONTEXT = "Q: which?\nA:"
ASKED = [request.LoglikelihoodRequest(CONTEXT, choice) for choice in (" x", " y", " z")]


def open_jax(folder, options=None, progress=None, **settings):
    spec = config.ModelSpec(path=str(folder), backend="jax", **settings)
    extra = {} if progress is None else {"progress": progress}
    return table.open_backend(spec, options or config.EngineOptions(), **extra)


@pytest.fixture
def without_weights(tiny_model, tmp_path):
    """The tiny model's folder without its weights."""
    folder = tmp_path / "no_weights"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.fixture(scope="module")
def broken_model(tmp_path_factory):
    """A model whose weights overflow as soon as it reads an exclamation mark."""
    folder = testing.tiny_model_folder(tmp_path_factory.mktemp("broken"))
    file = str(folder / "model.safetensors")
    tensors = safetensors_numpy.load_file(file)
    vocabulary = [*testing.SPECIALS, "!"]  # byte-level ids: the specials, then printable bytes from "!" on
    tensors["model.embed_tokens.weight"][len(vocabulary) - 1] = np.inf
    safetensors_numpy.save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_a_plan_needs_no_weights(without_weights):
    backend = open_jax(without_weights)
    plan = backend.plan(
        ASKED, [request.RollingRequest("abc")], [request.GenerateRequest(CONTEXT, request.Sampling(max_gen_toks=5))] * 2
    )
    # Inputs: the context's 12 bytes and a space, thrice the same; the prefix token and two bytes.
    assert plan["kinds"]["loglikelihood"]["request_tokens"] == 39
    assert plan["kinds"]["loglikelihood"]["unique_tokens"] == 13
    assert plan["kinds"]["loglikelihood_rolling"]["unique_tokens"] == 3
    assert (plan["requests"], plan["request_tokens"], plan["unique_tokens"]) == (6, 42, 16)
    assert plan["forward_tokens"] >= 16
    assert plan["shapes"]
    assert plan["buckets"].keys() == {"loglikelihood", "loglikelihood_rolling"}
    assert plan["kinds"]["generate_until"] == {
        "requests": 2,
        "request_tokens": 24,
        "unique_tokens": 12,
        "max_generated_tokens": 10,
        "longest": 17,
    }


def test_missing_weights_are_found_by_the_first_question(without_weights):
    backend = open_jax(without_weights)
    with pytest.raises(errors.CheckpointError, match="no_weights"):
        backend.loglikelihood(ASKED)


def test_the_plan_before_is_what_the_run_does(tiny_model):
    backend = open_jax(tiny_model)
    planned = backend.plan(ASKED, [], [])
    backend.loglikelihood(ASKED)
    done = backend.figures["plans"]["loglikelihood"]
    assert {key: done[key] for key in ("request_tokens", "unique_tokens", "forward_tokens", "shapes")} == {
        key: planned[key] for key in ("request_tokens", "unique_tokens", "forward_tokens", "shapes")
    }


def test_figures_add_up_over_calls(tiny_model):
    backend = open_jax(tiny_model)
    assert backend.figures == {
        "seconds": {"load": 0.0, "tokenize": 0.0, "plan": 0.0, "compile": 0.0, "run": 0.0},
        "executables": 0,
        "compiled": [],
        "self_check": {},
        "answers_kept": 0,
        "plans": {},
    }
    backend.loglikelihood(ASKED)
    backend.loglikelihood(ASKED[:1])
    backend.loglikelihood_rolling([request.RollingRequest("abc" * 100), request.RollingRequest("")])
    backend.generate_until([request.GenerateRequest("ab", request.Sampling(max_gen_toks=3))])
    figures = backend.figures
    assert figures["plans"]["loglikelihood"]["requests"] == 4
    assert figures["plans"]["loglikelihood"]["request_tokens"] == 4 * 13
    assert figures["plans"]["loglikelihood_rolling"]["requests"] == 2
    assert figures["plans"]["generate_until"]["requests"] == 1
    assert figures["self_check"]["packed_against_alone"] < 1e-5
    assert figures["self_check"]["matmul_error"] < 1e-6
    assert figures["seconds"]["load"] > 0
    assert figures["seconds"]["run"] > 0


def test_progress_is_told(tiny_model):
    told = []
    backend = open_jax(tiny_model, progress=lambda label, done, total, unit: told.append((done, total)))
    backend.loglikelihood(ASKED)
    assert told
    assert told[-1][0] == told[-1][1]


def test_a_limit_above_the_models_own_is_refused(tiny_model):
    with pytest.raises(errors.ConfigError, match=r"model\.max_length=4096: expected 1 to 128"):
        open_jax(tiny_model, max_length=4096)


def test_a_context_longer_than_the_model_loses_its_left_end_and_says_so(tiny_model):
    backend = open_jax(tiny_model, max_length=24)
    long, short = (request.LoglikelihoodRequest(text, "!?") for text in ("x" * 100 + "the end", "x" * 16 + "the end"))
    cut, whole = backend.loglikelihood([long, short])
    # "the end" is 6 tokens ("he" is one); with "!?" the sequence has 25, of which 24 are read.
    assert cut.num_truncated == 100 + 6 + 2 - 25
    assert cut.logprob == pytest.approx(backend.loglikelihood([long])[0].logprob, abs=1e-5)
    assert whole.num_truncated == 0
    generated = backend.generate_until([request.GenerateRequest("x" * 100, request.Sampling(max_gen_toks=4))])[0]
    assert generated.num_truncated == 80


@pytest.mark.parametrize(
    ("method", "asked", "message"),
    [
        (
            "loglikelihood",
            [request.LoglikelihoodRequest("fine", " one"), request.LoglikelihoodRequest("bad!", " two")],
            r"loglikelihood request \(context 'bad!', continuation ' two'\)",
        ),
        (
            "loglikelihood_rolling",
            [request.RollingRequest("fine " * 60), request.RollingRequest("this is bad! here")],
            r"loglikelihood_rolling request \(text 'this is bad! here'\)",
        ),
        (
            "generate_until",
            [
                request.GenerateRequest("fine", request.Sampling(max_gen_toks=2)),
                request.GenerateRequest("bad!", request.Sampling(max_gen_toks=2)),
            ],
            r"generate_until request \(context 'bad!'\)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_number_that_is_not_finite_names_the_request(broken_model, name, method, asked, message):
    if name == "torch":
        pytest.importorskip("torch")
    backend = table.open_backend(config.ModelSpec(path=str(broken_model), backend=name), config.EngineOptions())
    with pytest.raises(errors.RequestError, match=message):
        getattr(backend, method)(asked)


def test_numbers_that_are_not_finite_pass_where_that_was_asked_for(broken_model):
    backend = open_jax(broken_model, config.EngineOptions(allow_nonfinite=True))
    answers = backend.loglikelihood(
        [request.LoglikelihoodRequest("bad!", " two"), request.LoglikelihoodRequest("fine", " one")]
    )
    assert not np.isfinite(answers[0].logprob)
    assert np.isfinite(answers[1].logprob)


def test_a_step_too_large_for_any_machine_is_made_smaller(tiny_model):
    large = open_jax(tiny_model, config.EngineOptions(chunk_length=10**11, memory_bytes=10**7))
    small = open_jax(tiny_model)
    for answer, expected in zip(large.loglikelihood(ASKED), small.loglikelihood(ASKED), strict=True):
        assert answer.logprob == pytest.approx(expected.logprob, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "ask"),
    [
        ({"memory_bytes": 10**4}, lambda backend: backend.loglikelihood(ASKED)),
        ({"memory_bytes": 10**4}, lambda backend: backend.generate_until([request.GenerateRequest("a", SHORT)])),
    ],
)
def test_a_full_device_names_what_takes_the_room(tiny_model, options, ask):
    backend = open_jax(tiny_model, config.EngineOptions(**options))
    with pytest.raises(
        errors.ConfigError, match=r"parameters, float32\): no room on the device .* Lower engine\.num_rows"
    ):
        ask(backend)
