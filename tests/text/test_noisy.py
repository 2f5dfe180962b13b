"""Demonstrations with mistakes: the labels are the expert's, and depend on what was printed."""

import random

from envs.household.engine import NOTHING_HAPPENS, admissible_commands, step
from envs.household.memory import Memory
from envs.household.noisy_demonstrations import Noise, Reached, demonstrate_noisily
from envs.household.searching_expert import Choice
from tests.text.small import small_game

CALM = Noise(random_shares=(0.0,), wide_search=0.0)
WILD = Noise(random_shares=(0.4,), refused=0.5, repeats=0.5, wide_search=0.5)


def test_without_noise_what_is_done_is_what_is_right(generated):
    for made in generated:
        episode = demonstrate_noisily(made.game, random.Random(0), CALM)
        assert episode is not None
        assert all(turn.command == turn.label for turn in episode.turns)


def test_every_episode_is_what_the_engine_plays_and_ends_won(generated):
    done = refused = strayed = 0
    for number, made in enumerate(generated):
        episode = demonstrate_noisily(made.game, random.Random(number), WILD)
        if episode is None:
            continue
        state = made.game.initial
        for turn in episode.turns:
            assert turn.command
            assert turn.label
            strayed += turn.command != turn.label
            state, text, _, is_valid = step(made.game, state, turn.command)
            assert text == turn.observation
            refused += not is_valid
        assert state.won
        done += 1
    assert done >= len(generated) * 0.8
    assert strayed > 2 * done
    assert refused > done


def test_a_refused_command_is_followed_by_another_label(generated):
    """The loop that kills imitators: to repeat what was refused."""
    answered = repeated = 0
    for number, made in enumerate(generated):
        episode = demonstrate_noisily(made.game, random.Random(number), WILD)
        for before, after in zip(episode.turns, episode.turns[1:]) if episode else ():
            if before.observation == NOTHING_HAPPENS:
                answered += 1
                repeated += after.label == before.command
    assert answered > 20
    assert repeated == 0


def test_what_stands_at_the_same_place_is_gone_to_before_it_is_used():
    # Drawer 1 of the small kitchen shares its place with the counter.
    game = small_game()
    state = step(game, game.initial, "go to countertop 1").state
    assert "open drawer 1" in admissible_commands(game, state)
    memory = Memory("Looking quickly around you, you see a drawer 1, and a countertop 1.\n")
    reached = Reached()
    reached.read("go to countertop 1", "You arrive at countertop 1.")
    choice = Choice("open drawer 1", "find book")
    assert reached.visible(choice, memory) == "go to drawer 1"
    reached.read("go to drawer 1", NOTHING_HAPPENS)
    assert reached.visible(choice, memory) == "open drawer 1"
    assert reached.visible(Choice("examine countertop 1", ""), memory) == "examine countertop 1"
    reached.read("go to fridge 1", "You arrive at fridge 1.")
    assert reached.visible(choice, memory) == "go to drawer 1"
    reached.read(
        "look", "You are facing the countertop 1, and drawer 1. Next to it, you see nothing."
    )
    assert reached.visible(choice, memory) == "open drawer 1"


def test_chance_is_decided_by_the_generator(generated):
    game = generated[0].game
    first, again = (demonstrate_noisily(game, random.Random(3), WILD) for _ in range(2))
    assert first == again
    assert demonstrate_noisily(game, random.Random(4), WILD) != first
    assert demonstrate_noisily(game, random.Random(3), WILD, horizon=1) is None
