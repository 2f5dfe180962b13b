"""Learning from the planner's own play: what is drawn, what is taught, and a whole short run."""

import json
import random
from collections import Counter

import numpy as np
import pytest

from envs.household.format import FORMATS
from envs.household.generator import generate_games
from envs.household.relabel import RelabelledEpisode, RelabelledTurn
from envs.household.task import TASK_TYPES, Task
from envs.household.walks import carried_out
from experiments import hindsight_data
from experiments.alfworld_data import entity_tokenizer
from experiments.alfworld_planner import main
from experiments.hindsight_config import HindsightConfig
from experiments.hindsight_data import (
    HindsightDemonstrator,
    Pool,
    Solved,
    labelled_episodes,
    solved_games,
)
from experiments.planner_config import read_command_line
from jaxagent.text import Episode
from jaxagent.training.packing import Shape
from jaxagent.training.written import EpisodeWriter, LabelledTurn
from tests.experiments.test_alfworld_planner import small_model  # noqa: F401 (a fixture)

PUT, LOOK, *_ = TASK_TYPES
SHORT = (
    "--stage rl --source generated --generated-games 12 --num-updates 6 --warmup-updates 1 "
    "--num-validations 2 --validation-games 3 --final-games 3 --rows 2 --row-tokens 256 "
    "--num-devices 1 --horizon 8 --walks 40 --play-interval 2 --play-games 4 --play-steps 6"
).split()


def same(one, two) -> bool:
    """Whether two lists of token episodes are equal."""
    return len(one) == len(two) and all(
        np.array_equal(a, b) for x, y in zip(one, two) for a, b in zip(x, y)
    )


def solved(item, kind=PUT, is_own=False, target="shelf"):
    return Solved("room/game", kind, item, target, ["look"], is_own)


def test_types_are_drawn_alike_and_frequent_things_less():
    many = [solved("mug")] * 400 + [solved("egg")] * 100 + [solved("book", LOOK)]
    pool = Pool(many, {each.solution.task for each in many}, 0.0)
    rng = random.Random(0)
    drawn = Counter(pool.draw(rng).item for _ in range(6000))
    # sqrt(400) to sqrt(100) of half of the draws: the other half are of the one lamp task.
    for item, share in (("book", 1 / 2), ("mug", 1 / 3), ("egg", 1 / 6)):
        assert abs(drawn[item] / 6000 - share) < 0.03


def test_tasks_that_no_game_asks_for_weigh_less():
    asked, other = solved("mug"), solved("mug", target="bed")
    rng = random.Random(0)
    pool = Pool([asked, other], {asked.solution.task}, 0.25)
    share = sum(pool.draw(rng).target == "bed" for _ in range(4000)) / 4000
    assert abs(share - 0.2) < 0.03
    assert not Pool([other], {asked.solution.task}, 0.0)


def test_labels_are_what_the_weights_say():
    turns = [
        RelabelledTurn("go to shelf 1", "On the shelf 1, you see nothing.", False, False, True),
        RelabelledTurn("go to drawer 1", "The drawer 1 is closed.", False, False, True),
        RelabelledTurn("open drawer 1", "You open it.", True, True, False),
        RelabelledTurn("go to shelf 3", "On the shelf 3, you see a mug 1.", True, False, False),
        RelabelledTurn("go to desk 1", "On the desk 1, you see a pen 1.", True, False, True),
        RelabelledTurn("take mug 1 from shelf 3", "You pick it up.", True, False, False),
        RelabelledTurn("go to desk 1", "On the desk 1, you see a pen 1.", True, True, False),
    ]
    short = RelabelledEpisode("opening", turns[:1])
    both, rng = [RelabelledEpisode("opening", turns), short], random.Random(0)
    first, second = labelled_episodes(both, 0.0, rng)
    labels = [turn.label for turn in first.turns]
    # Of a look that failed, and of a guess that nobody could make, only that one goes on.
    assert labels == ["go", "go", "open drawer 1", "go", "go to desk 1", "", "go to desk 1"]
    assert [turn.command for turn in first.turns] == [turn.command for turn in turns]
    assert [turn.label for turn in second.turns] == ["go"]
    explored = [labelled_episodes(both, 0.25, rng)[0] for _ in range(400)]
    assert all([turn.label for turn in e.turns[2:]] == labels[2:] for e in explored)
    taught = [e.turns[0].label for e in explored]
    assert set(taught) == {"go", "go to shelf 1"}
    assert 0.18 < taught.count("go to shelf 1") / 400 < 0.32


