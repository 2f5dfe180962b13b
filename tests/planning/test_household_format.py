"""Text formats: nothing that is said gets lost, and what is read keeps what is new."""

import os
import random
import re

import pytest

from envs.household.data import data_root, list_games
from envs.household.describe import opening_text
from envs.household.engine import admissible_commands, step
from envs.household.format import FORMATS, Reply
from envs.household.game import load_game
from envs.household.generator import generate_games
from envs.household.memory import Memory
from experiments.alfworld_data import entity_tokenizer, plain_tokenizer
from jaxagent.planning.reply_grammar import reply_grammar

COMPACT = FORMATS["compact"]
SUBGOALS = (
    *("find egg", "take egg 1", "put egg 1 in/on fridge 1", "put egg 1 in/on fridge"),
    *("use desklamp 1", "clean egg 1", "heat egg 1", "cool egg 1"),
)


def check_round_trips(game, tokenizer, steps, seed=0):
    """Every admissible command of some random states, to ids and back."""
    rng, state, checked = random.Random(seed), game.initial, 0
    for _ in range(steps):
        commands = admissible_commands(game, state)
        for command in commands:
            ids = tokenizer.encode(COMPACT.command(command))
            assert COMPACT.read(tokenizer.decode(ids)).command == command
            assert len(ids) <= 3
            checked += 1
        state = step(game, state, rng.choice(commands)).state
    return checked


@pytest.fixture(scope="module")
def games():
    return [made.game for made in generate_games(12, 5)]


def test_no_command_of_generated_games_is_lost(games):
    tokenizer = entity_tokenizer()
    assert sum(check_round_trips(game, tokenizer, 15) for game in games) > 1000
    assert not tokenizer.missing


@pytest.mark.alfworld
@pytest.mark.skipif("ALFWORLD_DATA" not in os.environ, reason="needs the benchmark's games")
@pytest.mark.slow
def test_no_command_of_the_train_games_is_lost():
    tokenizer = entity_tokenizer()
    for path in list_games(data_root(), "train"):
        check_round_trips(load_game(path), tokenizer, 3)
    assert not tokenizer.missing


@pytest.mark.parametrize(
    ("task", "marker"),
    [
        ("heat some egg and put it in fridge", "> fridge egg left fridge 1"),
        ("look at mug under the desklamp", "> desklamp mug left fridge 1"),
        ("put two cd in safe", "> safe cd left fridge 1"),
        ("warm the egg up and store it away", "> left fridge 1"),
    ],
)
def test_the_first_marker_holds_the_target_the_thing_and_where_to_look(task, marker):
    opening = f"You see a fridge 1.\n\nYour task is to: {task}."
    assert COMPACT.notes(opening).marker() == marker
    assert FORMATS["plain"].notes(opening).marker() == "\n> "


def test_notes_of_an_episode_by_hand():
    notes = COMPACT.notes(
        "you see a cabinet 2, a cabinet 1, a drawer 1, and a fridge 1.\n\n"
        "Your task is to: find two egg and put them in fridge."
    )
    said = [
        ("You arrive at cabinet 2. The cabinet 2 is closed.",
         "> fridge egg left cabinet 2 drawer 1 fridge 1"),
        ("You open the cabinet 2. The cabinet 2 is open. In it, you see a cup 1, and a egg 3.",
         "> fridge egg egg 3 cabinet 2"),
        ("You pick up the egg 3 from the cabinet 2.", "> fridge egg"),
        ("Nothing happens.", "> fridge egg"),
        ("You arrive at fridge 1. The fridge 1 is open. In it, you see nothing.", "> fridge egg"),
        ("You move the egg 3 to the fridge 1.", "> fridge egg left cabinet 1 drawer 1"),
        ("You pick up the egg 3 from the fridge 1.", "> fridge egg"),
        ("You move the egg 3 to the drawer 1.", "> fridge egg egg 3 drawer 1"),
    ]  # fmt: skip
    for observation, marker in said:
        notes.read(observation)
        assert notes.marker() == marker


def test_a_thing_that_lies_where_it_belongs_is_wanted_only_if_it_must_be_treated_first():
    room = "you see a cabinet 1, and a fridge 1.\n\nYour task is to: "
    seen = "You open the fridge 1. The fridge 1 is open. In it, you see a egg 1."
    for task, marker in [("put some egg in fridge", "> fridge egg left cabinet 1"),
                         ("put a hot egg in fridge", "> fridge egg egg 1 fridge 1")]:  # fmt: skip
        notes = COMPACT.notes(f"{room}{task}.")
        notes.read(seen)
        assert notes.marker() == marker
    notes.read("You pick up the egg 1 from the fridge 1.")
    notes.read("You heat the egg 1 using the microwave 1.")
    notes.read("You move the egg 1 to the fridge 1.")
    assert notes.marker() == "> fridge egg left cabinet 1"


def test_under_a_lamp_the_lamp_is_looked_for_with_the_thing_in_hand():
    notes = COMPACT.notes(
        "you see a desk 1, and a shelf 1.\n\nYour task is to: look at mug under the desklamp."
    )
    notes.read("You arrive at desk 1. On the desk 1, you see a pen 2, and a mug 1.")
    assert notes.marker() == "> desklamp mug mug 1 desk 1"
    notes.read("You pick up the mug 1 from the desk 1.")
    assert notes.marker() == "> desklamp mug left shelf 1"
    notes.read("You arrive at shelf 1. On the shelf 1, you see a desklamp 2.")
    assert notes.marker() == "> desklamp mug desklamp 2 shelf 1"


