"""What goes wrong with one of many requests: the engine knows its place only, the backend knows its text."""

from evaljax.core import errors


class PlacedError(errors.RequestError):
    """A RequestError of request `index` in the call's order; `problem` is what the message says of it."""

    def __init__(self, index: int, problem: str):
        super().__init__(f"request {index}: {problem}")
        self.index, self.problem = index, problem


def nonfinite(index: int, what: str) -> PlacedError:
    """The error of a request whose answer is no number; `what` says which number, and its value where there is one."""
    return PlacedError(
        index,
        f"{what}; the weights or the arithmetic (dtype) overflow. "
        "engine.allow_nonfinite=True counts such requests instead of stopping",
    )
