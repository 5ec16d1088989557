"""Prompts as lm-eval writes them: the strings here are what 0.4.13 gives."""

import pytest

from evaljax.tasks import prompt


def shot(prefix=""):
    return prompt.answered("What is 4+4?", "eight", prefix=prefix, delimiter=" ", end="\n\n")


def ask(prefix=""):
    return prompt.question("What is 1+1?", prefix=prefix, delimiter=" ")


def chat(messages, multiturn, prefix=""):
    seen = []

    def apply(turns, add_generation_prompt):
        seen.append((turns, add_generation_prompt))
        return "rendered"

    assert prompt.render(messages, prompt.ChatFormat(apply, multiturn), prefix=prefix) == "rendered"
    turns, generation_prompt = seen[0]
    return [(turn["role"], turn["content"]) for turn in turns], generation_prompt


def test_plain_text_with_and_without_prefix():
    assert prompt.render([*shot(), *ask()], None, prefix="") == "What is 4+4? eight\n\nWhat is 1+1?"
    with_prefix = [*shot("Ans:"), *ask("Ans:")]
    assert prompt.render(with_prefix, None, prefix="Ans:") == "What is 4+4? Ans: eight\n\nWhat is 1+1? Ans:"


def test_system_and_description_are_joined_unless_whitespace_is_there():
    def system(instruction, description):
        return prompt.plain(prompt.system_message(instruction, description, "\n\n"))

    assert system("SYS", "Desc.") == "SYS\n\nDesc."
    assert system("SYS", "\nDesc.") == "SYS\nDesc."
    assert system(None, "Desc.\n\n") == "Desc.\n\n"
    assert prompt.system_message(None, "", "\n\n") == prompt.system_message("", "", "\n\n") == []


def test_a_description_is_glued_to_the_first_example():  # case C48
    messages = [*prompt.system_message(None, "Desc.", "\n\n"), *prompt.question("T24", prefix="", delimiter=" ")]
    assert prompt.plain(messages) == "Desc.T24"


def test_whitespace_of_the_text_and_of_the_delimiter_both_stay():  # cases C46, C47
    for text in ("Q\n", "Q "):
        messages = prompt.answered(text, "A", prefix="", delimiter=" ", end="\n\n")
        assert prompt.plain(messages) == f"{text} A\n\n"


def test_a_prefix_that_ends_in_a_blank_is_not_doubled_in_examples():  # case C45
    messages = prompt.answered("Q", "A", prefix="Answer: ", delimiter="\n", end="\n\n")
    assert prompt.plain(messages) == "Q\nAnswer: A\n\n"


@pytest.mark.parametrize("text", ["Q\n", ""])
def test_no_delimiter_before_a_prefix_that_needs_none(text):
    assert prompt.plain(prompt.question(text, prefix="P", delimiter=" ")) == text + "P"


def test_an_example_without_an_answer_is_a_question():
    assert prompt.answered("Q", "", prefix="", delimiter=" ", end="\n\n") == [prompt.Message("user", "Q")]


def test_multiturn_chat_has_a_turn_for_everything():
    messages = [*prompt.system_message("S", "", "\n\n"), *shot(), *ask()]
    turns = [("system", "S"), ("user", "What is 4+4?"), ("assistant", "eight"), ("user", "What is 1+1?")]
    assert chat(messages, multiturn=True) == (turns, True)


def test_single_turn_chat_has_one_user_turn():
    messages = [*prompt.system_message("S", "", "\n\n"), *shot(), *ask()]
    turns = [("system", "S"), ("user", "What is 4+4? eight\n\nWhat is 1+1?")]
    assert chat(messages, multiturn=False) == (turns, True)


def test_a_prefix_stays_an_open_assistant_turn():
    messages = [*shot("Ans:"), *ask("Ans:")]
    single = [("user", "What is 4+4? Ans: eight\n\nWhat is 1+1?"), ("assistant", "Ans:")]
    assert chat(messages, multiturn=False, prefix="Ans:") == (single, False)
    multi = [("user", "What is 4+4?"), ("assistant", "Ans: eight"), ("user", "What is 1+1?"), ("assistant", "Ans:")]
    assert chat(messages, multiturn=True, prefix="Ans:") == (multi, False)
