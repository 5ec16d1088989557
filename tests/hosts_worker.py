"""One process of a run of many, for test_hosts: joins, sums over all devices again and again, and breaks as it is told.

python hosts_worker.py MODE VICTIM INDEX COUNT PORT TIMEOUT
"""

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from evaljax import hosts
from evaljax.core import config, errors
from evaljax.engine import agree

MODE = sys.argv[1]
VICTIM, INDEX, COUNT, PORT, TIMEOUT = map(int, sys.argv[2:])
ROUNDS = 20


def total(start: int) -> float:
    """The sum over all devices of `start` and the device's place."""
    size = len(jax.devices())
    mesh = jax.make_mesh((size,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    values = jax.make_array_from_callback((size,), split, lambda at: np.arange(size, dtype=np.float32)[at] + start)
    return float(jax.jit(jnp.sum, out_shardings=whole)(values))


def break_down() -> None:
    """What the victim does in the middle of the run."""
    if MODE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "error":
        raise errors.OutputError("the disk is full")
    if MODE == "bug":
        raise ZeroDivisionError("a bug")
    if MODE == "interrupted":
        raise KeyboardInterrupt


def main() -> None:
    """Runs; prints whether this process is the first, and the sum of the last round."""
    spec = config.HostsSpec(enabled=True, coordinator=f"127.0.0.1:{PORT}", count=COUNT, index=INDEX, timeout=TIMEOUT)
    is_victim = INDEX == VICTIM
    seed = 7 if MODE == "seed" and is_victim else 0
    with hosts.joined(config.RunConfig(tasks=("a",), hosts=spec, seed=seed)) as is_first:
        print("first" if is_first else "other", flush=True)
        if MODE == "killed early" and is_victim:
            os.kill(os.getpid(), signal.SIGKILL)
        if MODE == "other plan":
            agree.agree("the plan", "b" if is_victim else "a")
        if MODE == "no plan":
            if not is_victim:
                agree.agree("the plan", "a")
            return
        for step in range(ROUNDS):
            value = total(step)
            if step == 5 and is_victim:
                break_down()
            time.sleep(0.02)
        print(value, flush=True)
        if MODE == "late error" and is_victim:
            time.sleep(1)
            raise errors.OutputError("the disk is full")
        if MODE == "reader left" and is_first:
            raise BrokenPipeError


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        print("the reader left")
