"""The table on the screen, with lm-eval's columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaljax.core import result
from evaljax.report import results_json

HEADER = ("Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr")
RIGHT = (False, True, False, True, False, False, True, False, True)
# What the counts beside a score mean; README has the same list.
HEALTH = {
    "truncated": "documents with a request cut on the left to fit the model",
    "tokens_dropped": "tokens cut",
    "shortened": "documents with fewer examples to fit the model",
    "shots_dropped": "examples left out",
    "skipped": "documents too long for the model, not scored",
    "boundary_merges": "joins of context and continuation that the tokenizer merged",
    "ties": "documents whose best choices tie",
    "duplicate_choices": "documents with equal choices",
    "empty_generations": "empty answers",
    "cut_generations": "answers that ran into their length",
    "unfinished_thoughts": "thoughts that never ended",
    "extraction_failures": "answers from which a filter could extract nothing",
    "near_misses": "answers right but for case and outer blanks, scored 0",
    "unused_repeats": "repeats that no filter looks at",
    "nonfinite": "documents whose log-likelihoods are no numbers",
}


def tables(outcome: result.EvalResult) -> str:
    """The table of all tasks and, where a group rolls up, the table of groups."""
    names = list(results_json.tree(outcome))
    parts = [_table(outcome, names)]
    groups = [(name, depth) for name, depth in names if name in outcome.groups and outcome.groups[name].metrics]
    if groups:
        parts.append(_table(outcome, groups, title="Groups"))
    return "\n\n".join(parts)


def health_lines(outcome: result.EvalResult) -> list[str]:
    """One line for each task of which something should be known beside the score; a filter's own counts stay out."""
    lines = []
    for name, item in outcome.tasks.items():
        found = [f"{n} {HEALTH.get(key, key)}" for key, n in item.counts.items() if n and "," not in key]
        if found:
            lines.append(f"{name}: {'; '.join(found)} ({item.sample_len} documents)")
    return lines


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """A Markdown table whose columns line up on a terminal, too."""
    widths = [max(3, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)]
        return "|" + "|".join(padded) + "|"

    rule = "|" + "|".join("-" * (w - 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)) + "|"
    centred = "|" + "|".join(cell.center(width) for cell, width in zip(header, widths, strict=True)) + "|"
    return "\n".join([centred, rule, *(line(row) for row in rows)])


def _table(outcome: result.EvalResult, names: Sequence[tuple[str, int]], title: str = "Tasks") -> str:
    rows = [row for name, depth in names for row in _rows(outcome, name, depth)]
    return markdown((title, *HEADER[1:]), rows, RIGHT)


def _rows(outcome: result.EvalResult, name: str, depth: int) -> list[list[str]]:
    label = (" " * depth + "- " if depth else "") + results_json.alias(outcome, name)
    item = outcome.groups[name] if name in outcome.groups else outcome.tasks[name]
    version = str(results_json.version(outcome, name))
    shots = results_json.num_fewshot(outcome, name)
    arrows = results_json.higher_is_better(outcome, name)
    if not item.metrics:
        return [[label, version, *[""] * 7]]
    rows: list[list[str]] = []
    for metric, pipeline in sorted(item.metrics):
        stderr = item.stderrs.get((metric, pipeline))
        rows.append(
            [
                "" if rows else label,
                "" if rows else version,
                pipeline,
                "" if shots is None else str(shots),
                metric,
                {True: "↑", False: "↓"}.get(arrows.get(metric), ""),  # type: ignore[arg-type]
                f"{item.metrics[metric, pipeline]:.4f}",
                "±",
                "N/A" if stderr is None else f"{stderr:.4f}",
            ]
        )
    return rows


def plan_lines(plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each kind of request: what was asked, what of it is unique, what is forwarded or generated."""
    lines = []
    for kind, plan in plans.items():
        line = f"{kind}: {plan['requests']:,} requests"
        if plan.get("forward_tokens") and plan.get("unique_tokens"):
            ratio = plan["forward_tokens"] / plan["unique_tokens"]
            line += (
                f", {plan['request_tokens']:,} tokens asked, {plan['unique_tokens']:,} unique, "
                f"{plan['forward_tokens']:,} forwarded ({ratio:.2f} x unique)"
            )
        elif "generated_tokens" in plan:
            line += (
                f", {plan['prompt_tokens']:,} prompt tokens, {plan['generated_tokens']:,} generated "
                f"({plan['generated_tokens_per_second']:.1f} tokens/s)"
            )
        elif "max_generated_tokens" in plan:
            line += (
                f", {plan['request_tokens']:,} prompt tokens, {plan['unique_tokens']:,} unique, "
                f"at most {plan['max_generated_tokens']:,} to generate"
            )
        lines.append(line)
    return lines


def engine_lines(manifest: Mapping[str, Any]) -> list[str]:
    """What the engine did and where the time went; of a backend that does not say, the time only."""
    engine = manifest.get("engine") or {}
    whole = manifest["seconds"]
    answers = engine.get("seconds") or {"answers": whole["answers"]}
    seconds = {"tasks": whole["tasks"], **answers, "scores": whole["scores"], "total": whole["total"]}
    executables = (
        f"; {engine['executables']} programs compiled or read from the cache" if "executables" in engine else ""
    )
    took = "seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    return [*plan_lines(engine.get("plans") or {}), took + executables]