def test_an_empty_label_asks_nothing_and_a_beginning_asks_itself():
    tokenizer = entity_tokenizer()
    writer = EpisodeWriter(FORMATS["compact"], tokenizer)
    opening = "You see a shelf 1.\n\nYour task is to: put a mug in shelf."
    text = "You arrive at shelf 1. On the shelf 1, you see nothing."

    def asked(label):
        episode = writer.write(opening, [LabelledTurn("go to shelf 1", label, "", text)])
        return [int(t) for t in episode.target if t >= 0]

    assert asked("") == []
    assert asked("go") == tokenizer.encode("go")
    assert asked("go to shelf 1") == tokenizer.encode("go shelf 1")


@pytest.fixture(scope="module")
def games():
    return {made.game.name: made.game for made in generate_games(12, 7)}


def demonstrator(games, folder, algorithm="hindsight", **changes):
    config = HindsightConfig(**{"walks": 40, **changes})
    writer = EpisodeWriter(FORMATS["compact"], entity_tokenizer())
    shapes = [Shape(2, 512, 200), Shape(1, 1024, 400)]
    return HindsightDemonstrator(
        games, algorithm, config, writer, shapes, 3, solved_games(folder), 0.5
    )


def test_a_chunk_depends_on_its_number_and_on_the_rounds_before_it(games, tmp_path):
    play = demonstrator(games, tmp_path)
    before = [play.episodes(number) for number in (0, 1)]
    found = play.solved(*won(games))
    play._rounds.add(1, found, 1)
    assert same(play.episodes(0), before[0])
    assert not same(play.episodes(1), before[1])
    again = demonstrator(games, tmp_path)
    assert same(again.episodes(1), play.episodes(1))


def won(games):
    """A game and an episode that wins it, with idle commands in between."""
    made = next(each for each in generate_games(12, 7) if each.game.task.kind == PUT)
    commands = [c for command in made.plan for c in ("look", command)]
    fields = [made.game.task.kind, "", ["opening"], commands, [], [], True]
    return games[made.game.name], Episode(made.game.name, *fields)


def test_a_won_game_is_kept_by_its_critical_path(games, tmp_path):
    game, episode = won(games)
    kept = demonstrator(games, tmp_path).solved(game, episode)
    own = [each for each in kept if each.is_own]
    assert len(own) == 1
    assert own[0].solution.task == game.task
    assert carried_out(game, game.task, own[0].commands) == own[0].commands
    assert "look" not in own[0].commands
    lost = episode._replace(won=False)
    assert not [each for each in demonstrator(games, tmp_path).solved(game, lost) if each.is_own]


def test_own_successes_learn_nothing_in_hindsight(games, tmp_path):
    play = demonstrator(games, tmp_path, "own_successes", walks=300, walk_steps=80)
    assert all(games[s.game].task == s.solution.task for s in play._walked)
    assert 0 < sum(play.walked.values()) < sum(demonstrator(games, tmp_path).walked.values()) * 40
    game, episode = won(games)
    assert [each.is_own for each in play.solved(game, episode)] == [True]
    assert play.solved(game, episode._replace(won=False)) == []


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_other_things_stand_in_at_their_share(games, tmp_path, monkeypatch, share):
    tried = []
    monkeypatch.setattr(hindsight_data, "with_other_thing", lambda *given: tried.append(given))
    demonstrator(games, tmp_path, other_things=share).episodes(0)
    assert bool(tried) == bool(share)
    assert not share or len(tried) >= 256
    tried.clear()
    demonstrator(games, tmp_path, "own_successes", other_things=1.0, walks=300).episodes(0)
    assert not tried  # only what play is relabelled by


