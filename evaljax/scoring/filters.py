"""Filters: what is taken from a model's answers before they are scored.

A filter gets the answers of every instance (a list of repeats each) and the documents, and gives back one entry per
instance. No filter raises on any text; a wrong parameter does, before anything runs.
"""

import inspect
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaljax.core import errors, lookup, task

Docs = Sequence[Mapping[str, Any]]

NUMBER_AFTER_HASHES = r"#### (\-?[0-9\.\,]+)"
BRACKETED = r"\['(.*?)'\]"
_SPAN_LABELS = {
    "person": "per", "people": "per", "persons": "per", "per": "per",
    "location": "loc", "counties": "loc", "places": "loc", "country": "loc", "continent": "loc", "loc": "loc",
    "organization": "org", "company": "org", "org": "org",
    "time": "date", "date": "date",
}  # fmt: skip
_SPAN_LABEL = re.compile(rf"\b({'|'.join(_SPAN_LABELS)})\s*:")
_SPAN = re.compile(r"\b(PER|LOC|ORG|DATE):\s*([^$]+)")
_TAGGED = re.compile(r"\('[^']*', '([^']*)'\)")


def take_first(resps: Sequence[Any], docs: Docs) -> list[Any]:
    """The first answer of each instance."""
    return [answers[0] for answers in resps]


def take_first_k(resps: Sequence[Any], docs: Docs, *, k: int) -> list[Any]:
    """The first `k` answers of each instance."""
    shortest = min(len(answers) for answers in resps)
    if shortest < k:
        raise errors.TaskError(f"k is {k}, but an instance has {shortest} answers; expected k <= `repeats`.")
    return [answers[:k] for answers in resps]


def majority_vote(resps: Sequence[Any], docs: Docs) -> list[Any]:
    """The commonest answer of each instance, in a list; of equally common ones the first."""
    return [[max(answers, key=list(answers).count)] for answers in resps]


def regex(
    resps: Sequence[Any],
    docs: Docs,
    *,
    regex_pattern: str = NUMBER_AFTER_HASHES,
    group_select: int = 0,
    fallback: Any = "[invalid]",
) -> list[Any]:
    """Match number `group_select` of the pattern in each answer, stripped, else `fallback`; of several groups the first
    that is not empty.
    """
    pattern = re.compile(regex_pattern)

    def extract(answer: Any) -> Any:
        found = _captured(pattern, answer, group_select)
        return fallback if found is None else found

    return [[extract(answer) for answer in answers] for answers in resps]


def multi_choice_regex(
    resps: Sequence[Any],
    docs: Docs,
    *,
    regex_pattern: str = NUMBER_AFTER_HASHES,
    group_select: int = 0,
    fallback: Any = "[invalid]",
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    regexes_to_ignore: Sequence[str] | None = None,
) -> list[Any]:
    """The choice that each answer names, as "(A)": by the pattern, a choice's text, or a letter after a colon.

    What the pattern captures is given back as it is. Documents need a column `choices`.
    """
    pattern = re.compile(regex_pattern)

    def normal(text: str) -> str:
        for ignored in regexes_to_ignore or ():
            text = re.sub(ignored, "", text)
        text = text.lower() if ignore_case else text
        return "".join(c for c in text if not unicodedata.category(c).startswith("P")) if ignore_punctuation else text

    def extract(answer: Any, by_text: Mapping[str, str], by_letter: Mapping[str, str]) -> Any:
        answer = answer if isinstance(answer, str) else ""
        if found := _captured(pattern, answer, group_select):
            return found
        # Longest first: a choice that begins another one must not hide it.
        texts = "|".join(sorted(map(re.escape, by_text), key=len, reverse=True))
        if found := _captured(re.compile(texts), normal(answer), group_select):
            return by_text.get(found, found)
        letters = "|".join(map(re.escape, by_letter))
        if found := _captured(re.compile(rf":[\s]*({letters})"), answer, group_select):
            return by_letter.get(found, found)
        return fallback

    extracted = []
    for answers, doc in zip(resps, docs, strict=True):
        names = [f"({chr(ord('A') + index)})" for index in range(len(_choices(doc)))]
        by_text = {normal(choice.strip()): name for choice, name in zip(_choices(doc), names, strict=True)}
        by_letter = {name[1:-1]: name for name in names}
        extracted.append([extract(answer, by_text, by_letter) for answer in answers])
    return extracted


