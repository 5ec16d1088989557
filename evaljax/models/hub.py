"""Model paths: a local folder, or a hub id fetched into the local hub cache."""

import pathlib
import re

from evaljax.core import errors

CONFIG_FILES = ("config.json", "evaljax.json")
WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def folder(path: str, *, revision: str | None, weights: bool) -> pathlib.Path:
    """The local folder of a model: `path` itself if it exists, else the hub's files of that name, only those needed."""
    local = pathlib.Path(path)
    if local.is_dir():
        refuse_revision(path, revision)
        return local
    if local.exists():
        raise errors.CheckpointError(f"{path}: a file; expected a model folder, a .gguf file or a hub id")
    if not HUB_ID.fullmatch(path):
        raise errors.CheckpointError(f"{path}: no such folder; expected a model folder, a .gguf file or a hub id")
    import huggingface_hub  # heavy, and not needed for local models

    patterns = [*CONFIG_FILES, *(WEIGHT_FILES if weights else ())]
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(path, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        at = f" at revision {revision!r}" if revision else ""
        raise errors.CheckpointError(f"{path}: no such folder, and not to be had from the hub{at}: {error}") from error


def refuse_revision(path: str, revision: str | None) -> None:
    """Nothing, if no revision is asked of a local path: it has none."""
    if revision is not None:
        raise errors.ConfigError(f"{path}: revision {revision!r} of a local path; expected a hub id, or no revision")
