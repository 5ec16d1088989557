"""Few-shot draws: which examples of the pool stand in front of a document.

The draw of document i is a function of (pool, seed, i) alone: it is the one that a full run in document order makes, so
that neither a limit nor a selection of documents changes a prompt. One `random.Random(seed)` serves a task and advances
document by document, as in lm-eval.

A document never stands in front of itself, nor, in a pool of its own split, does a row that reads the same. Where
lm-eval takes care of that (`exclude`), its draw is kept exactly; where it does not, a draw that holds the document has
just that place filled anew, from a generator of its own.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evaljax.core import errors, lookup, task

Doc = Mapping[str, Any]
# (generator, size of the pool, number of examples, whether a place holds the document itself, exclude) -> places
Sampler = Callable[[random.Random, int, int, Callable[[int], bool], bool], list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """Documents to draw examples from.

    Attributes:
      exclude: lm-eval looks for the evaluated document in this pool (its rule: fewshot split == test_split).
      same_split: the pool's rows are the evaluated split's; if both are as long, place i of both is one document.
      reads_as: whether the row at a place reads, as an example, as the evaluated document (its number) would.
    """

    docs: Sequence[Doc]
    exclude: bool
    same_split: bool
    reads_as: Callable[[int, int], bool] = lambda place, doc_id: False


def pool_split(config: task.TaskConfig) -> str | None:
    """The split that examples are drawn from: lm-eval's order of places to look in; None: rows that the task gives."""
    own = config.fewshot_config
    if own.split is not None or own.samples is not None:
        return own.split
    return next((s for s in (config.training_split, config.validation_split) if s is not None), config.test_split)


def default(rng: random.Random, size: int, num: int, is_self: Callable[[int], bool], exclude: bool) -> list[int]:
    """Random places. With `exclude`, one more is drawn to make up for the document itself."""
    if not exclude:
        return rng.sample(range(size), num)
    drawn = rng.sample(range(size), min(num + 1, size))
    kept = [place for place in drawn if not is_self(place)][:num]
    if len(kept) == num:
        return kept
    others = [place for place in range(size) if not is_self(place)]
    return [] if len(others) < num else rng.sample(others, num)


def first_n(rng: random.Random, size: int, num: int, is_self: Callable[[int], bool], exclude: bool) -> list[int]:
    """The first places, the document itself skipped."""
    kept: list[int] = []
    for place in range(size):
        if len(kept) == num:
            return kept
        if not is_self(place):
            kept.append(place)
    return kept if len(kept) == num else list(range(num))


SAMPLERS: Mapping[str, Sampler] = {"default": default, "first_n": first_n}


def draws(
    pool: Pool, docs: Sequence[Doc], wanted: Sequence[int], *, sampler: Any, num: int, seed: int, where: str
) -> Iterator[list[int]]:
    """For each of the `wanted` documents, in ascending order, the places of its examples in the pool."""
    if not isinstance(sampler, str):
        raise errors.TaskError(
            f"{where}: fewshot_config.sampler must be one of {lookup.listing(SAMPLERS)}, found {sampler!r}."
        )
    sample = lookup.find(SAMPLERS, sampler, what="fewshot_config.sampler", where=where, error=errors.TaskError)
    size = len(pool.docs)
    if num > size:
        raise errors.TaskError(f"{where}: {num} few-shot examples are asked for, but the pool has only {size}.")
    aligned = pool.same_split and size == len(docs)
    rng = random.Random(seed)
    selected = iter(wanted)
    following = next(selected, None)
    doc_id = 0
    while following is not None:
        is_self = _self_test(pool.docs, docs[doc_id], doc_id if aligned else None)
        places = sample(rng, size, num, is_self, pool.exclude)
        if doc_id == following:
            yield _without_self(places, pool, num, doc_id, is_self, rng=random.Random(f"{seed}/{doc_id}"), where=where)
            following = next(selected, None)
        doc_id += 1


def _self_test(pool: Sequence[Doc], doc: Doc, own_place: int | None) -> Callable[[int], bool]:
    def is_self(place: int) -> bool:
        return place == own_place or pool[place] == doc

    return is_self


def _without_self(
    places: list[int],
    pool: Pool,
    num: int,
    doc_id: int,
    is_self: Callable[[int], bool],
    *,
    rng: random.Random,
    where: str,
) -> list[int]:
    """`places`, those that hold the document itself filled anew."""

    def banned(place: int) -> bool:
        return is_self(place) or (pool.same_split and pool.reads_as(place, doc_id))

    kept = [place for place in places if not banned(place)]
    missing = num - len(kept)
    if not missing:
        return places
    others = sorted(set(range(len(pool.docs))).difference(kept))
    rng.shuffle(others)
    fresh = list(itertools.islice((place for place in others if not banned(place)), missing))
    if len(fresh) < missing:
        if not (pool.same_split or pool.exclude):
            # Another split repeats the document and is too small to do without the copy (five fixed examples, say):
            # the data are contaminated, but the draw is not of the evaluated document.
            return places
        raise errors.TaskError(
            f"{where}, document {doc_id}: {num} few-shot examples are asked for, but the pool has only "
            f"{len(kept) + len(fresh)} besides the document."
        )
    if len(places) < num:
        return kept + fresh
    return [fresh.pop() if banned(place) else place for place in places]
