"""The engine, letter by letter, on a kitchen checked by hand."""

from collections import deque

import pytest

from envs.household import engine
from envs.household.describe import opening_text
from envs.household.engine import Event, admissible_commands, step
from envs.household.state import dump_state, parse_state
from tests.text.small import FACTS, small_game


def play(game, *commands):
    """State and texts after commands that must all do something."""
    state, texts = game.initial, []
    for command in commands:
        outcome = step(game, state, command)
        assert outcome.valid, command
        state = outcome.state
        texts.append(outcome.feedback)
    return state, texts


def test_opening_names_receptacles_in_order_of_their_identifiers():
    game = small_game()
    assert opening_text(game, game.initial) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a countertop 1, a drawer 2, a drawer 1, a fridge 1, a microwave 1, "
        "and a sinkbasin 1.\n\nYour task is to: put a apple in sinkbasin."
    )


def test_before_going_anywhere_there_is_nothing_to_see():
    game = small_game()
    _, texts = play(game, "look", "inventory")
    assert texts == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You are not carrying anything.",
    ]


def test_admissible_commands_are_sorted_as_text():
    game = small_game()
    state, _ = play(game, "go to countertop 1")
    assert admissible_commands(game, state) == (
        "examine countertop 1",
        "examine drawer 1",
        "go to drawer 2",
        "go to fridge 1",
        "go to microwave 1",
        "go to sinkbasin 1",
        "help",
        "inventory",
        "look",
        "open drawer 1",
        "take apple 2 from countertop 1",
        "take knife 1 from countertop 1",
    )


def test_commands_are_remembered_by_what_stands_here_and_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr(engine, "_LISTS_KEPT", 2)
    monkeypatch.setattr(engine, "_kept", deque())
    game = small_game()
    at_drawer, _ = play(game, "go to drawer 2")
    at_sink, _ = play(game, "go to sinkbasin 1")
    first = admissible_commands(game, at_sink)
    # What is open elsewhere changes nothing here.
    elsewhere, _ = play(game, "go to drawer 2", "open drawer 2", "go to sinkbasin 1")
    assert elsewhere.opened != at_sink.opened
    assert admissible_commands(game, elsewhere) is first
    for state in (at_drawer, game.initial):
        admissible_commands(game, state)
    assert len(engine._kept) == 2
    again = admissible_commands(game, at_sink)
    assert again == first
    assert again is not first


def test_a_walk_through_every_sentence():
    game = small_game("two")
    _, texts = play(
        game,
        "go to microwave 1",
        "open microwave 1",
        "take mug 1 from microwave 1",
        "inventory",
        "examine mug 1",
        "look",
        "move mug 1 to microwave 1",
        "close microwave 1",
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "examine apple 2",
        "go to microwave 1",
        "heat apple 2 with microwave 1",
        "examine apple 2",
        "go to fridge 1",
        "cool apple 2 with fridge 1",
        "examine apple 2",
        "go to sinkbasin 1",
        "clean apple 2 with sinkbasin 1",
        "examine apple 2",
        "put apple 2 in/on sinkbasin 1",
        "examine sinkbasin 1",
    )
    assert texts == [
        "You arrive at microwave 1. The microwave 1 is closed.",
        "You open the microwave 1. The microwave 1 is open. In it, you see a mug 1.",
        "You pick up the mug 1 from the microwave 1.",
        "You are carrying: a mug 1.",
        "This is a normal mug 1. In it, you see nothing.",
        "You are facing the microwave 1. Next to it, you see nothing.",
        "You move the mug 1 to the microwave 1.",
        "You close the microwave 1.",
        "You arrive at countertop 1. On the countertop 1, you see a apple 2, and a knife 1.",
        "You pick up the apple 2 from the countertop 1.",
        "There's nothing special about apple 2.",
        "You arrive at microwave 1. The microwave 1 is closed.",
        "You heat the apple 2 using the microwave 1.",
        "This is a hot apple 2.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You cool the apple 2 using the fridge 1.",
        "This is a cold apple 2.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "You clean the apple 2 using the sinkbasin 1.",
        "This is a cool and clean apple 2.",
        "You move the apple 2 to the sinkbasin 1.",
        "On the sinkbasin 1, you see a apple 2.",
    ]


def test_slicing_needs_a_knife_in_hand_and_the_thing_at_this_place():
    game = small_game("two")
    _, texts = play(
        game,
        "go to countertop 1",
        "take knife 1 from countertop 1",
        "slice apple 2 with knife 1",
        "move knife 1 to countertop 1",
        "take apple 2 from countertop 1",
        "examine apple 2",
    )
    assert texts[2] == "You sliced the apple 2 with the knife 1."
    assert texts[-1] == "This is a sliced apple 2."
    holding, _ = play(game, "go to countertop 1", "take knife 1 from countertop 1")
    away, _ = play(
        game, "go to countertop 1", "take knife 1 from countertop 1", "go to sinkbasin 1"
    )
    assert "slice apple 2 with knife 1" in admissible_commands(game, holding)
    assert not step(game, away, "slice apple 2 with knife 1").valid
    assert not step(game, holding, "slice apple 2 with apple 2").valid


