"""The configuration of a run, checked. `evaljax.recipe` makes one from a recipe file and the command line."""

import dataclasses
from collections.abc import Mapping
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")
PRECISIONS = ("default", "high", "highest")
OVERLENGTH = ("truncate_left", "drop_shots", "skip", "error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Which model, and in which arithmetic.

    Attributes:
      path: folder, GGUF file, hub id, or "demo" for the model that ships with evaljax.
      backend: "jax", "torch", "fake", or "module:attribute" of your own.
      dtype: of parameters and activations; log-probabilities are float32 whatever it is.
      precision: of matrix products, as `jax.default_matmul_precision`; "highest" for parity with other float32 engines.
      revision: hub revision.
      tokenizer: folder or hub id of the tokenizer where it is not the model's own.
      add_bos_token: whether a sequence starts with BOS; None: as the tokenizer does.
      max_length: longest input in tokens; None: the model's own limit.
      think_end_token: text that ends a model's thought, for example </think>; what stands before it is no answer.
        It concerns what is generated only.
      batch_size: rows a step in the torch backend.
    """

    path: str = "demo"
    backend: str = "jax"
    dtype: str = "float32"
    precision: str = "highest"
    revision: str | None = None
    tokenizer: str | None = None
    add_bos_token: bool | None = None
    max_length: int | None = None
    think_end_token: str | None = None
    batch_size: int = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the JAX engine runs; none of these changes an answer by more than its last bits.

    Attributes:
      data: size of the mesh's axis that rows are split over; 0: chosen from the devices and the size of the model.
      model: size of the mesh's axis that heads, mlp and vocabulary are split over; 0: chosen.
      memory_bytes: of each device, for caches and activations beside the parameters; 0: what the device has left.
      deterministic: the same bits whatever else is asked, in any order, from any point of resuming; slower.
      chunk_length: tokens a row forwards in one step; 0: chosen from the work and the device.
      num_rows: rows a step, each its own stretch of the work; 0: chosen from the device.
      num_slots: sequences that decode at once; 0: chosen from the device.
      decode_steps: tokens that every slot decodes between two looks of the host; 0: chosen from the device.
      share_prefixes: forward a shared prefix once; False forwards every request alone (slow; for checks).
      allow_nonfinite: count non-finite log-probabilities instead of stopping.
    """

    data: int = 0
    model: int = 0
    memory_bytes: int = 0
    deterministic: bool = False
    chunk_length: int = 0
    num_rows: int = 0
    num_slots: int = 0
    decode_steps: int = 0
    share_prefixes: bool = True
    allow_nonfinite: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostsSpec:
    """Many processes as one run (`jax.distributed`), each started with the same recipe; the first one writes.

    Attributes:
      enabled: whether this process is one of many. With the rest left out, JAX finds the others (TPU pods, SLURM, MPI).
      coordinator: address of the first process, "host:port", where JAX cannot find it.
      count: number of processes; 0: as JAX finds it.
      index: which of them this is, from 0; -1: as JAX finds it.
      timeout: seconds after which a process that does not answer ends the run.
    """

    enabled: bool = False
    coordinator: str | None = None
    count: int = 0
    index: int = -1
    timeout: int = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run.

    Attributes:
      tasks: names of tasks, groups and tags, patterns (`name_*`), YAML files or folders; "a,b" or a tuple.
      num_fewshot: examples before each question; None: as each task says. A task that says 0 keeps 0.
      limit: documents a task; below 1 a fraction of them.
      model, engine, hosts: sections of their own.
      task_path: more folders of tasks; of two tasks with one name the last folder's holds.
      data_mirror: folder laid out as the hub (owner/name/...), looked up before the network.
      apply_chat_template: prompts through the tokenizer's chat template.
      fewshot_as_multiturn: whether examples are turns of the conversation; None: as `apply_chat_template`.
      system_instruction: stands before everything else.
      gen_kwargs: added to every task's generation settings, for example "do_sample=True,temperature=0.7".
      overlength: what happens to a request longer than the model reads: "truncate_left" cuts its left end (lm-eval's
        rule), "drop_shots" leaves out few-shot examples, the last first, before it cuts, "skip" leaves its document
        out of the score, "error" stops. All are counted.
      seed: of the few-shot draw and of sampled generations.
      output_dir: folder for results.json, samples_<task>.jsonl and manifest.json; None: the table only.
      cache_dir: folder for the journal of answers and for compiled programs; None: the journal lies in `cache/` of
        `output_dir` (without one there is none), compiled programs in ~/.cache/evaljax.
      journal: whether answers are kept as they come, so that a run that was stopped goes on where it was.
      trust_task_code: whether `!function` code from outside evaljax's own tasks may run.
      log_samples: whether sample files are written.
      bootstrap_iters: replicates for the standard error of metrics that are no mean; 0: none.
      dry_run: no weights and no answers: what would be asked, and how it would be computed.
    """

    tasks: tuple[str, ...]
    num_fewshot: int | None = None
    limit: float | None = None
    model: ModelSpec = ModelSpec()
    engine: EngineOptions = EngineOptions()
    hosts: HostsSpec = HostsSpec()
    task_path: tuple[str, ...] = ()
    data_mirror: str | None = None
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool | None = None
    system_instruction: str | None = None
    gen_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overlength: str = "truncate_left"
    seed: int = 1234
    output_dir: str | None = None
    cache_dir: str | None = None
    journal: bool = True
    trust_task_code: bool = False
    log_samples: bool = True
    bootstrap_iters: int = 100_000
    dry_run: bool = False
