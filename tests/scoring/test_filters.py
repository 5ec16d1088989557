import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaljax.core import errors, task
from evaljax.scoring import filters

DOC = {"choices": ["Guilty", "Guilty of Romance", "7"]}


def run(steps, resps, doc=None):
    pipeline = task.FilterPipeline(
        name="p", steps=tuple(task.FilterStep(function=name, kwargs=kwargs) for name, kwargs in steps)
    )
    return filters.run_pipeline(pipeline, resps, [doc or {}] * len(resps), where="task 't'")


def first(name, answer, doc=None, **kwargs):
    return run([(name, kwargs), ("take_first", {})], [[answer]], doc)[0]


def test_take_first_keeps_one_answer_and_take_first_k_keeps_k():
    assert run([("take_first", {})], [["a", "b"], ["c", "d"]]) == ["a", "c"]
    assert run([("take_first_k", {"k": 2})], [["a", "b", "c"]]) == [["a", "b"]]


def test_take_first_k_refuses_more_answers_than_there_are():
    with pytest.raises(errors.TaskError, match=r"take_first_k: k is 3, but an instance has 2 answers"):
        run([("take_first_k", {"k": 3})], [["a", "b"]])


def test_of_equally_common_answers_majority_vote_takes_the_first():
    assert run([("majority_vote", {})], [["b", "a", "a", "b"], ["x", "y", "y"]]) == [["b"], ["y"]]


def test_the_default_pattern_is_the_number_after_four_hashes_and_a_space():  # case C77
    assert first("regex", "#### 1,234.") == "1,234."
    assert first("regex", "####7") == "[invalid]"


def test_the_last_match_may_be_the_wrong_one_as_in_lm_eval():  # case C71
    answer = "Final: (B). I ruled out (A) and (C)."
    assert first("regex", answer, regex_pattern=r"\([A-Z]\)", group_select=-1) == "(C)"
    assert first("regex", answer, regex_pattern=r"Final: (\([A-Z]\))") == "(B)"


def test_a_look_ahead_that_takes_a_character_loses_the_last_one_as_in_lm_eval():  # case C72
    pattern = r"(?<=the answer is )(.*)(?=.)"
    assert first("regex", "So the answer is (B)", regex_pattern=pattern) == "(B"


def test_a_match_whose_groups_are_all_empty_gives_the_fallback():
    assert first("regex", "ok", regex_pattern="ok(a)?(b)?") == "[invalid]"
    assert first("regex", "okb", regex_pattern="ok(a)?(b)?") == "b"


@pytest.mark.parametrize("group_select", [1, 5, -2])
def test_a_group_out_of_range_gives_the_fallback(group_select):
    assert first("regex", "#### 7", group_select=group_select, fallback="none") == "none"
    assert first("multi_choice_regex", "#### x", DOC, group_select=group_select, fallback="none") == "none"


def test_an_answer_that_is_no_text_has_nothing_to_extract():
    assert first("regex", (-1.0, True)) == "[invalid]"
    assert first("multi_choice_regex", None, DOC) == "[invalid]"


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("#### 7", "7"),  # what the pattern captures comes back as it is
        ("I saw Guilty of Romance", "(B)"),  # the longer choice is looked for first
        ("guilty", "[invalid]"),
        ("The answer: C", "(C)"),
        ("C", "[invalid]"),
    ],
)
def test_multi_choice_regex_looks_for_pattern_then_text_then_letter(answer, letter):
    assert first("multi_choice_regex", answer, DOC) == letter


def test_multi_choice_regex_ignores_what_it_is_told_to():
    doc = {"choices": ["St. Paul", "Minneapolis"]}
    kwargs = {"ignore_case": True, "ignore_punctuation": True, "regexes_to_ignore": ["the "]}
    assert first("multi_choice_regex", "the ST PAUL, I think", doc, **kwargs) == "(A)"


def test_multi_choice_regex_takes_more_choices_than_there_are_letters():
    doc = {"choices": [f"choice number {i:02d}" for i in range(40)]}
    assert first("multi_choice_regex", "choice number 39", doc) == "(h)"
    assert first("multi_choice_regex", ": [", doc) == "([)"


def test_multi_choice_regex_needs_a_column_choices():
    with pytest.raises(errors.TaskError, match=r"multi_choice_regex: the document has no column 'choices'.*'choice'"):
        first("multi_choice_regex", "x", {"choice": []})


def test_regex_pos_takes_the_tags():
    assert first("regex_pos", "[('le', 'DET'), ('chat', 'NOUN')]") == ["DET", "NOUN"]
    assert first("regex_pos", "no tags") == ["invalid"]


