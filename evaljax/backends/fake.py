"""A backend without a model: answers computed from the text alone, for tests and for dry trials of tasks.

It behaves like a small language model over bytes. The state is a checksum of everything read so far; each state has one
most likely next byte, and every other byte costs between 2 and 8 nats. So answers are finite, do not depend on order or
batch, and agree with one another: what it generates greedily is what it calls greedy, and log-probabilities add up.
"""

import zlib
from collections.abc import Sequence
from typing import Any

from evaljax.core import config, errors, progress, request

# What it writes: letters and signs of ordinary text, in about ordinary proportions, so that stop strings do occur.
_ALPHABET = b"eeeettaaooiinnsshhrrddlucmfwygpbvk    ....,,\n0123456789ABCD"


class FakeBackend:
    """Answers any request at once, from a checksum of its text. One byte of UTF-8 is one token."""

    @classmethod
    def open(cls, spec: config.ModelSpec, engine: config.EngineOptions, progress: progress.Progress) -> "FakeBackend":
        """A FakeBackend, whatever the path and the options: there is nothing to read."""
        return cls()

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """Made-up log P(continuation | context): the same for the same text, whoever asks."""
        return [_loglikelihood(asked) for asked in requests]

    def loglikelihood_rolling(self, requests: Sequence[request.RollingRequest]) -> list[request.RollingResponse]:
        """Made-up log P(text); 0 for an empty text."""
        answers = []
        for asked in requests:
            text = _bytes(asked.text)
            logprob, _ = _score(zlib.crc32(b""), text)
            answers.append(request.RollingResponse(logprob=logprob, num_tokens=len(text)))
        return answers

    def generate_until(self, requests: Sequence[request.GenerateRequest]) -> list[request.GenerateResponse]:
        """Made-up text; sampled requests (temperature > 0) depend on seed and repeat too."""
        return [_generate(asked) for asked in requests]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """`messages` one after another under their roles, the last one open if there is no generation prompt."""
        turns = [f"<|{message['role']}|>\n{message['content']}" for message in messages]
        return "\n".join([*turns, "<|assistant|>\n"] if add_generation_prompt else turns)

    def info(self) -> dict[str, Any]:
        """Facts for the manifest; there are no parameters and there is no limit."""
        return {
            "name": "fake",
            "backend": "fake",
            "num_parameters": 0,
            "dtype": None,
            "max_length": None,
            "tokenizer": "bytes",
        }


def _loglikelihood(asked: request.LoglikelihoodRequest) -> request.LoglikelihoodResponse:
    if not asked.continuation:
        raise errors.RequestError(f"{request.describe(asked)}: the continuation is empty; nothing to score")
    # Trailing white space belongs to the continuation, as in every backend: ("A: ", "B") is ("A:", " B").
    context = asked.context.rstrip()
    continuation = _bytes(asked.context[len(context) :] + asked.continuation)
    logprob, greedy = _score(zlib.crc32(_bytes(context)), continuation)
    return request.LoglikelihoodResponse(logprob=logprob, is_greedy=greedy, num_tokens=len(continuation))


def _bytes(text: str) -> bytes:
    """The UTF-8 of `text`; RequestError if it is no Unicode text (half of a surrogate pair)."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.RequestError(f"text {text[-60:]!r}: {error}") from error


def _score(state: int, text: bytes) -> tuple[float, bool]:
    """Summed log-probability of the bytes after `state`, and whether each was the most likely one."""
    total, greedy = 0.0, True
    for index in range(len(text)):
        byte = text[index : index + 1]
        after = zlib.crc32(byte, state)
        if byte == _likeliest(state):
            total -= 0.25
        else:
            total -= 2.0 + 6.0 * (after % 1009) / 1009
            greedy = False
        state = after
    return total, greedy


def _likeliest(state: int) -> bytes:
    place = (state * 2_654_435_761 >> 7) % len(_ALPHABET)
    return _ALPHABET[place : place + 1]


def _generate(asked: request.GenerateRequest) -> request.GenerateResponse:
    sampling = asked.sampling
    state = zlib.crc32(_bytes(asked.context))
    noise = zlib.crc32(f"{sampling.seed} {asked.repeat}".encode()) if sampling.temperature > 0 else 0
    text = ""
    for count in range(1, sampling.max_gen_toks + 1):
        byte = _likeliest(state ^ noise)
        state = zlib.crc32(byte, state)
        text += byte.decode("ascii")
        stops = [text.index(stop) for stop in sampling.until if stop and stop in text]
        if stops:
            return request.GenerateResponse(
                text=text[: min(stops)], num_tokens=count, finish_reason=request.FinishReason.STOP
            )
    return request.GenerateResponse(
        text=text, num_tokens=sampling.max_gen_toks, finish_reason=request.FinishReason.LENGTH
    )