@pytest.mark.parametrize(
    ("treatments", "words"),
    [
        ((), "There's nothing special about apple 2."),
        (("heat",), "This is a hot apple 2."),
        (("clean",), "This is a clean apple 2."),
        (("clean", "heat"), "This is a hot and clean apple 2."),
        (("slice", "heat"), "This is a hot sliced apple 2."),
        (("slice", "cool"), "This is a cool sliced apple 2."),
        (("slice", "clean"), "This is a clean sliced apple 2."),
        (("slice", "clean", "heat"), "This is a hot and clean sliced apple 2."),
        (("slice", "clean", "cool"), "This is a cool and clean sliced apple 2."),
        (("cool", "heat"), "This is a hot apple 2."),
    ],
)
def test_conditions_of_a_thing_in_words(treatments, words):
    game = small_game("lamp")
    start = ["go to countertop 1"]
    if "slice" in treatments:
        start += ["take knife 1 from countertop 1", "slice apple 2 with knife 1",
                  "move knife 1 to countertop 1"]  # fmt: skip
    ways = {
        "heat": ("go to microwave 1", "heat apple 2 with microwave 1"),
        "cool": ("go to fridge 1", "cool apple 2 with fridge 1"),
        "clean": ("go to sinkbasin 1", "clean apple 2 with sinkbasin 1"),
        "slice": (),
    }
    commands = [*start, "take apple 2 from countertop 1"]
    for treatment in treatments:
        commands += ways[treatment]
    assert play(game, *commands, "examine apple 2")[1][-1] == words


def test_receptacles_that_share_a_place():
    game = small_game()
    state, texts = play(
        game,
        "go to drawer 1",
        "look",
        "open drawer 1",
        "take book 1 from drawer 1",
        "look",
        "move book 1 to countertop 1",
        "look",
    )
    assert texts[1] == (
        "You are facing the countertop 1, and drawer 1. Next to it, you see nothing."
    )
    assert texts[4].endswith("Next to it, you see nothing.")
    # The book stands at this place and was taken out of the drawer: it is "next to" it.
    assert texts[6].endswith("Next to it, you see a book 1.")
    refused = step(game, state, "go to countertop 1")
    assert (refused.feedback, refused.valid, refused.state) == ("Nothing happens.", False, state)


def test_a_lamp_can_be_used_in_a_closed_drawer_and_only_ever_turns_on():
    game = small_game("lamp")
    state, texts = play(game, "go to drawer 2", "use desklamp 1", "use desklamp 1")
    assert texts[1:] == ["You turn on the desklamp 1."] * 2
    assert not state.won


def test_lamp_task_is_won_where_the_lamp_is_on_while_the_thing_is_held():
    game = small_game("lamp")
    take = ("go to drawer 1", "open drawer 1", "take book 1 from drawer 1")
    assert play(game, *take, "go to drawer 2", "use desklamp 1")[0].won
    before, _ = play(game, "go to drawer 2", "use desklamp 1", *take)
    assert not before.won
    assert play(game, "go to drawer 2", "use desklamp 1", *take, "go to drawer 2")[0].won


def test_a_thing_listed_in_two_receptacles_stays_in_the_other_when_taken():
    facts = FACTS + "(inReceptacle Apple_bar__minus_01 Fridge_bar_1)"
    game = small_game("two", facts)
    state, _ = play(game, "go to countertop 1", "take apple 2 from countertop 1", "go to fridge 1")
    opened = step(game, state, "open fridge 1")
    assert opened.feedback.endswith("In it, you see a apple 2, and a apple 1.")


@pytest.mark.parametrize(
    "command",
    [
        "",
        "   ",
        "go to",
        "go to ",
        "go to moon 1",
        "take apple 1 from fridge 1",
        "take apple 9 from countertop 1",
        "TAKE apple 2 from countertop 1",
        "take  apple 2 from countertop 1",
        "take apple 2 from countertop 1 now",
        "put",
        "move",
        "examine apple 2",
        "look around",
        "use apple 2",
        "heat",
        "open countertop 1",
        "close drawer 1",
        "go to fridge 1\x00",
        "\x1b[31mlook",
        "l\u00f6ok",
        "look" * 250_000,
        "take " + "apple 2 from " * 80_000,
    ],
)
def test_what_is_not_admissible_does_nothing(command):
    game = small_game()
    state, _ = play(game, "go to countertop 1")
    outcome = step(game, state, command)
    assert outcome == (state, "Nothing happens.", None, False)
    assert outcome.state is state


def test_blanks_around_a_command_are_ignored():
    game = small_game()
    assert step(game, game.initial, " \tgo to countertop 1\n").valid


