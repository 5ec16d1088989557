import bench_gpu
import numpy as np
import pytest


def test_a_line_has_the_ratio_to_transformers_where_it_ran():
    ours = [
        {"device": "evaljax: 1 x card"},
        {"model": "1B", "work": "scoring", "mfu": 0.4, "seconds": 0.5},
        {"model": "1B", "work": "generation", "mfu": 0.02, "seconds": 0.5},
    ]
    theirs = [{"model": "1B", "work": "scoring", "seconds": 2.0}]
    lines = [line.split() for line in bench_gpu.report(ours, theirs)]
    assert lines[0] == ["evaljax:", "1", "x", "card"]
    assert lines[2:] == [["1B", "scoring", "40.00%", "4.00x"], ["1B", "generation", "2.00%", "-"]]


def test_questions_share_the_header_they_stand_under_and_nothing_else():
    work = bench_gpu.TINY
    asked, choices = bench_gpu.questions(work, 512)
    assert asked.shape == (work.headers * work.questions, work.header_length + work.question_length)
    assert len(set(choices.tolist())) == 4
    headers = asked[:, : work.header_length].reshape(work.headers, work.questions, -1)
    assert (headers == headers[:, :1]).all()
    assert len(np.unique(headers[:, 0], axis=0)) == work.headers
    assert len(np.unique(asked[:, work.header_length :], axis=0)) == len(asked)


@pytest.mark.slow
def test_both_sides_run_with_tiny_shapes(capsys):
    assert bench_gpu.main(["--tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines if line.startswith("tiny")]
    assert [row[1] for row in table] == ["scoring", "generation"]
    assert all(float(row[2].rstrip("%")) > 0 and float(row[3].rstrip("x")) > 0 for row in table)