def regex_pos(
    resps: Sequence[Any], docs: Docs, *, regex_pattern: str = BRACKETED, group_select: int = 0, fallback: Any = None
) -> list[Any]:
    """The TAGs of ('token', 'TAG') pairs in each answer, or `fallback`. The pattern has no effect, as in lm-eval."""
    missing = ["invalid"] if fallback is None else fallback
    return [
        [(_TAGGED.findall(answer) if isinstance(answer, str) else []) or missing for answer in answers]
        for answers in resps
    ]


def remove_whitespace(resps: Sequence[Any], docs: Docs) -> list[Any]:
    """Each answer without white space at its ends."""
    return _each_text(resps, str.strip)


def lowercase(resps: Sequence[Any], docs: Docs) -> list[Any]:
    """Each answer in lower case."""
    return _each_text(resps, str.lower)


def uppercase(resps: Sequence[Any], docs: Docs) -> list[Any]:
    """Each answer in upper case."""
    return _each_text(resps, str.upper)


def map_values(
    resps: Sequence[Any], docs: Docs, *, mapping_dict: Mapping[Any, Any] | None = None, default_value: Any = None
) -> list[Any]:
    """Each answer looked up in `mapping_dict`, else `default_value`."""
    mapping = mapping_dict or {}

    def found(answer: Any) -> Any:
        return default_value if isinstance(answer, list | dict | set) else mapping.get(answer, default_value)

    return [[found(answer) for answer in answers] for answers in resps]


def format_span(resps: Sequence[Any], docs: Docs) -> list[Any]:
    """Named entities in each answer as "label: entity $ label: entity", label one of per, loc, org, date."""

    def entities(answer: str) -> str:
        text = _SPAN_LABEL.sub(lambda match: f"{_SPAN_LABELS[match[1]].upper()}:", answer.lower())
        text = text.replace("$$", "$").rstrip("$").replace("\n", "$").strip()
        spans = [(label.lower(), value.strip()) for label, values in _SPAN.findall(text) for value in values.split(",")]
        return " $ ".join(f"{label}: {value}" for label, value in spans if value.lower() != "none")

    return _each_text(resps, entities)


def custom(resps: Sequence[Any], docs: Docs, *, filter_fn: Callable[[Sequence[Any], Docs], Any]) -> list[Any]:
    """What `filter_fn(resps, docs)` gives."""
    return list(filter_fn(resps, docs))


FILTERS: Mapping[str, Callable[..., list[Any]]] = {
    "take_first": take_first,
    "take_first_k": take_first_k,
    "majority_vote": majority_vote,
    "regex": regex,
    "multi_choice_regex": multi_choice_regex,
    "regex_pos": regex_pos,
    "remove_whitespace": remove_whitespace,
    "lowercase": lowercase,
    "uppercase": uppercase,
    "map": map_values,
    "format_span": format_span,
    "custom": custom,
}

_REDUCING = ("take_first", "custom")  # steps that may give one answer for a list of repeats
_FALLBACKS: Mapping[str, Any] = {"regex": "[invalid]", "multi_choice_regex": "[invalid]", "regex_pos": ["invalid"]}


def run_pipeline(pipeline: task.FilterPipeline, resps: Sequence[list[Any]], docs: Docs, *, where: str) -> list[Any]:
    """What the pipeline's steps leave of `resps`: one entry for each instance, in order."""
    current: Sequence[Any] = list(resps)
    for step in pipeline.steps:
        current = _run_step(step, current, docs, where=f"{where}: filter {pipeline.name!r}")
        if len(current) != len(docs):
            raise errors.TaskError(
                f"{where}: filter {pipeline.name!r}: {_step_name(step)!r} gave {len(current)} entries "
                f"for {len(docs)} instances."
            )
    return list(current)


def check_pipeline(pipeline: task.FilterPipeline, *, where: str) -> None:
    """Nothing, or TaskError where a step has an unknown name, an unknown or missing parameter, or a broken pattern."""
    for step in pipeline.steps:
        if not isinstance(step.function, task.FunctionRef):
            _check_step(step, where=f"{where}: filter {pipeline.name!r}")


def fallbacks(pipeline: task.FilterPipeline) -> list[Any]:
    """The values by which the pipeline's extracting steps say that they found nothing."""
    names = [(step, step.function) for step in pipeline.steps if isinstance(step.function, str)]
    given = [(step.kwargs.get("fallback"), _FALLBACKS[name]) for step, name in names if name in _FALLBACKS]
    return [default if value is None else value for value, default in given]


def keeps_first_only(pipeline: task.FilterPipeline) -> bool:
    """Whether the pipeline drops every repeat but the first before it has looked at them."""
    return bool(pipeline.steps) and pipeline.steps[0].function == "take_first"


