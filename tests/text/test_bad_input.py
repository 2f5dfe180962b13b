"""Game files that are cut short, foreign or wrong give one clear error; nothing else does."""

import json
import random

import pytest

from envs.household.game import build_game, load_game
from envs.household.pddl import GameFileError, parse_problem
from envs.household.state import parse_state
from tests.text.small import FACTS, OBJECTS, document, problem


def test_every_truncation_of_a_game_file_is_refused(tmp_path):
    text = json.dumps(document(problem()))
    path = tmp_path / "game.tw-pddl"
    rng = random.Random(0)
    for cut in [0, 1, *rng.sample(range(len(text)), 40), len(text) - 1]:
        path.write_text(text[:cut])
        with pytest.raises(GameFileError, match="cannot be read"):
            load_game(path)


def test_every_truncation_of_a_problem_is_refused():
    text = problem()
    for cut in range(0, len(text) - 1, 13):
        with pytest.raises(GameFileError):
            parse_problem(text[:cut])


def test_mangled_problems_are_refused_or_played_but_never_crash():
    text, rng = problem(), random.Random(1)
    refused = 0
    for _ in range(300):
        mangled = list(text)
        for _ in range(rng.randint(1, 4)):
            spot = rng.randrange(len(mangled))
            mangled[spot] = rng.choice("() \n;?-aZ0_\x00é")
        try:
            build_game(document("".join(mangled)))
        except GameFileError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("grammar"), "field 'grammar' is missing"),
        (lambda d: d.update(pddl_problem=None), "field 'pddl_problem' is missing or not a text"),
        (lambda d: d.update(grammar="grammar :: nonsense"), "no line 'Your task is to"),
        (
            lambda d: d.update(grammar=d["grammar"].replace("is closed", "is shut")),
            "grammar is none that the engine knows",
        ),
        (lambda d: d.update(grammar=d["grammar"][:5000]), "a block of the grammar|no command for"),
        (lambda d: d.update(grammar=d["grammar"].replace('"look.', '"seen.')), "none that"),
        (lambda d: d.update(pddl_domain="(define)"), "pddl_domain is none that the engine knows"),
        (
            lambda d: d.update(pddl_domain=d["pddl_domain"].replace("(not (holdsAny ?a))", "")),
            "pddl_domain is none that the engine knows",
        ),
    ],
)
def test_foreign_documents(change, message):
    data = document(problem())
    change(data)
    with pytest.raises(GameFileError, match=message):
        build_game(data)


@pytest.mark.parametrize(
    ("pddl", "message"),
    [
        (problem(facts=FACTS + "(sparkling Mug_bar_1)"), "unknown predicate 'sparkling'"),
        (problem(facts=FACTS + "(openable Mug_bar_1)"), "openable takes"),
        (problem(facts=FACTS + "(inReceptacle Mug_bar_1)"), "inreceptacle takes"),
        (problem(facts=FACTS + "(openable Ghost_bar_1)"), "openable takes"),
        (problem(facts=FACTS + "()"), "not a household problem|empty fact"),
        (problem(facts=FACTS + "(holds agent1 Mug_bar_1)"), "empty hands"),
        (problem(facts=FACTS + "(atLocation agent1 loc_bar_1)"), "starts at 2 locations"),
        (
            problem(facts=FACTS + "(receptacleAtLocation Fridge_bar_1 loc_bar_4)"),
            "stands at two locations",
        ),
        (problem(facts=FACTS + "(objectType Mug_bar_1 AppleType)"), "has two types"),
        (problem(objects=OBJECTS + "stray"), "declared without a type"),
        (problem(objects=OBJECTS + "stray -"), "ends after '-'"),
        (problem("(exists (?o - object) (glows ?o))"), "glows"),
        (problem("(exists (?o - object) (isHot ?x))"), "without quantifying"),
        (problem("(exists (?o - planet) (isHot ?o))"), "unknown type 'planet'|no object"),
        (problem("(exists (?o) (isHot ?o))"), "has no type"),
        (problem("(isHot Moon_bar_1)"), "no object of this game"),
        (problem("(= Mug_bar_1 Mug_bar_1)"), "compares a constant"),
        (problem("(isHot (isHot Mug_bar_1))"), "malformed goal"),
        (problem("(not " * 80 + "(isHot Mug_bar_1)" + ")" * 80), "nests deeper"),
        (problem() + "(more)", "does not end after its goal"),
        (problem("(isHot Mug_bar_1) (isHot Mug_bar_1)"), "must hold one formula"),
        ("", "the file is cut short"),
        ("(define (domain x))", "the file is cut short"),
    ],
)
def test_wrong_problems(pddl, message):
    with pytest.raises(GameFileError, match=message):
        build_game(document(pddl))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00", b"[1, 2]", b"null", b"[" * 200_000, b'{"a": ' + b"9" * 5000 + b"}"],
)
def test_files_that_are_no_games(tmp_path, content):
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(content)
    with pytest.raises(GameFileError, match=r"game\.tw-pddl"):
        load_game(path)


def test_a_missing_file_and_a_huge_one(tmp_path):
    with pytest.raises(GameFileError, match="No such file"):
        load_game(tmp_path / "none.tw-pddl")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(GameFileError, match="larger than"):
        load_game(tmp_path / "huge")


def test_a_path_that_no_file_can_have():
    with pytest.raises(GameFileError, match=r"none\.tw-pddl.*cannot be read"):
        load_game("none.tw-pddl\0")


def test_costs_comments_and_a_metric_are_legal():
    pddl = problem(facts=FACTS + "; a comment\n (= (total-cost) 0)")
    pddl = pddl.removesuffix(")") + " (:metric minimize (total-cost)))"
    assert build_game(document(pddl)).task is not None


_FOREIGN = ["", "{}", "[]", '{"location": "x"}', "null", "[" * 100_000, "9" * 5000]
_INFINITE = '{"contents": [], "places": [], "removed": [], "location": Infinity}'


@pytest.mark.parametrize("text", [*_FOREIGN, _INFINITE], ids=lambda text: text[:20])
def test_foreign_saved_states(text):
    with pytest.raises(GameFileError, match="not a saved state"):
        parse_state(text)
