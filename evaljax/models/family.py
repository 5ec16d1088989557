"""What a model family knows: how its config file and its tensor names translate."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from evaljax.models import config

Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One parameter as files store it: a tensor, or one for each layer.

    Attributes:
      name: the tensor's name; block parameters have "{layer}" in it.
      shape: the shape in the file, of one layer's tensor; a reshape of the parameter's own.
      num_heads: if not 0, the rows are that many heads whose rotary pairs lie side by side (GGUF).
    """

    name: str
    shape: tuple[int, ...]
    num_heads: int = 0

    def names(self, num_layers: int) -> tuple[str, ...]:
        """The names of all tensors that make the parameter, in layer order."""
        if "{layer}" not in self.name:
            return (self.name,)
        return tuple(self.name.format(layer=layer) for layer in range(num_layers))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """How one family's checkpoints are read.

    Attributes:
      read_config: (config.json as a mapping, where) -> ModelConfig; raises CheckpointError for a key it does not know.
      tensors: the tensors that a Hugging Face checkpoint of this configuration has, by parameter path.
      ignored: patterns (re.fullmatch) of tensor names that carry nothing.
      tied_head: name of a head tensor that a tied checkpoint may hold as well, equal to the embedding.
    """

    read_config: Callable[[Mapping[str, Any], str], config.ModelConfig]
    tensors: Callable[[config.ModelConfig], dict[Path, Tensor]]
    ignored: tuple[str, ...] = ()
    tied_head: str | None = None


def stored_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which files store a parameter of one layer: heads flat, output rows first.

    `shape` is the parameter's, its layer axis included where it has one.
    """
    one = shape[1:] if path[0] == "blocks" else shape
    if path[-1] in ("query", "key", "value"):
        return (one[0] * one[1], one[2])
    if path[-1] in ("query_bias", "key_bias", "value_bias"):
        return (one[0] * one[1],)
    if path[-1] == "output":
        return (one[0], one[1] * one[2])
    return one
