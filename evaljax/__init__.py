"""evaljax scores language models on the standard benchmarks, with an engine made for JAX."""

__version__ = "0.1.0"
