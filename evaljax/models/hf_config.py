"""Hugging Face config.json, key by key: every key is read, known to be harmless, or an error."""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from evaljax.core import errors, lookup
from evaljax.models import config, hub

T = TypeVar("T")
# Keys that change no logit: bookkeeping, token ids, training-time rates, generation and implementation choices.
HARMLESS = frozenset(
    [
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "_model_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_decoder",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "return_dict",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    ]
)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}
ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def load_config(folder: pathlib.Path) -> dict[str, Any]:
    """config.json of a folder, as it stands."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        inner = hub.inner_models(folder)
        raise errors.CheckpointError(
            f"{folder}: no config.json; expected a Hugging Face model folder.{inner}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise errors.CheckpointError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise errors.CheckpointError(f"{path}: holds a {type(raw).__name__}; expected a mapping")
    return raw


def check_keys(raw: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Nothing, if every key is known or harmless."""
    known = set(known)
    unknown = [key for key in raw if key not in known and key not in HARMLESS]
    if unknown:
        names = ", ".join(f"{key!r} = {raw[key]!r}{lookup.nearest(key, known)}" for key in sorted(unknown))
        raise errors.CheckpointError(
            f"{where}: config keys that this model family does not know, so the model could not be run exactly: {names}"
        )


def integer(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """`raw[key]` as an int; the default where it is missing or null, if there is one."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        found = "is missing" if key not in raw else f"is {value!r}"
        raise errors.CheckpointError(f"{where}: {key} {found}; expected an integer")
    return value


def number(raw: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """`raw[key]` as a float; the default where it is missing or null, if there is one."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool):
        found = "is missing" if key not in raw else f"is {value!r}"
        raise errors.CheckpointError(f"{where}: {key} {found}; expected a number")
    return float(value)


def flag(raw: Mapping[str, Any], key: str, where: str, default: bool) -> bool:
    """`raw[key]` as a bool; the default where it is missing or null."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise errors.CheckpointError(f"{where}: {key} is {value!r}; expected true or false")
    return value


def build(where: str, fields: dict[str, Any]) -> config.ModelConfig:
    """The configuration with these fields; CheckpointError if they cannot be one."""
    return _record(config.ModelConfig, where, fields)


def scaling(where: str, fields: dict[str, Any]) -> config.RopeScaling:
    """The rotary scaling with these fields; CheckpointError if they cannot be one."""
    return _record(config.RopeScaling, where, fields)


def _record(record: Callable[..., T], where: str, fields: dict[str, Any]) -> T:
    """`record(**fields)`; its ValueError becomes a CheckpointError that says where."""
    try:
        return record(**fields)
    except ValueError as error:
        raise errors.CheckpointError(f"{where}: {error}") from error


def activation(raw: Mapping[str, Any], key: str, where: str, default: str) -> str:
    """Our name of the activation function."""
    value = raw.get(key)
    name = default if value is None else str(value)
    return lookup.find(ACTIVATIONS, name, what=key, where=where, error=errors.CheckpointError)


def rope(raw: Mapping[str, Any], where: str, default_theta: float) -> tuple[float, config.RopeScaling | None]:
    """theta and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    merged: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = raw.get(key) or {}
        if not isinstance(part, dict):
            raise errors.CheckpointError(f"{where}: {key} is {part!r}; expected a mapping or null")
        merged |= part
    outer = raw.get("rope_theta")
    inner = merged.setdefault("rope_theta", outer)
    if outer is not None and inner is not outer and inner != outer:
        raise errors.CheckpointError(
            f"{where}: rope_theta is {outer!r} but rope_parameters.rope_theta is {inner!r}; expected the same"
        )
    theta = number(merged, "rope_theta", where, default_theta)
    kind = str(merged.get("rope_type") or merged.get("type") or "default")
    keys = lookup.find(ROPE_KEYS, kind, what="rope type", where=where, error=errors.CheckpointError)
    unknown = sorted(set(merged) - {"rope_theta", "rope_type", "type", *keys})
    if unknown:
        raise errors.CheckpointError(
            f"{where}: rope type {kind!r} has no key {unknown[0]!r}.{lookup.nearest(unknown[0], keys)}"
        )
    if kind == "default":
        return theta, None
    factor = number(merged, "factor", where)
    if kind == "linear":
        return theta, scaling(where, {"kind": "linear", "factor": factor})
    return theta, scaling(
        where,
        {
            "kind": "llama3",
            "factor": factor,
            "low_freq_factor": number(merged, "low_freq_factor", where),
            "high_freq_factor": number(merged, "high_freq_factor", where),
            "original_max_position": integer(merged, "original_max_position_embeddings", where),
        },
    )
