"""A backend without a model: answers computed from the text alone, for tests and for dry trials of tasks.

It behaves like a small language model over bytes. The state is a checksum of everything read so far; each state has one
most likely next byte, and every other byte costs between 2 and 8 nats. So answers are finite, do not depend on order or
batch, and agree with one another: what it generates greedily is what it calls greedy, and log-probabilities add up.
"""

import sys
import zlib
from collections.abc import Sequence
from typing import Any

from evaljax.core import config, errors, progress, request

# What it writes: letters and signs of ordinary text, in about ordinary proportions, so that stop strings do occur.
_ALPHABET = b"eeeettaaooiinnsshhrrddlucmfwygpbvk    ....,,\n0123456789ABCD"


class FakeBackend:
    """Answers any request at once, from a checksum of its text. One byte of UTF-8 is one token.

    With a `max_length` it reads no more than that, and cuts requests on the left as every backend does.
    """

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length

    @classmethod
    def open(cls, spec: config.ModelSpec, engine: config.EngineOptions, progress: progress.Progress) -> "FakeBackend":
        """A FakeBackend of `spec.max_length`, whatever the path and the options: there is nothing to read."""
        return cls(spec.max_length)

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """Made-up log P(continuation | context): the same for the same text, whoever asks."""
        return [_loglikelihood(asked, self.max_length) for asked in requests]

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
        return [_generate(asked, self.max_length) for asked in requests]

    def count_tokens(self, requests: Sequence[request.Countable]) -> list[int]:
        """Bytes that each request needs, nothing cut: those read, and for a generation those that may follow."""
        counts = []
        for asked in requests:
            if isinstance(asked, request.GenerateRequest):
                counts.append(max(1, len(_bytes(asked.context))) + asked.sampling.max_gen_toks)
            else:  # the last byte is predicted, not read; nothing at all stands for the byte before the first
                context, continuation = _split(asked)
                counts.append(max(1, len(context)) + len(continuation) - 1)
        return counts

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """`messages` one after another under their roles, the last one open if there is no generation prompt."""
        turns = [f"<|{message['role']}|>\n{message['content']}" for message in messages]
        return "\n".join([*turns, "<|assistant|>\n"] if add_generation_prompt else turns)

    def info(self) -> dict[str, Any]:
        """Facts for the manifest; there are no parameters."""
        return {
            "name": "fake",
            "backend": "fake",
            "num_parameters": 0,
            "dtype": None,
            "max_length": self.max_length,
            "tokenizer": "bytes",
        }


def _loglikelihood(asked: request.LoglikelihoodRequest, max_length: int | None) -> request.LoglikelihoodResponse:
    context, continuation = _split(asked)
    room = sys.maxsize if max_length is None else max_length
    if len(continuation) > room:
        raise errors.RequestError(
            f"{request.describe(asked)}: the continuation has {len(continuation)} tokens, "
            f"the model reads at most {room}"
        )
    cut = max(0, len(context) + len(continuation) - 1 - room)
    logprob, greedy = _score(zlib.crc32(context[cut:]), continuation)
    return request.LoglikelihoodResponse(
        logprob=logprob, is_greedy=greedy, num_tokens=len(continuation), num_truncated=cut
    )


def _split(asked: request.LoglikelihoodRequest) -> tuple[bytes, bytes]:
    """Context and continuation; trailing white space belongs to the continuation: ("A: ", "B") is ("A:", " B")."""
    if not asked.continuation:
        raise errors.RequestError(f"{request.describe(asked)}: the continuation is empty; nothing to score")
    context = asked.context.rstrip()
    return _bytes(context), _bytes(asked.context[len(context) :] + asked.continuation)


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


def _generate(asked: request.GenerateRequest, max_length: int | None) -> request.GenerateResponse:
    sampling, prompt = asked.sampling, _bytes(asked.context)
    cut = 0 if max_length is None else max(0, len(prompt) + sampling.max_gen_toks - max_length)
    state = zlib.crc32(prompt[cut:])
    noise = zlib.crc32(f"{sampling.seed} {asked.repeat}".encode()) if sampling.temperature > 0 else 0
    text = ""
    for count in range(1, sampling.max_gen_toks + 1):
        byte = _likeliest(state ^ noise)
        state = zlib.crc32(byte, state)
        text += byte.decode("ascii")
        stops = [text.index(stop) for stop in sampling.until if stop and stop in text]
        if stops:
            return request.GenerateResponse(text[: min(stops)], count, request.FinishReason.STOP, num_truncated=cut)
    return request.GenerateResponse(text, sampling.max_gen_toks, request.FinishReason.LENGTH, num_truncated=cut)
