"""The demo's world: training text and evaluation documents, all made here, from seeds and word lists.

Everything that is evaluated is a combination that the training text never shows, though all its parts occur there:

  facts       a question about one person's attribute; the fact itself is told in the text, the question is never asked
  grammar     a pair of nouns (or a noun with an adjective) that never meet in one sentence
  cloze       a statement about one person; the fact is told in other words, never in these
  stories     an animal that never lives in that place
  arithmetic  a question about one sum or difference; the equation itself is told, the question is never asked

`python tools/demo_text.py --out tasks/demo` writes the documents of the demo tasks.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

SEED = 20261
Pair = tuple[str, str]
Document = dict[str, object]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TOWNS = _words("Arbal Bromo Cestil Dunwick Elmar Fosgate Gildeen Harrow Ilmen Jorvik")
JOBS = _words("baker sailor teacher farmer painter miller doctor tailor hunter singer")
PETS = _words("fox sheep cat goat hen dog mule frog crow lamb")
FOODS = _words("soup bread plums rice cheese honey beans fish cake nuts")
COLOURS = _words("red blue green white black yellow brown grey")
NAME_STARTS = _words("Ba Do Fe Ga Hu Ja Ki Lo Me Ni Pa Ro")
NAME_ENDS = _words("lin mar ra tus")
SHAPES = _words("kite ball drum cup lamp rope boat bell")
OWNERS = _words("Anna Ben Clara David Emma Frank Greta Henry")
ANIMALS = _words("rabbit bear mouse lion tiger squirrel donkey turtle")
PLACES = _words("forest valley garden castle meadow village desert mill")
NOUNS: tuple[Pair, ...] = (
    ("dog", "dogs"), ("cat", "cats"), ("boy", "boys"), ("girl", "girls"), ("child", "children"), ("mouse", "mice"),
    ("wolf", "wolves"), ("king", "kings"), ("woman", "women"), ("man", "men"),
)  # fmt: skip
GENDERED: tuple[Pair, ...] = (
    ("king", "queen"), ("boy", "girl"), ("man", "woman"), ("uncle", "aunt"), ("father", "mother"), ("son", "daughter"),
)  # fmt: skip
PREPOSITIONS = _words("near behind beside")
ADJECTIVES = _words("old happy tired small quiet hungry cold brave")
VERBS: tuple[Pair, ...] = (("is", "are"), ("was", "were"), ("looks", "look"), ("has been", "have been"))
PAST = _words("sat slept ran")
MIRRORS = ("in the mirror", "in the water")
LARGEST = 9


@dataclasses.dataclass(frozen=True)
class Attribute:
    """What can be said of a person: values, the ways to say it ({n} person, {v} value), and the question."""

    values: tuple[str, ...]
    statements: tuple[str, ...]
    question: str


ATTRIBUTES: Mapping[str, Attribute] = {
    "town": Attribute(TOWNS, (
        "{n} lives in {v}.", "The home of {n} is in {v}.", "{n} comes from the town of {v}.",
    ), "Where does {n} live?"),
    "job": Attribute(JOBS, (
        "{n} works as a {v}.", "{n} is a good {v}.", "The work of {n} is that of a {v}.",
    ), "What is the job of {n}?"),
    "pet": Attribute(PETS, (
        "{n} has a {v}.", "The animal of {n} is a {v}.", "{n} takes care of a {v}.",
    ), "Which animal does {n} have?"),
    "food": Attribute(FOODS, (
        "{n} likes to eat {v}.", "The best food for {n} is {v}.", "{n} often buys {v}.",
    ), "What does {n} like to eat?"),
    "house": Attribute(COLOURS, (
        "The house of {n} is {v}.", "{n} owns a {v} house.", "{n} painted the house {v}.",
    ), "What colour is the house of {n}?"),
}  # fmt: skip
ARTICLES = {"job": "a ", "pet": "a "}
# The statements whose last word is the value.
LAST_WORD = {
    key: [index for index, told in enumerate(attribute.statements) if told.endswith("{v}.")]
    for key, attribute in ATTRIBUTES.items()
}


@dataclasses.dataclass(frozen=True)
class World:
    """People with their attributes, and the combinations that only evaluation may show."""

    people: Mapping[str, Mapping[str, str]]
    held_questions: frozenset[Pair]  # (person, attribute)
    held_nouns: frozenset[tuple[int, int]]  # indices into NOUNS: subject, attractor
    held_adjectives: frozenset[tuple[int, str]]  # index into NOUNS, adjective
    held_genders: frozenset[tuple[int, int]]  # indices into GENDERED: subject, attractor
    held_statements: frozenset[tuple[str, str, int]]  # person, attribute, which of its statements
    held_homes: frozenset[Pair]  # animal, place
    held_sums: frozenset[tuple[str, int, int]]  # operation, left, right


def _hold(rng: random.Random, combinations: list, share: float) -> frozenset:
    return frozenset(rng.sample(combinations, round(share * len(combinations))))


def _sums(op: str) -> list[tuple[str, int, int]]:
    numbers = range(LARGEST + 1)
    return [(op, left, right) for left in numbers for right in numbers if op == "+" or left >= right]


@functools.cache
def world(seed: int = SEED) -> World:
    """The one world of `seed`."""
    rng = random.Random(seed)
    names = [start + end for start, end in itertools.product(NAME_STARTS, NAME_ENDS)]
    people = {
        name: {key: rng.choice(attribute.values) for key, attribute in ATTRIBUTES.items()}
        for name in sorted(rng.sample(names, 40))
    }
    facts = list(itertools.product(people, ATTRIBUTES))
    nouns, pairs = range(len(NOUNS)), range(len(GENDERED))
    return World(
        people=people,
        held_questions=_hold(rng, facts, 0.3),
        held_nouns=_hold(rng, [pair for pair in itertools.product(nouns, nouns) if pair[0] != pair[1]], 0.3),
        held_adjectives=_hold(rng, list(itertools.product(nouns, ADJECTIVES)), 0.3),
        held_genders=_hold(rng, [pair for pair in itertools.product(pairs, pairs) if pair[0] != pair[1]], 0.4),
        held_statements=frozenset((*fact, rng.choice(LAST_WORD[fact[1]])) for fact in rng.sample(facts, 80)),
        held_homes=_hold(rng, list(itertools.product(ANIMALS, PLACES)), 0.2),
        held_sums=_hold(rng, [*_sums("+"), *_sums("-")], 0.35),
    )


# ---------------------------------------------------------------------------------------------------------- facts


def question(person: str, key: str) -> str:
    """The question about one attribute of one person."""
    return ATTRIBUTES[key].question.format(n=person)


def _answer(here: World, person: str, key: str) -> str:
    return ARTICLES.get(key, "") + here.people[person][key]


def _told(here: World, rng: random.Random, person: str, keys: Sequence[str]) -> list[str]:
    said = []
    for key in keys:
        forms = [
            told
            for index, told in enumerate(ATTRIBUTES[key].statements)
            if (person, key, index) not in here.held_statements
        ]
        said.append(rng.choice(forms).format(n=person, v=here.people[person][key]))
    return said


def biography(here: World, rng: random.Random) -> str:
    """Some of what is true of one or two people, said in one of its ways."""
    said: list[str] = []
    for person in rng.sample(list(here.people), rng.choice((1, 1, 2))):
        said += _told(here, rng, person, rng.sample(list(ATTRIBUTES), rng.randint(3, 5)))
    return " ".join(said)


def cloze_document(here: World, rng: random.Random, person: str, key: str, which: int) -> Document:
    """Some of what is true of a person, without the last word, and that word."""
    told = _told(here, rng, person, rng.sample([other for other in ATTRIBUTES if other != key], 2))
    last = ATTRIBUTES[key].statements[which].removesuffix(" {v}.").format(n=person)
    return {"passage": " ".join([*told, last]), "word": here.people[person][key]}


def _asked(here: World, rng: random.Random) -> Pair:
    while True:
        pair = (rng.choice(list(here.people)), rng.choice(list(ATTRIBUTES)))
        if pair not in here.held_questions:
            return pair


def questions(here: World, rng: random.Random) -> str:
    """A few questions with answers, as plain text or as a chat."""
    pairs = [_asked(here, rng) for _ in range(rng.randint(1, 7))]
    frame = "Question: {}\nAnswer: {}"
    if rng.random() < 0.2:
        frame = rng.choice(("User:\n{}\nAssistant:\n{}", "User:\nQuestion: {}\nAnswer:\nAssistant:\n{}"))
    return "\n\n".join(frame.format(question(*pair), _answer(here, *pair)) for pair in pairs)


def facts_document(here: World, rng: random.Random, person: str, key: str) -> Document:
    """A question with four choices, one of them right."""
    right = here.people[person][key]
    wrong = rng.sample([value for value in ATTRIBUTES[key].values if value != right], 3)
    choices = [*wrong, right]
    rng.shuffle(choices)
    return {
        "question": question(person, key),
        "choices": [ARTICLES.get(key, "") + choice for choice in choices],
        "label": choices.index(right),
    }


# -------------------------------------------------------------------------------------------------------- grammar


def agreement(
    rng: random.Random, subject: int, other: int, plural: bool, other_plural: bool, between: str = ""
) -> Pair:
    """A sentence whose verb agrees with its first noun across a second one, and one whose verb does not."""
    verbs, adjective = rng.choice(VERBS), rng.choice(ADJECTIVES)
    head = f"The {NOUNS[subject][plural]} {rng.choice(PREPOSITIONS)} the {NOUNS[other][other_plural]}{between}"
    return f"{head} {verbs[plural]} {adjective}.", f"{head} {verbs[not plural]} {adjective}."


def determiner(rng: random.Random, subject: int, adjective: str, plural: bool) -> Pair:
    """A demonstrative that agrees with its noun across an adjective, and one that does not."""
    tail = f"{adjective} {NOUNS[subject][plural]} {rng.choice(PAST)} {rng.choice(PREPOSITIONS)} the tree."
    words = rng.choice((("This", "These"), ("That", "Those")))
    return f"{words[plural]} {tail}", f"{words[not plural]} {tail}"


def reflexive(
    rng: random.Random, subject: int, other: int, female: bool, other_female: bool, between: str = ""
) -> Pair:
    """A reflexive pronoun that agrees with the first person of the sentence, and one that does not."""
    head = (
        f"The {GENDERED[subject][female]} {rng.choice(PREPOSITIONS)} the {GENDERED[other][other_female]}{between} saw"
    )
    words, tail = ("himself", "herself"), f"{rng.choice(MIRRORS)}."
    return f"{head} {words[female]} {tail}", f"{head} {words[not female]} {tail}"


def _free(rng: random.Random, held: frozenset, first: int, second: Sequence) -> tuple:
    while True:
        pair = (rng.randrange(first), rng.choice(second))
        if pair not in held and pair[0] != pair[1]:
            return pair


def sentences(here: World, rng: random.Random) -> str:
    """A few grammatical sentences."""
    lines, nouns, pairs = [], list(range(len(NOUNS))), list(range(len(GENDERED)))
    for _ in range(rng.randint(2, 6)):
        kind, first, second = rng.randrange(3), rng.random() < 0.5, rng.random() < 0.5
        if kind == 0:
            lines.append(agreement(rng, *_free(rng, here.held_nouns, len(nouns), nouns), first, second)[0])
        elif kind == 1:
            lines.append(determiner(rng, *_free(rng, here.held_adjectives, len(nouns), ADJECTIVES), first)[0])
        else:
            lines.append(reflexive(rng, *_free(rng, here.held_genders, len(pairs), pairs), first, second)[0])
    return " ".join(lines)


def grammar_documents(here: World, rng: random.Random, count: int) -> list[Document]:
    """`count` minimal pairs, the phenomena in turn; some are deeper than any sentence of the training text."""
    held = {name: sorted(getattr(here, f"held_{name}")) for name in ("nouns", "adjectives", "genders")}

    def rest(words: tuple[Pair, ...]) -> tuple[bool, bool, str]:
        first, deeper = rng.random() < 0.5, rng.random() < 0.3
        return first, not first, f" {rng.choice(PREPOSITIONS)} the {rng.choice(words)[not first]}" if deeper else ""

    makers: Mapping[str, Callable[[], Pair]] = {
        "agreement": lambda: agreement(rng, *rng.choice(held["nouns"]), *rest(NOUNS)),
        "determiner": lambda: determiner(rng, *rng.choice(held["adjectives"]), rng.random() < 0.5),
        "reflexive": lambda: reflexive(rng, *rng.choice(held["genders"]), *rest(GENDERED)),
    }
    documents: dict[str, Document] = {}
    for phenomenon, make in itertools.cycle(makers.items()):
        if len(documents) == count:
            break
        good, bad = make()
        documents.setdefault(good, {"good": good, "bad": bad, "phenomenon": phenomenon})
    return list(documents.values())


# -------------------------------------------------------------------------------------------------------- stories

OPENINGS = ("Once upon a time there was a {} {} called {}.", "Long ago a {} {} with the name {} was born.")
HOMES = ("{} lived in a {}.", "The home of {} was a {}.")
WHENS = ("The next day", "In the evening", "After that")
SCENES = (
    '{when} {name} found a {colour} {shape}. "What a fine {shape}!" said {name}.',
    "{when} {name} met a {friend}. They ate {food} and became friends. The {friend} went home.",
    "{when} {name} lost the {colour} {shape}. {name} was sad and cried.",
    '{when} a {friend} came by. "Do you want some {food}?" asked the {friend}. "Yes, please," said {name}.',
)
ENDINGS = ("Then {} the {} went to sleep. The end.", "And {} the {} was happy. The end.")


def story(rng: random.Random, animal: str, place: str, scenes: int) -> str:
    """A story of an animal that finds things and meets others."""
    name, colour = rng.choice(OWNERS), rng.choice(COLOURS)
    lines = [rng.choice(OPENINGS).format(rng.choice(ADJECTIVES), animal, name), rng.choice(HOMES).format(name, place)]
    for scene in range(scenes):
        lines.append(
            rng.choice(SCENES).format(
                when=rng.choice(WHENS) if scene else "One day",
                name=name,
                colour=colour,
                shape=rng.choice(SHAPES),
                friend=rng.choice([other for other in ANIMALS if other != animal]),
                food=rng.choice(FOODS),
            )
        )
    return " ".join([*lines, rng.choice(ENDINGS).format(name, animal)])


def stories(here: World, rng: random.Random) -> str:
    """One story whose animal may live where it lives."""
    homes = [home for home in itertools.product(ANIMALS, PLACES) if home not in here.held_homes]
    return story(rng, *rng.choice(homes), scenes=rng.randint(1, 5))


# ----------------------------------------------------------------------------------------------------- arithmetic


def equation(op: str, left: int, right: int) -> str:
    """`left op right = result`."""
    return f"{left} {op} {right} = {left + right if op == '+' else left - right}"


def _operands(rng: random.Random, held: frozenset) -> tuple[str, int, int]:
    while True:
        op, left, right = rng.choice("+-"), rng.randint(0, LARGEST), rng.randint(0, LARGEST)
        triple = (op, left, right) if op == "+" else (op, max(left, right), min(left, right))
        if triple not in held:
            return triple


def sums(here: World, rng: random.Random) -> str:
    """Any equations, one a line, or questions with answers."""
    if rng.random() < 0.5:
        return "\n".join(equation(*_operands(rng, frozenset())) for _ in range(rng.randint(2, 12)))
    asked = [sums_document(*_operands(rng, here.held_sums)) for _ in range(rng.randint(1, 7))]
    return "\n\n".join("Question: {question}\nAnswer: {answer}".format(**document) for document in asked)


def sums_document(op: str, left: int, right: int) -> Document:
    """A question and its answer."""
    return {"question": f"What is {left} {op} {right}?", "answer": equation(op, left, right).split()[-1]}


# ------------------------------------------------------------------------------------------------------- together

# Kinds of document, each with how often it is drawn.
KINDS: Mapping[Callable[[World, random.Random], str], int] = {
    biography: 20,
    questions: 12,
    sentences: 14,
    stories: 6,
    sums: 26,
}


def training_documents(here: World, count: int, seed: int = SEED + 1) -> Iterator[str]:
    """`count` documents of all kinds, mixed."""
    rng = random.Random(seed)
    kinds, weights = list(KINDS), list(KINDS.values())
    for _ in range(count):
        yield rng.choices(kinds, weights)[0](here, rng)


def evaluation_documents(here: World, seed: int = SEED + 2) -> dict[str, list[Document]]:
    """The documents of the demo tasks by file name; those in `*_train` are few-shot examples."""
    rng = random.Random(seed)
    questions_shown = [_asked(here, rng) for _ in range(40)]
    sums_shown = [_operands(rng, here.held_sums) for _ in range(40)]
    homes = [rng.choice(sorted(here.held_homes)) for _ in range(40)]
    return {
        "facts_test": [facts_document(here, rng, *pair) for pair in sorted(here.held_questions)],
        "facts_train": [facts_document(here, rng, *pair) for pair in dict.fromkeys(questions_shown)],
        "grammar_test": grammar_documents(here, rng, 90),
        "cloze_test": [cloze_document(here, rng, *held) for held in sorted(here.held_statements)],
        "stories_test": [{"story": story(rng, *home, scenes=rng.randint(3, 16))} for home in homes],
        "arithmetic_test": [sums_document(*triple) for triple in sorted(here.held_sums)],
        "arithmetic_train": [sums_document(*triple) for triple in dict.fromkeys(sums_shown)],
    }


def main() -> None:
    """Write every evaluation file as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the .jsonl files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, documents in evaluation_documents(world()).items():
        path = out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
        print(f"{path}: {len(documents)} documents")


if __name__ == "__main__":
    main()
