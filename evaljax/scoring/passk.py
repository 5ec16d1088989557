"""pass@k, the chance that at least one of k answers is right, without bias from the n answers that were sampled."""

import math

from evaljax.core import errors


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the share of the n answers' k-subsets that hold a correct one (arXiv 2107.03374)."""
    if not 1 <= k <= num_samples:
        raise errors.TaskError(f"pass@k: k is {k}; expected 1 to {num_samples}, the number of answers (`repeats`).")
    if not 0 <= num_correct <= num_samples:
        raise errors.TaskError(f"pass@k: {num_correct} correct answers of {num_samples}; expected 0 to {num_samples}.")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)
