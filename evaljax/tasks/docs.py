"""Documents: the rows of a task's splits, read when somebody asks for them, from a mirror, a local folder or the hub.

    mirror/<owner>/<name>   looked up first; laid out as on the hub: README.md with `configs:`, and data files
    local folder            the same layout, or whatever `datasets` reads
    json, csv, parquet ...  with dataset_kwargs.data_files
    anything else           through `datasets`, from the hub

Parquet files of a mirror or folder are read directly: `datasets` would first copy each of them into its cache.
"""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evaljax.core import errors, lookup, task
from evaljax.tasks import hub_data, parquet_folder

# The readers of `datasets` that take data_files and are no data set of their own.
FILE_READERS = ("json", "csv", "parquet", "text", "arrow", "xml")
_URLS = (
    re.compile(r"^hf://datasets/([^/@]+/[^/@]+)(?:@[^/]+)?/(.+)$"),
    re.compile(r"^https?://huggingface\.co/datasets/([^/]+/[^/]+)/(?:resolve|raw|blob)/[^/]+/(.+?)(?:\?.*)?$"),
)


@dataclasses.dataclass(frozen=True)
class Split:
    """The documents of a split, after `process_docs`, and the names of their columns."""

    docs: list[dict[str, Any]]
    columns: tuple[str, ...]


class Documents:
    """The splits of one task, each read once. Nothing is read before `split` is called."""

    def __init__(self, config: task.TaskConfig, data_mirror: str | None = None) -> None:
        self._config = config
        self._mirror = pathlib.Path(data_mirror).expanduser() if data_mirror else None
        self._splits: dict[tuple[str, Any], Split] = {}
        self._loaded: Mapping[str, Any] | None = None

    def split(self, name: str, process_docs: Callable[..., Any] | None = None) -> Split:
        """The documents of split `name`, run through `process_docs`; an empty split is a `DataError`."""
        key = (name, process_docs)
        if key not in self._splits:
            try:
                found = self._read(name, process_docs)
            except UnicodeDecodeError as error:  # `datasets` and arrow look at a text's bytes only here
                raise errors.DataError(
                    f"task {self._config.task!r}: split {name!r} of {_described(self._config)} is not UTF-8: {error}."
                ) from error
            if not found.docs:
                raise errors.DataError(
                    f"task {self._config.task!r}: split {name!r} of {_described(self._config)} is empty."
                )
            self._splits[key] = found
        return self._splits[key]

    def _read(self, name: str, process_docs: Callable[..., Any] | None) -> Split:
        config = self._config
        folder = self._folder()
        if folder is not None:
            files = parquet_folder.split_files(folder, config.dataset_name, name, where=f"task {config.task!r}")
            if files is not None:
                if process_docs is None:
                    return Split(*parquet_folder.read_rows(files))
                return _processed(parquet_folder.read_dataset(files), process_docs, config, name)
        if self._loaded is None:
            self._loaded = _load(config, self._mirror)
        if name not in self._loaded:
            raise errors.DataError(
                f"task {config.task!r}: there is no split {name!r} in {_described(config)}."
                f"{lookup.nearest(name, self._loaded)} Known: {lookup.listing(self._loaded)}."
            )
        dataset = self._loaded[name]
        return _rows(dataset) if process_docs is None else _processed(dataset, process_docs, config, name)

    def _folder(self) -> pathlib.Path | None:
        # Only a data set that asks for nothing but a name and splits can be read directly.
        config = self._config
        asks_more = _kwargs(config).keys() - {"revision", "verification_mode"}
        if config.custom_dataset is not None or config.dataset_path in FILE_READERS or asks_more:
            return None
        return _local_folder(config, self._mirror)


def _kwargs(config: task.TaskConfig) -> dict[str, Any]:
    # Scripts are gone from `datasets` 4; lm-eval drops the flag, too.
    return {key: value for key, value in config.dataset_kwargs.items() if key != "trust_remote_code"}


def _local_folder(config: task.TaskConfig, mirror: pathlib.Path | None) -> pathlib.Path | None:
    path = config.dataset_path or ""
    given = pathlib.Path(path).expanduser()
    candidates = [] if mirror is None or given.is_absolute() else [mirror / path]
    candidates += [given] if given.is_absolute() else [_home(config) / given, given]
    return next((c for c in candidates if c.is_dir()), None)


def _home(config: task.TaskConfig) -> pathlib.Path:
    return pathlib.Path(config.source).parent


