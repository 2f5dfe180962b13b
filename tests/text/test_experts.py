"""The experts: the one is optimal, the other knows only what it reads."""

import random

import pytest

from envs.household.demonstrations import demonstrate, label_subgoals, main, write_demonstrations
from envs.household.describe import opening_text
from envs.household.engine import Event, admissible_commands, step
from envs.household.generator import generate_games
from envs.household.memory import Memory
from envs.household.searching_expert import SearchingExpert
from envs.household.shortest_plan import shortest_plan
from envs.household.subgoals import serves
from envs.household.task import TASK_TYPES, Task, read_sentence, read_task
from tests.text.reference import fewest_steps, useful_commands
from tests.text.small import FACTS, GOALS, small_game

TWICE = FACTS + "(inReceptacle Apple_bar__minus_01 Microwave_bar_1)"
SINGLE_STEPS = {"place": 4, "lamp": 5, "clean": 6, "heat": 7, "cool": 7}


@pytest.mark.parametrize("goal", sorted(SINGLE_STEPS))
def test_no_shorter_plan_exists(goal):
    game = small_game(goal)
    plan = shortest_plan(game)
    assert len(plan) == SINGLE_STEPS[goal]
    assert fewest_steps(game, limit=len(plan) - 1) is None


def test_plan_for_two_things():
    # By hand: counter, take, microwave, open, put; fridge, open, take, microwave, put.
    assert len(shortest_plan(small_game("two"))) == 10


def test_a_thing_in_two_receptacles_need_not_be_put_down():
    """An apple on the counter that is also listed in the microwave: only the other one is moved."""
    game = small_game("two", TWICE)
    plan = shortest_plan(game)
    assert len(plan) == 6
    assert fewest_steps(game, limit=len(plan) - 1) is None


def walked(game, seed, steps=12):
    """A state of a game after random steps, the last before a win."""
    rng, state = random.Random(seed), game.initial
    for _ in range(steps):
        after = step(game, state, rng.choice(admissible_commands(game, state))).state
        state = state if after.won else after
    return state


@pytest.mark.parametrize("goal", sorted(GOALS))
def test_plans_from_the_middle_of_a_game_are_the_shortest(goal):
    """Where something else is in hand the plan may be longer, as the docstring says."""
    game, compared = small_game(goal), 0
    for seed in range(15):
        start = state = walked(game, seed)
        plan = shortest_plan(game, start)
        for command in plan:
            outcome = step(game, state, command)
            assert outcome.valid, (plan, command)
            state = outcome.state
        assert state.won
        kind = game.objects.types[start.held].removesuffix("type") if start.held >= 0 else ""
        if kind in ("", game.task.item):
            best = fewest_steps(game, start, limit=len(plan), commands=useful_commands)
            assert len(plan) == best
            if len(plan) <= 5:
                assert len(plan) == fewest_steps(game, start, limit=len(plan))
            compared += 1
    assert compared >= 7


def test_plans_of_generated_games_are_the_shortest():
    compared = 0
    for made in generate_games(36, 13, "unseen", won_by_search=False):
        plan = shortest_plan(made.game)
        if len(plan) <= 7:
            best = fewest_steps(made.game, limit=len(plan), commands=useful_commands)
            assert len(plan) == best, made.name
            compared += 1
    assert compared >= 24


def test_impossible_tasks_have_no_plan():
    facts = FACTS.replace("(canContain SinkBasinType AppleType)", "")
    assert shortest_plan(small_game("place", facts)) is None
    assert shortest_plan(small_game("(isSliced Apple_bar__minus_01)")) is None


def search(game, horizon=50, **settings):
    """Steps in which the searching expert wins; None if it does not."""
    state, text = game.initial, opening_text(game, game.initial)
    expert = SearchingExpert(text, **settings)
    for number in range(horizon):
        choice = expert.act(text, admissible_commands(game, state))
        outcome = step(game, state, choice.command)
        assert outcome.valid, choice
        assert choice.subgoal
        state, text = outcome.state, outcome.feedback
        if state.won:
            return number + 1
    return None


@pytest.mark.parametrize("split", ["train", "unseen"])
def test_searching_expert_wins_nearly_all_games_within_the_horizon(split):
    """Games that it has not chosen: of 3,000 it wins 99.8 % within the horizon."""
    games = generate_games(180, 11, split, won_by_search=False)
    steps = [search(made.game) for made in games]
    assert sum(s is not None for s in steps) >= 0.98 * len(steps)


def test_searching_expert_wins_every_game_given_time():
    games = generate_games(120, 20, "unseen", won_by_search=False)
    steps = [search(made.game, horizon=150) for made in games]
    assert None not in steps
    assert max(steps) > 50  # among them is one that the panel leaves out


def test_it_is_never_better_than_the_omniscient_one(generated):
    for made in generated:
        steps = search(made.game, horizon=150)
        assert steps >= len(made.plan)


def test_temperature_changes_the_order_of_search(generated):
    games = [made.game for made in generated]
    greedy = [search(game, 150) for game in games]
    warm = [search(game, 150, temperature=2.0, seed=1) for game in games]
    assert warm == [search(game, 150, temperature=2.0, seed=1) for game in games]
    assert warm != greedy
    assert sum(map(bool, warm)) == len(warm)
    with pytest.raises(ValueError, match="temperature"):
        SearchingExpert(opening_text(games[0], games[0].initial), temperature=-1.0)


