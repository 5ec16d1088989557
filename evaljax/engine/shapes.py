"""The static shapes of a scoring step, chosen from the work and the machine: few, and never more than fits."""

import dataclasses

from evaljax.core import config

# On a CPU a step costs this many tokens more than its own (each layer's weights are copied out of the stack),
# and compiling a chunk of T as much as forwarding T. SmolLM2: 3.2, 2.6, 2.6 ms a token at T = 128, 256, 512.
CPU_STEP_TOKENS = 48
CPU_CHUNKS = (64, 128, 256)
CPU_DETERMINISTIC_CHUNK = 128
ACCELERATOR_CHUNK = 512
ACCELERATOR_ROWS = 16  # 8,192 tokens a step keep the matrix units busy
STEPS_PER_ROW = 8  # fewer rows rather than fewer steps: the last step of each row is half padding
MIN_CHUNK = 16
MIN_CACHE = 256
MIN_TABLE = 128
TABLE_TARGETS = 4  # targets of a table row; a token with more takes several rows
CACHE_SHARE = 0.5  # of the memory beside the parameters; activations have the rest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What shapes depend on beside the work.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      num_groups: parts of the mesh that rows are split over.
      slot_bytes: of one cache slot of one row, on the device that holds most of it.
      token_bytes: of one token's activations, at the least.
      memory_bytes: of each device, for caches and activations.
    """

    platform: str = "cpu"
    num_groups: int = 1
    slot_bytes: int = 1
    token_bytes: int = 1
    memory_bytes: int = 1 << 62


HOST = Machine()  # a CPU with room for everything


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The static shapes of a step: B, T, S, G, R and J of the picture in `engine.plan`."""

    num_rows: int
    chunk_length: int
    cache_length: int
    num_groups: int = 1
    table_rows: int = MIN_TABLE
    table_targets: int = TABLE_TARGETS

    def smaller(self) -> "Shape | None":
        """Half as many tokens a step, fewer rows before shorter ones; None if there is no less."""
        rows, chunk = self.num_rows // self.num_groups, self.chunk_length
        if rows == 1 and chunk // 2 < MIN_CHUNK:
            return None
        rows, chunk = (rows // 2, chunk) if rows > 1 else (rows, chunk // 2)
        return dataclasses.replace(self, num_rows=rows * self.num_groups, chunk_length=chunk)


def choose_shape(
    size: int,
    height: int,
    *,
    options: config.EngineOptions,
    max_length: int,
    machine: Machine = HOST,
) -> Shape:
    """Static shapes that suit `size` tokens, paths of at most `height`, and the machine; `options` override T and B."""
    groups = machine.num_groups
    if options.deterministic:
        chunk, rows = CPU_DETERMINISTIC_CHUNK if machine.platform == "cpu" else ACCELERATOR_CHUNK, groups
    elif machine.platform == "cpu":
        rows = groups
        share = -(-size // (options.num_rows or rows))
        chunk = min(CPU_CHUNKS, key=lambda length: -(-share // length) * (length + CPU_STEP_TOKENS) + length)
    else:
        chunk = ACCELERATOR_CHUNK
        rows = groups * min(ACCELERATOR_ROWS, power_of_two(max(1, size // (groups * chunk * STEPS_PER_ROW)) + 1) // 2)
    chunk = options.chunk_length or chunk
    # Powers of two: few different executables over many jobs. Unused slots cost memory, not time.
    cache = min(power_of_two(max(height, MIN_CACHE)), max(-(-max_length // 128) * 128, height))
    fitting = int(machine.memory_bytes * CACHE_SHARE) // (cache * machine.slot_bytes)
    rows = options.num_rows or min(rows, groups * max(1, fitting))
    shape = Shape(
        num_rows=-(-rows // groups) * groups, chunk_length=chunk, cache_length=cache, num_groups=groups, table_rows=1
    )
    while _least_bytes(shape, machine) > machine.memory_bytes and (smaller := shape.smaller()):
        shape = smaller
    table = max(MIN_TABLE, power_of_two(shape.num_rows // groups * shape.chunk_length))
    return dataclasses.replace(shape, table_rows=table)


def _least_bytes(shape: Shape, machine: Machine) -> int:
    """What a step of this shape takes of each device, at the least."""
    a_row = shape.cache_length * machine.slot_bytes + shape.chunk_length * machine.token_bytes
    return shape.num_rows // shape.num_groups * a_row


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number` (>= 1)."""
    return 1 << (number - 1).bit_length()
