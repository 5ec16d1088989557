"""The journal: nothing that was stored is lost or changed, and no answer is given to another question."""

import dataclasses
import inspect
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from evaljax.core import errors, request
from evaljax.engine import journal
from evaljax.models import config

FACTS = {
    "parameters": "p",
    "tokenizer": "t",
    "dtype": "float32",
    "precision": "highest",
    "platform": "cpu",
    "max_length": 1024,
    "deterministic": False,
}
SAMPLING = request.Sampling(until=("a", "b"), max_gen_toks=8, temperature=0.5, top_p=0.9, top_k=3, seed=1)
CONFIG = config.ModelConfig(
    vocab_size=16, num_layers=2, embed_dim=8, mlp_dim=16, num_heads=4, num_kv_heads=2, head_dim=8
)
PROMPT = np.array([5, 6, 7], np.int32)


def items(numbers) -> list[tuple[bytes, bytes]]:
    """(key, value) of the n-th made-up question; anybody can tell whether a value is the right one."""
    return [
        (journal.loglikelihood_key(np.array([n, n + 1], np.int32), 1), journal.loglikelihood_value(-n / 7, n % 2 == 0))
        for n in numbers
    ]


def found(opened: journal.Journal, numbers, scope: str = "s") -> set[int]:
    """The numbers whose answers are there; each of them must be right."""
    asked = items(numbers)
    values = opened.lookup(scope, [key for key, _ in asked])
    for value, (_, right) in zip(values, asked, strict=True):
        assert value in (None, right)
    return {n for n, value in zip(numbers, values, strict=True) if value is not None}


def filled(folder, count: int = 2000) -> journal.Journal:
    opened = journal.Journal.open(folder)
    opened.store("s", items(range(count)))
    return opened


# What comes back.


def test_an_answer_comes_back_bit_for_bit(tmp_path):
    patterns = [0x0000000000000000, 0x8000000000000000, 0x7FF0000000000000, 0x7FF8000000000123, 0xC008B439581062CE]
    numbers = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in patterns]
    values = [journal.loglikelihood_value(number, flag) for number in numbers for flag in (True, False)]
    keys = [bytes([i]) for i in range(len(values))]
    opened = journal.Journal.open(tmp_path)
    opened.store("s", zip(keys, values, strict=True))
    opened.close()
    opened = journal.Journal.open(tmp_path)
    answers = [journal.loglikelihood_answer(value) for value in opened.lookup("s", keys) if value is not None]
    assert [struct.unpack("<Q", struct.pack("<d", a))[0] for a, _ in answers] == [p for p in patterns for _ in "tf"]
    assert [flag for _, flag in answers] == [True, False] * len(patterns)
    opened.close()


@pytest.mark.parametrize("text", ["", "a\0b\r\n\N{SNOWMAN} 日本", "\ud800 alone", '"]', "x" * 100_000])
@pytest.mark.parametrize("reason", list(request.FinishReason))
def test_a_text_comes_back_as_it_was(tmp_path, text, reason):
    answer = request.GenerateResponse(text=text, num_tokens=3, finish_reason=reason, unfinished_thought=not text)
    opened = journal.Journal.open(tmp_path)
    opened.store("s", [(b"k", journal.generation_value(answer))])
    [value] = opened.lookup("s", [b"k"])
    assert value is not None
    assert journal.generation_answer(value) == answer
    opened.close()


def test_lookup_keeps_the_order_and_knows_what_it_has_not(tmp_path):
    opened = filled(tmp_path, 3)
    (k0, v0), (k1, v1), (k2, v2), (k9, _) = items([0, 1, 2, 9])
    assert opened.lookup("s", [k2, k9, k0, k2, k1]) == [v2, None, v0, v2, v1]
    assert opened.lookup("s", []) == []
    assert opened.notes == []
    opened.close()


def test_ten_thousand_keys_are_looked_up_quickly(tmp_path):
    opened = filled(tmp_path, 20_000)
    keys = [key for key, _ in items(range(10_000, 30_000, 2))]
    began = time.perf_counter()
    values = opened.lookup("s", keys)
    assert time.perf_counter() - began < 2
    assert sum(value is not None for value in values) == 5_000
    opened.close()


def test_values_travel_as_arrays():
    for values in ([], [None], [b"", None, b"abc", b"\0", None]):
        sizes, data = journal.to_arrays(values)
        assert (sizes.dtype, data.dtype) == (np.int64, np.uint8)
        assert journal.from_arrays(sizes, data) == values


# No answer of another question.


