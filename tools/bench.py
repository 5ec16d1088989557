#!/usr/bin/env python
"""Speed against lm-eval as ratios, both programs in one run on this machine, whole commands as a user would start them.

    python tools/bench.py [SUITE ...] [--model DIR] [--mirror DIR]        # default: every suite

lm-eval runs with its transformers backend in float32 with its default cache on, at the best of the settings in
`PEER_SETTINGS` (batch size, torch threads), found on a few documents first. Its start-up (reading its task folder,
about 25 s) is part of the whole command, as it is for its user; the ratio without it is printed beside it. evaljax
starts with an empty compilation cache.
Exit code 1 where a ratio misses its target. Keep the machine otherwise quiet.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence

import compare_lm_eval


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """One comparison: tasks, documents a task, and how many times faster evaljax has to be."""

    tasks: str
    limit: int
    target: float


MMLU = "mmlu_abstract_algebra,mmlu_anatomy,mmlu_astronomy,mmlu_business_ethics"
SUITES = {
    "mmlu": Suite(tasks=f"{MMLU}:5", limit=25, target=4.0),
    "truthfulqa": Suite(tasks="truthfulqa_mc2", limit=40, target=8.0),
    "arc_challenge": Suite(tasks="arc_challenge:25", limit=20, target=2.5),
    "arc_easy": Suite(tasks="arc_easy:0", limit=100, target=2.0),
}
PEER_SETTINGS = ((1, 2), (8, 1), (8, 2), (32, 2))
PROBE = 4  # documents a task on which lm-eval's settings are tried


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the suites; returns the exit code."""
    parser = argparse.ArgumentParser(description="evaljax against lm-eval, as ratios.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--model", help="Hugging Face folder (default: $EVALJAX_TEST_MODELS/smollm2)")
    parser.add_argument("--mirror", help="data sets laid out as on the hub (default: $EVALJAX_HUB_MIRROR)")
    options = parser.parse_args(argv)
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; known: {', '.join(SUITES)}")
    print(f"{'suite':15s} {'documents':>9s} {'lm-eval at':>14s} {'ratio':>7s} {'target':>7s} {'without start-up':>17s}")
    missed = [name for name in options.suites or SUITES if not run_suite(name, options)]
    print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    return 1 if missed else 0


def run_suite(name: str, options: argparse.Namespace) -> bool:
    """Runs one suite and prints its line; returns whether the target is met."""
    suite = SUITES[name]
    task, _, shots = suite.tasks.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(where / "xla")  # empty: evaljax compiles, as in a first run
        batch_size, threads = best_setting(suite, options, where)
        theirs = run_peer(suite, suite.limit, (batch_size, threads), options, where)
        ours = compare_lm_eval.time_evaljax(task, shots, arguments(suite, suite.limit, batch_size, options), where)
    ratio = theirs.seconds / ours.seconds
    inner = (theirs.seconds - (theirs.startup or 0)) / (ours.seconds - (ours.startup or 0))
    verdict = "" if ratio >= suite.target else "  MISSED"
    setting = f"batch {batch_size}, {threads} thr"
    print(
        f"{name:15s} {suite.limit:9d} {setting:>14s} {ratio:6.2f}x {suite.target:6.2f}x {inner:16.2f}x{verdict}",
        flush=True,
    )
    return ratio >= suite.target


def best_setting(suite: Suite, options: argparse.Namespace, folder: pathlib.Path) -> tuple[int, int]:
    """The (batch size, threads) with which lm-eval is fastest on a few documents."""

    def seconds(setting: tuple[int, int]) -> float:
        side = run_peer(suite, PROBE, setting, options, folder)
        return side.seconds - (side.startup or 0)

    return min(PEER_SETTINGS, key=seconds)


def run_peer(
    suite: Suite, limit: int, setting: tuple[int, int], options: argparse.Namespace, folder: pathlib.Path
) -> compare_lm_eval.Side:
    """lm-eval's outcome with one setting."""
    task, _, shots = suite.tasks.partition(":")
    os.environ["OMP_NUM_THREADS"] = str(setting[1])
    try:
        return compare_lm_eval.time_lm_eval(task, shots, arguments(suite, limit, setting[0], options), folder)
    finally:
        del os.environ["OMP_NUM_THREADS"]


def arguments(suite: Suite, limit: int, batch_size: int, options: argparse.Namespace) -> argparse.Namespace:
    """The command line of the comparison tool for this suite."""
    words = [suite.tasks, f"--limit={limit}", f"--batch-size={batch_size}", "--logits-cache"]
    words += [f"--{name}={value}" for name, value in vars(options).items() if name in ("model", "mirror") and value]
    return compare_lm_eval.parse(words)


if __name__ == "__main__":
    sys.exit(main())
