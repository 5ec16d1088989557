"""Templates and the fields that use them: lm-eval's rules, and errors that name the document."""

import pytest

from evaljax.core import errors
from evaljax.tasks import fields, template

DOC = {"question": "2+2?", "answer": 1, "choices": ["3", "4"], "aliases": ["four", "4"]}
COLUMNS = frozenset(DOC)


def target(field, has_choices=False, doc=DOC):
    return fields.target(field, doc, columns=COLUMNS, has_choices=has_choices, where="w")


def choices(field, doc=DOC):
    return fields.choices(field, doc, columns=COLUMNS, where="task 't', doc_to_choice, document 3")


def text(field, digits_are_index=False):
    return fields.text(field, DOC, columns=COLUMNS, digits_are_index=digits_are_index, where="w")


def test_a_template_keeps_its_last_newline():
    assert template.render("{{question}}\n", DOC, where="w") == "2+2?\n"


def test_the_template_filter_replaces_patterns():
    assert template.render("{{ 'a1b22' | regex_replace('[0-9]+', '#') }}", {}, where="w") == "a#b#"
    assert template.render("{{ 'a1b22' | regex_replace('[0-9]', '#', 1) }}", {}, where="w") == "a#b22"


def test_a_template_is_compiled_once():
    assert template.compiled("{{x}} once") is template.compiled("{{x}} once")


def test_an_unknown_name_gives_the_nearest_column():
    with pytest.raises(
        errors.TaskError, match=r"where: 'qestion' is undefined\. Did you mean 'question'\? Columns: aliases"
    ):
        template.render("{{qestion}}", DOC, where="where")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{question", "w: the template cannot be read: "),
        ("{{ question + 1 }}", "w: the template failed: TypeError"),
        ("{{ ''.__class__.__mro__ }}", "w: .*__class__"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_an_error(source, message):
    with pytest.raises(errors.TaskError, match=message):
        template.render(source, DOC, where="w")


def test_a_column_gives_its_value_and_a_literal_itself():
    assert target("answer") == 1
    assert target("aliases") == ["four", "4"]
    assert target(0) == 0
    assert target(["a", "b"]) == ["a", "b"]
    assert target(lambda doc: doc["answer"] + 1) == 2


@pytest.mark.parametrize(
    ("field", "has_choices", "value"),
    [
        ("{{answer}}", True, 1),
        ("{{answer}}", False, "1"),
        (" {{answer}}", True, " 1"),
        ("{{aliases}}", False, ["four", "4"]),
        ("[{{question}}]", False, "[2+2?]"),
        ("[1, 2]", False, [1, 2]),
        ("[", False, "["),
        ("{{question}}", True, "2+2?"),
    ],
)
def test_a_rendered_target_is_read_as_lm_eval_reads_it(field, has_choices, value):
    assert target(field, has_choices) == value


@pytest.mark.parametrize("digits", ["01", "²"])
def test_digits_that_are_no_number_are_an_error(digits):
    with pytest.raises(errors.TaskError, match=f"w: '{digits}' is all digits but no index"):
        target(digits + "{{''}}", has_choices=True)


def test_a_text_of_digits_is_an_index_only_where_contexts_are_chosen():
    assert text("{{answer}}", digits_are_index=True) == 1
    assert text("{{answer}}") == "1"
    assert text("answer") == 1


def test_choices_come_from_column_template_list_or_mapping():
    assert choices("choices") == ("3", "4")
    assert choices("{{[question, 'x']}}") == ("2+2?", "x")
    assert choices(["a", "b"]) == ("a", "b")
    assert choices({"x": "a", "y": "b"}) == ("a", "b")
    assert choices(lambda doc: [doc["question"]]) == ("2+2?",)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (["a", ""], "task 't', doc_to_choice, document 3: choice 1 is empty"),
        ([False, True], "choice 0 must be text, found False of type bool"),
        ("question", "expected a list of texts, found '2\\+2\\?' of type str"),
        ("{{question}}", "expected a Python list of texts, rendered '2\\+2\\?'"),
        ([], "the list of choices is empty"),
        (None, "the task does not say how to make it"),
    ],
)
def test_choices_that_cannot_be_scored_are_refused(field, message):
    with pytest.raises(errors.TaskError, match=message):
        choices(field)


def test_a_bare_word_like_a_column_is_a_slip():
    with pytest.raises(errors.TaskError, match=r"w: 'qestion' is no column, .* Did you mean 'question'"):
        fields.check_column("qestion", COLUMNS, where="w")
    for harmless in ("question", "{{qestion}}", "entirely_different", "", 3, None):
        fields.check_column(harmless, COLUMNS, where="w")


def test_a_document_without_the_column_is_an_error():
    with pytest.raises(errors.TaskError, match=r"w: the document has no column 'question'\. Columns: other"):
        target("question", doc={"other": 1})


def test_description_and_prefix_may_be_columns_templates_or_nothing():
    assert fields.optional("question", DOC, where="w") == "2+2?"
    assert fields.optional("Q {{answer}}", DOC, where="w") == "Q 1"
    assert fields.optional("", DOC, where="w") == fields.optional(None, DOC, where="w") == ""
    with pytest.raises(errors.TaskError, match="w: expected text, found 1 of type int"):
        fields.optional("answer", DOC, where="w")


def test_a_function_that_fails_is_named():
    def broken(doc):
        return doc["absent"]

    with pytest.raises(errors.TaskError, match=r"w: the task's function .*broken failed: KeyError\('absent'\)"):
        target(broken)