def test_every_fact_and_the_version_change_the_scope(monkeypatch):
    other = {"parameters": "q", "tokenizer": "u", "dtype": "bfloat16", "precision": "default", "platform": "gpu"}
    other |= {"max_length": 512, "deterministic": True}
    assert set(other) == set(journal.FACTS)
    seen = [journal.scope(FACTS), *(journal.scope({**FACTS, name: value}) for name, value in other.items())]
    seen.append(journal.scope({**FACTS, "more": None}))
    seen.append(journal.scope({**FACTS, "tokenizer": "p", "parameters": "t"}))
    monkeypatch.setattr(journal, "ANSWERS", journal.ANSWERS + 1)
    seen.append(journal.scope(FACTS))
    assert len(set(seen)) == len(seen)
    assert journal.scope(dict(reversed(FACTS.items()))) == seen[-1]


@pytest.mark.parametrize("name", journal.FACTS)
def test_a_fact_that_is_forgotten_is_an_error(name):
    with pytest.raises(ValueError, match=f"facts lack {name}; expected parameters, tokenizer"):
        journal.scope({key: value for key, value in FACTS.items() if key != name})


def test_one_scope_is_never_given_the_answers_of_another(tmp_path):
    opened = filled(tmp_path, 5)
    assert found(opened, range(5), scope="s2") == set()
    assert opened.lookup("", [b"s" + key for key, _ in items(range(5))]) == [None] * 5
    opened.close()


def test_everything_about_a_sequence_changes_its_key():
    asked = [([1, 2, 3], 1), ([1, 2, 3], 2), ([1, 2], 1), ([2, 1, 3], 1), ([1, 2, 3, 0], 1), ([1, 2, 259], 1)]
    keys = [journal.loglikelihood_key(np.array(tokens, np.int32), targets) for tokens, targets in asked]
    assert len(set(keys)) == len(keys)
    assert journal.loglikelihood_key(np.array([1, 2, 3], np.int64), 1) == keys[0]


def test_everything_about_a_generation_changes_its_key():
    change = {str: lambda x: x + "x", int: lambda x: x + 1, float: lambda x: x / 2, tuple: lambda x: x[::-1]}
    fields = dataclasses.asdict(SAMPLING).items()
    samplings = [SAMPLING, *(dataclasses.replace(SAMPLING, **{name: change[type(x)](x)}) for name, x in fields)]
    samplings += [dataclasses.replace(SAMPLING, until=until) for until in (("ab",), ("a", "b", ""), ("a,b",))]
    keys = [journal.generation_key(PROMPT, sampling, 0, {2}) for sampling in samplings]
    keys += [
        journal.generation_key(PROMPT[:2], SAMPLING, 0, {2}),
        journal.generation_key(PROMPT[::-1], SAMPLING, 0, {2}),
    ]
    keys += [journal.generation_key(PROMPT, SAMPLING, 1, {2}), journal.generation_key(PROMPT, SAMPLING, 0, {2, 3})]
    keys.append(journal.loglikelihood_key(PROMPT, 1))
    assert len(set(keys)) == len(keys)


def test_the_repeats_of_a_sampled_request_are_kept_apart_and_those_of_a_greedy_one_are_one():
    greedy = dataclasses.replace(SAMPLING, temperature=0.0)
    for sampling, count in ((SAMPLING, 3), (greedy, 1)):
        assert len({journal.generation_key(PROMPT, sampling, repeat, {2}) for repeat in range(3)}) == count


def test_a_checkpoint_is_known_by_its_files_its_dtype_and_its_configuration(tmp_path, monkeypatch):
    opened = journal.Journal.open(tmp_path)
    opened.remember_fingerprint("files", "float32", CONFIG, fingerprint="old")
    opened.remember_fingerprint("files", "float32", CONFIG, fingerprint="f00d")
    assert opened.known_fingerprint("files", "float32", CONFIG) == "f00d"
    assert opened.known_fingerprint("other", "float32", CONFIG) is None
    assert opened.known_fingerprint("files", "bfloat16", CONFIG) is None
    assert opened.known_fingerprint("files", "float32", dataclasses.replace(CONFIG, rope_theta=5e5)) is None
    monkeypatch.setattr(journal, "ANSWERS", journal.ANSWERS + 1)
    assert opened.known_fingerprint("files", "float32", CONFIG) is None
    opened.close()


# Killed, and used by two.

