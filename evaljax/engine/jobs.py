"""What is to be generated: requests checked, and those that must get the same text made one job."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np

from evaljax.core import request
from evaljax.engine import failure, stops


class Tokenizer(stops.Detokenizer, Protocol):
    """What generation needs of a tokenizer; `engine.tokenizer.Tokenizer` is one."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """The tokens that end a sequence."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One generation, and the places of the requests that it answers; errors name the first."""

    places: list[int]
    prompt: np.ndarray
    sampling: request.Sampling
    repeat: int
    until: tuple[str, ...]


def collect(
    prompts: Sequence[np.ndarray],
    samplings: Sequence[request.Sampling],
    repeats: Sequence[int],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    once: bool,
) -> list[Job]:
    """The jobs of the requests: if `once`, one for all requests that must get the same text.

    Raises PlacedError for a prompt without a token, one that does not fit, or nothing to generate.
    """
    eos_texts = [tokenizer.decode([token], skip_special_tokens=False) for token in sorted(tokenizer.eos_token_ids)]
    jobs: dict[Any, Job] = {}
    for place, (prompt, sampling, repeat) in enumerate(zip(prompts, samplings, repeats, strict=True)):
        _check(place, prompt, sampling, max_length)
        ids = np.ascontiguousarray(prompt, np.int32)
        key = (ids.tobytes(), sampling, repeat if sampling.temperature > 0 else 0) if once else place
        if key not in jobs:
            until = (*sampling.until, *(text for text in eos_texts if text and text not in sampling.until))
            jobs[key] = Job(places=[], prompt=ids, sampling=sampling, repeat=repeat, until=until)
        jobs[key].places.append(place)
    return list(jobs.values())


def _check(place: int, prompt: np.ndarray, sampling: request.Sampling, max_length: int) -> None:
    """Nothing, if there is something to generate and room for it."""
    if not prompt.size:
        raise failure.PlacedError(place, "prompt of 0 tokens; expected at least 1")
    if sampling.max_gen_toks < 1:
        raise failure.PlacedError(place, f"max_gen_toks is {sampling.max_gen_toks}; expected at least 1")
    if prompt.size + sampling.max_gen_toks > max_length:
        raise failure.PlacedError(
            place,
            f"prompt of {prompt.size} tokens and max_gen_toks {sampling.max_gen_toks}; "
            f"expected at most max_length {max_length} together",
        )