def test_notes_agree_with_what_the_expert_remembers(games):
    rng, asked = random.Random(0), 0
    for game in games:
        state, text = game.initial, opening_text(game, game.initial)
        notes, memory = COMPACT.notes(text), Memory(text)
        for _ in range(40):
            words, has_left, left = notes.marker().partition(" left")
            first = {}
            for place in memory.receptacles:
                if place not in memory.contents:
                    first.setdefault(place.rpartition(" ")[0], place)
            if has_left:
                assert left.split() == " ".join(first.values()).split()
            kind = game.task.target if memory.held else game.task.item
            known = {f"{name} {place}" for name, place in memory.where(kind)}
            said = " ".join(words.split()[3:])
            assert set(re.findall(r"[a-z]+ \d+ [a-z]+ \d+", said)) <= known
            asked += bool(has_left) + bool(said)
            state, text, _, _ = step(game, state, rng.choice(admissible_commands(game, state)))
            notes.read(text)
            memory.read(text)
    assert asked > 100


@pytest.mark.parametrize("name", FORMATS)
def test_replies_come_back_through_every_format(name, games):
    style = FORMATS[name]
    tokenizer = entity_tokenizer() if name.startswith("compact") else plain_tokenizer(games)
    commands = ["look", "take egg 1 from fridge 1", "put egg 1 in/on fridge 1", "slice egg 1 with "
                "knife 1", "go to drawer 3", "use desklamp 1"]  # fmt: skip
    for command in commands:
        for subgoal in ("", *SUBGOALS) if style.hierarchical else ("",):
            reply = Reply(command, subgoal)
            text = style.subgoal(reply) + " " * bool(style.subgoal(reply)) + style.command(command)
            text = text.replace("\n ", "\n")
            assert style.read(tokenizer.decode(tokenizer.encode(text))) == reply


def test_the_grammar_ends_exactly_with_the_reply(games):
    for name, style in FORMATS.items():
        tokenizer = entity_tokenizer() if name.startswith("compact") else plain_tokenizer(games)
        grammar = reply_grammar(style, tokenizer)
        for reply in (Reply("look"), Reply("take egg 1 from fridge 1", "find egg")):
            reply = reply if style.hierarchical else reply._replace(subgoal="")
            ids = tokenizer.encode(style.subgoal(reply)) + tokenizer.encode(
                style.command(reply.command)
            )
            state = grammar.start
            said_command = []
            for token in ids:
                assert state != grammar.end
                assert grammar.permitted[state, token]
                if grammar.is_command[state]:
                    said_command.append(token)
                state = grammar.following[state, token]
            assert state == grammar.end
            assert said_command == tokenizer.encode(style.command(reply.command))
            assert len(ids) <= grammar.max_tokens


def test_nonsense_ends_too_and_is_handed_on_as_it_is():
    tokenizer = entity_tokenizer()
    grammar = reply_grammar(FORMATS["compact-hierarchical"], tokenizer)
    for first in range(tokenizer.vocab_size):
        state, count = grammar.start, 0
        while state != grammar.end:
            state, count = grammar.following[state, first], count + 1
            assert count <= grammar.max_tokens
    assert COMPACT.read("egg 1 fridge 1").command == "egg 1 fridge 1"
    assert COMPACT.read("take egg 1").command == "take egg 1"
    assert FORMATS["compact-hierarchical"].read("sees look") == Reply("sees look")


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("Nothing happens.", "nothing"),
        ("You arrive at drawer 1. The drawer 1 is closed.", "closed"),
        ("You arrive at loc 3. On the desk 1, you see a pen 2, and a cd 1.", "sees pen 2 cd 1"),
        ("You open the fridge 1. The fridge 1 is open. In it, you see nothing.", "sees"),
        ("The fridge 1 is open. In it, you see a egg 1.", "sees egg 1"),
        ("You pick up the egg 1 from the fridge 1.", "done"),
        ("You put the egg 1 in/on the fridge 1.", "done"),
        ("You turn on the desklamp 1.", "done"),
        (
            "You are facing the bed 1, and desk 1. Next to it, you see a pen 1.",
            "facing bed 1 desk 1 beside pen 1",
        ),
        ("You are carrying: a egg 1.", "holds egg 1"),
        ("You are not carrying anything.", "holds"),
        ("This is a hot and clean sliced egg 1.", "is hot clean sliced"),
        ("This is a cold egg 1.", "is cold"),
        ("This is a normal bowl 1. In it, you see a egg 2.", "inside egg 2"),
        ("There's nothing special about egg 1.", "plain"),
        ("A strange noise from drawer 2!", "other drawer 2"),
    ],
)
def test_compact_observations(printed, kept):
    assert COMPACT.observation(printed) == kept


def test_the_opening_keeps_the_task_and_the_order_of_the_room():
    text = (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a drawer 2, a drawer 1, and a fridge 1.\n\nYour task is to: {}."
    )
    opening = COMPACT.opening(text.format("heat some egg and put it in fridge"))
    assert opening == "task heat egg fridge sees drawer 2 drawer 1 fridge 1"
    opening = COMPACT.opening(text.format("warm up an egg"))
    assert opening == "task warm up an egg sees drawer 2 drawer 1 fridge 1"
    plain = FORMATS["plain"].opening(text.format("warm up an egg"))
    assert plain.startswith("You are in the middle")
    assert plain.endswith("warm up an egg.")


def test_compact_formats_need_their_own_tokeniser():
    class Other:
        vocab_size = 3

    with pytest.raises(ValueError, match="format compact needs a tokeniser of words and things"):
        reply_grammar(COMPACT, Other())  # type: ignore[arg-type]
