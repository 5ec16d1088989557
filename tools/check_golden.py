#!/usr/bin/env python
"""Compare evaljax with a recording of what lm-eval asked and scored.

    python tools/check_golden.py GOLDEN --tasks DIR --mirror DIR [--only REGEX] [--trust]

GOLDEN is a file of JSON lines, gzipped or not, one line for each spec (task, shots, chat or not):

    {"spec", "task", "num_fewshot", "chat", "limit",
     "requests": [{"task", "doc_id", "idx", "request_type", "arguments"}],
     "results", "groups": {name: {"metric,filter": value, "metric_stderr,filter": value, "sample_len": n}},
     "n_samples", "versions", "n_shot"}

Every spec whose task DIR defines is run through evaljax with the stand-in model that the recording was made with, and
everything in the line is compared: requests in order and byte for byte, scores to 1e-9 relative. One line of output for
each spec, one for the count; the exit code is 1 if anything differs.
"""

import argparse
import dataclasses
import gzip
import hashlib
import json
import math
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaljax import evaluation, run
from evaljax.core import config as config_lib
from evaljax.core import errors, request, result
from evaljax.report import plain, results_json
from evaljax.tasks import manager

TOLERANCE = 1e-9
BOOTSTRAP_ITERS = 1000
CONTEXT = 40  # characters of text shown before and after a difference

ANSWERS = (
    "The answer is (B).",
    " A",
    " 42",
    "Let me think. 6 * 7 = 42.\n#### 42",
    "So the answer is 1,234.50.",
    "yes",
    "No, because (A) is wrong and (C) is right.",
    "\\boxed{\\frac{1}{2}}",
    " Paris \n\nQuestion: next",
    "",
    "[invalid] (D)",
    "def f(x):\n    return x + 1\n\nprint(f(1))",
    "the answer is -7",
    "True",
    "(A) and then (B)",
    "C",
    "So the answer is no.",
    "Therefore, the final answer is 18 dollars. #### 18",
    "$3,000",
    "entailment",
)


