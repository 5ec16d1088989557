"""The arithmetic policy: how exact matrix products are."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

from evaljax.core import config, lookup


def matmul_precision(precision: str) -> contextlib.AbstractContextManager[None]:
    """The scope in which traced matrix products have this precision ("default", "high", "highest")."""
    lookup.check(config.PRECISIONS, precision, what="precision", where="model.precision")
    return jax.default_matmul_precision(precision)


def matmul_error(precision: str) -> float:
    """Largest relative error of a small product of float32 matrices: 1e-7 in true float32, 1e-3 in tf32 or bfloat16."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 64)).astype(np.float32), random.standard_normal((64, 2)).astype(np.float32)
    with matmul_precision(precision):
        product = jax.device_get(jnp.matmul(jax.device_put(a), jax.device_put(b)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.abs(product - exact).max() / np.abs(exact).max())
