"""What tells one model from another: a checksum of its parameters' bits, and a signature of its files."""

import dataclasses
import hashlib
import json
import os
import pathlib
import stat
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util
from jaxtyping import Array, Float, UInt32

from evaljax.models import model as models

VERSION = 1  # of the arithmetic below; another one gives other fingerprints
WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # unsigned integers by size in bytes
# Odd, so that multiplying by them loses no bit; one pair for each of the two sums.
MULTIPLIERS = ((0x9E3779B1, 0x2C1B3C6D), (0x85EBCA77, 0x297A2D39))


def parameters(model: models.Model) -> str:
    """A hexadecimal digest of every bit of the parameters, of their names, shapes and dtype, and of the configuration.

    It is computed where the parameters are, one at a time, in one pass that copies nothing; 8 bytes a parameter come
    to the host. All arithmetic is on integers modulo 2**32, whose sums do not depend on their order: any sharding over
    any number of devices gives the same digest.
    """
    leaves = traverse_util.flatten_dict(nnx.to_pure_dict(model.params))
    sums = jax.device_get({path: _sums(leaf) for path, leaf in leaves.items()})
    facts = {
        "version": VERSION,
        "config": dataclasses.asdict(model.config),
        "parameters": [
            [*path, "|", *leaves[path].shape, str(leaves[path].dtype), *map(int, sums[path])] for path in sorted(leaves)
        ],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def files(path: str) -> str | None:
    """A digest of the files of a checkpoint: their names, sizes, times and inodes, not what is in them.

    `path`: a file, or a folder with all that is below it. None for what is neither (a hub id: which files it means is
    known only after the hub was asked), and for what cannot be listed whole.
    """
    root = pathlib.Path(path)
    try:
        names = [""] if root.is_file() else _below(root)
        if not names:
            return None
        stamps = [(name, *_stamp(root / name)) for name in names]
    except (OSError, ValueError):  # ValueError: no file can have such a name
        return None
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()


@jax.jit
def _sums(leaf: Float[Array, "..."]) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
    """Two sums over all elements of a mix of the element's bits and place.

    For a given place the mix is one to one, so another value of one element always changes both sums. That values have
    changed places, each of the sums notices but for one time in 2**32.
    """
    bits = jax.lax.bitcast_convert_type(leaf, WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
    mixed = []
    for of_bits, of_place in MULTIPLIERS:
        words = bits * jnp.uint32(of_bits)
        for axis in range(leaf.ndim):
            index = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
            words += index * jnp.uint32(pow(of_place, axis + 1, 1 << 32))
        mixed.append(_mix(words))
    # One reduction of a pair: XLA would give each `jnp.sum` on a CPU a copy of the leaf to read from.
    zeros = (jnp.uint32(0), jnp.uint32(0))
    return jax.lax.reduce(tuple(mixed), zeros, _add, tuple(range(leaf.ndim)))


def _add(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """The pairs added."""
    return left[0] + right[0], left[1] + right[1]


def _mix(words: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Each word mapped, one to one, to one that looks random: the last step of MurmurHash3 (Appleby, public domain)."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def _below(folder: pathlib.Path) -> list[str]:
    """The names, relative to `folder`, of all files below it, sorted; OSError for a folder that cannot be listed."""

    def refuse(error: OSError) -> None:
        raise error

    names = []
    for parent, folders, inner in os.walk(folder, onerror=refuse):
        for name in folders:
            if os.path.islink(os.path.join(parent, name)):  # not walked into: what it holds would go unnoticed
                raise NotADirectoryError(os.path.join(parent, name))
        names += [os.path.relpath(os.path.join(parent, name), folder) for name in inner]
    return sorted(names)


def _stamp(file: pathlib.Path) -> tuple[int, ...]:
    """What changes when a file is written, replaced, or given its old time again."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{file}: not a file")
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
