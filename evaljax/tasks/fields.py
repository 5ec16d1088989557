"""The fields that turn a document into text, a target or choices: column, template, literal or function.

lm-eval's rules. A column name is a column of the evaluated documents, also where the document is a few-shot example.
A rendered target that is all digits is a choice index where the task has choices; one in brackets is a Python list if
it can be read as one.
"""

import ast
import difflib
from collections.abc import Collection, Mapping
from typing import Any

from evaljax.core import errors, lookup, task
from evaljax.tasks import template


def text(
    field: task.Template, doc: Mapping[str, Any], *, columns: Collection[str], digits_are_index: bool, where: str
) -> Any:
    """What `doc_to_text` gives: text; a whole number is the index of the document's context among its choices."""
    if isinstance(field, int):
        return field
    if isinstance(field, str):
        if field in columns:
            return _column(field, doc, where)
        rendered = template.render(field, doc, where=where)
        return index(rendered, where=where) if digits_are_index and rendered.isdigit() else rendered
    return _call(field, doc, where)


def target(
    field: task.Template, doc: Mapping[str, Any], *, columns: Collection[str], has_choices: bool, where: str
) -> Any:
    """What `doc_to_target` gives: text, an index, a list of either, or whatever the column or function holds."""
    if isinstance(field, (int, list)):
        return field
    if isinstance(field, str):
        if field in columns:
            return _column(field, doc, where)
        rendered = template.render(field, doc, where=where)
        if has_choices and rendered.isdigit():
            return index(rendered, where=where)
        if len(rendered) >= 2 and rendered[0] == "[" and rendered[-1] == "]":
            try:
                return ast.literal_eval(rendered)
            except (SyntaxError, ValueError):
                return rendered
        return rendered
    return _call(field, doc, where)


def choices(field: task.Template, doc: Mapping[str, Any], *, columns: Collection[str], where: str) -> tuple[str, ...]:
    """What `doc_to_choice` gives, checked: one text or more, none of them empty."""
    if isinstance(field, str):
        if field in columns:
            found = _column(field, doc, where)
        else:
            rendered = template.render(field, doc, where=where)
            try:
                found = ast.literal_eval(rendered)
            except (SyntaxError, ValueError) as error:
                raise errors.TaskError(
                    f"{where}: expected a Python list of texts, rendered {rendered[:200]!r}."
                ) from error
    elif isinstance(field, list):
        found = field
    elif isinstance(field, Mapping):
        found = list(field.values())
    else:
        found = _call(field, doc, where)
    return _checked_choices(found, where)


def _checked_choices(found: Any, where: str) -> tuple[str, ...]:
    if not isinstance(found, (list, tuple)):
        raise errors.TaskError(
            f"{where}: expected a list of texts, found {found!r:.200} of type {type(found).__name__}."
        )
    if not found:
        raise errors.TaskError(f"{where}: the list of choices is empty.")
    for number, choice in enumerate(found):
        if not isinstance(choice, str):
            raise errors.TaskError(
                f"{where}: choice {number} must be text, found {choice!r} of type {type(choice).__name__}."
            )
        if not choice:
            raise errors.TaskError(f"{where}: choice {number} is empty: there is nothing to score.")
    return tuple(found)


def optional(field: Any, doc: Mapping[str, Any], *, where: str) -> str:
    """What `description` or `gen_prefix` gives: text, empty where the field is empty."""
    if not field:
        return ""
    if isinstance(field, str):
        found = doc[field] if field in doc else template.render(field, doc, where=where)
    else:
        found = _call(field, doc, where)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise errors.TaskError(f"{where}: expected text, found {found!r:.200} of type {type(found).__name__}.")
    return found


def index(digits: str, *, where: str) -> int:
    """The number that a text of digits stands for; texts such as "01" that Python does not read as one are an error."""
    try:
        return int(ast.literal_eval(digits))
    except (SyntaxError, ValueError) as error:
        raise errors.TaskError(
            f"{where}: {digits!r} is all digits but no index: write it as a plain number."
        ) from error


def check_column(field: task.Template, columns: Collection[str], *, where: str) -> None:
    """Nothing; a `TaskError` if the field is a bare word that looks like a misspelt column."""
    if isinstance(field, str) and field.isidentifier() and field not in columns:
        close = difflib.get_close_matches(field, list(columns), n=1, cutoff=0.75)
        if close:
            raise errors.TaskError(
                f"{where}: {field!r} is no column, so every document would read {field!r}. Did you mean {close[0]!r}? "
                f"Columns: {lookup.listing(columns)}."
            )


def _column(field: str, doc: Mapping[str, Any], where: str) -> Any:
    if field not in doc:
        raise errors.TaskError(f"{where}: the document has no column {field!r}. Columns: {lookup.listing(doc)}.")
    return doc[field]


def _call(field: Any, doc: Mapping[str, Any], where: str) -> Any:
    if not callable(field):
        raise errors.TaskError(f"{where}: the task does not say how to make it (found {field!r}).")
    try:
        return field(doc)
    except Exception as error:  # foreign code: the reader must learn which document it failed on
        raise errors.TaskError(f"{where}: the task's function {_name(field)} failed: {error!r}.") from error


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))
