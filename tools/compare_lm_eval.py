#!/usr/bin/env python
"""Run lm-eval and evaljax on the same tasks with the same model, and print both columns and both wall times.

    python tools/compare_lm_eval.py TASK[,TASK...][:SHOTS] [...] --limit N [--model DIR] [--mirror DIR] [--samples]

Both run as a user would start them: a new process each, float32, start-up included. lm-eval uses its transformers
backend with logits_cache=False (the cache gives wrong numbers for some pairs of requests), its own task files, and
data sets from the mirror. Defaults of --model and --mirror: $EVALJAX_TEST_MODELS/smollm2 and $EVALJAX_HUB_MIRROR.

A score that counts documents (between 0 and 1, and whole times their number) must be equal; any other score, and every
standard error, may differ by --tolerance relative. The exit code is 1 where one differs by more.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

RECIPE = "from evaljax import recipe\n\n\ndef get_config():\n    return recipe.default_config()\n"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
HUB_FILE = re.compile(
    r"^(?:hf://datasets|https?://huggingface\.co/datasets)/([^/@]+/[^/@]+)(?:@[^/]+)?/(?:resolve/[^/]+/)?(.+)$"
)
TOLERANCE = 1e-3
MIN_DIGITS = 1e-9  # two counts are equal if they differ by less


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What both programs are told to do, as it goes to lm-eval's process.

    Attributes:
      model, mirror: folders.
      max_length: longest input of both; None: the model's own.
      their_tasks: name of the folder of lm-eval's task files that evaljax reads too; None: evaljax reads its own.
      batch_size, threads, logits_cache: lm-eval's alone; threads None: as many as torch takes.
    """

    tasks: tuple[str, ...]
    limit: float
    model: str
    mirror: str
    num_fewshot: int | None = None
    max_length: int | None = None
    their_tasks: str | None = None
    batch_size: int = 8
    threads: int | None = None
    logits_cache: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One program's outcome: scores by name, seconds of the whole command and of its start, samples by task.

    `manifest`: evaljax's.
    """

    results: Mapping[str, Mapping[str, Any]]
    seconds: float
    startup: float
    samples: Mapping[str, Sequence[Mapping[str, Any]]]
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Compares every task given; returns the exit code."""
    args = parse(argv)
    if args.child:
        run_child(json.loads(args.child))
        return 0
    differ = 0
    for spec in args.tasks:
        order = order_of(spec, args)
        with tempfile.TemporaryDirectory() as folder:
            theirs = time_lm_eval(order, pathlib.Path(folder))
            ours = time_evaljax(order, pathlib.Path(folder))
        differ += print_comparison(spec, theirs, ours, args.tolerance)
        if args.samples:
            print_samples(theirs, ours)
    print("all equal" if not differ else f"{differ} scores differ")
    return 1 if differ else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with a message where model or mirror cannot be found."""
    parser = argparse.ArgumentParser(description="Run lm-eval and evaljax side by side.")
    parser.add_argument("tasks", nargs="*", metavar="TASK[,TASK...][:SHOTS]")
    parser.add_argument("--limit", type=float, default=20, help="documents a task")
    add_folders(parser)
    parser.add_argument("--batch-size", type=int, default=8, help="lm-eval's; evaljax has none")
    parser.add_argument("--logits-cache", action="store_true", help="lm-eval's default, and wrong for some requests")
    parser.add_argument("--max-length", type=int, help="longest input of both, for long texts on slow machines")
    parser.add_argument("--their-tasks", metavar="NAME", help="folder of lm-eval's task files that evaljax reads too")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="relative, where no documents are counted")
    parser.add_argument("--samples", action="store_true", help="also compare document by document")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        return args
    if not args.tasks:
        parser.error("name at least one TASK")
    check_folders(parser, args)
    return args


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Adds --model and --mirror."""
    models = os.environ.get("EVALJAX_TEST_MODELS")
    parser.add_argument(
        "--model", default=str(pathlib.Path(models, "smollm2")) if models else None, help="Hugging Face folder"
    )
    parser.add_argument(
        "--mirror", default=os.environ.get("EVALJAX_HUB_MIRROR"), help="folder of data sets laid out as on the hub"
    )


