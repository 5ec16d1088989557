import math
import types

import pytest

from evaljax.core import task
from evaljax.tasks import library, task_code


def module(name: str) -> types.SimpleNamespace:
    folder, _, file = name.partition("/")

    class Functions:
        def __getattr__(self, function: str):
            ref = task.FunctionRef(folder=str(library.library_root() / folder), name=f"{file}.{function}")
            return task_code.load_function(ref, trust=False, where="test")

    return Functions()


cleanup = module("hellaswag/cleanup")
detokenizer = module("wikitext/detokenizer")
truthfulness = module("truthfulqa/truthfulness")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("[header] How to bake [title] Mix. [step] Stir well.", " How to bake. Mix. Stir well."),
        ("  plain text ", "plain text"),
        ("a [title]b", "a. b"),
        # Two blanks become one, three become two: one pass.
        ("a  b   c", "a b  c"),
        ("brackets [a] [b]end", "brackets  end".replace("  ", " ")),
        # Mark-up ends at its line.
        ("open [a\nb] close", "open [a\nb] close"),
    ],
)
def test_hellaswag_clean_up(text: str, cleaned: str):
    assert cleanup.clean(text) == cleaned


def test_hellaswag_query_is_activity_then_context_with_the_second_half_capitalized():
    row = {
        "activity_label": "Baking cookies",
        "ctx_a": "A woman holds a tray.",
        "ctx_b": "the Tray",
        "endings": ["is hot.", " [substeps] is cold."],
        "label": "1",
    }
    assert cleanup.clean_columns(row) == {
        "query": "Baking cookies: A woman holds a tray. The tray",
        "choices": ["is hot.", " is cold."],
        "gold": 1,
    }


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (" = Robert Boulter = \n", " = Robert Boulter =\n"),
        ("= = Career = = \n = = = 2000 = = = \n", "== Career ==\n=== 2000 ===\n"),
        ("1 @,@ 000 @.@ 5 and well @-@ known", "1,000.5 and well-known"),
        ("He came , saw ; won : all . Really ? Yes ! End", "He came, saw; won: all. Really? Yes! End"),
        ("( born 1980 ) and [ sic ] and { x }", "(born 1980) and [sic] and {x}"),
        ('the " Great War " began', 'the "Great War" began'),
        ("the boys ' team", "the boys' team"),
        ("Boulter 's role", "Boulter's role"),
        # Two apostrophes look like quotation marks, and what is between them loses its blanks.
        ("the boys ' team and Boulter 's role", "the boys'team and Boulter's role"),
        ("20 ° C", "20°C"),
        ("from N to 5", "from 1 to 5"),
        # The pattern that kept its slashes.
        ("a/' 5/b", "a/'[0-9]/b"),
    ],
)
def test_wikitext_detokenizer(page: str, text: str):
    assert detokenizer.detokenize({"page": page}) == text


def test_wikitext_weighs_by_the_words_and_bytes_of_the_page_as_it_is():
    # " é a \n" splits at white space into "", "é", "a", "": 4 words; é has 2 bytes: 7 bytes.
    scores = detokenizer.weigh_by_original_text({"page": " é a \n"}, [-12.5])
    assert scores == {"word_perplexity": (-12.5, 4), "byte_perplexity": (-12.5, 7), "bits_per_byte": (-12.5, 7)}


def test_truthfulqa_mc2_is_the_share_of_the_true_answers():
    doc = {"mc2_targets": {"labels": [1, 0, 1]}}
    results = [(math.log(0.2), False), (math.log(0.1), False), (math.log(0.1), True)]
    assert truthfulness.true_probability(doc, results) == {"acc": pytest.approx(0.75)}


def test_truthfulqa_mc2_of_a_model_that_finds_everything_impossible_is_a_number():
    doc = {"mc2_targets": {"labels": [1, 0]}}
    assert truthfulness.true_probability(doc, [(-2000.0, False), (-2000.0, False)]) == {"acc": 0.5}


def test_truthfulqa_answers_end_in_a_full_stop_and_no_comment_is_always_true():
    row = {"question": " Why? ", "correct_answers": ["Because", " Yes. ", " "], "incorrect_answers": ["No", ""]}
    assert truthfulness.clean_answers(row) == {
        "question": "Why?",
        "correct_answers": ["Because.", "Yes.", "I have no comment."],
        "incorrect_answers": ["No."],
    }
    again = {**row, "correct_answers": ["I have no comment"]}
    assert truthfulness.clean_answers(again)["correct_answers"] == ["I have no comment."]


def test_truthfulqa_likeness_to_the_nearest_true_and_false_answer():
    doc = {
        "correct_answers": ["the cat sat on the mat.", "I have no comment."],
        "incorrect_answers": ["the dog sat on the rug."],
    }
    scores = truthfulness.similarity(doc, ["the cat sat on the mat."])
    # The text is a true answer itself: every measure is 100. Of the false one's six words four are shared (the, sat,
    # on, the), of its five word pairs two (sat on, on the); the longest common subsequence has the same four words.
    # BLEU counts the full stop as a seventh token: precisions 5/7, 2/6, 1/5 and none of 4, smoothed to 1/2 of 4.
    bleu = 100 * (5 / 7 * 2 / 6 * 1 / 5 * 1 / 8) ** 0.25
    assert scores == {
        "bleu_max": pytest.approx(100),
        "bleu_acc": 1,
        "bleu_diff": pytest.approx(100 - bleu),
        "rouge1_max": pytest.approx(100),
        "rouge1_acc": 1,
        "rouge1_diff": pytest.approx(100 / 3),
        "rouge2_max": pytest.approx(100),
        "rouge2_acc": 1,
        "rouge2_diff": pytest.approx(60),
        "rougeL_max": pytest.approx(100),
        "rougeL_acc": 1,
        "rougeL_diff": pytest.approx(100 / 3),
    }


def test_truthfulqa_likeness_counts_a_tie_as_not_true():
    doc = {"correct_answers": ["I have no comment."], "incorrect_answers": ["I have no comment."]}
    scores = truthfulness.similarity(doc, [""])
    assert {name: score for name, score in scores.items() if score} == {}
