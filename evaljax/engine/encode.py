"""Requests as token ids: what the model reads, and which of its predictions are scored.

context + continuation    c0 c1 c2 | t0 t1
tokens                    c0 c1 c2   t0 t1       num_targets = 2
input  = tokens[:-1]      c0 c1 c2   t0
predicts                        t0   t1          the last num_targets input positions predict the targets
"""

import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

from evaljax.core import errors, request
from evaljax.engine import tokenizer as tokenizers
from evaljax.engine import trie


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One sequence to score: the last `num_targets` of `tokens` (int32) are predicted, all but the last are read.

    `num_truncated`: tokens cut from the left. `boundary_merge`: the tokenizer merged text across the join of context
    and continuation, so that the targets begin before the join.
    """

    tokens: np.ndarray
    num_targets: int
    num_truncated: int = 0
    boundary_merge: bool = False


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One prompt to continue (`tokens` int32), `num_truncated` tokens cut from its left."""

    tokens: np.ndarray
    num_truncated: int = 0


def encode_loglikelihood(
    tokenizer: tokenizers.Tokenizer, requests: Sequence[request.LoglikelihoodRequest], max_length: int
) -> list[Encoded]:
    """The sequences of (context, continuation) requests, in order; inputs of at most `max_length` tokens.

    The rules are lm-eval's, where they are right: whitespace that ends the context belongs to the continuation; a
    context that is empty, or only whitespace, is the prefix token; what is too long loses its left end. Where the
    tokenizer merges across the join, the scored tokens begin before it: they always cover the whole continuation.
    Raises RequestError for an empty continuation, and for one that is longer than `max_length`.
    """
    pairs = [_move_whitespace(query) for query in requests]
    whole = tokenizer.encode_arrays([context + continuation for context, continuation in pairs if context])
    heads = tokenizer.encode_arrays([context for context, _ in pairs if context])
    alone = tokenizer.encode_arrays([text for context, text in pairs if not context], add_special_tokens=False)
    with_context, without = iter(zip(heads, whole, strict=True)), iter(alone)
    prefix, results = tokenizer.prefix_token_id, []
    for query, (context, _) in zip(requests, pairs, strict=True):
        if context:
            tokens, num_targets, merged = _split(prefix, *next(with_context))
        else:
            tokens, num_targets, merged = *_after_prefix(prefix, next(without)), False
        if num_targets == 0:
            raise errors.RequestError(f"{request.describe(query)}: the tokenizer gives the continuation no token")
        if num_targets > max_length:
            raise errors.RequestError(
                f"{request.describe(query)}: the continuation has {num_targets} tokens, "
                f"the model reads at most {max_length}"
            )
        cut = max(0, len(tokens) - (max_length + 1))
        results.append(Encoded(tokens[cut:], num_targets, cut, merged))
    return results


def encode_rolling(
    tokenizer: tokenizers.Tokenizer, requests: Sequence[request.RollingRequest], max_length: int
) -> list[tuple[Encoded, ...]]:
    """The windows of each text: every token is predicted exactly once, the prefix token never; none for an empty text.

    Inputs of at most `max_length` tokens. Windows overlap by the one token that conditions the next; the last one
    reaches back as far as it can. With max_length 4 and tokens 0..9 after prefix p:

        read       p 0 1 2 | 3 4 5 6 | 5 6 7 8
        predict    0 1 2 3 | 4 5 6 7 |     8 9
    """
    texts = tokenizer.encode_arrays([query.text for query in requests], add_special_tokens=False)
    return [_windows(tokenizer.prefix_token_id, tokens, max_length) for tokens in texts]


def encode_prompts(
    tokenizer: tokenizers.Tokenizer, requests: Sequence[request.GenerateRequest], max_length: int
) -> list[Prompt]:
    """The prompts, in order, each cut on the left so that its `max_gen_toks` more tokens fit into `max_length`.

    An empty prompt is the prefix token. Raises ConfigError where what may be generated leaves no room for a prompt.
    """
    if requests and max_length < 2:
        raise errors.ConfigError(
            f"model.max_length is {max_length}; generation needs 2 or more, a prompt and what follows"
        )
    for asked in requests:
        asks = asked.sampling.max_gen_toks
        if not 1 <= asks < max_length:
            raise errors.ConfigError(
                f"{request.describe(asked)}: max_gen_toks is {asks}; expected 1 to {max_length - 1}: "
                f"model.max_length {max_length} holds the prompt too"
            )
    prefix, results = np.asarray([tokenizer.prefix_token_id], np.int32), []
    texts = tokenizer.encode_arrays([asked.context for asked in requests])
    for asked, tokens in zip(requests, texts, strict=True):
        cut = max(0, len(tokens) - (max_length - asked.sampling.max_gen_toks))
        results.append(Prompt(tokens[cut:] if len(tokens) else prefix, cut))
    return results


def count_tokens(tokenizer: tokenizers.Tokenizer, requests: Sequence[request.Countable]) -> list[int]:
    """The tokens that each request needs if nothing is cut: those read, and for a generation those that may follow.

    It is too long, and would lose the difference, where that is more than `max_length`.
    """
    scored = [asked for asked in requests if isinstance(asked, request.LoglikelihoodRequest)]
    prompts = [asked.context for asked in requests if isinstance(asked, request.GenerateRequest)]
    read = iter([len(found.tokens) - 1 for found in encode_loglikelihood(tokenizer, scored, sys.maxsize)])
    prompt = iter([max(1, len(tokens)) for tokens in tokenizer.encode_arrays(prompts)])
    return [
        next(prompt) + asked.sampling.max_gen_toks if isinstance(asked, request.GenerateRequest) else next(read)
        for asked in requests
    ]


def _move_whitespace(query: request.LoglikelihoodRequest) -> tuple[str, str]:
    """Context and continuation, the whitespace that ends the context moved to the continuation."""
    if query.continuation == "":
        raise errors.RequestError(f"{request.describe(query)}: the continuation is empty; nothing to score")
    context = query.context.rstrip()
    return context, query.context[len(context) :] + query.continuation


def _after_prefix(prefix: int, tokens: np.ndarray) -> tuple[np.ndarray, int]:
    """Tokens to score from the beginning of a sequence, and their number: the prefix token, once, conditions them."""
    if len(tokens) and tokens[0] == prefix:
        return tokens, len(tokens) - 1
    return np.concatenate([np.asarray([prefix], np.int32), tokens]), len(tokens)


def _split(prefix: int, head: np.ndarray, whole: np.ndarray) -> tuple[np.ndarray, int, bool]:
    """Tokens, number of targets, and whether the join was merged: the split is where `head` and `whole` part."""
    common = trie.common_prefix(head, whole)
    merged = common < len(head)
    if merged and common == len(whole):  # the longer text has fewer tokens: its last one covers the continuation
        common = max(0, common - 1)
    if common == 0:
        return np.concatenate([np.asarray([prefix], np.int32), whole]), len(whole), merged
    return whole, len(whole) - common, merged


def _windows(prefix: int, tokens: np.ndarray, max_length: int) -> tuple[Encoded, ...]:
    """The windows of one text."""
    sequence, _ = _after_prefix(prefix, tokens)  # a text that brings its own BOS is not given another
    windows = []
    for first in range(1, len(sequence), max_length):  # predicts sequence[first:last]
        last = min(first + max_length, len(sequence))
        windows.append(Encoded(sequence[max(0, last - max_length - 1) : last], last - first))
    return tuple(windows)
