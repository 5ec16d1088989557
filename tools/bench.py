#!/usr/bin/env python
"""Speed against lm-eval and against the machine, as ratios: whole commands as a user would start them, in one run.

    python tools/bench.py --suite all [--model DIR] [--mirror DIR]      # or --suite mmlu,gsm8k,machine; < 45 minutes
    python tools/bench.py --suite all --limit-scale 0.1                  # whether it runs; the numbers mean little

lm-eval runs with its transformers backend in float32 with its default cache on, at the best of the settings in
`PEER_SETTINGS` (batch size, torch threads), found on some documents first. Its start-up (reading its task folder, about
25 s) is part of the whole command, as it is for its user; the ratio without both programs' start-up is printed beside
it. evaljax starts with an empty compilation cache and an empty journal.

"forward" is what evaljax forwarded, padding included, over the tokens that are unique once shared prefixes count once.
A score that differs between the two is a note: lm-eval's cache gives wrong numbers to some requests, and a text may
turn on the last bit of a logit. `bench_machine` is what is not against lm-eval.
Exit code 1 where a number misses its target. Keep the machine otherwise quiet.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import bench_machine
import compare_lm_eval

MMLU = (
    "abstract_algebra,anatomy,astronomy,business_ethics,"
    "college_biology,high_school_geography,machine_learning,world_religions"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """One comparison.

    Attributes:
      tasks: names, and the shots after a colon.
      limit: documents a task.
      target: how many times faster evaljax has to be.
      probe: documents a task on which lm-eval's settings are tried.
      bound: the most that evaljax may forward over unique tokens; None: not looked at.
      max_length: longest input of both; None: the model's own.
      their_tasks: folder of lm-eval's task files that both read; None: each reads its own.
    """

    tasks: str
    limit: int
    target: float
    probe: int
    bound: float | None = None
    max_length: int | None = None
    their_tasks: str | None = None


SUITES = {
    "mmlu": Suite(
        tasks=",".join(f"mmlu_{name}" for name in MMLU.split(",")) + ":5", limit=25, target=6.0, probe=2, bound=1.10
    ),
    "truthfulqa": Suite(tasks="truthfulqa_mc2", limit=60, target=12.0, probe=4),
    "arc_challenge": Suite(tasks="arc_challenge:25", limit=30, target=3.5, probe=2),
    "hellaswag": Suite(tasks="hellaswag:0", limit=150, target=2.5, probe=10),
    "commonsense": Suite(tasks="arc_easy,openbookqa,piqa:0", limit=100, target=2.5, probe=5),
    "lambada": Suite(tasks="lambada_openai", limit=300, target=1.3, probe=32),
    # The model reads 8192 tokens; attention over so many is slow in both, and most models read less.
    "wikitext": Suite(tasks="wikitext", limit=6, target=1.3, probe=1, max_length=2048),
    # The same eight examples before every question; up to 256 new tokens, which is the default of both.
    "gsm8k_cot": Suite(tasks="gsm8k_cot", limit=24, target=4.0, probe=16, their_tasks="gsm8k"),
    "gsm8k": Suite(tasks="gsm8k:5", limit=12, target=2.5, probe=12),
}
PEER_SETTINGS = ((1, 2), (8, 1), (8, 2), (32, 2))
PROBE_TOKENS = 24  # generated in a probe
COLUMNS = "{:14s} {:>9s} {:>15s} {:>8s} {:>7s} {:>7s} {:>8s} {:>6s} {:>17s}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the suites; returns the exit code."""
    options = parse(argv)
    began = time.perf_counter()
    missed: list[str] = []
    manifests: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = {name: scaled(SUITES[name], options.limit_scale) for name in options.names if name in SUITES}
        if chosen:
            settings = best_settings(chosen, options, pathlib.Path(folder))
            print(COLUMNS.format(*HEADINGS), flush=True)
        for name, suite in chosen.items():
            line = run_suite(name, suite, settings[name], options, pathlib.Path(folder))
            manifests[name] = line.manifest
            missed += [name] if line.missed else []
            print(line.text, *(f"  note: {note}" for note in line.notes), sep="\n", flush=True)
        for name in options.names:
            if name in bench_machine.SECTIONS:
                if name == "machine":
                    manifests |= alone(set(bench_machine.SHARE_SUITES) - set(manifests), options, pathlib.Path(folder))
                rows = bench_machine.SECTIONS[name](orders(options), manifests, pathlib.Path(folder))
                missed += bench_machine.print_rows(name, rows)
    print(f"{(time.perf_counter() - began) / 60:.0f} minutes in all")
    print(f"missed: {', '.join(dict.fromkeys(missed))}" if missed else "all targets met")
    return 1 if missed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; `names` are the suites to run."""
    known = [*SUITES, *bench_machine.SECTIONS]
    parser = argparse.ArgumentParser(description="evaljax against lm-eval and the machine, as ratios.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"all, or some of {', '.join(known)}")
    parser.add_argument("--suite", action="append", default=[], metavar="SUITE[,SUITE...]", help="the same")
    parser.add_argument("--limit-scale", type=float, default=1.0, help="times the documents of each suite; for a try")
    compare_lm_eval.add_folders(parser)
    options = parser.parse_args(argv)
    asked = [name for words in [*options.suites, *options.suite] for name in words.split(",") if name]
    unknown = set(asked) - set(known) - {"all"}
    if unknown:
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; known: all, {', '.join(known)}")
    if not 0 < options.limit_scale <= 1:
        parser.error(f"--limit-scale {options.limit_scale}: expected above 0, at most 1")
    options.names = known if not asked or "all" in asked else [name for name in known if name in asked]
    compare_lm_eval.check_folders(parser, options)
    return options


def scaled(suite: Suite, scale: float) -> Suite:
    """The suite with fewer documents."""
    limit = max(1, round(suite.limit * scale))
    return dataclasses.replace(suite, limit=limit, probe=min(limit, suite.probe))


def orders(options: argparse.Namespace) -> bench_machine.Orders:
    """What makes an order for evaljax alone."""
    return bench_machine.Orders(model=options.model, mirror=options.mirror, scale=options.limit_scale)


def order_of(suite: Suite, limit: int, setting: tuple[int, int], options: argparse.Namespace) -> compare_lm_eval.Order:
    """What both programs are told."""
    tasks, _, shots = suite.tasks.partition(":")
    return compare_lm_eval.Order(
        tasks=tuple(tasks.split(",")),
        num_fewshot=int(shots) if shots else None,
        limit=limit,
        model=options.model,
        mirror=options.mirror,
        max_length=suite.max_length,
        their_tasks=suite.their_tasks,
        batch_size=setting[0],
        threads=setting[1],
        logits_cache=True,
    )


def best_settings(
    suites: Mapping[str, Suite], options: argparse.Namespace, folder: pathlib.Path
) -> dict[str, tuple[int, int]]:
    """The (batch size, threads) with which lm-eval is fastest on some documents of each suite."""
    tries = [(name, setting) for name in suites for setting in PEER_SETTINGS]
    asked = [order_of(suites[name], suites[name].probe, setting, options) for name, setting in tries]
    seconds = compare_lm_eval.probe_lm_eval(asked, f"max_gen_toks={PROBE_TOKENS}", folder)
    return fastest(dict(zip(tries, seconds, strict=True)))


def fastest(seconds: Mapping[tuple[str, tuple[int, int]], float]) -> dict[str, tuple[int, int]]:
    """The setting of each suite that took the fewest seconds."""
    best: dict[str, tuple[int, int]] = {}
    for name, setting in sorted(seconds, key=lambda tried: seconds[tried]):
        best.setdefault(name, setting)
    return best


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """What a suite gave, as the table prints it."""

    text: str
    missed: bool
    notes: Sequence[str]
    manifest: Mapping[str, Any]


HEADINGS = (
    "suite",
    "documents",
    "lm-eval at",
    "ratio",
    "target",
    "verdict",
    "forward",
    "bound",
    "without start-up",
)


def run_suite(
    name: str, suite: Suite, setting: tuple[int, int], options: argparse.Namespace, folder: pathlib.Path
) -> Line:
    """Runs both programs."""
    where = folder / name
    where.mkdir()
    order = order_of(suite, suite.limit, setting, options)
    theirs = compare_lm_eval.time_lm_eval(order, where)
    ours = compare_lm_eval.time_evaljax(order, where, {"JAX_COMPILATION_CACHE_DIR": str(where / "xla")})
    return line_of(name, suite, setting, theirs, ours)


def alone(names: Collection[str], options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Mapping[str, Any]]:
    """The manifests of suites that evaljax runs without lm-eval."""
    found = {}
    for name in sorted(names):
        suite = scaled(SUITES[name], options.limit_scale)
        order = order_of(suite, suite.limit, PEER_SETTINGS[0], options)
        environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / name / "xla")}
        found[name] = bench_machine.run_evaljax(order, folder / name, environment)
    return found


def line_of(
    name: str, suite: Suite, setting: tuple[int, int], theirs: compare_lm_eval.Side, ours: compare_lm_eval.Side
) -> Line:
    """The table's line for what the two programs did."""
    ratio = theirs.seconds / ours.seconds
    inner = (theirs.seconds - theirs.startup) / (ours.seconds - ours.startup)
    forward = bench_machine.forwarded(ours.manifest)
    missed = ratio < suite.target or (suite.bound is not None and (forward is None or forward > suite.bound))
    documents = suite.limit * len(suite.tasks.split(","))
    text = COLUMNS.format(
        name,
        str(documents),
        f"batch {setting[0]}, {setting[1]} thr",
        f"{ratio:.2f}x",
        f"{suite.target:g}x",
        "MISSED" if missed else "met",
        "" if forward is None else f"{forward:.3f}",
        "" if suite.bound is None else f"{suite.bound:.2f}",
        f"{inner:.2f}x",
    )
    return Line(text=text, missed=missed, notes=list(differences(theirs, ours)), manifest=ours.manifest)


def differences(theirs: compare_lm_eval.Side, ours: compare_lm_eval.Side) -> Iterator[str]:
    """A note for each score in which the two do not agree."""
    for task, score, expected, found, equal in compare_lm_eval.compared(
        theirs.results, ours.results, compare_lm_eval.TOLERANCE
    ):
        if not equal:
            left, right = compare_lm_eval.shown(expected), compare_lm_eval.shown(found)
            yield f"{task} {score}: lm-eval {left}, evaljax {right}"


if __name__ == "__main__":
    os.environ.pop("OMP_NUM_THREADS", None)  # lm-eval's threads are chosen here
    sys.exit(main())