def test_events_name_the_completed_subgoal():
    game = small_game()
    state, _ = play(game, "go to countertop 1", "take apple 2 from countertop 1")
    moved = step(game, state, "go to sinkbasin 1")
    assert moved.event == Event("at", "", "sinkbasin 1")
    cleaned = step(game, moved.state, "clean apple 2 with sinkbasin 1")
    assert cleaned.event == Event("cleaned", "apple 2", "sinkbasin 1")
    placed = step(game, cleaned.state, "move apple 2 to sinkbasin 1")
    assert placed.event == Event("placed", "apple 2", "sinkbasin 1")
    assert placed.state.won
    assert step(game, placed.state, "look").event is None


def test_saved_state_continues_as_the_original():
    game = small_game()
    state, _ = play(game, "go to countertop 1", "take apple 2 from countertop 1")
    restored = parse_state(dump_state(state))
    assert restored == state
    assert hash(restored) == hash(state)
    for command in ("go to sinkbasin 1", "move apple 2 to sinkbasin 1"):
        state, restored = step(game, state, command).state, step(game, restored, command).state
    assert restored == state
    assert restored.won


def test_winning_can_be_undone():
    game = small_game()
    state, _ = play(
        game,
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "go to sinkbasin 1",
        "move apple 2 to sinkbasin 1",
    )
    assert state.won
    assert not step(game, state, "take apple 2 from sinkbasin 1").state.won


def test_what_a_knife_reaches_is_listed_anew_where_only_the_place_of_a_thing_changed():
    """A recorded scene may not say where a thing in a receptacle lies, until it is put there."""
    facts = FACTS.replace("(objectAtLocation Apple_bar__minus_01 loc_bar_1)", "")
    game, cut = small_game("place", facts), "slice apple 2 with knife 1"
    state, _ = play(game, "go to countertop 1", "take knife 1 from countertop 1")
    assert cut not in admissible_commands(game, state)
    for command in ("move knife 1 to countertop 1", "take apple 2 from countertop 1",
                    "move apple 2 to countertop 1", "take knife 1 from countertop 1"):  # fmt: skip
        state = step(game, state, command).state
    assert cut in admissible_commands(game, state)


def test_words_after_a_command_that_takes_none_are_not_understood():
    game = small_game()
    assert step(game, game.initial, "help").valid
    for command in ("help me", "look around", "inventory list", " help "):
        outcome = step(game, game.initial, command)
        assert outcome.valid == (command == " help ")


def test_the_thing_with_the_lowest_number_is_a_thing():
    """Number 0 in hand is not an empty hand."""
    game = small_game()
    assert game.objects.number["apple 2"] == 0
    state, texts = play(game, "go to countertop 1", "take apple 2 from countertop 1", "inventory")
    assert texts[-1] == "You are carrying: a apple 2."
    assert not step(game, state, "take knife 1 from countertop 1").valid
    listed = admissible_commands(game, state)
    assert {"move apple 2 to countertop 1", "examine apple 2"} <= set(listed)
    assert not any(command.startswith("take ") for command in listed)


def test_only_what_can_be_taken_is():
    game = small_game()
    state, _ = play(game, "go to drawer 2", "open drawer 2")
    assert not step(game, state, "take desklamp 1 from drawer 2").valid
    assert not step(game, state, "take book 1 from drawer 2").valid


def test_heat_and_cold_drive_out_each_other_and_change_nothing_else():
    game = small_game()
    state, _ = play(game, "go to countertop 1", "take apple 2 from countertop 1")
    mug, apple = (1 << game.objects.number[name] for name in ("mug 1", "apple 2"))
    hot = step(game, step(game, state, "go to microwave 1").state, "heat apple 2 with microwave 1")
    assert (hot.state.hot, hot.state.cool) == (apple, 0)
    before = hot.state._replace(hot=apple | mug)
    cold = step(game, step(game, before, "go to fridge 1").state, "cool apple 2 with fridge 1")
    assert (cold.state.hot, cold.state.cool) == (mug, apple)
    again = cold.state._replace(cool=apple | mug)
    warm = step(game, step(game, again, "go to microwave 1").state, "heat apple 2 with microwave 1")
    assert (warm.state.hot, warm.state.cool) == (mug | apple, mug)


def test_only_lamps_are_used_and_each_is_listed_once():
    twice = (
        "(inReceptacle DeskLamp_bar_1 Drawer_bar_2) (receptacleAtLocation Drawer_bar_1 loc_bar_1)"
    )
    facts = FACTS.replace("(receptacleAtLocation Drawer_bar_1 loc_bar_5)", "") + twice
    game = small_game("place", facts)
    state, _ = play(game, "go to countertop 1")
    listed = admissible_commands(game, state)
    assert [command for command in listed if command.startswith("use ")] == ["use desklamp 1"]