def check_folders(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Makes both folders absolute; exits with a message where one is not there."""
    for name in ("model", "mirror"):
        folder = getattr(args, name)
        if folder is None or not pathlib.Path(folder).is_dir():
            parser.error(f"--{name}: no such folder: {folder}")
        setattr(args, name, str(pathlib.Path(folder).resolve()))


def order_of(spec: str, args: argparse.Namespace) -> Order:
    """What the command line asks for one TASK[,TASK...][:SHOTS]."""
    tasks, _, shots = spec.partition(":")
    return Order(
        tasks=tuple(tasks.split(",")),
        num_fewshot=int(shots) if shots else None,
        limit=args.limit,
        model=args.model,
        mirror=args.mirror,
        max_length=args.max_length,
        their_tasks=args.their_tasks,
        batch_size=args.batch_size,
        logits_cache=args.logits_cache,
    )


def time_lm_eval(order: Order, folder: pathlib.Path) -> Side:
    """lm-eval's outcome, from a process of its own."""
    out = folder / "lm_eval.json"
    seconds = run_in_child({"order": dataclasses.asdict(order), "out": str(out)}, order.threads)
    found = json.loads(out.read_text(encoding="utf-8"))
    return Side(results=found["results"], seconds=seconds, startup=found["startup"], samples=found["samples"])


def probe_lm_eval(orders: Sequence[Order], gen_kwargs: str, folder: pathlib.Path) -> list[float]:
    """Seconds that lm-eval's model takes to answer each of the orders, all in one process; `gen_kwargs` go to all."""
    out = folder / "probe.json"
    asked = [dataclasses.asdict(order) for order in orders]
    run_in_child({"probes": asked, "gen_kwargs": gen_kwargs, "out": str(out)}, None)
    return json.loads(out.read_text(encoding="utf-8"))


def run_in_child(what: Mapping[str, Any], threads: int | None) -> float:
    """Seconds of a process that calls `run_child`."""
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--child", json.dumps(what)]
    return timed(command, {"OMP_NUM_THREADS": str(threads)} if threads else {})


def time_evaljax(order: Order, folder: pathlib.Path, environment: Mapping[str, str] | None = None) -> Side:
    """evaljax's outcome, from a process of its own; files go to `folder`, which must hold no earlier run's."""
    recipe, out = folder / "recipe.py", folder / "evaljax"
    recipe.write_text(RECIPE, encoding="utf-8")
    values: dict[str, Any] = {
        "tasks": ",".join(order.tasks),
        "limit": order.limit,
        "model.path": order.model,
        "model.dtype": "float32",
        "data_mirror": order.mirror,
        "output_dir": out,
    }
    if order.num_fewshot is not None:
        values["num_fewshot"] = order.num_fewshot
    if order.max_length:
        values["model.max_length"] = order.max_length
    if order.their_tasks:
        values["task_path"] = lm_eval_tasks(order.their_tasks)
    overrides = [f"--config.{key}={value}" for key, value in values.items()]
    seconds = timed([sys.executable, "-m", "evaljax.run", f"--config={recipe}", *overrides], environment or {})
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))["results"]
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    files = out.glob("samples_*.jsonl")
    samples = {
        file.stem.removeprefix("samples_"): [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in files
    }
    startup = seconds - manifest["seconds"]["total"]
    return Side(results=results, seconds=seconds, startup=startup, samples=samples, manifest=manifest)


def lm_eval_tasks(name: str) -> pathlib.Path:
    """A folder of lm-eval's task files."""
    return pathlib.Path(importlib.metadata.distribution("lm_eval").locate_file(f"lm_eval/tasks/{name}"))


def timed(command: list[str], environment: Mapping[str, str]) -> float:
    """Seconds that `command` took; its output is shown, and the program ends, if it failed."""
    everything = {**os.environ, **OFFLINE, **environment}
    start = time.perf_counter()
    done = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)}\nfailed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return seconds