def test_text_filters_change_each_answer():
    assert run([("remove_whitespace", {})], [[" a ", "b\n"]]) == [["a", "b"]]
    assert run([("lowercase", {})], [["ÄB"]]) == [["äb"]]
    assert run([("uppercase", {})], [["straße"]]) == [["STRASSE"]]
    assert run([("map", {"mapping_dict": {"a": 1}, "default_value": 0})], [["a", "b", ["a"]]]) == [[1, 0, 0]]


def test_map_after_take_first_looks_up_characters_as_in_lm_eval():
    steps = [("take_first", {}), ("map", {"mapping_dict": {"B": "beta"}}), ("take_first", {})]
    assert run(steps, [["B"]]) == ["beta"]


def test_format_span_normalises_entity_labels():
    answer = "Person: Ann, None $$ places : Kenya\nDATE: 1999$$"
    assert first("format_span", answer) == "per: ann $ loc: kenya $ date: 1999"


def test_custom_functions_and_filter_classes_are_called_as_lm_eval_calls_them():
    class Suffix:
        def __init__(self, suffix="!"):
            self.suffix = suffix

        def apply(self, resps, docs):
            return ([answer + self.suffix for answer in answers] for answers in resps)

    def name_of(resps, docs, *, key):
        return [doc[key] for doc in docs]

    assert run([(Suffix, {"suffix": "?"}), ("take_first", {})], [["a"], ["b"]]) == ["a?", "b?"]
    assert run([(Suffix(), {})], [["a"]]) == [["a!"]]
    assert run([(name_of, {"key": "id"})], [["a"]], {"id": 7}) == [7]
    assert run([("custom", {"filter_fn": lambda resps, docs: [len(r) for r in resps]})], [["a", "b"]]) == [2]


def test_a_type_error_inside_a_custom_filter_is_not_hidden():
    def broken(resps, docs):
        return [answers + 1 for answers in resps]

    with pytest.raises(errors.TaskError, match=r"broken failed: TypeError\('can only concatenate") as caught:
        run([(broken, {})], [["a"]])
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_filter_that_loses_instances_is_refused():
    with pytest.raises(errors.TaskError, match=r"task 't': filter 'p': 'custom' gave 1 entries for 2 instances"):
        run([("custom", {"filter_fn": lambda resps, docs: resps[:1]})], [["a"], ["b"]])


def test_an_unknown_filter_names_the_nearest():
    with pytest.raises(errors.TaskError, match=r"unknown filter 'take_frist'. Did you mean 'take_first'\?"):
        run([("take_frist", {})], [["a"]])


def test_an_unknown_parameter_names_filter_and_nearest():
    with pytest.raises(
        errors.TaskError, match=r"regex has no parameter 'regex_patern'. Did you mean 'regex_pattern'\?"
    ):
        first("regex", "a", regex_patern="x")
    with pytest.raises(errors.TaskError, match=r"take_first has no parameter 'k'\. Known: none"):
        run([("take_first", {"k": 1})], [["a"]])


def test_a_missing_parameter_is_named():
    with pytest.raises(errors.TaskError, match="take_first_k needs the parameter 'k'"):
        run([("take_first_k", {})], [["a"]])


def test_a_pattern_that_does_not_compile_is_refused():
    with pytest.raises(errors.TaskError, match=r"regex: regex_pattern: '\(a' is not a regular expression: missing \)"):
        first("regex", "a", regex_pattern="(a")
    with pytest.raises(errors.TaskError, match="regexes_to_ignore: '\\['"):
        first("multi_choice_regex", "a", DOC, regexes_to_ignore=["["])


def test_a_text_filter_refuses_answers_that_are_no_text():
    with pytest.raises(errors.TaskError, match=r"lowercase: an answer is \(-1.0, True\); expected text"):
        run([("lowercase", {})], [[(-1.0, True)]])


def test_a_function_that_is_not_loaded_is_refused():
    with pytest.raises(errors.TaskError, match="has not been loaded"):
        run([(task.FunctionRef("folder", "mod.fn"), {})], [["a"]])


PARAMETERS = {
    "take_first_k": {"k": 1},
    "custom": {"filter_fn": lambda resps, docs: resps},
    "map": {"mapping_dict": {"a": 1}},
    "multi_choice_regex": {
        "ignore_case": True,
        "ignore_punctuation": True,
        "regexes_to_ignore": [r"\d"],
        "group_select": 1,
    },
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(), min_size=1, max_size=3),
    st.lists(st.text(), max_size=4),
    st.lists(st.sampled_from(sorted(filters.FILTERS)), min_size=1, max_size=3),
)
def test_no_filter_raises_on_any_string(answers, choices, names):
    for name in filters.FILTERS:
        assert len(run([(name, PARAMETERS.get(name, {}))], [answers], {"choices": choices})) == 1
    texts = [name for name in names if name not in ("map", "regex_pos", "take_first", "take_first_k")]
    run([(name, PARAMETERS.get(name, {})) for name in texts], [answers], {"choices": choices})
