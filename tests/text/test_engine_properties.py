"""What must hold on every path through a game."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.household.engine import NOTHING_HAPPENS, admissible_commands, step
from envs.household.game import build_game
from envs.household.pddl import parse_problem
from envs.household.state import dump_state, parse_state
from tests.text.reference import commands_that_work, facts_of, goal_holds
from tests.text.small import GOALS, document, problem, small_game

GAMES = {name: small_game(name) for name in GOALS}
choices = st.lists(st.integers(0, 10_000), max_size=25)


def walk(game, picks):
    """States along a walk that takes the admissible command each pick points to."""
    state = game.initial
    yield state
    for pick in picks:
        commands = admissible_commands(game, state)
        state = step(game, state, commands[pick % len(commands)]).state
        yield state


@given(picks=choices, goal=st.sampled_from(sorted(GOALS)))
@settings(max_examples=60, deadline=None)
def test_admissible_commands_are_exactly_those_that_do_something(picks, goal):
    game = GAMES[goal]
    *_, state = walk(game, picks)
    commands = admissible_commands(game, state)
    assert commands == tuple(sorted(set(commands)))
    assert set(commands) == commands_that_work(game, state)


@given(picks=choices, goal=st.sampled_from(sorted(GOALS)))
@settings(max_examples=60, deadline=None)
def test_won_agrees_with_the_goal_by_the_book(picks, goal):
    game, read = GAMES[goal], parse_problem(problem(goal))
    for state in walk(game, picks):
        assert state.won == goal_holds(read.goal, facts_of(game, read, state), read)


@pytest.mark.parametrize(
    "formula",
    [
        "(forall (?o - object) (or (not (objectType ?o DeskLampType)) (isToggled ?o)))",
        "(not (exists (?o - object ?a - agent) (holds ?a ?o)))",
        "(exists (?r - receptacle) (and (openable ?r) (opened ?r) "
        "(forall (?o - object) (not (inReceptacle ?o ?r)))))",
        "(or (isHot Apple_bar__plus_02) (and (opened Drawer_bar_1) (isToggled DeskLamp_bar_1)))",
        "(exists (?o1 ?o2 - object) (and (not (= ?o1 ?o2)) (isSliced ?o1) (isSliced ?o2)))",
        "(exists (?a - agent ?l - location ?r - receptacle) (and (atLocation ?a ?l) "
        "(receptacleAtLocation ?r ?l) (receptacleType ?r SinkBasinType)))",
        "(not (and (objectAtLocation Book_bar_1 loc_bar_1) "
        "(inReceptacle Book_bar_1 Drawer_bar_2)))",
        "(exists (?r - receptacle) (and (exists (?o - object) (inReceptacle ?o ?r)) "
        "(exists (?o - object) (and (toggleable ?o) (isToggled ?o) (inReceptacle ?o ?r)))))",
    ],
)
def test_any_formula_agrees_with_the_goal_by_the_book(formula):
    game, read = build_game(document(problem(formula))), parse_problem(problem(formula))
    seen = set()
    for seed in range(12):
        rng = random.Random(seed)
        for state in walk(game, [rng.randrange(10_000) for _ in range(40)]):
            expected = goal_holds(read.goal, facts_of(game, read, state), read)
            assert state.won == expected
            seen.add(expected)
    assert seen == {False, True}


@given(picks=choices)
@settings(max_examples=30, deadline=None)
def test_states_survive_being_saved_and_steps_change_nothing_behind_them(picks):
    game = GAMES["heat"]
    states = list(walk(game, picks))
    copies = [dump_state(state) for state in states]
    assert list(walk(game, picks)) == states
    assert [parse_state(text) for text in copies] == states


@given(picks=choices, command=st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_at_all_is_a_command_or_does_nothing(picks, command):
    game = GAMES["two"]
    *_, state = walk(game, picks)
    outcome = step(game, state, command)
    assert outcome.valid == (command.strip() in commands_that_work(game, state)) or (
        outcome.valid and command.strip().startswith("put ")
    )
    if not outcome.valid:
        assert (outcome.feedback, outcome.state) == (NOTHING_HAPPENS, state)


def test_generated_games_too(generated):
    for number, made in enumerate(generated[:6]):
        rng = random.Random(number)
        for state in walk(made.game, [rng.randrange(10_000) for _ in range(15)]):
            commands = admissible_commands(made.game, state)
            assert set(commands) == commands_that_work(made.game, state)
