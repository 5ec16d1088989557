"""Seven benchmarks, 20 documents each, on a real model: a first look, and a check of the whole way from text to scores.

    python -m evaljax.run --config=configs/smollm2.py
    python -m evaljax.run --config=configs/smollm2.py --config.model.path=DIR --config.data_mirror=DIR # offline

Needs SmolLM2-135M-Instruct (270 MB; `model.path` may be a folder or a GGUF file) and the data sets, from the hub or
from a folder laid out like it. About a minute on two CPU cores, without the download. Expect, in float32, what lm-eval
0.4.13 gives on the same documents:

    arc_easy              acc .60    acc_norm .40
    hellaswag             acc .30    acc_norm .30
    piqa                  acc .70    acc_norm .70
    winogrande            acc .55
    truthfulqa_mc2        acc .487
    lambada_openai        acc .30    perplexity 53.2
    blimp_adjunct_island  acc .75

With 20 documents a standard error is about .11: take `limit` away for numbers to quote.
"""

from evaljax import recipe


def get_config():
    """The recipe."""
    config = recipe.default_config()
    config.tasks = "arc_easy,hellaswag,piqa,winogrande,truthfulqa_mc2,lambada_openai,blimp_adjunct_island"
    config.limit = 20
    config.model.path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    return config
