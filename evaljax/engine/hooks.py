"""Who hears of a call of the engine while it works."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from evaljax.core import progress as reporting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the engine tells; by default nobody listens.

    Attributes:
      found: (which of the requests, their answers), as soon as the device has them.
      agree: (what, digest); compares the digest over the processes that share the work, before the first step.
      progress: how far the work is.
    """

    found: Callable[[Sequence[int], Sequence[Any]], None] = lambda places, answers: None
    agree: Callable[[str, str], None] = lambda what, digest: None
    progress: reporting.Progress = reporting.silent


NOBODY = Hooks()