def run_child(what: Mapping[str, Any]) -> None:
    """Evaluates with lm-eval what `time_lm_eval` or `probe_lm_eval` ask, and writes the outcome."""
    probes = [Order(**order) for order in what.get("probes", [])]
    orders = probes or [Order(**what["order"])]
    start = time.perf_counter()
    redirect_datasets(pathlib.Path(orders[0].mirror))
    from lm_eval import tasks

    task_manager = tasks.TaskManager()
    startup = time.perf_counter() - start
    outcome: Any
    if probes:
        outcome = [probe(order, task_manager, what["gen_kwargs"]) for order in probes]
    else:
        found = evaluate(orders[0], task_manager, "hf", model_args=model_args(orders[0]), device="cpu")
        outcome = {"results": found["results"], "samples": found["samples"], "startup": startup}
    pathlib.Path(what["out"]).write_text(json.dumps(outcome, default=plain), encoding="utf-8")


def evaluate(order: Order, task_manager: Any, model: Any, **settings: Any) -> Any:
    """lm-eval's results of `order`."""
    import lm_eval

    return lm_eval.simple_evaluate(
        model=model,
        tasks=list(order.tasks),
        num_fewshot=order.num_fewshot,
        limit=order.limit,
        batch_size=order.batch_size,
        task_manager=task_manager,
        **settings,
    )


def model_args(order: Order) -> dict[str, Any]:
    """What lm-eval's transformers backend is told of the model; a max_length of None is the model's own."""
    names = {"pretrained": order.model, "dtype": "float32", "max_length": order.max_length}
    return {**names, "logits_cache": order.logits_cache}


