"""What a model is, as a hashable record: one decoder serves every family, a family only fills this in."""

import dataclasses
import math

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
ROPE_SCALINGS = ("linear", "llama3", "factors")
SIZES = ("vocab_size", "num_layers", "embed_dim", "mlp_dim", "num_heads", "num_kv_heads", "head_dim", "max_position")
FLAGS = ("tie_embeddings", "attention_bias", "mlp_bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How the rotary frequencies differ from theta ** (-2i / head_dim).

    Attributes:
      kind: "linear" (all divided by `factor`), "llama3" (long wavelengths divided by `factor`, short ones kept, a
        smooth step between), or "factors" (each divided by its own entry of `factors`).
      low_freq_factor, high_freq_factor: llama3's limits, as multiples of a rotation per `original_max_position` tokens.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ROPE_SCALINGS:
            raise ValueError(f"rope scaling {self.kind!r}; expected one of {', '.join(ROPE_SCALINGS)}")
        _check_size("original_max_position", self.original_max_position)
        for field in ("factor", "low_freq_factor", "high_freq_factor"):
            _check_positive(f"rope {field}", getattr(self, field))
        for factor in self.factors:
            _check_positive("a rope factor", factor)
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"rope low_freq_factor is {self.low_freq_factor}; expected less than high_freq_factor, "
                f"{self.high_freq_factor}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape and the arithmetic of a decoder, without its weights. Static argument of jit.

    Attributes:
      embed_dim, mlp_dim, num_heads, num_kv_heads, head_dim: D, F, N, K, H of the shape comments.
      rope_theta: base of the rotary frequencies.
      norm_eps: added to the mean square in RMS norms.
      tie_embeddings: the vocabulary head is the embedding table.
      attention_bias, mlp_bias: biases on all four attention, all three MLP projections.
      activation: one of `ACTIVATIONS`; of the gate, the MLP being down(activation(gate) * up).
      max_position: longest sequence the model was made for.
    """

    vocab_size: int
    num_layers: int
    embed_dim: int
    mlp_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"
    max_position: int = 2048

    def __post_init__(self) -> None:
        for field in SIZES:
            _check_size(field, getattr(self, field))
        for field in FLAGS:
            if not isinstance(getattr(self, field), bool):
                raise ValueError(f"{field} is {getattr(self, field)!r}; expected true or false")
        _check_positive("rope_theta", self.rope_theta)
        if self.norm_eps != 0:  # 0 is unwise, not wrong
            _check_positive("norm_eps", self.norm_eps)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding turns pairs")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}")
        scaling = self.rope_scaling
        if scaling is not None and scaling.kind == "factors" and len(scaling.factors) != self.head_dim // 2:
            raise ValueError(f"{len(scaling.factors)} rope factors; expected head_dim / 2 = {self.head_dim // 2}")

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        return sum(math.prod(shape) for shape in parameter_shapes(self).values())


def _check_size(field: str, value: object) -> None:
    """Raises ValueError for what cannot be a number of things."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field} is {value!r}; expected a positive integer")


def _check_positive(field: str, value: object) -> None:
    """Raises ValueError for what is not a finite number above zero."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{field} is {value!r}; expected a finite number above 0")


def parameter_shapes(config: ModelConfig) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Shape of every parameter by its path in `decoder.Decoder`; block parameters lead with the layer axis L.

    Projections are stored output first ("out, in", as in safetensors files), so loading copies and never transposes.
    """
    c = config
    block: dict[str, tuple[int, ...]] = {
        "attention_norm": (c.embed_dim,),
        "query": (c.num_heads, c.head_dim, c.embed_dim),
        "key": (c.num_kv_heads, c.head_dim, c.embed_dim),
        "value": (c.num_kv_heads, c.head_dim, c.embed_dim),
        "output": (c.embed_dim, c.num_heads, c.head_dim),
        "mlp_norm": (c.embed_dim,),
        "gate": (c.mlp_dim, c.embed_dim),
        "up": (c.mlp_dim, c.embed_dim),
        "down": (c.embed_dim, c.mlp_dim),
    }
    if c.attention_bias:
        for name in ("query", "key", "value"):
            block[f"{name}_bias"] = block[name][:2]
        block["output_bias"] = (c.embed_dim,)
    if c.mlp_bias:
        block |= {"gate_bias": (c.mlp_dim,), "up_bias": (c.mlp_dim,), "down_bias": (c.embed_dim,)}
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {("embedding",): (c.vocab_size, c.embed_dim)}
    shapes |= {("blocks", name): (c.num_layers, *shape) for name, shape in block.items()}
    shapes[("final_norm",)] = (c.embed_dim,)
    if not c.tie_embeddings:
        shapes[("head",)] = (c.vocab_size, c.embed_dim)
    return shapes
