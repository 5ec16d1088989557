"""What is asked of a model, and what it answers.

Text goes in and text or log-probabilities come out: a request never knows which task it came from, and a response
never knows what it is worth. `multiple_choice` is several `LoglikelihoodRequest`s.
"""

import dataclasses
import enum

NUCLEUS_OFF = 1.0
DEFAULT_MAX_GEN_TOKS = 256
SHOWN = 60  # characters of a text in a message


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # an `until` string or an end-of-sequence token
    LENGTH = "length"  # max_gen_toks tokens, or the model's context is full


@dataclasses.dataclass(frozen=True, slots=True)
class LoglikelihoodRequest:
    """log P(continuation | context), and whether greedy decoding would give the continuation."""

    context: str
    continuation: str


@dataclasses.dataclass(frozen=True, slots=True)
class RollingRequest:
    """log P(text), the text cut into windows that each predict every token exactly once."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to generate; normalised from a task's `generation_kwargs` (`tasks.generation.sampling`).

    `temperature == 0` is greedy. `top_k == 0` and `top_p == 1` switch those cuts off. Before `min_tokens` tokens no
    end-of-sequence token is generated; a stop string ends the text all the same (transformers' rule). `think_end` is
    the model's, not the task's: a backend sets it from its `ModelSpec.think_end_token`; "" for a model that answers at
    once.
    """

    until: tuple[str, ...] = ()
    max_gen_toks: int = DEFAULT_MAX_GEN_TOKS
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = NUCLEUS_OFF
    top_k: int = 0
    seed: int = 0
    think_end: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A continuation of `context`; `repeat` tells the K sampled copies of one request apart."""

    context: str
    sampling: Sampling
    repeat: int = 0


Request = LoglikelihoodRequest | RollingRequest | GenerateRequest
Countable = LoglikelihoodRequest | GenerateRequest  # what can be too long; a rolling text is cut into windows


@dataclasses.dataclass(frozen=True, slots=True)
class LoglikelihoodResponse:
    """`logprob` in nats, summed over `num_tokens` continuation tokens.

    `num_truncated`: tokens cut from the left because the request was longer than the model's context.
    `boundary_merge`: the tokenizer merged text across the join of context and continuation, so that the scored tokens
    begin before the join.
    """

    logprob: float
    is_greedy: bool
    num_tokens: int
    num_truncated: int = 0
    boundary_merge: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RollingResponse:
    """`logprob` in nats, summed over the `num_tokens` tokens of the text."""

    logprob: float
    num_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class GenerateResponse:
    """`text` without the prompt and without the model's thought, cut before the first stop string.

    `num_tokens`: those it took, the one that ended it included. `num_truncated`: tokens cut from the prompt's left.
    `unfinished_thought`: the generation ended before the thought did, so there is no answer: `text` is empty.
    """

    text: str
    num_tokens: int
    finish_reason: FinishReason
    num_truncated: int = 0
    unfinished_thought: bool = False


Response = LoglikelihoodResponse | RollingResponse | GenerateResponse


def describe(asked: Request) -> str:
    """The request in one line for a message: its kind, the end of its context, the beginning of its continuation."""
    match asked:
        case LoglikelihoodRequest(context, continuation):
            return f"loglikelihood request (context {_tail(context)}, continuation {_head(continuation)})"
        case RollingRequest(text):
            return f"loglikelihood_rolling request (text {_head(text)})"
        case GenerateRequest(context):
            return f"generate_until request (context {_tail(context)})"


def _tail(text: str) -> str:
    return repr(text if len(text) <= SHOWN else "…" + text[-SHOWN:])


def _head(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
