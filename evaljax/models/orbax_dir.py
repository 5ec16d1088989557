"""Our own checkpoint layout: a folder with evaljax.json (the ModelConfig) and params/ (Orbax).

Orbax takes a second to import, so only reading and writing import it.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax
from flax import nnx, traverse_util

from evaljax.core import errors, lookup
from evaljax.models import assemble, config, family, sharding
from evaljax.models.model import Model

FORMAT = 1
CONFIG = "evaljax.json"
PARAMS = "params"


def is_ours(folder: pathlib.Path) -> bool:
    """Whether the folder is in this layout."""
    return (folder / CONFIG).is_file()


def read_config(folder: pathlib.Path) -> config.ModelConfig:
    """The configuration in evaljax.json."""
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        version, fields = raw["format"], dict(raw["config"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.CheckpointError(f"{path}: not a model configuration: {error!r}") from error
    if version != FORMAT:
        raise errors.CheckpointError(f"{path}: format {version!r}; expected {FORMAT}")
    scaling = fields.get("rope_scaling")
    if not isinstance(scaling, dict | None):
        raise errors.CheckpointError(f"{path}: rope_scaling is {scaling!r}; expected a mapping or null")
    _check_fields(fields, config.ModelConfig, path)
    _check_fields(scaling or {}, config.RopeScaling, path)
    try:
        if scaling is not None:
            fields["rope_scaling"] = config.RopeScaling(**{**scaling, "factors": tuple(scaling.get("factors", ()))})
        return config.ModelConfig(**fields)
    except (TypeError, ValueError) as error:
        raise errors.CheckpointError(f"{path}: {error}") from error


def read_model(folder: pathlib.Path, *, dtype: str, shardings: sharding.Shardings | None = None) -> Model:
    """The model in the folder, cast to `dtype`; its parameters lie as `shardings` says, whatever mesh wrote them."""
    import orbax.checkpoint as ocp

    cfg = read_config(folder)
    path = (folder / PARAMS).absolute()
    if not path.is_dir():
        raise errors.CheckpointError(f"{folder}: no {PARAMS}/ beside {CONFIG}")
    with ocp.PyTreeCheckpointer() as checkpointer:
        stored = checkpointer.metadata(path).item_metadata
        if stored is None:
            raise errors.CheckpointError(f"{path}: not a readable Orbax checkpoint (no metadata)")
        shapes = {_name(key): tuple(meta.shape) for key, meta in traverse_util.flatten_dict(stored.tree).items()}
        expected = config.parameter_shapes(cfg)
        tensors = {key: family.Tensor(_name(key), shape) for key, shape in expected.items()}
        assemble.check(cfg.num_layers, str(path), shapes, tensors)
        target = _target(expected, dtype, shardings)
        arguments = ocp.args.PyTreeRestore(target, restore_args=ocp.checkpoint_utils.construct_restore_args(target))
        try:
            restored = checkpointer.restore(path, arguments)
        except Exception as error:  # damage shows as one of many kinds, from TensorStore or Orbax
            raise errors.CheckpointError(f"{path}: not a readable Orbax checkpoint: {error}") from error
    return assemble.build(cfg, traverse_util.flatten_dict(restored))


def write(model: Model, path: str) -> None:
    """Write the model as a new folder in this layout; OutputError if it exists or cannot be written."""
    import orbax.checkpoint as ocp

    folder = pathlib.Path(path).absolute()
    if (folder / PARAMS).exists():
        raise errors.OutputError(f"{folder}: already holds a model; expected a new folder")
    text = json.dumps({"format": FORMAT, "config": dataclasses.asdict(model.config)}, indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(folder / PARAMS, nnx.to_pure_dict(model.params))
        (folder / CONFIG).write_text(text, encoding="utf-8")  # last: its presence says that the rest is there
    except OSError as error:
        raise errors.OutputError(f"{folder}: cannot write the model: {error}") from error


def _target(
    shapes: dict[family.Path, tuple[int, ...]], dtype: str, shardings: sharding.Shardings | None
) -> dict[str, Any]:
    """What to restore: shapes, dtype and places, as Orbax wants it."""
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    kind = assemble.NUMPY_DTYPES[dtype]
    leaves = {
        key: jax.ShapeDtypeStruct(shape, kind, sharding=shardings[key] if shardings else device)
        for key, shape in shapes.items()
    }
    return traverse_util.unflatten_dict(leaves)


def _name(key: family.Path) -> str:
    """A parameter's name in messages."""
    return ".".join(key)


def _check_fields(fields: dict[str, Any], record: type, path: pathlib.Path) -> None:
    """Nothing, if the record has all these fields."""
    known = [field.name for field in dataclasses.fields(record)]
    for name in fields:
        lookup.check(known, name, what="field", where=str(path), error=errors.CheckpointError)