def test_walks_that_solve_nothing_are_refused(games, tmp_path):
    with pytest.raises(ValueError, match=r"walks \(1 of 1 commands\) solved no task that algo"):
        demonstrator(games, tmp_path, walks=1, walk_steps=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([["a", PUT, "b", "c", [1], True]], "episode 0 is not what"),
        ([["a", "x", "b", "c", [], True]], "episode 0 is not what"),
        ([["a"]], "it does not hold what"),
        (None, "it does not hold what"),
    ],
)
def test_broken_rounds_are_one_line(tmp_path, content, message):
    kept = {"format": "jaxagent.solved.1", "episodes": content}
    (tmp_path / "from-000000001-round-001.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=message) as refusal:
        solved_games(tmp_path)
    assert "\n" not in str(refusal.value)


def test_tasks_are_kept_as_they_were(tmp_path):
    kept = [Solved("a/b", PUT, "mug", "shelf", ["go to shelf 1"], True)]
    solved_games(tmp_path).add(2, kept, 1)
    assert solved_games(tmp_path).before(2) == kept
    assert solved_games(tmp_path).before(1) == []
    assert kept[0].solution.task == Task(PUT, "mug", "shelf")


def test_a_run_from_nothing_plays_and_can_be_taken_up(tmp_path, small_model, capsys):  # noqa: F811
    options = [*SHORT, "--runs-dir", str(tmp_path)]
    assert main([*options, "--name", "whole"]) == 0
    printed = capsys.readouterr().out
    assert "learns from 40 random walks" in printed
    assert "round 2: won" in printed
    result = json.loads((tmp_path / "whole" / "evaluation.json").read_text())
    assert set(result) == {"panels", "generated_unseen free", "generated_unseen constrained"}
    rounds = sorted(path.name for path in (tmp_path / "whole" / "solved").iterdir())
    assert [name.partition("-round-")[2] for name in rounds] == ["001.json", "002.json"]


def test_a_run_that_was_killed_ends_with_the_same_parameters(tmp_path, small_model, monkeypatch):  # noqa: F811
    from jaxagent.training import sft

    options = [*SHORT, "--runs-dir", str(tmp_path)]
    assert main([*options, "--name", "whole"]) == 0
    step, calls = sft.Teaching.step, []

    def dies(self, state, group):
        calls.append(1)
        if len(calls) == 5:  # after the checkpoint of update 3 and the round of update 4
            raise RuntimeError
        return step(self, state, group)

    monkeypatch.setattr(sft.Teaching, "step", dies)
    with pytest.raises(RuntimeError):
        main([*options, "--name", "killed"])
    monkeypatch.setattr(sft.Teaching, "step", step)
    assert main([*options, "--name", "killed", "--resume"]) == 0
    one, two = (
        (tmp_path / name / "last" / "model.safetensors").read_bytes()
        for name in ("whole", "killed")
    )
    assert one == two


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--walks 5", "algorithm and the options of play are for stage rl"),
        ("--algorithm own_successes", "algorithm and the options of play are for stage rl"),
        ("--stage rl --algorithm luck", "algorithm (luck) must be one of hindsight, own_succ"),
        ("--stage rl --dagger 2", "dagger (2) asks an expert: stage rl learns without"),
        ("--stage rl --style compact-hierarchical", "style (compact-hierarchical) needs sub-goals"),
        ("--stage rl --walks 0", "walks (0) must be at least 1"),
        ("--stage rl --play-interval -1", "play_interval (-1) must be at least 0"),
        ("--stage rl --play-temperature 0", "play_temperature (0.0) must be a positive"),
        ("--stage rl --other-things 2", "other_things (2.0) must lie in [0, 1]"),
        ("--stage rl --own-share 1.5", "own_share (1.5) must lie in [0, 1]"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, message, capsys):
    with pytest.raises(SystemExit) as left:
        read_command_line(options.split())
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
