"""`evaljax show`: what a model would really be asked, without weights."""

import argparse
import sys
from collections.abc import Sequence

from evaljax import evaluation, recipe, run
from evaljax.core import errors, progress, request, task
from evaljax.engine import encode, tokenizer

SHOWN = 200  # characters of a gold answer


def main(argv: Sequence[str]) -> int:
    """Prints a task's first documents as the model gets them; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="evaljax show", description="Print a task's real prompts, continuations and token ids."
    )
    parser.add_argument("task", help="name of a task")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="how many documents (default: 1)")
    parser.add_argument(
        "--config.KEY", dest="unused", metavar="VALUE", help="any key of a recipe, for example --config.num_fewshot=2"
    )
    options, rest = parser.parse_known_args(argv)
    if options.n < 1:
        raise errors.ConfigError(f"show: -n {options.n}; expected 1 or more.")
    overrides = [f"tasks={options.task}", f"limit={options.n}"]
    for word in rest:
        if not word.startswith("--config.") or "=" not in word:
            raise errors.ConfigError(f"show: unknown argument {word!r}; expected --config.KEY=VALUE.")
        overrides.append(word.removeprefix("--config."))
    config = recipe.freeze(recipe.default_config(), overrides, where="show")
    backend = run.open_backend(config, progress.silent)
    prepared = evaluation.prepare(evaluation.load_tasks(config), config, backend)
    tokens = getattr(backend, "tokenizer", None)
    max_length = getattr(backend, "max_length", None) or sys.maxsize
    for name, examples in prepared.examples.items():
        item = prepared.loaded.tasks[name].config
        print(f"{name}: {item.output_type}, {item.num_fewshot or 0} shots, from {item.source}")
        if tokens is not None:
            print(f"token ids of {config.model.tokenizer or config.model.path} (--config.model.path=... for another)")
        for example in examples:
            _show_example(example, tokens, max_length)
        print()
    return 0


def _show_example(example: task.Example, tokens: tokenizer.Tokenizer | None, max_length: int) -> None:
    gold = repr(example.gold)
    print(f"\n── document {example.doc_id} ── gold: {gold if len(gold) <= SHOWN else gold[:SHOWN] + '…'}")
    context = None
    for item in example.instances:
        prompt, *rest = item.args
        if prompt != context:
            print(f"── {item.request_type}: {'text' if not rest else 'context'}\n{prompt}")
            context = prompt
        if item.request_type == "loglikelihood":
            print(f"── continuation {item.idx}: {rest[0]!r}")
            if tokens is not None:
                asked = request.LoglikelihoodRequest(prompt, rest[0])
                [encoded] = encode.encode_loglikelihood(tokens, [asked], max_length)
                _show_tokens(tokens, encoded)
        elif tokens is not None:
            ids = tokens.encode(prompt)
            print(f"── {len(ids)} tokens: {ids[:8]} … {ids[-8:]}" if len(ids) > 16 else f"── {len(ids)} tokens: {ids}")
        if item.request_type == "generate_until":
            print(f"── generation: {rest[0]}")


def _show_tokens(tokens: tokenizer.Tokenizer, encoded: encode.Encoded) -> None:
    ids = encoded.tokens.tolist()
    read, scored = ids[: -encoded.num_targets], ids[-encoded.num_targets :]
    print(f"   {len(ids)} tokens: read {'… ' * (len(read) > 8)}{read[-8:]}, scored {scored}")
    text = tokens.decode(scored, skip_special_tokens=False)
    print(f"   scored text {text!r}" + (", merged across the join" if encoded.boundary_merge else ""))