WRITER = """
import sys
import numpy as np
from evaljax.engine import journal
ITEMS
opened = journal.Journal.open(sys.argv[1])
print("open", flush=True)
first = int(sys.argv[2])
while True:
    opened.store("s", items(range(first, first + 20)))
    first += 20
    print(first, flush=True)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process that runs `code`, which may use `items`."""
    command = [sys.executable, "-c", code.replace("ITEMS", inspect.getsource(items)), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_what_was_stored_survives_kill_9_at_any_moment(tmp_path):
    rng, stored = random.Random(0), 0
    for round_ in range(6):
        with start(WRITER, tmp_path, stored) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            time.sleep(rng.uniform(0, 0.15) if round_ else 0)
            writer.send_signal(signal.SIGKILL)
            said = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        stored = int(said[-1]) if said else stored
        opened = journal.Journal.open(tmp_path)
        there = found(opened, range(stored + 40))
        assert there >= set(range(stored))
        assert len(there) in (stored, stored + 20)  # the step that was being stored is there whole, or not at all
        assert opened.notes == []
        opened.close()
    assert stored > 100


def test_a_second_process_is_refused_and_told_who_has_the_journal(tmp_path):
    with start(WRITER, tmp_path, 0) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(
            errors.OutputError, match=rf"in use by process {writer.pid} on .*Wait .*cache_dir of its own"
        ):
            journal.Journal.open(tmp_path)
        steps = [int(writer.stdout.readline()) for _ in range(20)]  # it goes on undisturbed
        writer.kill()
        stored = steps[-1]
    opened = journal.Journal.open(tmp_path)
    assert found(opened, range(stored)) == set(range(stored))
    with pytest.raises(errors.OutputError, match=f"in use by process {os.getpid()} on"):
        journal.Journal.open(tmp_path)
    opened.close()


RACER = """
import sys
import numpy as np
from evaljax.core import errors
from evaljax.engine import journal
ITEMS
first = int(sys.argv[2])
while first < int(sys.argv[3]):
    try:
        opened = journal.Journal.open(sys.argv[1])
    except errors.OutputError:
        continue
    opened.store("s", items(range(first, first + 10)))
    assert not opened.notes
    opened.close()
    first += 10
"""


def test_two_processes_that_take_turns_lose_nothing(tmp_path):
    racers = [start(RACER, tmp_path, first, first + 300) for first in (0, 1000)]
    for racer in racers:
        assert (*racer.communicate(timeout=60), racer.returncode) == ("", "", 0)
    opened = journal.Journal.open(tmp_path)
    assert found(opened, range(2000)) == {*range(300), *range(1000, 1300)}
    opened.close()


def test_without_the_lock_file_the_database_itself_refuses_a_second_user(tmp_path, monkeypatch):
    opened = filled(tmp_path)
    (tmp_path / journal.LOCK).unlink()
    connect = sqlite3.connect
    monkeypatch.setattr(journal.sqlite3, "connect", lambda path, **how: connect(path, timeout=0.1, **how))
    with pytest.raises(errors.OutputError, match="cannot be used: database is locked"):
        journal.Journal.open(tmp_path)
    assert found(opened, range(2000)) == set(range(2000))
    opened.close()


def test_no_memory_is_shared_and_one_file_is_left(tmp_path):
    opened = filled(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {journal.NAME, f"{journal.NAME}-wal", journal.LOCK}
    opened.close()
    opened.close()
    assert {path.name for path in tmp_path.iterdir()} == {journal.NAME, journal.LOCK}
    with pytest.raises(ValueError, match="the journal was closed"):
        opened.lookup("s", [b"k"])


# Damage.


@pytest.mark.parametrize("seed", range(18))
def test_flipped_bytes_never_become_an_answer(tmp_path, seed):
    filled(tmp_path).close()
    file, rng = tmp_path / journal.NAME, random.Random(seed)
    content = bytearray(file.read_bytes())
    for _ in range(1 << (seed % 6)):
        content[rng.randrange(100, len(content))] ^= 1 << rng.randrange(8)  # after the file's header
    file.write_bytes(content)
    opened = journal.Journal.open(tmp_path)
    there = found(opened, range(2000))  # asserts that each is right
    assert opened.notes or there == set(range(2000))
    opened.store("s", items(range(2000)))
    assert found(opened, range(2000)) == set(range(2000))
    opened.close()
    if (aside := tmp_path / f"{journal.NAME}.damaged-1").exists():
        assert aside.read_bytes() == content
    opened = journal.Journal.open(tmp_path)
    assert (found(opened, range(2000)), opened.notes) == (set(range(2000)), [])
    opened.close()


def test_a_damaged_answer_is_dropped_counted_and_replaced(tmp_path):
    filled(tmp_path, 20).close()
    file = tmp_path / journal.NAME
    content = file.read_bytes()
    for n in (3, 8):
        value = items([n])[0][1]
        assert content.count(value) == 1
        content = content.replace(value, journal.loglikelihood_value(-0.25, True))
    file.write_bytes(content)
    opened = journal.Journal.open(tmp_path)
    assert found(opened, range(20)) == set(range(20)) - {3, 8}
    assert found(opened, range(20)) == set(range(20)) - {3, 8}
    assert opened.notes == [f"{file}: damaged answers that were dropped, to be computed again: 2"]
    opened.store("s", items([3, 8]))
    assert found(opened, range(20)) == set(range(20))
    opened.close()


def test_a_record_under_another_key_is_damaged(tmp_path):
    filled(tmp_path, 2).close()
    with sqlite3.connect(tmp_path / journal.NAME) as connection:
        [(k0, v0), (k1, v1)] = connection.execute("SELECT key, value FROM answers").fetchall()
        connection.executemany("UPDATE answers SET value = ? WHERE key = ?", [(v0, k1), (v1, k0)])
    connection.close()
    opened = journal.Journal.open(tmp_path)
    assert found(opened, range(2)) == set()
    assert opened.notes[0].endswith("computed again: 2")
    opened.close()


@pytest.mark.parametrize("size", [99, 512, 4096, 4097, 20_000, 60_000])
def test_a_truncated_file_is_set_aside(tmp_path, size):
    filled(tmp_path).close()
    file = tmp_path / journal.NAME
    content = file.read_bytes()[:size]
    file.write_bytes(content)
    opened = journal.Journal.open(tmp_path)
    assert opened.notes
    assert "it is now journal.sqlite3.damaged-1, and a new journal was begun" in opened.notes[0]
    assert (tmp_path / f"{journal.NAME}.damaged-1").read_bytes() == content
    assert found(opened, range(2000)) == set()
    opened.close()


def test_damaged_files_are_all_kept(tmp_path):
    for number, content in enumerate([b"garbage", b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 5000], start=1):
        (tmp_path / journal.NAME).write_bytes(content)
        opened = journal.Journal.open(tmp_path)
        assert f"damaged-{number}," in opened.notes[0]
        opened.store("s", items([1]))
        opened.close()
        assert (tmp_path / f"{journal.NAME}.damaged-{number}").read_bytes() == content


def test_damage_that_comes_up_in_the_middle_of_a_run_does_not_end_it(tmp_path):
    opened = filled(tmp_path, 20_000)
    opened.close()
    opened = journal.Journal.open(tmp_path)
    opened._connect().execute("PRAGMA cache_size=1")
    file = tmp_path / journal.NAME
    with open(file, "r+b") as content:
        content.seek(4096)
        content.write(b"\xff" * (file.stat().st_size - 4096))
    assert found(opened, range(100)) == set()
    opened.store("s", items(range(50)))
    assert found(opened, range(100)) == set(range(50))
    assert "damaged-1" in opened.notes[0]
    opened.close()


def test_a_half_written_log_costs_the_last_steps_only(tmp_path):
    opened = journal.Journal.open(tmp_path)
    for first in range(0, 100, 10):
        opened.store("s", items(range(first, first + 10)))
    copy = tmp_path / "copy"
    copy.mkdir()
    log = (tmp_path / f"{journal.NAME}-wal").read_bytes()
    (copy / journal.NAME).write_bytes((tmp_path / journal.NAME).read_bytes())
    (copy / f"{journal.NAME}-wal").write_bytes(log[: len(log) - 100])
    opened.close()
    opened = journal.Journal.open(copy)
    assert found(opened, range(100)) == set(range(90))
    opened.close()


# What cannot be used.


def test_another_format_is_refused_and_left_as_it_is(tmp_path):
    filled(tmp_path).close()
    file = tmp_path / journal.NAME
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version={journal.FORMAT + 1}")
    connection.close()
    before = file.read_bytes()
    for _ in range(2):  # the lock is free again
        with pytest.raises(
            errors.OutputError, match=r"journal.sqlite3: a journal of format 2; .* reads format 1. Give"
        ):
            journal.Journal.open(tmp_path)
    assert file.read_bytes() == before


def test_a_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / journal.NAME) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(errors.OutputError, match=r"a database that is no journal; .* or move the file away"):
        journal.Journal.open(tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(errors.OutputError, match="file/inner: the journal's folder cannot be written: Not a directory"):
        journal.Journal.open(tmp_path / "file" / "inner")
    (tmp_path / journal.NAME).mkdir()
    with pytest.raises(errors.OutputError, match="journal cannot be used: unable to open database file"):
        journal.Journal.open(tmp_path)


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path):
    opened = filled(tmp_path, 10)
    opened._connect().execute("PRAGMA max_page_count=3")
    with pytest.raises(errors.OutputError, match="journal cannot be used: database or disk is full"):
        opened.store("s", items(range(10, 5000)))
    assert found(opened, range(5000)) == set(range(10))
    assert opened.notes == []
    opened.close()
