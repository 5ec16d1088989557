"""Prompts on their way into slots: numbers only; what a cache would hold is followed token by token."""

import numpy as np
import pytest

from evaljax.engine import prefill, schedule

SIZE = 64
LENGTHS = (8, 16)


class Path:
    """What the path's slots hold: (depth, token) each."""

    def __init__(self) -> None:
        self.slots: list[tuple[int, int] | None] = [None] * (SIZE + max(LENGTHS))

    def extend(self, step: prefill.Extend) -> None:
        """Every token must see its ancestors, all of them and nothing else."""
        tokens, positions, end, base, slots, home = step.inputs[:, 0].tolist()
        before = list(self.slots)
        for q in range(step.num_tokens):
            seen = [*before[: base[q]], *((positions[k], tokens[k]) for k in range(q) if q < end[k])]
            assert [place[0] for place in seen if place] == list(range(positions[q]))
            self.slots[slots[q]] = (positions[q], tokens[q])
        for q in range(step.num_tokens):
            if home[q] < SIZE:
                self.slots[home[q]], self.slots[slots[q]] = self.slots[slots[q]], self.slots[home[q]]
        assert all(slot == prefill.DROPPED for slot in slots[step.num_tokens :] + home[step.num_tokens :])


def walk(path: Path, held: np.ndarray, prompts: list[np.ndarray], grain: int) -> int:
    """How many tokens were forwarded; every prompt must be found where its Insert says."""
    count, found = 0, []
    for step in prefill.steps(held, prompts, SIZE, LENGTHS, grain=grain):
        if isinstance(step, prefill.Extend):
            path.extend(step)
            count += step.num_tokens
        else:
            found.append(step.prompt)
            assert [path.slots[i] for i in step.source] == list(enumerate(prompts[step.prompt].tolist()))
    assert sorted(found) == list(range(len(prompts)))
    return count


@pytest.mark.parametrize("grain", [0, 1, 16])
def test_every_prompt_lies_where_it_is_said_to_lie(grain: int) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        headers = [rng.integers(0, 3, 40) for _ in range(3)]
        path, held = Path(), np.zeros(0, np.int32)
        for _ in range(3):  # the path goes on from call to call
            prompts = []
            for _ in range(rng.integers(1, 7)):
                header = headers[rng.integers(3)][: rng.integers(0, 40)]
                prompts.append(np.concatenate([header, rng.integers(0, 3, rng.integers(0, 20))]).astype(np.int32))
            if rng.random() < 0.8:
                prompts = [prompts[i] for i in schedule.order(prompts, [p.size for p in prompts])]
            assert walk(path, held, prompts, grain) == prefill.num_tokens(held, prompts, grain)
            held = prompts[-1]


def test_short_prompts_share_a_chunk() -> None:
    prompts = [np.array([7, 8, i, i + 1], np.int32) for i in range(7)]
    steps = list(prefill.steps(np.zeros(0, np.int32), prompts, SIZE, LENGTHS))
    assert [step.num_tokens for step in steps if isinstance(step, prefill.Extend)] == [2 + 7 * 2]
    assert [len(step.source) for step in steps if isinstance(step, prefill.Insert)] == [4] * 7


def test_blocks_are_shared_whole_or_not_at_all() -> None:
    held = np.arange(20, dtype=np.int32)
    assert prefill.num_tokens(held, [held], 16) == 4
    assert prefill.num_tokens(held, [held], 1) == 0
    assert prefill.num_tokens(held, [held], 0) == 20
