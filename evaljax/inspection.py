"""`evaljax ls`, `evaljax show`, `evaljax validate`: what there is, what would be asked, what is wrong with a task file."""

import argparse
import fnmatch
import pathlib
import sys
from collections.abc import Sequence

from evaljax import evaluation, recipe
from evaljax.core import errors, lookup, task
from evaljax.engine import encode, tokenizer
from evaljax.report import table
from evaljax.tasks import manager, validate as validation

LISTED = {"tasks": ("task", "class"), "groups": ("group",), "tags": ("tag",)}


def ls(argv: Sequence[str]) -> int:
    """Prints the tasks, groups or tags whose name matches; returns the exit code."""
    parser = _parser("ls", "List tasks, groups and tags.")
    parser.add_argument("kind", nargs="?", default="all", choices=[*LISTED, "all"], help="what to list (default: all)")
    parser.add_argument("pattern", nargs="?", default="*", help="only names that match, for example 'mmlu*'")
    parser.add_argument("--task_path", action="append", default=[], metavar="DIR", help="another folder of tasks; repeatable")
    words = list(argv)
    if words and words[0] not in [*LISTED, "all"] and not words[0].startswith("-"):
        words.insert(0, "all")
    options = parser.parse_args(words)
    kinds = [kind for name, kinds in LISTED.items() if options.kind in (name, "all") for kind in kinds]
    index = manager.TaskManager(include_path=options.task_path).task_index
    rows = []
    for name in fnmatch.filter(index.names(*kinds), options.pattern):
        entry = index.entries[name]
        members = entry.members or entry.config.get("task", ()) if entry.kind in ("group", "tag") else ()
        about = f"{len(members)} members" if members else str(entry.config.get("output_type", "generate_until"))
        rows.append([name, entry.kind, about, "" if entry.path is None else _short(entry.path)])
    if not rows:
        near = lookup.nearest(options.pattern, index.entries)
        raise errors.TaskError(f"nothing is called {options.pattern!r}.{near}")
    print(table.markdown(["Name", "Kind", "Output", "File"], rows, [False] * 4))
    return 0


def show(argv: Sequence[str]) -> int:
    """Prints a task's first documents as the model gets them: prompt, continuations, token ids; returns the exit code."""
    parser = _parser("show", "Print a task's real prompts, continuations and token ids. No weights are needed.")
    parser.add_argument("task", help="name of a task")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="how many documents (default: 1)")
    parser.add_argument("--config.KEY", dest="unused", metavar="VALUE", help="any key of a recipe, for example --config.num_fewshot=2")
    options, rest = parser.parse_known_args(argv)
    overrides = [f"tasks={options.task}", f"limit={options.n + 0.0 if options.n < 1 else options.n}"]
    for word in rest:
        if not word.startswith("--config.") or "=" not in word:
            raise errors.ConfigError(f"show: unknown argument {word!r}; expected --config.KEY=VALUE.")
        overrides.append(word.removeprefix("--config."))
    config = recipe.freeze(recipe.default_config(), overrides, where="show")
    from evaljax import run

    backend = run.open_backend(config, run.progress_lib.silent)
    prepared = evaluation.prepare(evaluation.load_tasks(config), config, backend)
    tokens = getattr(backend, "tokenizer", None)
    for name, examples in prepared.examples.items():
        item = prepared.loaded.tasks[name].config
        print(f"{name}: {item.output_type}, {item.num_fewshot or 0} shots, from {item.source}")
        for example in examples:
            _show_example(example, tokens, config.model.max_length)
    return 0


def validate(argv: Sequence[str]) -> int:
    """Prints what is wrong with task files, without data; the exit code is 1 if anything is."""
    parser = _parser("validate", "Check task files without data.")
    parser.add_argument("path", nargs="+", type=pathlib.Path, help="a YAML file or a folder of them")
    options = parser.parse_args(list(argv))
    from evaljax.scoring import aggregate, filters, metrics

    findings = [
        finding
        for path in options.path
        for finding in validation.validate_tree(path, metrics=metrics.METRICS, filters=filters.FILTERS, aggregations=aggregate.AGGREGATIONS)
    ]
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings" if findings else "no findings")
    return 1 if findings else 0


def _show_example(example: task.Example, tokens: tokenizer.Tokenizer | None, max_length: int | None) -> None:
    print(f"\n── document {example.doc_id} ── gold: {example.gold!r}")
    context = None
    for item in example.instances:
        prompt, *rest = item.args
        if prompt != context:
            print(f"── {item.request_type}: {'text' if not rest else 'context'}\n{prompt}")
            context = prompt
        if item.request_type == "loglikelihood":
            print(f"── continuation {item.idx}: {rest[0]!r}")
            if tokens is not None:
                request = evaluation.request.LoglikelihoodRequest(prompt, rest[0])
                [encoded] = encode.encode_loglikelihood(tokens, [request], max_length or sys.maxsize)
                split = len(encoded.tokens) - encoded.num_targets
                print(f"   {len(encoded.tokens)} tokens, read … {encoded.tokens[:split][-8:].tolist()}, scored {encoded.tokens[split:].tolist()}")
                scored = tokens.decode(encoded.tokens[split:], skip_special_tokens=False)
                print(f"   scored text {scored!r}" + (", merged across the join" if encoded.boundary_merge else ""))
        elif tokens is not None:
            ids = tokens.encode(prompt)
            print(f"── {len(ids)} tokens: {ids[:8]} … {ids[-8:]}" if len(ids) > 16 else f"── {len(ids)} tokens: {ids}")
        if item.request_type == "generate_until":
            print(f"── generation: {rest[0]}")


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"evaljax {command}", description=description)


def _short(path: pathlib.Path) -> str:
    """The path below its tasks folder, or as it is."""
    parts = path.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("tasks") :]) if "tasks" in parts else str(path)
