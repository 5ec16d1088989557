#!/usr/bin/env python
"""evaljax against the machine: what share of its arithmetic is useful, what compiling costs, how cost grows.

`bench` runs these beside the suites, as `machine`, `compile` and `curve`.

    machine   useful FLOPs a second while scoring, over the best rate of float32 matrix products of the model's own
              shapes, measured in the same run on the same cores
    compile   seconds of programs in a first run (no cache) and in a second one, and how many programs there are
    curve     documents x 1, 4, 16: seconds a unique token, and the memory that scoring takes beside the weights

Useful FLOPs, a product of m x k and k x n counted as 2 m k n (norms, rotations, softmax and sampling as nothing):

    2 * unique * L * (2 N H D + 2 K H D + 3 D F)    matrices of the blocks, once for each unique token
    4 * L * N * H * attended                        scores and weighted sum over each key that a unique token sees
    2 * D * V * scored                              vocabulary, once for each position that is scored

L layers, D embed, N query heads, K kv heads, H head dim, F mlp, V vocabulary.
"""

import argparse
import collections
import dataclasses
import gc
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import compare_lm_eval

from evaljax.models import config as model_config

SHARE_TARGET = 0.6
SHARE_SUITES = ("mmlu", "hellaswag")
ROWS_OF_PRODUCTS = (256, 1024)  # tokens: of a step on a CPU, and of more than a step
TRIES = 10  # of each product; the best counts
FIRST_COMPILE, WARM_COMPILE, MOST_PROGRAMS = 20.0, 4.0, 8
COMPILE_TASKS = ("mmlu_anatomy", "mmlu_astronomy", "gsm8k")
ALL_KINDS = ("mmlu_anatomy", "wikitext", "gsm8k")  # multiple choice, rolling, generation
CURVE_TASK, CURVE_DOCUMENTS = "arc_easy", (20, 80, 320)
LINEAR = 1.15  # the most that a unique token may cost, over what it costs with a quarter of the documents
FLAT = 1.10  # the most that memory may grow
HOST_ALLOWANCE = 16 << 20  # bytes beside the stated budget, for the plan and the host's own arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orders:
    """What every order has in common. `scale`: times the documents."""

    model: str
    mirror: str
    scale: float = 1.0

    def order(self, tasks: Sequence[str], limit: int, **settings: Any) -> compare_lm_eval.Order:
        """An order for evaljax alone."""
        limit = max(1, round(limit * self.scale))
        return compare_lm_eval.Order(tasks=tuple(tasks), limit=limit, model=self.model, mirror=self.mirror, **settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One number. `met`: None where there is no target."""

    what: str
    value: str
    target: str = ""
    met: bool | None = None


def print_rows(section: str, rows: Sequence[Row]) -> list[str]:
    """Prints the rows; gives the section's name if one misses its target."""
    for row in rows:
        verdict = "" if row.met is None else "met" if row.met else "MISSED"
        print(f"{section:10s} {row.what:68s} {row.value:>12s} {row.target:>10s} {verdict}", flush=True)
    return [section] if any(row.met is False for row in rows) else []


def forwarded(manifest: Mapping[str, Any]) -> float | None:
    """Tokens forwarded over unique tokens, of everything that was scored; None if nothing was."""
    plans = [plan for plan in manifest["engine"]["plans"].values() if plan.get("unique_tokens")]
    if not plans:
        return None
    return sum(plan["forward_tokens"] for plan in plans) / sum(plan["unique_tokens"] for plan in plans)


def block_weights(config: model_config.ModelConfig) -> int:
    """Entries of all matrices that every token meets."""
    c = config
    heads = 2 * c.num_heads * c.head_dim + 2 * c.num_kv_heads * c.head_dim
    return c.num_layers * c.embed_dim * (heads + 3 * c.mlp_dim)


def useful_flops(config: model_config.ModelConfig, unique: int, attended: int, scored: int) -> int:
    """The formula at the top of this file."""
    blocks = 2 * unique * block_weights(config)
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * attended
    return blocks + attention + 2 * config.embed_dim * config.vocab_size * scored


def machine(orders: Orders, manifests: Mapping[str, Mapping[str, Any]], folder: pathlib.Path) -> list[Row]:
    """The share of each suite of `SHARE_SUITES`, whose manifests must be there."""
    from evaljax.models import checkpoint

    config = checkpoint.read_config(orders.model)
    rates = in_child("rates", {"model": orders.model}, folder)
    name, rate = max(rates.items(), key=lambda item: item[1])
    rows = [Row(what=f"float32 products, GFLOP/s: best of {len(rates)} shapes, {name}", value=f"{rate / 1e9:.0f}")]
    for suite in SHARE_SUITES:
        plan = manifests[suite]["engine"]["plans"]["loglikelihood"]
        flops = useful_flops(config, plan["unique_tokens"], plan["attended_tokens"], plan["scored_positions"])
        share = flops / plan["run_seconds"] / rate
        what = f"{suite}: useful FLOPs a second, over that"
        rows.append(Row(what=what, value=f"{share:.0%}", target=f">= {SHARE_TARGET:.0%}", met=share >= SHARE_TARGET))
    return rows


def measure_rates(model: str) -> dict[str, float]:
    """FLOPs a second of each product of the model's own matrices; runs in the child process."""
    import jax
    import jax.numpy as jnp

    from evaljax.models import checkpoint

    c = checkpoint.read_config(model)
    matrices = {
        "query": (c.num_heads * c.head_dim, c.embed_dim),
        "up": (c.mlp_dim, c.embed_dim),
        "down": (c.embed_dim, c.mlp_dim),
        "vocabulary": (c.vocab_size, c.embed_dim),
    }
    product = jax.jit(lambda x, weight: jnp.einsum("td,fd->tf", x, weight, precision="highest"))
    rates = {}
    for rows in ROWS_OF_PRODUCTS:
        for name, shape in matrices.items():
            x, weight = jnp.ones((rows, shape[1])), jnp.ones(shape)
            jax.block_until_ready(product(x, weight))
            times = []
            for _ in range(TRIES):
                start = time.perf_counter()
                jax.block_until_ready(product(x, weight))
                times.append(time.perf_counter() - start)
            rates[f"{name}, {rows} tokens"] = 2 * rows * shape[0] * shape[1] / min(times)
    return rates


def compile(orders: Orders, manifests: Mapping[str, Mapping[str, Any]], folder: pathlib.Path) -> list[Row]:
    """Seconds of programs of a first and a second run, and the number of programs of all kinds of requests."""
    del manifests
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
    both = orders.order(COMPILE_TASKS, 4, num_fewshot=5)
    rows = []
    for what, most in (("first run", FIRST_COMPILE), ("second run", WARM_COMPILE)):
        engine = run_evaljax(both, folder / what.replace(" ", "_"), cache)["engine"]
        seconds = sum(program["seconds"] for program in engine["compiled"])
        slowest = max(engine["compiled"], key=lambda program: program["seconds"])
        waited = engine["seconds"]["compile"]
        rows += [
            Row(
                what=f"{what}: seconds of {engine['executables']} programs, the longest {slowest['program']}",
                value=f"{seconds:.1f}",
                target=f"<= {most:g}",
                met=seconds <= most,
            ),
            Row(what=f"{what}: seconds that the run waited for them", value=f"{waited:.1f}"),
        ]
    kinds = orders.order(ALL_KINDS, 2, max_length=2048)
    compiled = run_evaljax(kinds, folder / "kinds", cache)["engine"]["compiled"]
    what, count = "programs for multiple choice, rolling and generation together", len(compiled)
    rows.append(Row(what=what, value=str(count), target=f"<= {MOST_PROGRAMS}", met=count <= MOST_PROGRAMS))
    names = collections.Counter(program["program"] for program in compiled)
    return [*rows, *(Row(what=f"... of these {name}", value=str(number)) for name, number in names.items())]


def run_evaljax(
    order: compare_lm_eval.Order, folder: pathlib.Path, environment: Mapping[str, str]
) -> Mapping[str, Any]:
    """The manifest of a run of its own."""
    folder.mkdir()
    return compare_lm_eval.time_evaljax(order, folder, environment).manifest


def curve(orders: Orders, manifests: Mapping[str, Mapping[str, Any]], folder: pathlib.Path) -> list[Row]:
    """How time and memory grow with the number of documents."""
    del manifests
    asked = [orders.order([CURVE_TASK], documents, num_fewshot=0) for documents in CURVE_DOCUMENTS]
    found = [in_child("scoring", dataclasses.asdict(order), folder) for order in asked]
    costs = [one["run_seconds"] / one["unique_tokens"] for one in found]
    rows = []
    for order, before, cost in zip(asked[1:], costs, costs[1:], strict=False):
        growth = cost / before
        what = f"{CURVE_TASK} x {order.limit:g}: seconds a unique token, over those of the one before"
        rows.append(Row(what=what, value=f"{growth:.2f}x", target=f"<= {LINEAR:.2f}x", met=growth <= LINEAR))
    for order, one in zip(asked, found, strict=True):
        stated, taken = one["memory"]["step"], one["taken"]
        what = f"{CURVE_TASK} x {order.limit:g}: memory beside the weights, over the stated {stated >> 20} MiB"
        target, met = f"+{HOST_ALLOWANCE >> 20} MiB", taken <= stated + HOST_ALLOWANCE
        rows.append(Row(what=what, value=f"{taken / stated:.2f}x", target=target, met=met))
    growth = found[-1]["taken"] / max(one["taken"] for one in found[:-1])
    what = f"memory at {asked[-1].limit:g} documents, over the most before"
    return [*rows, Row(what=what, value=f"{growth:.2f}x", target=f"<= {FLAT:.2f}x", met=growth <= FLAT)]


def measure_scoring(order: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's figures of scoring `order`, and `taken`: bytes that it took, at the most, beside what was there.

    There already: the weights, the requests as tokens, the compiled program. Runs in the child process.
    """
    import jax

    from evaljax import evaluation
    from evaljax import run as runs
    from evaljax.core import config, progress
    from evaljax.engine import encode, executor, loglikelihood, memory, mesh, plan

    spec = config.ModelSpec(path=order["model"])
    run = config.RunConfig(
        tasks=tuple(order["tasks"]),
        num_fewshot=order["num_fewshot"],
        limit=order["limit"],
        model=spec,
        data_mirror=order["mirror"],
    )
    backend: Any = runs.open_backend(run, progress.silent)
    prepared = evaluation.prepare(evaluation.load_tasks(run), run, backend)
    items = evaluation.requests_by_type(prepared)["loglikelihood"]
    asked = evaluation.plain_requests(prepared, "loglikelihood", items, run.seed)
    encoded = encode.encode_loglikelihood(backend.tokenizer, asked, backend.max_length)
    model, how = backend.model, {"options": run.engine, "max_length": backend.max_length}
    layout = mesh.layout_of(model.params)
    job = plan.plan_loglikelihood(encoded, **how, machine=memory.machine(model, layout, run.engine))
    program = executor.prepare(model, job.shape, layout, precision=spec.precision)
    jax.block_until_ready(model.params)
    program.result()
    del job
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    before = resident("VmRSS")
    _, figures = loglikelihood.score(model, encoded, **how, precision=spec.precision)
    return {**figures, "taken": resident("VmHWM") - before}


def resident(field: str) -> int:
    """Bytes of this process's memory: VmRSS now, VmHWM at its peak."""
    match = re.search(rf"{field}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) << 10


CHILDREN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "rates": lambda what: measure_rates(what["model"]),
    "scoring": measure_scoring,
}
SECTIONS: dict[str, Callable[[Orders, Mapping[str, Any], pathlib.Path], list[Row]]] = {
    "machine": machine,
    "compile": compile,
    "curve": curve,
}


def in_child(name: str, what: Mapping[str, Any], folder: pathlib.Path) -> Any:
    """What `CHILDREN[name]` gives for `what`, in a process of its own."""
    out = folder / f"{name}.json"
    script = str(pathlib.Path(__file__).resolve())
    compare_lm_eval.timed([sys.executable, script, name, json.dumps(what), str(out)], {})
    return json.loads(out.read_text(encoding="utf-8"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a child process."""
    parser = argparse.ArgumentParser(description="A child process of bench.py; start that.")
    parser.add_argument("name", choices=sorted(CHILDREN))
    parser.add_argument("what")
    parser.add_argument("out")
    args = parser.parse_args(argv)
    found = CHILDREN[args.name](json.loads(args.what))
    pathlib.Path(args.out).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