def test_free_text_is_refused():
    with pytest.raises(ValueError, match="follows none of the benchmark's templates"):
        SearchingExpert("-= Welcome =-\n\nYour task is to: make me a sandwich.")


def test_memory_reads_every_kind_of_text():
    memory = Memory(opening_text(small_game(), small_game().initial))
    assert memory.task_sentence == "put a apple in sinkbasin"
    assert memory.receptacles[-1] == "sinkbasin 1"
    memory.read("You arrive at fridge 1. The fridge 1 is closed.")
    assert memory.closed == {"fridge 1"}
    memory.read(
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1, and a egg 2."
    )
    assert memory.closed == set()
    assert memory.where("egg") == [("egg 2", "fridge 1")]
    memory.read("You pick up the egg 2 from the fridge 1.")
    assert (memory.held, memory.where("egg")) == ("egg 2", [])
    memory.read("You heat the egg 2 using the microwave 1.")
    assert memory.treated == {"egg 2"}
    for placed in (
        "You move the egg 2 to the sinkbasin 1.",
        "You put the egg 2 in/on the sinkbasin 1.",
    ):
        memory.held = "egg 2"
        memory.read(placed)
        assert (memory.held, memory.placed[-1]) == ("", ("egg 2", "sinkbasin 1"))


@pytest.mark.parametrize(
    ("sentence", "task"),
    [
        ("put some apple on countertop", Task(TASK_TYPES[0], "apple", "countertop")),
        ("put a apple in fridge", Task(TASK_TYPES[0], "apple", "fridge")),
        ("look at cd under the desklamp", Task(TASK_TYPES[1], "cd", "desklamp")),
        ("clean some pan and put it in stoveburner", Task(TASK_TYPES[2], "pan", "stoveburner")),
        ("put a hot mug in cabinet", Task(TASK_TYPES[3], "mug", "cabinet")),
        ("cool some pot and put it in shelf", Task(TASK_TYPES[4], "pot", "shelf")),
        ("find two book and put them in bed", Task(TASK_TYPES[5], "book", "bed")),
        ("put two book in bed", Task(TASK_TYPES[5], "book", "bed")),
        ("put the book on the bed", None),
    ],
)
def test_task_sentences(sentence, task):
    assert read_sentence(sentence) == task


@pytest.mark.parametrize(
    "goal",
    [
        "(and (inReceptacle ?o ?r) (objectType ?o AppleType))",
        "(and (receptacleType ?r FridgeType))",
        "(and (objectType ?o AppleType) (receptacleType ?r FridgeType) (receptacleType ?s Bed))",
        "(and (objectType ?o AppleType) (objectType ?p MugType) (receptacleType ?r FridgeType))",
    ],
)
def test_goals_of_other_kinds_are_no_task(goal):
    goal = goal.lower().replace("(", " ( ").replace(")", " ) ").split()
    assert read_task(nested(iter(goal[1:]))) is None
    assert read_task([[], ["and"]]) is None


def nested(words):
    """The list up to the parenthesis that closes it."""
    found = []
    for word in words:
        if word == ")":
            break
        found.append(nested(words) if word == "(" else word)
    return found


@pytest.mark.parametrize("expert", ["searching", "omniscient"])
def test_demonstrations_replay_and_label_every_command(expert, generated):
    for made in generated[:12]:
        record = demonstrate(made.game, expert, horizon=150)
        state, texts = made.game.initial, [opening_text(made.game, made.game.initial)]
        for command in record["commands"]:
            outcome = step(made.game, state, command)
            state = outcome.state
            texts.append(outcome.feedback)
        assert state.won
        assert texts == record["observations"]
        assert len(record["subgoals"]) == len(record["commands"])
        assert all(record["subgoals"])


def test_labels_name_the_next_thing_the_task_needs():
    task = Task(TASK_TYPES[3], "egg", "bowl")
    events = [
        Event("at", "", "fridge 1"),
        Event("holds", "egg 1", "fridge 1"),
        None,
        Event("heated", "egg 1", "microwave 1"),
        Event("placed", "egg 1", "bowl 1"),
        None,
    ]
    assert [serves(task, event) for event in events] == [False, True, False, True, True, False]
    assert label_subgoals(task, events) == [
        "take egg 1", "take egg 1", "heat egg 1", "heat egg 1", "put egg 1 in/on bowl 1", "",
    ]  # fmt: skip


def test_demonstration_files(tmp_path, capsys):
    path = tmp_path / "demos.jsonl"
    assert main(["--out", str(path), "--generated", "6"]) == 0
    assert len(path.read_text().splitlines()) == 6
    assert [file.name for file in tmp_path.iterdir()] == ["demos.jsonl"]
    games = [made.game for made in generate_games(6, 0)]
    assert write_demonstrations(path, games, "omniscient", horizon=1) == (0, 6)
    assert main(["--out", str(path), "--data", str(tmp_path)]) == 2
    assert "has no folder json_2.1.1" in capsys.readouterr().err


def test_an_error_leaves_no_file_behind(tmp_path, generated):
    def games():
        yield generated[0].game
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_demonstrations(tmp_path / "demos.jsonl", games(), "omniscient")
    assert not list(tmp_path.iterdir())
    assert main(["--out", str(tmp_path / "none" / "x.jsonl"), "--generated", "1"]) == 2