def _load(config: task.TaskConfig, mirror: pathlib.Path | None) -> Mapping[str, Any]:
    """The data set as a mapping of splits, through the task's own function or through `datasets`."""
    kwargs = _kwargs(config)
    if config.custom_dataset is not None:
        return _custom(config, kwargs)
    import datasets  # takes seconds to import, and many runs do without

    if "data_files" in kwargs:
        _check_files(config, kwargs)
        kwargs["data_files"] = _map_files(kwargs["data_files"], mirror, _home(config))
    if config.dataset_path in FILE_READERS:
        path, folder = str(config.dataset_path), None
    else:
        folder = _local_folder(config, mirror)
        path = str(folder or config.dataset_path)
    if folder is not None:
        kwargs.pop("revision", None)
    from_hub = folder is None and path not in FILE_READERS
    try:
        with _quiet_datasets(), hub_data.asked_once(path) if from_hub else contextlib.nullcontext():
            loaded = datasets.load_dataset(path, config.dataset_name, **kwargs)
    except Exception as error:  # `datasets` raises many kinds; each means that there are no documents
        looked = f" It is not in the mirror {mirror}." if mirror is not None and folder is None else ""
        raise errors.DataError(
            f"task {config.task!r}: {_described(config)} cannot be read: {_reason(error)}{looked}"
            f"{hub_data.ways_out(error)}"
        ) from error
    if not isinstance(loaded, Mapping):
        raise errors.DataError(
            f"task {config.task!r}: {_described(config)} came as one {type(loaded).__name__}, not as splits by name; "
            "leave `split` out of dataset_kwargs."
        )
    return loaded


def _reason(error: BaseException) -> str:
    """What went wrong, where `datasets` says only that something did."""
    if type(error).__name__ == "DatasetGenerationError" and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, StopIteration):
        return "a file is empty."
    return f"{type(error).__name__}: {error}".rstrip(". ") + "."


def _custom(config: task.TaskConfig, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Any = config.custom_dataset
    twice = sorted(set(config.metadata) & set(kwargs))
    if twice:
        raise errors.TaskError(f"task {config.task!r}: {twice[0]!r} is both in metadata and in dataset_kwargs.")
    try:
        loaded = function(**{**config.metadata, "config_source": config.source}, **kwargs)
    except Exception as error:  # foreign code
        raise errors.DataError(f"task {config.task!r}: custom_dataset failed: {error!r}.") from error
    if not isinstance(loaded, Mapping):
        raise errors.DataError(
            f"task {config.task!r}: custom_dataset must return documents by split, found {type(loaded).__name__}."
        )
    return loaded


def _check_files(config: task.TaskConfig, kwargs: Mapping[str, Any]) -> None:
    """Nothing; a `DataError` for a file given by a relative path that is neither beside the task file nor here."""
    if config.dataset_path not in FILE_READERS or "data_dir" in kwargs:
        return  # relative to the data set
    for name in _file_names(kwargs["data_files"]):
        is_pattern = any(mark in name for mark in "*?[{")
        if "://" in name or is_pattern or pathlib.Path(name).exists():
            continue
        beside = _home(config) / name  # `name` itself where it is absolute
        if not beside.exists():
            raise errors.DataError(f"task {config.task!r}: there is no data file {beside}.")


def _file_names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _file_names(inner)


def _map_files(value: Any, mirror: pathlib.Path | None, home: pathlib.Path) -> Any:
    """`data_files` with hub addresses found in the mirror, and relative paths beside the task file."""
    if isinstance(value, Mapping):
        return {key: _map_files(inner, mirror, home) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_files(inner, mirror, home) for inner in value]
    if not isinstance(value, str):
        return value
    if mirror is not None:
        for pattern in _URLS:
            match = pattern.match(value)
            if match and (mirror / match[1] / match[2]).exists():
                return str(mirror / match[1] / match[2])
    if "://" not in value and not pathlib.Path(value).is_absolute():
        # Where nothing matches beside the task file, the path keeps lm-eval's meaning: relative to the working folder.
        beside = [home / value] if (home / value).exists() else sorted(home.glob(value)) if "*" in value else []
        if beside:
            return str(home / value)
    return value


def _rows(dataset: Any) -> Split:
    if parquet_folder.is_plain_dataset(dataset):
        docs = dataset.to_list()  # several times faster than one row after the other
    else:
        docs = [doc if isinstance(doc, dict) else dict(doc) for doc in dataset]
    columns = getattr(dataset, "column_names", None) or (docs[0].keys() if docs else ())
    return Split(docs, tuple(columns))


def _processed(dataset: Any, process_docs: Callable[..., Any], config: task.TaskConfig, name: str) -> Split:
    try:
        with _quiet_datasets():
            return _rows(process_docs(dataset))
    except Exception as error:  # foreign code
        function = getattr(process_docs, "__qualname__", process_docs)
        raise errors.DataError(
            f"task {config.task!r}: process_docs {function} failed on split {name!r}: {error!r}."
        ) from error


@contextlib.contextmanager
def _quiet_datasets() -> Iterator[None]:
    # `datasets` draws a progress bar for every step, where a run has one of its own, and reports to a server that the
    # reader of a local file was used, where a machine without network waits for the name to resolve.
    import datasets

    shown, counts = datasets.utils.logging.is_progress_bar_enabled(), datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counts
        if shown:
            datasets.enable_progress_bars()


def _described(config: task.TaskConfig) -> str:
    if config.custom_dataset is not None:
        return "the custom data set"
    return str(config.dataset_path) + (f" ({config.dataset_name})" if config.dataset_name else "")
