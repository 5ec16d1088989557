"""The two backends on a real model: the same encoding, so every difference is one of arithmetic."""

import pytest

from evaljax.backends import table
from evaljax.core import config, request

pytestmark = [pytest.mark.parity, pytest.mark.slow]

QUESTION = "Question: Which gas do plants take up from the air?\nAnswer:"
SHOTS = (
    "Question: What is frozen water called?\nAnswer: ice\n\nQuestion: How many legs has a spider?\nAnswer: eight\n\n"
)
PAIRS = [
    (SHOTS + QUESTION, " carbon dioxide"),
    (SHOTS + QUESTION, " oxygen"),
    (QUESTION, " carbon dioxide"),
    ("", " carbon dioxide"),
    ("def double(x):\n    ", "return 2 * x"),
    ("日本の首都は", "東京です。"),
]
TEXT = "The quick brown fox jumps over the lazy dog. " * 12


@pytest.fixture(scope="module")
def backends(test_models):
    pytest.importorskip("torch")
    path = str(test_models / "smollm2")
    return [
        table.open_backend(config.ModelSpec(path=path, backend=name), config.EngineOptions())
        for name in ("jax", "torch")
    ]


def test_log_probabilities_agree(backends):
    ours, theirs = (
        backend.loglikelihood([request.LoglikelihoodRequest(*pair) for pair in PAIRS]) for backend in backends
    )
    for our, their in zip(ours, theirs, strict=True):
        assert our.logprob == pytest.approx(their.logprob, abs=1e-4 * max(1, our.num_tokens / 20))
        assert (our.is_greedy, our.num_tokens) == (their.is_greedy, their.num_tokens)


def test_rolling_log_probabilities_agree(backends):
    (ours,), (theirs,) = (backend.loglikelihood_rolling([request.RollingRequest(TEXT)]) for backend in backends)
    assert ours.num_tokens == theirs.num_tokens
    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4 * ours.num_tokens / 20)


def test_generations_agree_to_the_end_of_a_chat_turn(backends):
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    prompts = {backend.apply_chat_template(messages) for backend in backends}
    assert len(prompts) == 1
    asked = [
        request.GenerateRequest(prompts.pop(), request.Sampling(max_gen_toks=48)),
        request.GenerateRequest(SHOTS + QUESTION, request.Sampling(max_gen_toks=48, until=("\n\n",))),
        request.GenerateRequest(TEXT, request.Sampling(max_gen_toks=16)),
    ]
    ours, theirs = (backend.generate_until(asked) for backend in backends)
    assert ours == theirs
    assert ours[0].finish_reason == request.FinishReason.STOP  # EOS: a chat turn ends by itself
    assert ours[1].finish_reason == request.FinishReason.STOP
    assert ours[2].finish_reason == request.FinishReason.LENGTH
