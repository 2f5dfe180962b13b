"""Playing many games with a cache gives what reading each history afresh gives."""

import numpy as np
import pytest

from envs.text.bridge import BatchEnv
from envs.text.generator import generate_games
from jaxagent.planning import household_player
from jaxagent.planning.household_format import Reply
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.reply_grammar import reply_grammar
from tests.planning.small_planner import logits_after, small_planner

TURNS = 3


@pytest.fixture(scope="module")
def games():
    return [made.game for made in generate_games(6, 5)]


def greedy_reply(model, history, commands):
    """One reply, token by token, each from the whole history; constrained if commands are given."""
    grammar = reply_grammar(model.style, model.tokenizer)
    encoded = [model.tokenizer.encode(model.style.command(command)) for command in commands or ()]
    state, said, command = grammar.start, [], []
    while state != grammar.end and len(said) < grammar.max_tokens:
        logits = np.array(logits_after(model, history + said))
        if commands is not None:
            begun = [c[len(command)] for c in encoded if c[: len(command)] == command]
            allowed = np.zeros(len(logits), bool)
            allowed[begun if grammar.is_command[state] else grammar.permitted[state]] = True
            logits[~allowed] = -np.inf
        token = int(np.argmax(logits))
        said.append(token)
        if grammar.is_command[state]:
            command.append(token)
        state = grammar.following[state, token]
    return said


@pytest.mark.parametrize(
    ("name", "is_constrained"),
    [("compact-hierarchical", False), ("compact-hierarchical", True), ("plain", True)],
)
def test_each_turn_is_that_of_the_whole_history(name, is_constrained, games, monkeypatch):
    monkeypatch.setattr(household_player, "_FEWEST_ROWS", 1)
    model = small_planner(name, games, seed=3, max_positions=512)
    games = sorted(games, key=lambda game: len(game.receptacles.names))[:3]
    player = HouseholdPlayer(model, is_constrained=is_constrained)
    encode, style = model.tokenizer.encode, model.style
    env = BatchEnv(len(games))
    observations, info = env.reset(games)
    player.begin(observations)
    notes = [style.notes(text) for text in observations]
    histories = [
        encode(style.opening(text)) + encode(own.marker()) for text, own in zip(observations, notes)
    ]
    for turn in range(TURNS):
        # Some end early, so that rows are given up.
        admissible = [c if turn < 1 or n < 1 else [] for n, c in enumerate(info.admissible)]
        replies = player.act(observations, admissible)
        for number, commands in enumerate(admissible):
            if not commands:
                assert replies[number] == Reply("")
                continue
            said = greedy_reply(model, histories[number], commands if is_constrained else None)
            expected = style.read(model.tokenizer.decode(said))
            assert replies[number] == expected
            if is_constrained:
                assert replies[number].command in commands
            histories[number] += said
        step = env.step([reply.command for reply in replies])
        observations, info = step.observations, step.info
        for number in range(len(games)):
            if admissible[number]:
                notes[number].read(observations[number])
                text = style.observation(observations[number])
                histories[number] += encode(text) + encode(notes[number].marker())
    assert max(map(len, histories)) < 512


def test_put_of_the_older_wording_is_given_back_as_the_game_words_it(games):
    model = small_planner("compact")
    player = HouseholdPlayer(model, is_constrained=True)
    player.begin(["Your task is to: look at egg under the desklamp."])
    replies = player.act([""], [["put egg 1 in/on fridge 1"]])
    assert replies == [Reply("put egg 1 in/on fridge 1")]


def test_when_the_context_overflows_the_oldest_turns_go_and_the_task_stays(games):
    model = small_planner("compact", max_positions=96)
    player = HouseholdPlayer(model)
    opening = "Looking around you, you see a desk 1.\n\nYour task is to: put a pen in desk."
    player.begin([opening])
    seen = "On the desk 1, you see a pen 1, a cd 1, a book 1, and a mug 1."
    for _ in range(20):
        player.act([seen], [["look"]])
        game = player._games[0]
        assert len(game.opening) + sum(map(len, game.turns)) <= 96 + 7
    assert player.overflows >= 1
    task = model.tokenizer.encode("task put pen desk sees desk 1")
    assert game.opening[: len(task)] == task
    assert f"overflowed {player.overflows} times" in player.notes()[0]


def test_what_is_dropped_is_read_again_as_if_it_had_never_been():
    model = small_planner("compact", max_positions=96)
    player = HouseholdPlayer(model)
    player.begin(["Looking around you, you see a desk 1.\n\nYour task is to: put a pen in desk."])
    seen = "On the desk 1, you see a pen 1, a cd 1, a book 1, and a mug 1."
    while not player.overflows:
        replies = player.act([seen], [["look"]])
    game = player._games[0]
    history = game.opening + [token for turn in game.turns[:-1] for token in turn]
    said = greedy_reply(model, history, None)
    assert replies == [model.style.read(model.tokenizer.decode(said))]


def test_the_number_of_programs_is_fixed(games):
    model = small_planner("compact", seed=9)
    household_player._play_turn.clear_cache()
    counts = []
    for _ in range(2):
        player = HouseholdPlayer(model)
        env = BatchEnv(len(games))
        observations, info = env.reset(games)
        player.begin(observations)
        for _ in range(30):
            replies = player.act(observations, info.admissible)
            step = env.step([reply.command for reply in replies])
            observations, info = step.observations, step.info
        counts.append(household_player._play_turn._cache_size())
    assert counts[0] == counts[1] <= 4  # few or many new tokens, a small or the full cache
