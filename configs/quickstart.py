"""The whole way on a fresh machine, nothing downloaded: the model that ships with evaljax, on tasks of every kind.

    python -m evaljax.run --config=configs/quickstart.py

Under a minute on two CPU cores, compilation included. Expect, give or take a document or two on other hardware:

    demo_facts        acc               0.867
    demo_facts        acc_norm          0.867
    demo_grammar      acc               0.811
    demo_cloze        acc               0.925
    demo_cloze        perplexity        1.297
    demo_stories      word_perplexity   2.064
    demo_stories      byte_perplexity   1.152
    demo_stories      bits_per_byte     0.204
    demo_arithmetic   exact_match       0.370

`tasks/demo/README.md` says what the tasks ask; `tools/train_demo.py` makes the model, in about five minutes.
"""

from evaljax import recipe


def get_config():
    """The recipe."""
    config = recipe.default_config()
    config.tasks = "demo"
    config.model.path = "demo"
    return config
