"""`generation_kwargs` as a `request.Sampling`, by lm-eval's rules."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import build, errors, request

# The first of these that is given counts.
LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
MINIMUM_KEYS = ("min_tokens", "min_new_tokens", "min_gen_toks")


def sampling(
    generation_kwargs: Mapping[str, Any], *, where: str, default_until: str = "\n\n", seed: int = 0
) -> request.Sampling:
    """How to generate.

    `do_sample: false` is greedy whatever the temperature; without `do_sample` a temperature above 0 samples; with
    `do_sample: true` and no temperature it is 1. `seed` holds unless the task gives its own.
    """
    checked = build.generation_kwargs(generation_kwargs, source=where, default_until=default_until) or {}
    longest = _first(checked, LENGTH_KEYS, request.DEFAULT_MAX_GEN_TOKS)
    shortest = _first(checked, MINIMUM_KEYS, 0)
    if shortest > longest:
        raise errors.TaskError(
            f"{where}: generation_kwargs: min_tokens is {shortest}; expected 0 to {longest}, the most that may "
            "be generated (max_gen_toks)."
        )
    temperature = _temperature(checked, where)
    greedy = temperature == 0.0
    return request.Sampling(
        until=tuple(stop for stop in build.names(checked.get("until")) if stop),
        max_gen_toks=longest,
        min_tokens=shortest,
        temperature=temperature,
        # Cuts of the distribution do not change its largest entry; dropping them makes equal requests equal.
        top_p=request.NUCLEUS_OFF if greedy else float(_given(checked, "top_p", request.NUCLEUS_OFF)),
        top_k=0 if greedy else int(_given(checked, "top_k", 0)),
        seed=int(_given(checked, "seed", seed)),
    )


def _first(checked: Mapping[str, Any], keys: Sequence[str], default: int) -> int:
    return next((checked[key] for key in keys if checked.get(key) is not None), default)


def _given(values: Mapping[str, Any], key: str, default: Any) -> Any:
    value = values.get(key)
    return default if value is None else value


def _temperature(checked: Mapping[str, Any], where: str) -> float:
    do_sample = checked.get("do_sample")
    if do_sample is False:
        return 0.0
    if do_sample is True:
        temperature = float(_given(checked, "temperature", 1.0))
        if temperature == 0.0:
            raise errors.TaskError(
                f"{where}: generation_kwargs: do_sample is true but temperature is 0: leave do_sample out for greedy "
                "decoding, or give a temperature above 0."
            )
        return temperature
    return float(_given(checked, "temperature", 0.0))


def check_length(asked: request.Sampling, max_length: int, *, where: str) -> None:
    """Nothing; a `ConfigError` if generation alone would fill the model's context and leave no room for a prompt."""
    if asked.max_gen_toks >= max_length:
        raise errors.ConfigError(
            f"{where}: max_gen_toks is {asked.max_gen_toks}, but the model holds {max_length} tokens: no room "
            "is left for the prompt. Set gen_kwargs.max_gen_toks lower or model.max_length higher."
        )