def may_leave_one(pipeline: task.FilterPipeline) -> bool:
    """Whether the pipeline may leave one answer of each instance's list of repeats: only `take_first` and code can."""
    return any(not isinstance(step.function, str) or step.function in _REDUCING for step in pipeline.steps)


def _run_step(step: task.FilterStep, resps: Sequence[Any], docs: Docs, *, where: str) -> list[Any]:
    """What one step leaves; a filter class is built anew for each call, as in lm-eval."""
    function = _check_step(step, where=where)
    try:
        made: Any = function(**step.kwargs) if inspect.isclass(function) else function
        if hasattr(made, "apply"):
            return list(made.apply(resps, docs))
        return list(function(resps, docs, **step.kwargs))
    except errors.TaskError as error:
        raise errors.TaskError(f"{where}: {_step_name(step)}: {error}") from error
    except Exception as error:  # foreign code
        raise errors.TaskError(f"{where}: {_step_name(step)} failed: {error!r}.") from error


def _check_step(step: task.FilterStep, *, where: str) -> Any:
    """The step's function or class, its parameters checked."""
    if isinstance(step.function, task.FunctionRef):
        raise errors.TaskError(f"{where}: !function {step.function} has not been loaded.")
    function: Any = step.function
    is_named = isinstance(function, str)
    if is_named:
        function = lookup.find(FILTERS, function, what="filter", where=where, error=errors.TaskError)
    parameters = _parameters(function)
    if parameters is not None:
        _check_parameters(step, parameters, where=where)
    if step.function == "take_first_k" and (not isinstance(step.kwargs["k"], int) or step.kwargs["k"] < 1):
        raise errors.TaskError(f"{where}: take_first_k: k is {step.kwargs['k']!r}; expected a whole number, 1 or more.")
    for key in ("regex_pattern", "regexes_to_ignore") if is_named else ():
        patterns = step.kwargs.get(key)
        for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
            check_pattern(pattern, where=f"{where}: {step.function}: {key}")
    return function


def check_pattern(pattern: Any, *, where: str) -> None:
    """Nothing, or TaskError where `pattern` is no regular expression."""
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise errors.TaskError(f"{where}: {pattern!r} is not a regular expression: {error}.") from None


def _parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """The parameters that a step may set; None where any name may be passed, or where Python cannot tell."""
    if not inspect.isclass(function) and hasattr(function, "apply"):
        return {}
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    if not inspect.isclass(function):  # the first two are the answers and the documents
        parameters = dict(list(parameters.items())[2:])
    return parameters


def _check_parameters(step: task.FilterStep, parameters: Mapping[str, inspect.Parameter], *, where: str) -> None:
    name = _step_name(step)
    for key in step.kwargs:
        if key not in parameters:
            known = lookup.listing(parameters) or "none"
            nearest = lookup.nearest(key, parameters)
            raise errors.TaskError(f"{where}: {name} has no parameter {key!r}.{nearest} Known: {known}.")
    for key, parameter in parameters.items():
        if (
            parameter.default is parameter.empty
            and key not in step.kwargs
            and parameter.kind is not parameter.VAR_POSITIONAL
        ):
            raise errors.TaskError(f"{where}: {name} needs the parameter {key!r}.")


def _step_name(step: task.FilterStep) -> str:
    return step.function if isinstance(step.function, str) else getattr(step.function, "__name__", str(step.function))


def _captured(pattern: re.Pattern[str], answer: Any, group_select: int) -> str | None:
    """Match number `group_select` (negative: from the end), stripped; None where there is none."""
    matches = pattern.findall(answer) if isinstance(answer, str) else []
    if not -len(matches) <= group_select < len(matches):
        return None
    match = matches[group_select]
    if isinstance(match, tuple):
        match = next((group for group in match if group), None)
    return match if match is None else match.strip()


def _choices(doc: Mapping[str, Any]) -> list[str]:
    if "choices" not in doc:
        raise errors.TaskError(
            f"the document has no column 'choices'.{lookup.nearest('choices', doc)} Columns: {lookup.listing(doc)}."
        )
    return [str(choice) for choice in doc["choices"]]


def _each_text(resps: Sequence[Any], change: Callable[[str], str]) -> list[Any]:
    for answers in resps:
        for answer in answers:
            if not isinstance(answer, str):
                raise errors.TaskError(f"an answer is {answer!r}; expected text.")
    return [[change(answer) for answer in answers] for answers in resps]
