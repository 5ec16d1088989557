"""What evaljax needs of a model: three questions, a chat template, and a few facts."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from evaljax.core import request

METHODS = ("loglikelihood", "loglikelihood_rolling", "generate_until", "apply_chat_template", "info")


@runtime_checkable
class Backend(Protocol):
    """Anything that answers requests. Answers come back in request order, one for each request.

    These methods are all that a run needs. Where a backend also has them, it uses

    - `max_length` (tokens, or None): generations that leave no room for a prompt are refused before weights load;
    - `count_tokens(requests)`: the tokens that each needs if nothing is cut, `max_gen_toks` included; every
      `RunConfig.overlength` but "truncate_left" asks;
    - `keep_answers(folder)`, `close()`: answers are kept there as they come, and found there by the next run;
    - `plan(loglikelihood, rolling, generate requests)`: a dry run writes it;
    - `figures` (the manifest has them), `notes` (lines that are printed), `tokenizer` (`evaljax show` prints its ids).
    """

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """log P(continuation | context) of each request."""
        ...

    def loglikelihood_rolling(self, requests: Sequence[request.RollingRequest]) -> list[request.RollingResponse]:
        """log P(text) of each request."""
        ...

    def generate_until(self, requests: Sequence[request.GenerateRequest]) -> list[request.GenerateResponse]:
        """One generated text for each request."""
        ...

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """`messages` ({"role", "content"}) as one prompt; without a generation prompt the last message stays open."""
        ...

    def info(self) -> dict[str, Any]:
        """Plain facts for the manifest: model name, number of parameters, dtype, maximal length, tokenizer."""
        ...


def missing_methods(model: Any) -> list[str]:
    """The names of `METHODS` that `model` cannot be asked; none for a `Backend`."""
    return [name for name in METHODS if not callable(getattr(model, name, None))]