def text_hash(text: str) -> int:
    """The first 8 bytes of SHA-256 of `text`, as an unsigned integer."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class StandIn:
    """The recording's model: every answer is a function of the request's text alone."""

    def loglikelihood(self, requests: Sequence[request.LoglikelihoodRequest]) -> list[request.LoglikelihoodResponse]:
        """Log-likelihoods from 0 to -100 in thousandths; a quarter of them greedy."""
        answers = []
        for asked in requests:
            pair = f"{asked.context}\x00{asked.continuation}"
            logprob = -(text_hash(pair) % 100_000) / 1000
            is_greedy = text_hash(f"greedy{pair}") % 4 == 0
            answers.append(request.LoglikelihoodResponse(logprob=logprob, is_greedy=is_greedy, num_tokens=1))
        return answers

    def loglikelihood_rolling(self, requests: Sequence[request.RollingRequest]) -> list[request.RollingResponse]:
        """Log-likelihoods from 0 to -1000 in thousandths."""
        return [
            request.RollingResponse(logprob=-(text_hash(asked.text) % 1_000_000) / 1000, num_tokens=1)
            for asked in requests
        ]

    def generate_until(self, requests: Sequence[request.GenerateRequest]) -> list[request.GenerateResponse]:
        """One of `ANSWERS`, cut at each stop string in turn."""
        answers = []
        for asked in requests:
            text = ANSWERS[text_hash(asked.context) % len(ANSWERS)]
            for stop in asked.sampling.until:
                text = text.split(stop)[0] if stop else text
            answers.append(request.GenerateResponse(text=text, num_tokens=1, finish_reason=request.FinishReason.STOP))
        return answers

    def apply_chat_template(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Each message between its role and an end mark; without a generation prompt the last end mark is missing."""
        text = "".join(f"<|{message['role']}|>\n{message['content']}<|end|>\n" for message in messages)
        return f"{text}<|assistant|>\n" if add_generation_prompt else text.removesuffix("<|end|>\n")

    def info(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {"name": "stand-in"}


@dataclasses.dataclass(frozen=True)
class Found:
    """What evaljax asked and scored for one spec."""

    requests: list[dict[str, Any]]
    outcome: result.EvalResult


def read_golden(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording, gzipped or not."""
    read = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def run_spec(golden: Mapping[str, Any], task_manager: manager.TaskManager, *, mirror: str | None, trust: bool) -> Found:
    """The requests and scores of a recording's spec under the stand-in model."""
    chat = bool(golden["chat"])
    config = config_lib.RunConfig(
        tasks=(golden["task"],),
        num_fewshot=golden["num_fewshot"],
        limit=golden["limit"],
        data_mirror=mirror,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        trust_task_code=trust,
        bootstrap_iters=BOOTSTRAP_ITERS,
    )
    backend = StandIn()
    prepared = evaluation.prepare(evaluation.load_tasks(config, task_manager), config, backend)
    requests = [plain.plain(record) for record in run.request_records(prepared)]
    annotations = evaluation.answer(prepared, backend, seed=config.seed)
    return Found(requests, evaluation.score_all(prepared, config, annotations))


def differences(golden: Mapping[str, Any], found: Found) -> Iterator[str]:
    """Every difference between a recording's spec and what evaljax found, in words."""
    yield from request_differences(golden["requests"], found.requests)
    written = results_json.results_dict(found.outcome, samples=False)
    for key in ("results", "groups"):
        yield from score_differences(key, golden[key], written.get(key, {}))
    yield from score_differences("n-samples", golden["n_samples"], written["n-samples"])
    for key, expected in (("versions", golden["versions"]), ("n-shot", golden["n_shot"])):
        for name, value in expected.items():
            # lm-eval writes a group's version as text, a task's as the number in the file.
            if str(written[key].get(name)) != str(value) and not (value == "N/A" and written[key].get(name) is None):
                yield f"{key}: {name}: expected {value!r}, found {written[key].get(name)!r}"


def request_differences(expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Differences between two lists of requests, in order."""
    if len(expected) != len(found):
        yield f"requests: expected {len(expected)}, found {len(found)}"
    for index, (wanted, here) in enumerate(zip(expected, found, strict=False)):
        where = f"request {index} ({wanted['task']}, document {wanted['doc_id']}, idx {wanted['idx']})"
        for key in ("task", "doc_id", "idx", "request_type"):
            if wanted[key] != here[key]:
                yield f"{where}: {key}: expected {wanted[key]!r}, found {here[key]!r}"
        if len(wanted["arguments"]) != len(here["arguments"]):
            yield f"{where}: expected {len(wanted['arguments'])} arguments, found {len(here['arguments'])}"
        for place, (text, other) in enumerate(zip(wanted["arguments"], here["arguments"], strict=False)):
            if text != other:
                yield f"{where}: argument {place}: {shown_difference(text, other)}"


def shown_difference(expected: Any, found: Any) -> str:
    """Two unequal values, of long texts the part around the first difference."""
    if not (isinstance(expected, str) and isinstance(found, str)):
        return f"expected {expected!r}, found {found!r}"
    same = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    start, end = max(0, same - CONTEXT), same + CONTEXT
    return f"at character {same}:\n      expected …{expected[start:end]!r}\n      found    …{found[start:end]!r}"


def score_differences(
    key: str, expected: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Differences between two tables of scores by name; a name or a score that only one has is one, too."""
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in expected or name not in found:
            yield f"{key}: {name}: only in {'the recording' if name in expected else 'evaljax'}"
            continue
        ours = {score: value for score, value in found[name].items() if score not in ("name", "alias", "sample_count")}
        for score in [*expected[name], *(score for score in ours if score not in expected[name])]:
            if score not in ours or score not in expected[name]:
                yield f"{key}: {name}: {score}: only in {'the recording' if score in expected[name] else 'evaljax'}"
            elif not same_value(expected[name][score], ours[score]):
                yield f"{key}: {name}: {score}: expected {expected[name][score]!r}, found {ours[score]!r}"


def same_value(expected: Any, found: Any) -> bool:
    """Equal, for numbers to `TOLERANCE`; lm-eval's "N/A" and NaN are None here."""
    if expected == "N/A" or (isinstance(expected, float) and math.isnan(expected)):
        return found is None
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=1e-15)
    return bool(expected == found)


def check(
    golden: Mapping[str, Any], task_manager: manager.TaskManager, *, mirror: str | None, trust: bool
) -> list[str]:
    """Every difference of one spec; an error that evaljax raises is one."""
    try:
        found = run_spec(golden, task_manager, mirror=mirror, trust=trust)
    except errors.EvaljaxError as error:
        return [f"{type(error).__name__}: {error}"]
    return list(differences(golden, found))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line a spec and a count; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare evaljax with a recording of what lm-eval asked and scored.")
    parser.add_argument("golden", type=pathlib.Path, help="recording: JSON lines, .gz or not")
    parser.add_argument("--tasks", type=pathlib.Path, required=True, help="folder of task files")
    parser.add_argument("--mirror", help="folder of data sets, laid out as on the hub")
    parser.add_argument("--only", default="", help="regular expression: only specs that it matches somewhere")
    parser.add_argument("--trust", action="store_true", help="let the task files' own code run")
    parser.add_argument("--all-differences", action="store_true", help="show every difference, not only the first")
    args = parser.parse_args(argv)
    for what, path, exists in (
        ("golden", args.golden, args.golden.is_file()),
        ("--tasks", args.tasks, args.tasks.is_dir()),
    ):
        if not exists:
            parser.error(f"{what}: {path} does not exist")
    task_manager = manager.TaskManager(include_path=[str(args.tasks)], include_defaults=False)
    known = set(task_manager.all_tasks)
    counts = {"ok": 0, "differs": 0}
    for golden in read_golden(args.golden):
        if golden["task"] not in known or not re.search(args.only, golden["spec"]):
            continue
        found = check(golden, task_manager, mirror=args.mirror, trust=args.trust)
        state = "differs" if found else "ok"
        counts[state] += 1
        print(f"{state:8s}{golden['spec']}", flush=True)
        for line in found if args.all_differences else found[:1]:
            print(f"    {line}")
        if len(found) > 1 and not args.all_differences:
            print(f"    ... and {len(found) - 1} more (--all-differences)")
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if not sum(counts.values()):
        print(f"nothing compared: no spec of {args.golden} that --only matches names a task of {args.tasks}")
        return 1
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
