"""HellaSwag's text clean-up: the WikiHow half of the data set still carries mark-up of the page it came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets

# "[header]", "[step]", "[substeps]", ... on one line; "[title]" is handled before, it stands where a sentence ended.
MARKUP = re.compile(r"\[.*?\]")


def clean(text: str) -> str:
    """`text` as a reader would see it.

    Double blanks are replaced once, from left to right, so three blanks become two: published scores depend on it.
    """
    with_sentence_ends = text.strip().replace(" [title]", ". ")
    return MARKUP.sub("", with_sentence_ends).replace("  ", " ")


def clean_columns(doc: dict[str, Any]) -> dict[str, Any]:
    """The new columns of one row: query (activity, then both halves of the context), choices, gold."""
    context = f"{doc['ctx_a']} {doc['ctx_b'].capitalize()}"
    return {
        "query": clean(f"{doc['activity_label']}: {context}"),
        "choices": [clean(ending) for ending in doc["endings"]],
        "gold": int(doc["label"]),
    }


def add_clean_columns(dataset: datasets.Dataset) -> datasets.Dataset:
    """`dataset` with the columns of `clean_columns`."""
    return dataset.map(clean_columns)
