"""Jinja templates: compiled once each, sandboxed, strict about names, and unable to change the document."""

import functools
import re
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.sandbox

from evaljax.core import errors, lookup


def regex_replace(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    """`text` with every match of `pattern` (at most `count` of them, if not 0) replaced: lm-eval's template filter."""
    return re.sub(pattern, replacement, text, count=count)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["regex_replace"] = regex_replace
    return environment


@functools.lru_cache(maxsize=65536)
def compiled(source: str) -> jinja2.Template:
    """The template that `source` stands for."""
    return _environment().from_string(source)


def render(source: str, doc: Mapping[str, Any], *, where: str) -> str:
    """`source` filled in from the document; an error names `where`, and the nearest column for an unknown name."""
    try:
        return compiled(source).render(doc)
    except jinja2.UndefinedError as error:
        raise errors.TaskError(
            f"{where}: {error.message}.{_nearest_column(error, doc)} Columns: {lookup.listing(doc)}."
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise errors.TaskError(
            f"{where}: the template cannot be read: {error.message} (line {error.lineno})."
        ) from error
    except Exception as error:  # a filter or an operator may raise anything on a document's value
        raise errors.TaskError(f"{where}: the template failed: {error!r}.") from error


def _nearest_column(error: jinja2.UndefinedError, doc: Mapping[str, Any]) -> str:
    name = re.search(r"'([^']+)' is undefined", error.message or "")
    return lookup.nearest(name.group(1), doc) if name else ""