def probe(order: Order, task_manager: Any, gen_kwargs: str) -> float:
    """Seconds in which lm-eval's model answers the requests of `order`: no data read, nothing loaded, no statistics."""
    import torch
    from lm_eval.models import huggingface

    torch.set_num_threads(order.threads or torch.get_num_threads())
    model = huggingface.HFLM(**model_args(order), batch_size=order.batch_size, device="cpu")
    spent = []

    def clocked(answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            answers = answer(*args)
            spent.append(time.perf_counter() - start)
            return answers

        return call

    for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        setattr(model, kind, clocked(getattr(model, kind)))
    evaluate(order, task_manager, model, gen_kwargs=gen_kwargs, bootstrap_iters=0)
    return sum(spent)


def plain(value: Any) -> Any:
    """A numpy scalar as a Python number, anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def redirect_datasets(mirror: pathlib.Path) -> None:
    """Makes `datasets.load_dataset` read from `mirror` whatever lies there; must run before lm-eval is imported."""
    import datasets

    original: Callable[..., Any] = datasets.load_dataset

    def load_dataset(path: str, name: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("data_files") is not None:
            kwargs["data_files"] = local_files(kwargs["data_files"], mirror)
        local = mirror / str(path)
        if "/" in str(path) and local.is_dir():
            kwargs.pop("revision", None)
            path = str(local)
        return original(path, name, *args, **kwargs)

    datasets.load_dataset = load_dataset


def local_files(value: Any, mirror: pathlib.Path) -> Any:
    """`data_files` with every hub address that the mirror has replaced by the file there."""
    if isinstance(value, Mapping):
        return {key: local_files(inner, mirror) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [local_files(inner, mirror) for inner in value]
    match = HUB_FILE.match(str(value))
    if match and (mirror / match[1] / match[2]).exists():
        return str(mirror / match[1] / match[2])
    return value


def print_comparison(spec: str, theirs: Side, ours: Side, tolerance: float) -> int:
    """Prints every score of both sides and the seconds; returns how many scores differ by too much."""
    print(f"{spec}\n  {'':44s} {'lm-eval':>14s} {'evaljax':>14s} {'difference':>12s}")
    differ = 0
    for name, score, expected, found, equal in compared(theirs.results, ours.results, tolerance):
        numbers = isinstance(expected, int | float) and isinstance(found, int | float)
        difference = f"{found - expected:12.2e}" if numbers else " " * 12
        mark = "" if equal else "  DIFFERS"
        print(f"  {name + ' ' + score:44s} {shown(expected):>14s} {shown(found):>14s} {difference}{mark}")
        differ += not equal
    for what, a, b in (
        ("seconds, whole command", theirs.seconds, ours.seconds),
        ("seconds without start-up", theirs.seconds - theirs.startup, ours.seconds - ours.startup),
    ):
        print(f"  {what:44s} {a:14.1f} {b:14.1f} {a / b:11.2f}x")
    return differ


def shown(value: Any) -> str:
    """A number with six digits after the point, anything else as it is."""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def compared(
    theirs: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]], tolerance: float
) -> Iterator[tuple[str, str, Any, Any, bool]]:
    """(task, score, lm-eval's value, evaljax's value, whether they agree) for every score that either side has."""
    for name in dict.fromkeys([*theirs, *ours]):
        left, right = theirs.get(name, {}), ours.get(name, {})
        for score in dict.fromkeys([*left, *right]):
            if score in ("name", "alias", "sample_count"):
                continue
            expected, found = left.get(score, "missing"), right.get(score, "missing")
            yield name, score, expected, found, agree(score, expected, found, left.get("sample_len", 0), tolerance)


def agree(score: str, expected: Any, found: Any, num_docs: int, tolerance: float) -> bool:
    """Whether two values of a score are equal: counts exactly, the rest within `tolerance`; "N/A" is None."""
    if not isinstance(expected, int | float) or not isinstance(found, int | float):
        return (None if expected == "N/A" else expected) == found
    whole = abs(expected * num_docs - round(expected * num_docs)) < MIN_DIGITS
    counts = whole and 0 <= expected <= 1 and "_stderr" not in score
    return math.isclose(expected, found, rel_tol=MIN_DIGITS if counts else tolerance, abs_tol=MIN_DIGITS)


def print_samples(theirs: Side, ours: Side) -> None:
    """Prints, for each task, the largest difference of a log-likelihood and the documents whose answers differ."""
    for name, expected in theirs.samples.items():
        found = by_document(ours.samples.get(name, []))
        moved, unequal = [(0.0, -1)], []
        for doc, left in by_document(expected).items():
            pairs = list(zip(left, found.get(doc, []), strict=False))
            # evaljax's sample files, like lm-eval's, spell every answer as text.
            moved += [(abs(a - float(b)), doc) for a, b in pairs if isinstance(a, float)]
            if len(pairs) < len(left) or any(str(a) != str(b) for a, b in pairs if not isinstance(a, float)):
                unequal.append(str(doc))
        largest, where = max(moved)
        print(f"  {name}: {len(expected)} samples; largest difference {largest:.2e} nats (document {where}); ", end="")
        print(f"greedy flags or texts differ in documents: {', '.join(unequal) or 'none'}")


def by_document(samples: Sequence[Mapping[str, Any]]) -> dict[int, list[Any]]:
    """Every answer of each document in one flat list: log-likelihoods, greedy flags, texts."""
    found: dict[int, list[Any]] = {}
    for sample in samples:
        answers = [answer for repeats in sample["resps"] for answer in repeats]
        found[sample["doc_id"]] = [
            part for answer in answers for part in (answer if isinstance(answer, list) else [answer])
        ]
    return found


if __name__ == "__main__":
    sys.exit(main())
