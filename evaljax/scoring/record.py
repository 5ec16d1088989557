"""The record of one scored document, in lm-eval's sample schema."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from evaljax.core import task
from evaljax.scoring import plain


def sample(
    example: task.Example, filter_name: str, values: Mapping[str, Any], annotations: Mapping[str, Any]
) -> dict[str, Any]:
    """The record: document, requests, answers before and after the filter, hashes, values, then `annotations`."""
    instances = example.instances
    record = {
        "doc_id": example.doc_id,
        "doc": plain.plain(example.doc),
        "target": plain.plain(example.target),
        "arguments": [instance.args for instance in instances],
        "resps": [plain.plain(instance.resps) for instance in instances],
        "filtered_resps": [
            plain.plain(instance.filtered_resps[filter_name]) for instance in instances if not example.skipped
        ],
        "filter": filter_name,
        "metrics": list(values),
        "doc_hash": hash_text(json.dumps(instances[0].doc, indent=2, default=_as_json, ensure_ascii=False)),
        "prompt_hash": hash_text(str(instances[0].args[0])),
        "target_hash": hash_text(str(example.target)),
    }
    return {**record, **plain.plain(dict(values)), **annotations}


def hash_text(text: str) -> str:
    """The SHA-256 of the text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _as_json(value: Any) -> Any:
    """What stands for a value that JSON does not know: a numpy scalar's number, a set's list, else its text."""
    if isinstance(value, set):
        return list(value)
    found = plain.plain(value)
    return found if isinstance(found, bool | int | float) else str(value)
