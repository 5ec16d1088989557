"""Documents longer than the model reads: shown fewer examples, left out, or refused (`RunConfig.overlength`).

All requests of a document are treated alike: its choices are compared under one prompt. What is still too long is cut
on the left by the backend, which is the whole of the policy "truncate_left": that one has no `Rule`.
"""

import dataclasses
from collections.abc import Callable, Sequence

from evaljax.core import errors, instance, task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What happens to a document of which a request needs more than `max_length` tokens.

    Attributes:
      policy: "drop_shots", "skip" or "error".
      max_length: tokens that the model reads, those that it may generate included.
      count: the tokens that each request needs.
    """

    policy: str
    max_length: int
    count: Callable[[Sequence[instance.Instance]], Sequence[int]]

    def lengths(self, examples: Sequence[task.Example]) -> list[int]:
        """The tokens of each document's longest request."""
        counted = iter(self.count([item for example in examples for item in example.instances]))
        return [max(next(counted) for _ in example.instances) for example in examples]


def fitted(
    rule: Rule,
    examples: Sequence[task.Example],
    num_shots: Sequence[int],
    rebuild: Callable[[int, int], task.Example],
) -> list[task.Example]:
    """`examples`, those that are too long treated by the rule.

    `num_shots`: shots of each. `rebuild(place, dropped)`: the document at a place without its last `dropped` shots.
    """
    if rule.policy == "drop_shots":
        return _with_fewer_shots(rule, examples, num_shots, rebuild)
    too_long = {place: n for place, n in enumerate(rule.lengths(examples)) if n > rule.max_length}
    if not too_long:
        return list(examples)
    where = f"task {examples[0].instances[0].task_name!r}"
    if rule.policy == "error":
        place, length = next(iter(too_long.items()))
        raise errors.RequestError(
            f"{where}, document {examples[place].doc_id}: a request needs {length} tokens (what may be generated "
            f"included), the model reads at most {rule.max_length}; {len(too_long)} of {len(examples)} documents are "
            "too long. Another `overlength` than 'error' cuts them or leaves them out."
        )
    if len(too_long) == len(examples):
        raise errors.RequestError(
            f"{where}: overlength='skip' leaves no document: the shortest of {len(examples)} needs "
            f"{min(too_long.values())} tokens, the model reads at most {rule.max_length}."
        )
    return [
        dataclasses.replace(example, skipped=True) if place in too_long else example
        for place, example in enumerate(examples)
    ]


def _with_fewer_shots(
    rule: Rule,
    examples: Sequence[task.Example],
    num_shots: Sequence[int],
    rebuild: Callable[[int, int], task.Example],
) -> list[task.Example]:
    """`examples`, each too long one without its last shots: as many fewer as it takes, all where nothing helps.

    The last ones, so that a prompt still begins as the others do (what they share is forwarded once), and reads as in a
    run with fewer shots.
    """
    kept = list(examples)
    places = [place for place, shots in enumerate(num_shots) if shots]
    while places:
        lengths = rule.lengths([kept[place] for place in places])
        too_long = [place for place, length in zip(places, lengths, strict=True) if length > rule.max_length]
        for place in too_long:
            kept[place] = rebuild(place, kept[place].shots_dropped + 1)
        places = [place for place in too_long if kept[place].shots_dropped < num_shots[place]]
    return kept
