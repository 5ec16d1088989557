"""MMLU, 5-shot: 57 subjects, 14,042 four-choice questions; the five examples of a subject are forwarded once.

    python -m evaljax.run --config=configs/mmlu.py --config.model.path=MODEL
    python -m evaljax.run --config=configs/mmlu.py --config.limit=25          # 25 questions of each subject

MODEL is a hub id, a folder or a GGUF file; SmolLM2-135M-Instruct if not given. Minutes on an accelerator; on two CPU
cores take `limit`. Chance is .25. `mmlu` is the mean over all questions, each subject weighted by its size; its four
categories are listed above their subjects.
"""

from evaljax import recipe


def get_config():
    """The recipe."""
    config = recipe.default_config()
    config.tasks = "mmlu"
    config.num_fewshot = 5
    config.model.path = "HuggingFaceTB/SmolLM2-135M-Instruct"
    return config
