"""Health counts: how often an answer's score hangs by a thread."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import task
from evaljax.scoring import choice, filters, metrics, text


def counts(
    config: task.TaskConfig, examples: Sequence[task.Example], scored: Mapping[str, metrics.Scored]
) -> dict[str, int]:
    """How many documents had tied choices, equal choices, empty generations, nothing to extract, or nearly matched.

    Only what the output type can have. Extraction failures and near misses are summed over the filter pipelines; where
    there are several, "<count>,<filter>" has each one's. `unused_repeats`: answers that no pipeline looks at.
    """
    found: dict[str, int] = {}
    if config.output_type == "multiple_choice":
        found["ties"] = sum(choice.is_tied(_logprobs(example)) for example in examples)
        found["duplicate_choices"] = sum(
            len(set(example.choices or ())) < len(example.choices or ()) for example in examples
        )
    if config.output_type == "generate_until":
        found["empty_generations"] = sum(_has_empty(example) for example in examples)
        _add(
            found,
            "extraction_failures",
            {p.name: _failures(examples, p) for p in config.filter_list if filters.fallbacks(p)},
        )
        match = scored.get("exact_match")
        if match is not None and match.function is None and config.process_results is None:
            _add(
                found,
                "near_misses",
                {p.name: _near_misses(config, examples, match, p.name) for p in config.filter_list},
            )
    unused = sum(len(instance.resps) - 1 for example in examples for instance in example.instances)
    if unused > 0 and all(filters.keeps_first_only(pipeline) for pipeline in config.filter_list):
        found["unused_repeats"] = unused
    return found


def _add(found: dict[str, int], name: str, by_filter: Mapping[str, int]) -> None:
    found[name] = sum(by_filter.values())
    if len(by_filter) > 1:
        found.update({f"{name},{filter_name}": count for filter_name, count in by_filter.items()})


def _logprobs(example: task.Example) -> list[float]:
    answers = [instance.resps[0] for instance in example.instances[: len(example.choices or ())]]
    return [float(answer[0]) for answer in answers if isinstance(answer, tuple | list)]


def _has_empty(example: task.Example) -> bool:
    answers = [answer for instance in example.instances for answer in instance.resps]
    return any(isinstance(answer, str) and not answer.strip() for answer in answers)


def _failures(examples: Sequence[task.Example], pipeline: task.FilterPipeline) -> int:
    missing = filters.fallbacks(pipeline)
    answers = [example.instances[0].filtered_resps[pipeline.name] for example in examples]
    return sum(any(_same(answer, fallback) for fallback in missing) for answer in answers)


def _same(answer: Any, fallback: Any) -> bool:
    """Whether the answer is the fallback; of a list of repeats, whether all are."""
    if type(answer) is type(fallback):
        return bool(answer == fallback)
    return isinstance(answer, list) and bool(answer) and all(entry == fallback for entry in answer)


def _near_misses(
    config: task.TaskConfig, examples: Sequence[task.Example], match: metrics.Scored, filter_name: str
) -> int:
    near = 0
    for example in examples:
        result = example.instances[0].filtered_resps[filter_name]
        gold = text.gold_answer(
            example, result, has_choices=config.doc_to_choice is not None, cast=True, where=config.task
        )
        several = text.has_several(example, gold)
        near += text.is_near_miss(gold, result, several=several, kwargs=dict(match.kwargs))
    return near
