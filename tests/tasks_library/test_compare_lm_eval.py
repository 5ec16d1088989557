import compare_lm_eval as compare
import pytest


@pytest.mark.parametrize(
    ("score", "expected", "found", "equal"),
    [
        # A count of documents is compared exactly: 12 of 20.
        ("acc,none", 0.6, 0.6, True),
        ("acc,none", 0.6, 0.6003, False),
        # Anything else within the tolerance.
        ("perplexity,none", 53.2, 53.22, True),
        ("perplexity,none", 53.2, 53.4, False),
        ("acc_stderr,none", 0.1, 0.10005, True),
        ("bits_per_byte_stderr,none", "N/A", None, True),
        ("acc,none", 0.6, "missing", False),
        ("acc,none", "missing", 0.6, False),
    ],
)
def test_when_two_scores_agree(score, expected, found, equal):
    assert compare.agree(score, expected, found, 20, 1e-3) is equal


def test_every_score_of_either_side_is_compared():
    theirs = {"t": {"alias": "t", "sample_len": 20, "acc,none": 0.6}}
    ours = {"t": {"alias": "T", "sample_len": 20, "acc,none": 0.65, "acc_norm,none": 0.5}}
    rows = list(compare.compared(theirs, ours, 1e-3))
    assert rows == [
        ("t", "sample_len", 20, 20, True),
        ("t", "acc,none", 0.6, 0.65, False),
        ("t", "acc_norm,none", "missing", 0.5, False),
    ]


def test_hub_addresses_of_files_in_the_mirror_become_paths(tmp_path):
    file = tmp_path / "owner" / "name" / "data" / "a.jsonl"
    file.parent.mkdir(parents=True)
    file.touch()
    given = {
        "test": [
            "hf://datasets/owner/name/data/a.jsonl",
            "https://huggingface.co/datasets/owner/name/resolve/main/data/a.jsonl",
        ],
        "train": "hf://datasets/owner/name/data/b.jsonl",
    }
    assert compare.local_files(given, tmp_path) == {"test": [str(file)] * 2, "train": given["train"]}


def test_a_missing_model_is_named_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        compare.main(["arc_easy", "--model", str(tmp_path / "nowhere"), "--mirror", str(tmp_path)])
    assert "--model: no such folder" in capsys.readouterr().err
