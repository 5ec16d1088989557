"""Model folders, hub ids and files, read into `Model`s.

read_config ─┐                        ┌─ config.json + *.safetensors    (Hugging Face folder or hub id)
read_model ──┴─ which kind is it? ────┼─ *.gguf
                                      └─ evaljax.json + params/         (Orbax; what `write_orbax` writes)
"""

import pathlib
from typing import Any

from evaljax.core import config as run_config
from evaljax.core import errors, lookup
from evaljax.models import assemble, config, family, gguf_file, hf_config, hub, orbax_dir, safetensors_file, sharding
from evaljax.models.families import table
from evaljax.models.model import Model

write_orbax = orbax_dir.write


def read_config(path: str, *, revision: str | None = None) -> config.ModelConfig:
    """The configuration of the model at `path` (see `read_model`); no weights are read or fetched."""
    if path.endswith(".gguf"):
        hub.refuse_revision(path, revision)
        return gguf_file.read_config(pathlib.Path(path))
    folder = hub.folder(path, revision=revision, weights=False)
    if orbax_dir.is_ours(folder):
        return orbax_dir.read_config(folder)
    raw = hf_config.load_config(folder)
    return _family(raw, folder).read_config(raw, str(folder / "config.json"))


def read_model(
    path: str, *, dtype: str, revision: str | None = None, shardings: sharding.Shardings | None = None
) -> Model:
    """The model at `path`, its parameters in `dtype`, read straight into where `shardings` says; None: one device.

    `path` is a Hugging Face folder, a hub id, a .gguf file, or a folder that `write_orbax` wrote. CheckpointError names
    the file and everything about it that does not fit.
    """
    lookup.check(run_config.DTYPES, dtype, what="dtype")
    if path.endswith(".gguf"):
        hub.refuse_revision(path, revision)
        return gguf_file.read_model(pathlib.Path(path), dtype=dtype, shardings=shardings)
    folder = hub.folder(path, revision=revision, weights=True)
    if orbax_dir.is_ours(folder):
        return orbax_dir.read_model(folder, dtype=dtype, shardings=shardings)
    raw = hf_config.load_config(folder)
    of = _family(raw, folder)
    cfg = of.read_config(raw, str(folder / "config.json"))
    source = safetensors_file.open_folder(folder)
    return assemble.load_model(
        cfg,
        source,
        of.tensors(cfg),
        dtype=dtype,
        ignored=of.ignored,
        tied_head=of.tied_head,
        shardings=shardings,
    )


def _family(raw: dict[str, Any], folder: pathlib.Path) -> family.Family:
    """The family that config.json's `model_type` names."""
    name = str(raw.get("model_type"))
    return lookup.find(
        table.FAMILIES, name, what="model_type", where=str(folder / "config.json"), error=errors.CheckpointError
    )
