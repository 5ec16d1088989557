"""A model ready for the engines: configuration, structure and parameters, apart."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from evaljax.models import config as config_lib
from evaljax.models import decoder, sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder in two parts: its structure and its weights.

    Attributes:
      graphdef: hashable; a static argument of jit.
      params: the arrays; an argument of every call.
    """

    config: config_lib.ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State

    @property
    def dtype(self) -> str:
        """Name of the parameters' (and so the activations') dtype."""
        return str(jax.tree.leaves(self.params)[0].dtype)


def of(module: decoder.Decoder) -> Model:
    """The decoder as a `Model`; parameters that lie on a mesh with Explicit axes are taken as on one with Auto axes."""
    graphdef, params = nnx.split(module, nnx.Param)
    params = jax.tree.map(sharding.with_auto_axes, params)
    return Model(config=module.config, graphdef=graphdef, params=params)


def outline(
    config: config_lib.ModelConfig, dtype: str, shardings: Mapping[sharding.Path, jax.sharding.Sharding]
) -> Model:
    """The model without weights, which say their shapes and where they will lie: enough to compile for it."""
    shapes = config_lib.parameter_shapes(config)
    described: dict[sharding.Path, Any] = {
        path: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=shardings[path]) for path, shape in shapes.items()
    }
    graphdef, params = nnx.split(decoder.Decoder(config, described), nnx.Param)
    return Model(config=config, graphdef=graphdef, params=params)


def merge(graphdef: nnx.GraphDef, params: nnx.State) -> decoder.Decoder:
    """The decoder again; free inside jit."""
    return nnx.merge(graphdef, params)
