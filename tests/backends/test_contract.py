"""What holds for every backend: one set of tests over all of them."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from evaljax import testing
from evaljax.backends import table
from evaljax.core import backend as backend_lib
from evaljax.core import config, errors, request

CONTEXT = "Q: Which number follows 3?\nA:"
PAIRS = [
    (CONTEXT, " 4"),
    (CONTEXT, " 5"),
    ("", "the end"),
    ("A longer context, to be read first. " * 2, "yes"),
    (CONTEXT, " 4"),  # a duplicate
    ("日本", "語 é"),
    ("the", "re"),
    ("Answer: ", "C"),
    ("Answer:", " C"),
    ("tabs\t and \x00 odd", "\n\n!"),
    ("   ", "white space alone"),
]
TEXTS = ["One two three.", "", "é日本語", "One two three.", "word " * 10]


class TestBackendOfOnesOwn:
    """A backend by `module:attribute`: right, because it delegates; made from the spec, because it takes it."""

    __test__ = False

    def __init__(self, spec: config.ModelSpec):
        self.name = spec.path
        self.inner = testing.FakeBackend()

    def loglikelihood(self, requests):
        return self.inner.loglikelihood(requests)

    def loglikelihood_rolling(self, requests):
        return self.inner.loglikelihood_rolling(requests)

    def generate_until(self, requests):
        return self.inner.generate_until(requests)

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return self.inner.apply_chat_template(messages, add_generation_prompt)

    def info(self):
        return {"name": self.name, "max_length": None}


def open_named(name, folder, **settings):
    if name == "torch":
        pytest.importorskip("torch")
    sys.modules["evaljax_test_contract"] = sys.modules[__name__]
    return table.open_backend(config.ModelSpec(path=str(folder), backend=name, **settings), config.EngineOptions())


@pytest.fixture(scope="module", params=["jax", "torch", "fake", "evaljax_test_contract:TestBackendOfOnesOwn"])
def backend(request, tiny_model):
    return open_named(request.param, tiny_model)


def score(backend, *pairs):
    return backend.loglikelihood([request.LoglikelihoodRequest(*pair) for pair in pairs])


def roll(backend, *texts):
    return backend.loglikelihood_rolling([request.RollingRequest(text) for text in texts])


def generate(backend, *contexts, **settings):
    return backend.generate_until([request.GenerateRequest(text, request.Sampling(**settings)) for text in contexts])


def close(answers, others, tolerance=1e-5):
    assert len(answers) == len(others)
    for answer, other in zip(answers, others, strict=True):
        assert answer.logprob == pytest.approx(other.logprob, abs=tolerance)
        assert dataclasses.replace(answer, logprob=0.0) == dataclasses.replace(other, logprob=0.0)


def test_it_is_a_backend(backend):
    assert isinstance(backend, backend_lib.Backend)
    assert {"name", "max_length"} <= backend.info().keys()


def test_no_requests_get_no_answers(backend):
    assert backend.loglikelihood([]) == []
    assert backend.loglikelihood_rolling([]) == []
    assert backend.generate_until([]) == []


def test_answers_come_in_request_order_whatever_the_company(backend):
    together = score(backend, *PAIRS)
    close(together, [score(backend, pair)[0] for pair in PAIRS])
    order = np.random.default_rng(0).permutation(len(PAIRS))
    close([together[i] for i in order], score(backend, *(PAIRS[i] for i in order)))


def test_every_answer_is_finite_and_negative_and_counts_its_tokens(backend):
    for answer in score(backend, *PAIRS):
        assert -np.inf < answer.logprob < 0
        assert answer.num_tokens >= 1
        assert answer.num_truncated == 0


def test_equal_requests_get_equal_answers(backend):
    answers = score(backend, *PAIRS)
    close(answers[:1], answers[4:5])


def test_white_space_at_the_join_belongs_to_the_continuation(backend):
    answers = score(backend, *PAIRS)
    close(answers[7:8], answers[8:9])


def test_rolling_is_the_log_probability_of_the_text_after_nothing(backend):
    texts = [text for text in TEXTS if text]
    for text, rolled, scored in zip(
        texts, roll(backend, *texts), score(backend, *(("", t) for t in texts)), strict=True
    ):
        assert rolled.num_tokens == scored.num_tokens, text
        assert rolled.logprob == pytest.approx(scored.logprob, abs=1e-4), text


def test_an_empty_text_has_probability_one(backend):
    answers = roll(backend, *TEXTS)
    assert answers[1] == request.RollingResponse(logprob=0.0, num_tokens=0)
    assert answers[0].logprob == pytest.approx(answers[3].logprob, abs=1e-5)


@pytest.mark.parametrize("name", ["jax", "torch", "fake"])
def test_what_a_request_needs_beyond_the_limit_is_cut_and_noted(name, tiny_model):  # case C14
    backend = open_named(name, tiny_model, max_length=24)
    scored = [request.LoglikelihoodRequest(context, " 4 the 5") for context in (CONTEXT, "", CONTEXT * 2)]
    asked = [request.GenerateRequest(context, request.Sampling(max_gen_toks=5)) for context in ("One", CONTEXT, "")]
    excess = [max(0, count - backend.max_length) for count in backend.count_tokens([*scored, *asked])]
    answers = [*backend.loglikelihood(scored), *backend.generate_until(asked)]
    assert [answer.num_truncated for answer in answers] == excess
    assert sorted(map(bool, excess)) == [False] * 3 + [True] * 3


def test_generation_stops_at_its_limit(backend):
    contexts = [CONTEXT, "", "é", CONTEXT]
    for limit in (1, 7):
        answers = generate(backend, *contexts, max_gen_toks=limit)
        for answer in answers:
            assert answer.num_tokens == limit
            assert answer.finish_reason == request.FinishReason.LENGTH
        assert answers[0] == answers[3]


def test_generation_is_cut_before_the_first_stop_string(backend):
    whole = generate(backend, CONTEXT, max_gen_toks=10)[0].text
    stops = (whole[6:8], whole[4:6])
    first = min(whole.index(stop) for stop in stops)
    answer = generate(backend, CONTEXT, max_gen_toks=10, until=stops)[0]
    assert answer.text == whole[:first]
    assert answer.finish_reason == request.FinishReason.STOP


def test_mixed_settings_are_answered_as_if_alone(backend):
    requests = [
        request.GenerateRequest(CONTEXT, request.Sampling(max_gen_toks=5)),
        request.GenerateRequest("Other: ", request.Sampling(max_gen_toks=9, until=("a",))),
        request.GenerateRequest(CONTEXT, request.Sampling(max_gen_toks=5, temperature=0.7, top_k=20, seed=3)),
        request.GenerateRequest(CONTEXT, request.Sampling(max_gen_toks=5, temperature=0.7, top_k=20, seed=3), 1),
        request.GenerateRequest(CONTEXT + " x", request.Sampling(max_gen_toks=5)),
    ]
    together = backend.generate_until(requests)
    assert together == [backend.generate_until([asked])[0] for asked in requests]
    assert together[2].text != together[3].text


def test_what_is_generated_greedily_is_scored_as_greedy(backend):
    contexts = [CONTEXT, "Once:", "1 2 3;"]
    texts = [answer.text for answer in generate(backend, *contexts, max_gen_toks=4)]
    for answer in score(backend, *zip(contexts, texts, strict=True)):
        assert answer.num_tokens == 4  # the text reads back as the tokens that were generated
        assert answer.is_greedy
    for answer in score(backend, *((context, text[:-1] + "~~") for context, text in zip(contexts, texts, strict=True))):
        assert not answer.is_greedy


@pytest.mark.parametrize(
    "ask",
    [
        lambda backend: score(backend, ("fine", "yes"), ("a\ud83d", "b")),
        lambda backend: roll(backend, "a\ud83d"),
        lambda backend: generate(backend, "a\ud83d", max_gen_toks=2),
    ],
)
def test_text_that_is_not_unicode_is_refused(backend, ask):  # JSON can hold half of a surrogate pair
    with pytest.raises(errors.RequestError, match=r"text '.*a.ud83d.*': .*surrogate"):
        ask(backend)


def test_settings_at_the_edge_are_settings_too(backend):
    assert generate(backend, CONTEXT, until=("\ud83d",), max_gen_toks=3)[0].num_tokens == 3
    drawn = {"temperature": 1.0, "max_gen_toks": 3}
    assert generate(backend, CONTEXT, top_k=10**12, **drawn) == generate(backend, CONTEXT, **drawn)
    assert generate(backend, CONTEXT, seed=2**64 + 1, **drawn)[0].num_tokens <= 3


def test_chat_messages_become_one_prompt(backend):
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "It is"}]
    assert backend.apply_chat_template(messages[:1]) == "<|user|>\nHi.\n<|assistant|>\n"
    assert backend.apply_chat_template(messages, add_generation_prompt=False) == "<|user|>\nHi.\n<|assistant|>\nIt is"


@pytest.mark.parity
@pytest.mark.parametrize(
    ("tie_embeddings", "settings"), [(False, {}), (True, {"add_bos_token": True}), (False, {"max_length": 24})], ids=str
)
def test_jax_and_transformers_agree_on_a_model_made_to_show_mistakes(tmp_path, tie_embeddings, settings):
    folder = testing.tiny_model_folder(tmp_path, tie_embeddings=tie_embeddings, seed=3)
    ours, theirs = (open_named(name, folder, **settings) for name in ("jax", "torch"))
    pairs = [*PAIRS, (CONTEXT * 9, " 4 the 5")]
    assert any(answer.num_truncated for answer in score(ours, *pairs))
    close(score(ours, *pairs), score(theirs, *pairs), 1e-4)
    texts = [*TEXTS, CONTEXT * 9]
    close(roll(ours, *texts), roll(theirs, *texts), 1e-3)
    contexts = [CONTEXT, "", "é", CONTEXT * 9, "Once"]
    for limits in ({"max_gen_toks": 12}, {"max_gen_toks": 20, "until": ("o", "Z", "1")}):
        assert generate(ours, *contexts, **limits) == generate(theirs, *contexts, **limits)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_the_thought_of_a_model_is_no_answer(name, tmp_path):  # cases C58 to C60, on what a tiny model writes
    folder = testing.tiny_model_folder(tmp_path, seed=3)
    whole = generate(open_named(name, folder), CONTEXT, max_gen_toks=60)[0].text
    assert whole == "SI:I:Q*GJJJSa<+O:*YaJJI:JYaJI:JI+SJ+9*YI+9OQJIpICJJ+rdJIpI:a"

    def answer(think_end, **settings):
        return generate(open_named(name, folder, think_end_token=think_end), CONTEXT, **settings)[0]

    stop, length = request.FinishReason.STOP, request.FinishReason.LENGTH
    assert answer("QJI", max_gen_toks=60) == request.GenerateResponse("pICJJ+rdJIpI:a", 60, length)
    assert answer("YaJ", max_gen_toks=40, until=("+",)) == request.GenerateResponse("I:JI", 33, stop)
    assert answer("SJ", max_gen_toks=60, until=("*", "+9O")) == request.GenerateResponse("+9", 38, stop)
    unfinished = request.GenerateResponse("", 20, length, unfinished_thought=True)
    assert answer("YaJ", max_gen_toks=20, until=("J", "S")) == unfinished


@pytest.mark.parity
def test_jax_and_transformers_agree_on_where_a_thought_ends(tmp_path):
    folder = testing.tiny_model_folder(tmp_path, seed=3)
    contexts = [CONTEXT, "", "é", "Once", "1 2 3;", *(f"{number}:" for number in range(8))]
    seen = set()
    for think_end, until in (("J", ("S", "a")), ("p", ("I",)), ("aS", ()), ("+", ("o", "9"))):
        asked = {"max_gen_toks": 40, "until": until}
        ours, theirs = (
            generate(open_named(name, folder, think_end_token=think_end), *contexts, **asked)
            for name in ("jax", "torch")
        )
        assert ours == theirs
        seen |= {(answer.finish_reason, answer.unfinished_thought) for answer in ours}
        for answer in ours:
            assert think_end not in answer.text
            assert not (answer.unfinished_thought and answer.text)
    assert len(seen) >= 3


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_end_of_sequence_within_a_thought_leaves_no_answer(name, tmp_path):
    folder = testing.tiny_model_folder(tmp_path, seed=3)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<"}))
    answer = generate(open_named(name, folder, think_end_token="YaJ"), CONTEXT, max_gen_toks=60)[0]
    assert answer == request.GenerateResponse("", 14, request.FinishReason.STOP, unfinished_thought=True)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_think_end_does_not_concern_log_probabilities(name, tiny_model):
    plain, thinking = open_named(name, tiny_model), open_named(name, tiny_model, think_end_token=" 4")
    close(score(plain, *PAIRS), score(thinking, *PAIRS))
