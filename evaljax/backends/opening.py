"""What the local backends share: where a model lies, its tokenizer, its limit, and answers from scores."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from evaljax.core import config, errors, request
from evaljax.engine import encode, tokenizer
from evaljax.models import hub

DEMO = pathlib.Path(__file__).parent.parent / "demo"
SHOWN = 60  # characters of a request in a message


def find_model(path: str, key: str = "model.path") -> str:
    """The folder, file or hub id that `path` means: "demo" is the model inside the package, "~" the home folder.

    Raises CheckpointError, which names `key`, for what looks like a path and does not exist, before any hub is asked,
    and for a file that no model or tokenizer is read from.
    """
    if path == "demo":
        return str(DEMO)
    try:
        place = pathlib.Path(path).expanduser()
        found = bool(path) and place.exists()
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a name too long; no such user's home
        raise errors.CheckpointError(f"{key}={path[:SHOWN]!r}: cannot be looked up: {error}") from error
    if found:
        if place.is_file() and place.suffix != ".gguf":
            raise errors.CheckpointError(
                f"{key}={path!r} is a file; give the folder that holds it, {str(place.parent)!r}, or a .gguf file."
            )
        return str(place)
    parts = path.split("/")
    looks_local = (
        path.startswith((".", "~", "/")) or len(parts) > 2 or "\\" in path or path.endswith(".gguf") or not parts[-1]
    )
    if looks_local or not path:
        parent = next((folder for folder in place.parents if folder.is_dir()), pathlib.Path())
        names = ", ".join(sorted(entry.name for entry in parent.iterdir())[:12])
        raise errors.CheckpointError(
            f"{key}={path!r}: no such folder or file; {parent} exists and holds: {names or 'nothing'}"
        )
    return path


def read_tokenizer(spec: config.ModelSpec, source: str) -> tokenizer.Tokenizer:
    """The tokenizer that `spec` names, else that of the model at `source`."""
    if spec.tokenizer is None:
        return tokenizer.read_tokenizer(source, revision=spec.revision, add_bos_token=spec.add_bos_token)
    named = find_model(spec.tokenizer, "model.tokenizer")
    hub.check_available(named, key="model.tokenizer")
    return tokenizer.read_tokenizer(named, add_bos_token=spec.add_bos_token)


def max_length(spec: config.ModelSpec, own: int) -> int:
    """The longest input in tokens: `spec.max_length`, which the model's `own` limit bounds, or that limit."""
    if spec.max_length is None:
        return own
    if not 1 <= spec.max_length <= own:
        raise errors.ConfigError(
            f"model.max_length={spec.max_length}: expected 1 to {own}, the longest input that {spec.path} was made for"
        )
    return spec.max_length


def check_ids(sequences: Sequence[np.ndarray], owners: Sequence[request.Request], vocab_size: int) -> None:
    """Raises RequestError for a token id that the model has no embedding for (a lookup out of bounds may go unnoticed).

    Only ids that are asked for count: many tokenizers name a few tokens more than their model has.
    """
    for tokens, owner in zip(sequences, owners, strict=True):
        if len(tokens) and int(tokens.max()) >= vocab_size:
            raise errors.RequestError(
                f"{request.describe(owner)}: token id {int(tokens.max())}, but the model's vocabulary has {vocab_size} "
                "entries; the tokenizer and the model do not belong together"
            )


def with_think_end(
    requests: Sequence[request.GenerateRequest], spec: config.ModelSpec
) -> Sequence[request.GenerateRequest]:
    """`requests`, each told what ends the thought of the model of `spec`; as they are if that model does not think."""
    if spec.think_end_token is None:
        return requests
    return [
        dataclasses.replace(asked, sampling=dataclasses.replace(asked.sampling, think_end=spec.think_end_token))
        for asked in requests
    ]


def loglikelihood_responses(
    encoded: Sequence[encode.Encoded], scores: Sequence[tuple[float, bool]]
) -> list[request.LoglikelihoodResponse]:
    """The answers to (context, continuation) requests, from (log-probability, greedy) of each sequence."""
    return [
        request.LoglikelihoodResponse(
            logprob=logprob,
            is_greedy=greedy,
            num_tokens=sequence.num_targets,
            num_truncated=sequence.num_truncated,
            boundary_merge=sequence.boundary_merge,
        )
        for sequence, (logprob, greedy) in zip(encoded, scores, strict=True)
    ]


def flatten(
    texts: Sequence[Sequence[encode.Encoded]], requests: Sequence[request.RollingRequest]
) -> tuple[list[encode.Encoded], list[request.RollingRequest]]:
    """All windows of all texts in one list, and beside each the request that it belongs to."""
    windows = [window for text in texts for window in text]
    return windows, [asked for asked, text in zip(requests, texts, strict=True) for _ in text]


def rolling_responses(
    texts: Sequence[Sequence[encode.Encoded]], scores: Sequence[tuple[float, bool]]
) -> list[request.RollingResponse]:
    """The answers to rolling requests, from the scores of their windows in `flatten`'s order."""
    logprobs = iter(logprob for logprob, _ in scores)
    return [
        request.RollingResponse(
            logprob=sum((next(logprobs) for _ in text), 0.0), num_tokens=sum(window.num_targets for window in text)
        )
        for text in texts
    ]
