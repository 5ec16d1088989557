"""What one generated text is worth, metric by metric."""

import re
import string
from collections.abc import Sequence
from typing import Any

from evaljax.core import errors, task

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_DIGITS = str.maketrans("", "", string.digits)


def gold_answer(example: task.Example, result: Any, *, has_choices: bool, cast: bool, where: str) -> Any:
    """The right answer to compare `result` with; a list of all right ones where the task has several.

    A single answer takes the type of the result (the number 42 becomes "42" beside a text), unless the result is a list
    or `cast` is False.
    """
    gold = example.target
    if has_choices:
        return _chosen(example, where=where)
    if example.multiple_target:
        return list(gold) if isinstance(gold, list | tuple) else [gold]
    if not cast or result is None or isinstance(result, list) or type(gold) is type(result):
        return gold
    try:
        return type(result)(gold)
    except (TypeError, ValueError):
        raise errors.TaskError(
            f"{where}: the gold answer {gold!r} cannot be read as {type(result).__name__}, the answer's type."
        ) from None


def has_several(example: task.Example, gold: Any) -> bool:
    """Whether `gold` is a list of answers of which any one is right."""
    return example.multiple_target and isinstance(gold, list)


def _chosen(example: task.Example, *, where: str) -> Any:
    """The text of the choice that the target points at, or of each of them."""
    choices = example.choices or ()
    indices = example.target if isinstance(example.target, list | tuple) else [example.target]
    for index in indices:
        if not isinstance(index, int) or not 0 <= index < len(choices):
            raise errors.TaskError(
                f"{where}: the gold label is {index!r}; with doc_to_choice, expected 0 to {len(choices) - 1}."
            )
    return (
        [choices[index] for index in indices] if isinstance(example.target, list | tuple) else choices[example.target]
    )


def exact_match(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> float:
    """The share of predictions that equal their reference, both without what is to be ignored.

    Expressions go first, in order, then case, punctuation and digits, as in lm-eval.
    """

    def bare(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        for pattern in regexes_to_ignore or ():
            value = re.sub(pattern, "", value)
        value = value.lower() if ignore_case else value
        value = value.translate(_NO_PUNCTUATION) if ignore_punctuation else value
        return value.translate(_NO_DIGITS) if ignore_numbers else value

    pairs = list(zip(predictions, references, strict=True))
    return sum(bare(prediction) == bare(reference) for prediction, reference in pairs) / len(pairs)


def match_value(gold: Any, result: Any, *, several: bool, kwargs: dict[str, Any]) -> float:
    """The exact_match of one document.

    With several right answers 1.0 if any of them is given. A result that is a list (the pipeline kept all repeats)
    counts as the mean over its entries.
    """
    results = result if isinstance(result, list) else [result]
    if several:
        pairs = [(answer, reference) for answer in results for reference in gold]
        return 1.0 if any(exact_match([answer], [reference], **kwargs) for answer, reference in pairs) else 0.0
    references = gold if isinstance(gold, list) else [gold]
    if len(references) == 1:
        references = references * len(results)
    elif len(results) == 1:
        results = results * len(references)
    if not results or len(results) != len(references):
        return 0.0
    return exact_match(results, references, **kwargs)


def is_near_miss(gold: Any, result: Any, *, several: bool, kwargs: dict[str, Any]) -> bool:
    """Whether a document that scores 0 would score without regard to case and to white space at both ends."""
    if match_value(gold, result, several=several, kwargs=kwargs) > 0:
        return False
    return match_value(_folded(gold), _folded(result), several=several, kwargs=kwargs) > 0


def _folded(value: Any) -> Any:
    if isinstance(value, list):
        return [_folded(item) for item in value]
    return value.strip().casefold() if isinstance(value, str) else value


def pair(gold: Any, result: Any) -> list[Any]:
    """[gold, result], for scores of the whole set (bleu, chrf, ter, f1) and for aggregations of the task's own."""
    return [gold, result]


def nothing(*evidence: Any) -> None:
    """None: the value of `bypass`."""
