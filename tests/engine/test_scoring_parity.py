"""Scores of a real model against transformers, one request at a time, in float32."""

import pathlib

import numpy as np
import pytest

from evaljax.core import config, request
from evaljax.engine import encode, loglikelihood, tokenizer
from evaljax.models import checkpoint, model

pytestmark = [pytest.mark.parity, pytest.mark.slow]

HEADER = "The following are questions about the natural world, each with its answer.\n\n"
SHOTS = (
    ("What do plants take in from the air?", "carbon dioxide"),
    ("Which planet is closest to the sun?", "Mercury"),
    ("What force pulls objects toward the ground?", "gravity"),
    ("Which organ pumps blood through the body?", "the heart"),
)
QUESTIONS = (
    ("At what temperature does water boil at sea level?", ("100 degrees", "50 degrees", "10 degrees", "zero")),
    ("Which gas do humans need to breathe?", ("oxygen", "helium", "neon", "argon")),
    ("What is frozen water called?", ("ice", "steam", "sand", "A")),
    ("Which animal lays eggs?", ("a hen", "a dog", "a horse", "a cow")),
    ("日本の首都はどこですか?", ("東京", "大阪", "Kyoto", "京都")),
)
STORY = (
    "Once upon a time there was a small mill by the river. Every morning the miller rose before the sun, lit the lamp, "
    "and listened to the wheel. In spring the water was loud, in August it whispered. "
) * 4


def requests() -> list[request.LoglikelihoodRequest]:
    shots = HEADER + "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in SHOTS)
    pairs = [(f"{start}Question: {q}\nAnswer:", f" {c}") for start in ("", shots) for q, cs in QUESTIONS for c in cs]
    pairs += [("", " hello"), (" ", "hello"), ("The cat", "s"), ("http:", "//x.com"), ("日本", "語"), ("x = ", "1")]
    words = ["The", "capital", "of", "France", "is", "Paris", "and", "the", "capital", "of", "Italy", "is"]
    pairs += [(" ".join(words[:n]), " " + " ".join(words[n:])) for n in range(1, len(words))]
    pairs += [(STORY, " The miller"), (STORY[:300], STORY[300:]), (STORY[:400], STORY[400:600])]
    return [request.LoglikelihoodRequest(*pair) for pair in pairs]


@pytest.fixture(scope="module")
def smollm2(test_models: pathlib.Path) -> tuple[model.Model, tokenizer.Tokenizer]:
    path = str(test_models / "smollm2")
    return checkpoint.read_model(path, dtype="float32"), tokenizer.read_tokenizer(path)


def answers(
    smollm2: tuple[model.Model, tokenizer.Tokenizer], encoded: list[encode.Encoded], options: config.EngineOptions
) -> list[loglikelihood.Answer]:
    return loglikelihood.score(smollm2[0], encoded, options=options, max_length=2048, precision="highest")[0]


def test_an_unconditional_word_has_the_recorded_value(smollm2: tuple[model.Model, tokenizer.Tokenizer]) -> None:
    """C10: lm-eval's own number."""
    encoded = encode.encode_loglikelihood(smollm2[1], [request.LoglikelihoodRequest("", " hello")], 2048)
    (answer,) = answers(smollm2, encoded, config.EngineOptions())
    assert answer.logprob == pytest.approx(-12.2019, abs=1e-4)


def test_each_answer_is_that_of_transformers_for_the_request_alone(
    smollm2: tuple[model.Model, tokenizer.Tokenizer], test_models: pathlib.Path
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(test_models / "smollm2", dtype=torch.float32)
    reference.eval()
    torch.set_num_threads(1)  # its own threads wait for each other on a busy machine
    encoded = encode.encode_loglikelihood(smollm2[1], requests(), 2048)
    encoded += encode.encode_loglikelihood(smollm2[1], requests()[-4:], 8 + max(e.num_targets for e in encoded[-4:]))
    assert len(encoded) >= 60
    assert sum(e.num_truncated > 0 for e in encoded) >= 2
    found = answers(smollm2, encoded, config.EngineOptions(chunk_length=128, num_rows=2))
    for answer, sequence in zip(found, encoded, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor(sequence.tokens[None, :-1].astype(np.int64))).logits[0].double()
        logits = logits[-sequence.num_targets :]
        targets = torch.tensor(sequence.tokens[-sequence.num_targets :].astype(np.int64))
        expected = float(torch.log_softmax(logits, -1).gather(-1, targets[:, None]).sum())
        assert answer.logprob == pytest.approx(expected, abs=1e-4 * max(1.0, sequence.num_targets / 20))
        gap = logits.topk(2).values.diff().abs().min()
        assert gap < 1e-4 or answer.is_greedy == bool((logits.argmax(-1) == targets).all())
