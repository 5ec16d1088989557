"""A model ready for the engines: configuration, structure and parameters, apart."""

import dataclasses

import jax
from flax import nnx

from evaljax.models import config, decoder, sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder in two parts: its structure and its weights.

    Attributes:
      graphdef: hashable; a static argument of jit.
      params: the arrays; an argument of every call.
    """

    config: config.ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State

    @property
    def dtype(self) -> str:
        """Name of the parameters' (and so the activations') dtype."""
        return str(self.params["embedding"][...].dtype)


def of(module: decoder.Decoder) -> Model:
    """The decoder as a `Model`; parameters that lie on a mesh with Explicit axes are taken as on one with Auto axes."""
    graphdef, params = nnx.split(module, nnx.Param)
    params = jax.tree.map(sharding.with_auto_axes, params)
    return Model(config=module.config, graphdef=graphdef, params=params)


def merge(graphdef: nnx.GraphDef, params: nnx.State) -> decoder.Decoder:
    """The decoder again; free inside jit."""
    return nnx.merge(graphdef, params)
