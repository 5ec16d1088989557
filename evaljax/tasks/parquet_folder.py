"""Splits of a data set folder in the hub's layout, read straight from its parquet files.

README.md of such a folder starts with YAML between two `---` lines:

    configs:
    - config_name: "main"
      data_files:
      - split: test
        path: "main/test-*.parquet"
"""

import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from evaljax.core import errors, lookup
from evaljax.tasks import yaml_file

# Column types that arrow turns into plain Python values; any other (an image, say) needs `datasets` to decode it.
_PLAIN_TYPES = {"Value", "ClassLabel", "List", "LargeList", "Sequence", "Translation", "TranslationVariableLanguages"}


def split_files(folder: pathlib.Path, config_name: str | None, split: str, *, where: str) -> list[pathlib.Path] | None:
    """The parquet files of a split; None where the folder says nothing about its files, or they are not all parquet."""
    configs = _configs(folder)
    if not configs:
        return None
    data_files = configs[_chosen(configs, config_name, folder, where)].get("data_files")
    by_split = _by_split(data_files)
    if by_split is None:
        return None
    patterns = lookup.find(by_split, split, what="split", where=f"{where}: {folder}", error=errors.DataError)
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    if not files:
        raise errors.DataError(f"{where}: {folder}: split {split!r}: no file matches {', '.join(patterns)}.")
    return files if all(file.suffix == ".parquet" for file in files) else None


def _configs(folder: pathlib.Path) -> Mapping[str, Mapping[str, Any]]:
    readme = folder / "README.md"
    return _read_configs(readme, readme.stat().st_mtime_ns) if readme.is_file() else {}


@functools.lru_cache(maxsize=256)
def _read_configs(readme: pathlib.Path, mtime_ns: int) -> Mapping[str, Mapping[str, Any]]:
    text = readme.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return {}
    header = text[4:].split("\n---", 1)[0]
    try:
        parsed = yaml.load(header, Loader=yaml_file.SAFE_LOADER)
    except yaml.YAMLError as error:
        raise errors.DataError(f"{readme}: the YAML header cannot be read: {error}") from error
    configs = parsed.get("configs") if isinstance(parsed, Mapping) else None
    return {str(entry.get("config_name", "default")): entry for entry in configs or []}


def _chosen(configs: Mapping[str, Mapping[str, Any]], name: str | None, folder: pathlib.Path, where: str) -> str:
    if name is not None:
        lookup.check(configs, name, what="dataset_name", where=f"{where}: {folder}", error=errors.DataError)
        return name
    marked = [key for key, entry in configs.items() if entry.get("default") is True]
    for choice in (*marked, "default"):
        if choice in configs:
            return choice
    if len(configs) == 1:
        return next(iter(configs))
    raise errors.DataError(
        f"{where}: {folder} has several configurations: give dataset_name. Known: {lookup.listing(configs)}."
    )


def _by_split(data_files: Any) -> dict[str, list[str]] | None:
    if not isinstance(data_files, list) or not all(
        isinstance(e, Mapping) and {"split", "path"} <= e.keys() for e in data_files
    ):
        return None
    return {str(e["split"]): [e["path"]] if isinstance(e["path"], str) else list(e["path"]) for e in data_files}


def read_rows(files: Sequence[pathlib.Path]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The rows of the files as plain Python values, and their columns."""
    table = _table(files)
    if _plain(table.schema):
        return table.to_pylist(), tuple(table.column_names)
    return list(read_dataset(files)), tuple(table.column_names)


def read_dataset(files: Sequence[pathlib.Path]) -> Any:
    """The files as a `datasets.Dataset` in memory; nothing is written."""
    import datasets

    stamps = "|".join(f"{file}:{file.stat().st_mtime_ns}:{file.stat().st_size}" for file in files)
    return datasets.Dataset(_table(files), fingerprint=hashlib.sha256(stamps.encode()).hexdigest()[:16])


def _table(files: Sequence[pathlib.Path]) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        # Not `read_table`: it imports pandas, which takes seconds.
        return pyarrow.concat_tables([pyarrow.parquet.ParquetFile(file).read() for file in files])
    except (OSError, pyarrow.ArrowException) as error:
        raise errors.DataError(f"{', '.join(map(str, files))}: cannot be read as parquet: {error}") from error


def _plain(schema: Any) -> bool:
    import pyarrow

    if any(isinstance(field.type, pyarrow.ExtensionType) for field in schema):
        return False
    raw = (schema.metadata or {}).get(b"huggingface")
    return raw is None or _types(json.loads(raw).get("info", {}).get("features")) <= _PLAIN_TYPES


def is_plain_dataset(dataset: Any) -> bool:
    """Whether `dataset` is a `datasets.Dataset` whose rows are plain Python values without decoding or formatting."""
    import datasets

    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] is not None:
        return False
    columns_kept = set(dataset.format["columns"]) == set(dataset.column_names)
    return columns_kept and _types(dataset.features.to_dict()) <= _PLAIN_TYPES


def _types(features: Any) -> set[str]:
    if isinstance(features, Mapping):
        own = {features["_type"]} if isinstance(features.get("_type"), str) else set()
        return own.union(*[_types(inner) for inner in features.values()])
    if isinstance(features, list):
        return set().union(*[_types(inner) for inner in features])
    return set()
