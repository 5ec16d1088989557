"""One run, from a recipe to result files.

    python -m evaljax.run --config=configs/quickstart.py [--config.key=value ...]

Prints the table of scores; with `output_dir` also writes results.json, samples_<task>.jsonl and manifest.json.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import inspect
import io
import itertools
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from evaljax import evaluation, hosts, recipe
from evaljax.core import backend as backend_lib
from evaljax.core import config as config_lib
from evaljax.core import errors, result
from evaljax.core import progress as progress_lib
from evaljax.engine import agree
from evaljax.report import files, progress_bar, results_json, samples, table

USAGE = "usage: python -m evaljax.run --config=RECIPE.py [--config.key=value ...]"
FILES = ("results.json", "manifest.json", "requests.jsonl", "plan.json")
SHOWN = 600  # characters of a request that a dry run prints
PACKAGES = ("evaljax", "jax", "flax", "numpy", "transformers", "tokenizers", "datasets", "orbax-checkpoint", "torch")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the recipe on the command line; returns the exit code, 0 when every score was computed and written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks must not end a run
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(words):
        print(help_text())
        return 0
    try:
        path, overrides = arguments(words)
        config = recipe.read(path, overrides)
        with progress_bar.bar() as progress:
            run(config, progress=progress)
        sys.stdout.flush()  # here, where a reader that has left can be told from a failure
    except errors.EvaljaxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the table has seen enough; the files were written before it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def arguments(argv: Sequence[str]) -> tuple[str, list[str]]:
    """(recipe, overrides) from `--config=RECIPE` and `--config.key=value`; a value may also be the next argument."""
    path, overrides = "", []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--config" and not name.startswith("--config."):
            hint = f" Did you mean --config={word}?" if word.endswith(".py") else ""
            raise errors.ConfigError(f"unknown argument {word!r}.{hint}\n{USAGE}")
        if not equals:
            value = next(words, "")
        if name == "--config":
            path = value
        else:
            overrides.append(f"{name.removeprefix('--config.')}={value}")
    if not path:
        raise errors.ConfigError(f"no recipe given.\n{USAGE}")
    return path, overrides


def help_text() -> str:
    """How a run is started, every key and its meaning, and the recipes that ship with evaljax."""
    parts = [USAGE, f"Recipes that ship with evaljax: {', '.join(recipe.shipped())}; or a file of your own."]
    for prefix, kind in (("", config_lib.RunConfig), *recipe.SECTIONS.items()):
        _, _, attributes = str(inspect.getdoc(kind)).partition("Attributes:\n")
        start = f"  --config.{prefix}{'.' * bool(prefix)}"
        lines = [
            start + line.strip() if line[2:3].strip() else "      " + line.strip() for line in attributes.splitlines()
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def run(
    config: config_lib.RunConfig, *, progress: progress_lib.Progress = progress_lib.silent
) -> result.EvalResult | None:
    """Evaluates, prints and writes; None after a dry run. What can be refused is refused before weights load.

    Of many processes (`config.hosts`) all get the scores, and the first alone prints and writes.
    """
    set_compilation_cache(config)  # joining imports JAX
    with hosts.joined(config) as is_first:
        return run_joined(config, progress if is_first else progress_lib.silent, is_first=is_first)


def run_joined(
    config: config_lib.RunConfig, progress: progress_lib.Progress, *, is_first: bool
) -> result.EvalResult | None:
    """`run`, once the processes have found each other."""
    clock = [("start", time.perf_counter())]
    folder = pathlib.Path(config.output_dir) if config.output_dir is not None and is_first else None
    if folder is not None:
        files.check_writable(folder)
    loaded = evaluation.load_tasks(config)
    backend = open_backend(config, progress)
    prepared = evaluation.prepare(loaded, config, backend)
    clock.append(("tasks", time.perf_counter()))
    if folder is not None:
        files.check_names(folder, [*FILES, *samples.file_names(prepared.examples)])
    records = list(request_records(prepared))
    if config.hosts.enabled:
        agree.agree("the hash of all prompts", prompts_hash(records))
    if config.dry_run:
        if is_first:
            dry_run(prepared, config, backend, records, folder)
        return None
    with keeping_answers(config, backend):
        annotations = evaluation.answer(prepared, backend, seed=config.seed)
    clock.append(("answers", time.perf_counter()))
    outcome = evaluation.score_all(prepared, config, annotations)
    clock.append(("scores", time.perf_counter()))
    if is_first:
        manifest = make_manifest(config, backend, records, clock)
        if folder is not None:
            write_outcome(folder, outcome, manifest, log_samples=config.log_samples)
        # After the files: a terminal that has gone away must not cost the scores.
        print_outcome(outcome, config, manifest, getattr(backend, "notes", ()))
        if folder is not None:
            print(f"results: {folder / 'results.json'}")
    return outcome


def set_compilation_cache(config: config_lib.RunConfig) -> None:
    """Tells XLA where to keep compiled programs, before anything imports JAX."""
    if config.cache_dir is not None:
        files.check_writable(pathlib.Path(config.cache_dir), key="cache_dir")
    cache = pathlib.Path(config.cache_dir or pathlib.Path.home() / ".cache" / "evaljax")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def open_backend(config: config_lib.RunConfig, progress: progress_lib.Progress) -> backend_lib.Backend:
    """The backend that `config.model` names."""
    set_compilation_cache(config)
    from evaljax.backends import table as backend_table

    return backend_table.open_backend(config.model, config.engine, progress=progress)


@contextlib.contextmanager
def keeping_answers(config: config_lib.RunConfig, backend: backend_lib.Backend) -> Iterator[None]:
    """Within, answers are kept as they come, where `config` says, if the backend can keep them."""
    folder = answers_folder(config)
    if folder is None or not hasattr(backend, "keep_answers"):
        yield
        return
    backend.keep_answers(folder)
    try:
        yield
    finally:
        backend.close()  # type: ignore[attr-defined]


def answers_folder(config: config_lib.RunConfig) -> pathlib.Path | None:
    """Where the journal of answers lies; None: none is kept."""
    if not config.journal or not (config.cache_dir or config.output_dir):
        return None
    return pathlib.Path(config.cache_dir) if config.cache_dir else pathlib.Path(str(config.output_dir), "cache")


def request_records(prepared: evaluation.Prepared) -> Iterator[dict[str, Any]]:
    """One record for each request, in the order in which the model is asked (lm-eval's)."""
    for request_type, items in evaluation.requests_by_type(prepared).items():
        for item in items:
            yield {
                "task": item.task_name,
                "doc_id": item.doc_id,
                "idx": item.idx,
                "request_type": request_type,
                "arguments": list(item.args),
            }


def dry_run(
    prepared: evaluation.Prepared,
    config: config_lib.RunConfig,
    backend: backend_lib.Backend,
    records: Sequence[dict[str, Any]],
    folder: pathlib.Path | None,
) -> None:
    """Prints, and with a folder writes, what would be asked and how it would be computed."""
    asked = {
        kind: evaluation.plain_requests(prepared, kind, items, config.seed)
        for kind, items in evaluation.requests_by_type(prepared).items()
    }
    plan: dict[str, Any] = {"requests": len(records), "prompts_hash": prompts_hash(records)}
    if hasattr(backend, "plan"):
        plan |= backend.plan(
            asked.get("loglikelihood", []), asked.get("loglikelihood_rolling", []), asked.get("generate_until", [])
        )
    if folder is not None:
        files.write_jsonl(folder / "requests.jsonl", records)
        files.write_json(folder / "plan.json", plan)
    for record in records[:3]:
        line = json.dumps(record, ensure_ascii=False)
        print(line if len(line) <= SHOWN else f"{line[:SHOWN]}…")
    if len(records) > 3:
        print(
            f"… {len(records) - 3} more"
            + (f" in {folder / 'requests.jsonl'}" if folder else "; give output_dir to have all")
        )
    print(json.dumps(plan, indent=2))
    for line in table.plan_lines(plan.get("kinds") or {}):
        print(line)


def prompts_hash(records: Sequence[dict[str, Any]]) -> str:
    """SHA-256 over all requests in order: equal hashes mean that two runs asked the same."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record, sort_keys=True, ensure_ascii=True, default=str).encode())
    return digest.hexdigest()


def make_manifest(
    config: config_lib.RunConfig,
    backend: backend_lib.Backend,
    records: Sequence[dict[str, Any]],
    clock: Sequence[tuple[str, float]],
) -> dict[str, Any]:
    """Everything about the run but its scores: versions, configuration, model, prompts' hash, plan, seconds."""
    seconds = {name: after - before for (_, before), (name, after) in itertools.pairwise(clock)}
    return {
        "versions": {"python": platform.python_version(), **dict(package_versions())},
        "platform": platform.platform(),
        "config": dataclasses.asdict(config),
        "model": backend.info(),
        "requests": len(records),
        "prompts_hash": prompts_hash(records),
        "engine": getattr(backend, "figures", {}),
        "seconds": {**seconds, "total": clock[-1][1] - clock[0][1]},
    }


def package_versions() -> Iterator[tuple[str, str]]:
    """(package, version) of what is installed of `PACKAGES`."""
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def print_outcome(
    outcome: result.EvalResult, config: config_lib.RunConfig, manifest: dict[str, Any], notes: Sequence[str]
) -> None:
    """Prints the run's line, the table, what should be known beside it, and where the time went."""
    limit = None if config.limit is None else format(config.limit, "g")
    print(
        f"{config.model.backend} ({config.model.path}, {config.model.dtype}), "
        f"gen_kwargs: {dict(config.gen_kwargs) or None}, limit: {limit}, num_fewshot: {config.num_fewshot}"
    )
    print(table.tables(outcome))
    for line in (*table.health_lines(outcome), *notes):
        print(f"note: {line}")
    for line in table.engine_lines(manifest):
        print(line)


def write_outcome(
    folder: pathlib.Path, outcome: result.EvalResult, manifest: dict[str, Any], *, log_samples: bool
) -> None:
    """Writes samples, manifest and, last, results.json: where it exists, the run is complete.

    Those of an earlier run go first, so that results never stand beside another run's samples.
    """
    for stale in (folder / "results.json", *folder.glob("samples_*.jsonl")):
        files.remove(stale)
    if log_samples:
        samples.write_samples(folder, outcome.tasks)
    files.write_json(folder / "manifest.json", manifest)
    files.write_json(folder / "results.json", results_json.results_dict(outcome, samples=False))


if __name__ == "__main__":
    sys.exit(main())
