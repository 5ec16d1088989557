import dataclasses

import bench
import bench_machine
import compare_lm_eval as compare
import pytest

from evaljax.models import config

TINY = config.ModelConfig(
    vocab_size=11, num_layers=2, embed_dim=4, mlp_dim=6, num_heads=2, num_kv_heads=1, head_dim=2, tie_embeddings=True
)


def side(seconds, accuracy=0.5, forward=110):
    plan = {"unique_tokens": 100, "forward_tokens": forward}
    return compare.Side(
        results={"t": {"sample_len": 20, "acc,none": accuracy}},
        seconds=seconds,
        startup=10.0,
        samples={},
        manifest={"engine": {"plans": {"loglikelihood": plan, "generate_until": {"forward_tokens": 7}}}},
    )


SUITE = bench.Suite(tasks="a,b:5", limit=20, target=3.0, probe=2, bound=1.1)


def test_a_line_states_documents_setting_ratio_target_verdict_bound_and_the_ratio_without_start_up():
    line = bench.line_of("name", SUITE, (8, 2), side(100.0), side(30.0))
    assert line.text.split() == [
        *("name", "40", "batch", "8,", "2", "thr", "3.33x", "3x", "met", "1.100", "1.10", "4.50x")
    ]
    assert not line.missed
    assert not line.notes


@pytest.mark.parametrize(("seconds", "forward"), [(34.0, 110), (30.0, 111)])
def test_a_ratio_or_a_bound_that_is_missed_is_a_miss(seconds, forward):
    line = bench.line_of("name", SUITE, (8, 2), side(100.0), side(seconds, forward=forward))
    assert line.missed
    assert "MISSED" in line.text


def test_a_bound_on_a_run_that_scored_nothing_is_a_miss():
    ours = dataclasses.replace(side(30.0), manifest={"engine": {"plans": {}}})
    assert bench.line_of("name", SUITE, (8, 2), side(100.0), ours).missed


def test_scores_that_differ_are_a_note_and_no_miss():
    line = bench.line_of("name", SUITE, (8, 2), side(100.0), side(30.0, accuracy=0.55))
    assert line.notes == ["t acc,none: lm-eval 0.500000, evaljax 0.550000"]
    assert not line.missed


def test_a_section_that_misses_one_target_is_named(capsys):
    rows = [bench_machine.Row(what="a", value="1"), bench_machine.Row(what="b", value="2", target="<= 1", met=False)]
    assert bench_machine.print_rows("machine", rows) == ["machine"]
    assert bench_machine.print_rows("machine", rows[:1]) == []
    assert "MISSED" in capsys.readouterr().out


def test_useful_flops_are_counted_by_hand_on_a_tiny_model():
    # A block: query and output 4 x 4, key and value 4 x 2, three of 4 x 6; 120 entries, two blocks.
    assert bench_machine.block_weights(TINY) == 2 * (16 + 16 + 8 + 8 + 72)
    assert bench_machine.useful_flops(TINY, unique=10, attended=55, scored=3) == (
        2 * 10 * 240 + 4 * 2 * 2 * 2 * 55 + 2 * 4 * 11 * 3
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "mmlu,gms8k"], "unknown suite gms8k; known: all, mmlu"),
        (["--limit-scale", "0"], "--limit-scale 0.0: expected above 0, at most 1"),
        (["--mirror", "nowhere"], "--mirror: no such folder: nowhere"),
    ],
)
def test_a_wrong_command_line_is_refused(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--model", str(tmp_path), "--mirror", str(tmp_path), *words])
    assert message in capsys.readouterr().err


def test_all_is_every_suite_in_the_order_of_the_table(tmp_path):
    folders = ["--model", str(tmp_path), "--mirror", str(tmp_path)]
    everything = bench.parse([*folders, "--suite", "all"]).names
    assert everything == [*bench.SUITES, *bench_machine.SECTIONS]
    assert bench.parse([*folders, "gsm8k", "--suite", "mmlu,curve"]).names == ["mmlu", "gsm8k", "curve"]


def test_the_fastest_setting_of_each_suite_is_taken():
    seconds = {("a", (1, 2)): 4.0, ("a", (8, 2)): 3.0, ("b", (1, 2)): 1.0, ("b", (8, 2)): 9.0}
    assert bench.fastest(seconds) == {"a": (8, 2), "b": (1, 2)}
