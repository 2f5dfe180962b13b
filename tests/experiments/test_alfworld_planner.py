"""The command: a real, short run on generated games; what it refuses; other presets."""

import dataclasses
import itertools
import json
import random
import re

import jax
import numpy as np
import pytest

from envs.household.demonstrations import demonstrate, write_demonstrations
from envs.household.describe import opening_text
from envs.household.engine import admissible_commands, step
from envs.household.format import FORMATS, Reply
from envs.household.generator import generate_games
from envs.household.noisy_demonstrations import Noise, demonstrate_noisily
from envs.household.panels import load_panel
from envs.household.searching_expert import SearchingExpert
from envs.household.stock_engine import written_game
from envs.household.world import HOUSEHOLD
from experiments import alfworld_planner, evaluate_text, planner_model
from experiments.alfworld_data import (
    Demonstrator,
    entity_tokenizer,
    find_games,
    kinds_of_things,
    renumbered,
    share_below,
    split_games,
    with_goal,
)
from experiments.alfworld_planner import main
from experiments.evaluate_text import (
    Settings,
    _first_games,
    check_agent,
    lone_agent,
    play_panel,
)
from experiments.household_episodes import LabelledEpisode, visited_states
from experiments.household_rounds import label_episode, play_games
from experiments.planner_config import read_command_line
from jaxagent.models.llm.llama import init_params
from jaxagent.models.llm.load import LanguageModel, load_model, save_model
from jaxagent.models.llm.lora import load_lora
from jaxagent.models.llm.words import SubwordTokenizer
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.planner_files import Planner, load_planner, save_planner
from jaxagent.text import Episode
from jaxagent.training.chunks import Position
from jaxagent.training.packing import Shape
from jaxagent.training.written import EpisodeWriter, LabelledTurn
from tests.models.llm.files import small_tokenizer, write_folder
from tests.planning.small_planner import small_config

SHORT = (
    "--source generated --generated-games 6 --num-updates 6 --warmup-updates 1 --num-validations 2 "
    "--validation-games 3 --final-games 3 --rows 2 --row-tokens 128 --num-devices 1 --horizon 8"
).split()


@pytest.fixture
def small_model(monkeypatch):
    monkeypatch.setattr(
        planner_model,
        "tiny_model",
        lambda tokenizer, style, dtype: small_config(tokenizer.vocab_size),
    )


def test_a_run_leaves_everything_and_can_be_taken_up(tmp_path, small_model, capsys):
    options = [*SHORT, "--runs-dir", str(tmp_path), "--dagger", "1", "--dagger-games", "4"]
    assert main([*options, "--name", "one"]) == 0
    folder = tmp_path / "one"
    printed = capsys.readouterr().out
    assert "round 1: played 4 train games" in printed
    assert "generated_unseen, constrained" in printed
    result = json.loads((folder / "evaluation.json").read_text())
    assert set(result) == {"panels", "generated_unseen free", "generated_unseen constrained"}
    assert result["generated_unseen constrained"]["all"]["inadmissible_share"] == 0.0
    assert (folder / "curves.png").stat().st_size > 1000
    assert (folder / "generated_unseen-free.html").is_file()
    assert len(list((folder / "visited").glob("from-*.json"))) == 1
    planner = load_planner(folder / "best", HOUSEHOLD)
    more = ["--initial", str(folder / "best"), "--style", "plain", "--name", "two"]
    with pytest.raises(SystemExit, match="2"):
        main([*SHORT, "--runs-dir", str(tmp_path), *more])
    assert "has another vocabulary than this run" in capsys.readouterr().err
    assert planner.style.name == "compact"
    with pytest.raises(SystemExit, match="2"):
        main(["--runs-dir", str(tmp_path), "--name", "one", "--resume", "--rows", "4"])
    assert "was begun with rows 2, not 4" in capsys.readouterr().err
    # Judged beside what the run has: by the defaults, 100 updates are for warming up.
    again = ["--runs-dir", str(tmp_path), "--name", "one", "--resume"]
    with pytest.raises(SystemExit, match="2"):
        main([*again, "--num-updates", "9"])
    assert "one was begun with num_updates 6, not 9; start" in capsys.readouterr().err
    (visited,) = (folder / "visited").glob("from-*.json")
    kept = visited.read_text()
    visited.write_text("[]")
    with pytest.raises(SystemExit, match="2"):
        main([*again, "--num-updates", "6"])
    expected = f"error: {visited}: found a list without a format, expected 'jaxagent.visited.1'\n"
    assert capsys.readouterr().err == expected
    visited.write_text(kept)
    assert main([*again, "--num-updates", "6"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--stage ppo", "stage (ppo) must be one of sft, rl"),
        ("--preset huge", "preset (huge) must be tiny, smollm2 or hf:FOLDER"),
        ("--preset hf:/nowhere", "preset (hf:/nowhere): there is no such folder"),
        ("--style runes", "style (runes) must be one of compact"),
        ("--lora-rank 4", "lora_rank (4) is for smollm2 and hf:FOLDER"),
        ("--preset smollm2 --style compact", "style (compact) has a tokeniser of its own"),
        ("--source generated --goals human", "goals (human) needs games that people described"),
        ("--source generated --hold-out-floor-plans", "hold_out_floor_plans needs games"),
        ("--source generated --generated-games 0", "generated_games (0) must be at least 1"),
        ("--generated-share 2", "generated_share (2.0) must lie in [0, 1]"),
        ("--renumbered-share 2", "renumbered_share (2.0) must lie in [0, 1]"),
        ("--num-updates 50", "warmup_updates (100) must be less than num_updates (50)"),
        ("--row-tokens 8", "row_tokens (8) must be at least 128"),
        ("--data /nowhere", "/nowhere"),
        ("--config /nowhere.yaml", "config (/nowhere.yaml) cannot be read"),
        ("--resume --name nothing", "resume: "),
        ("--generated-games 0", "generated_games (0) must be at least 1 where the benchmark's"),
        ("--generated-games 2 --rows 3 --num-devices 7", "num_devices (7) must be one of"),
        ("--random-shares", "random_shares"),
        ("--random-shares 2.0", "random_shares (2.0) must lie in [0, 1]"),
        ("--refused nan", "refused (nan) must lie in [0, 1]"),
        ("--noisy-steps 50", "noisy_steps (50) must lie in [0, 50)"),
        ("--demonstrations /nowhere.jsonl", "/nowhere.jsonl cannot be read"),
        ("--demonstrations-share 2", "demonstrations_share (2.0) must lie in [0, 1]"),
        ("--style", "--style"),
    ],
)
def test_bad_input_is_one_line_and_status_2(options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(SystemExit) as left:
        main(options.split())
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("style: 3", "style (3) must be of type str"),
        ("noise: {random_shares: []}", "random_shares () must hold at least one share"),
        ("noise: {random_shares: [2.0]}", "random_shares (2.0) must lie in [0, 1]"),
    ],
)
def test_bad_files_are_one_line_and_status_2(options, message, tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text(options)
    with pytest.raises(SystemExit, match="2"):
        main(["--config", str(file)])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_dry_run_says_what_it_amounts_to_and_writes_nothing(tmp_path, small_model, capsys):
    options = [*SHORT, "--source", "auto", "--dry-run", "--runs-dir", str(tmp_path / "runs")]
    assert main([*options, "--accumulation", "3"]) == 0
    resolved, _, told = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(resolved + "}")["rows"] == 2
    games, devices, sizes = told.splitlines()
    assert games == "source generated: trains on 6 generated ones; plays 3 to choose the planner"
    assert devices == "devices: 1 x cpu"
    assert sizes.startswith("2 rows x 128 tokens = 256 a batch, 3 to an update; 6 updates; ")
    assert re.search(r"; [\d,]+ parameters$", sizes)
    with pytest.raises(SystemExit, match="2"):
        main([*options, "--num-devices", "7"])
    assert "num_devices (7) must be one of" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def small_base(folder):
    """A Hugging Face folder of a model with twice the positions that episodes are cut to."""
    tokenizer = small_tokenizer()
    model = small_config(len(tokenizer) + 3, max_positions=4096)
    base = LanguageModel(model, init_params(model, jax.random.key(0)), tokenizer, "base")
    save_model(folder, base)
    return base


HUGGING_FACE = (
    "--source generated --generated-games 3 --num-updates 2 --warmup-updates 1 --num-validations 1 "
    "--validation-games 1 --final-games 0 --rows 1 --row-tokens 1024 --num-devices 1 --horizon 2"
).split()


def test_a_hugging_face_folder_learns_in_full_and_by_low_rank_terms(tmp_path, capsys):
    base = small_base(tmp_path / "model")
    options = [*HUGGING_FACE, "--dtype", "float32", "--runs-dir", str(tmp_path)]
    options += ["--preset", f"hf:{tmp_path / 'model'}"]
    for name, more in (("full", []), ("low", ["--lora-rank", "2"])):
        assert main([*options, "--name", name, *more]) == 0
        after = load_model(tmp_path / name / "last")
        changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), base.params, after.params)
        assert changed["layers"]["attention"]["query"]["kernel"]
        assert changed["embedding"] == (name == "full")
    assert not (tmp_path / "full" / "best" / "adapter").exists()
    # The low-rank terms alone, read back beside the model that they began with.
    lora, adapters = load_lora(tmp_path / "low" / "best" / "adapter", base.config)
    told = json.loads((tmp_path / "low" / "best" / "adapter" / "adapter_config.json").read_text())
    assert (lora.rank, lora.alpha) == (2, 4.0)
    assert told["base_model_name_or_path"] == str(tmp_path / "model")
    merged, best = lora.merge(base.params, adapters), load_model(tmp_path / "low" / "best").params
    jax.tree.map(np.testing.assert_array_equal, merged, best)


@pytest.mark.parametrize(
    ("more", "kept"), [("", "float32"), ("--lora-rank 2", "bfloat16")], ids=["full", "low"]
)
def test_frozen_parameters_are_of_the_type_that_computes(more, kept, tmp_path):
    """What is not learnt needs no more digits than it is computed with; what is learnt does."""
    small_base(tmp_path / "model")
    options = [*HUGGING_FACE, "--preset", f"hf:{tmp_path / 'model'}", "--dtype", "bfloat16"]
    config = read_command_line([*options, *more.split()])
    learner = planner_model.make_learner(config, find_games(config))
    params = learner.frozen if more else learner.initial
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {kept}
    assert learner.imitation.model.dtype == "bfloat16"


@pytest.mark.parametrize("style", ["plain", "plain-hierarchical"])
def test_what_a_hugging_face_folder_became_is_evaluated_as_it_was_trained(style, tmp_path, capsys):
    small_base(tmp_path / "model")
    options = [*HUGGING_FACE, "--dtype", "bfloat16", "--style", style, "--name", "one"]
    options += ["--runs-dir", str(tmp_path), "--preset", f"hf:{tmp_path / 'model'}"]
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        keep = alfworld_planner.Run.keep

        def watched(self, params, is_best):
            keep(self, params, is_best)
            seen.append(self.player(params))

        patch.setattr(alfworld_planner.Run, "keep", watched)
        assert main(options) == 0
    planner = load_planner(tmp_path / "one" / "best", HOUSEHOLD)
    assert planner.style.name == style
    assert planner.made["config"]["style"] == style
    (trained, *_), loaded = seen, HouseholdPlayer(planner.playing())
    assert loaded.slots == trained.slots == 2048  # twice the row's tokens, half the positions
    assert loaded.model.config.dtype == trained.model.config.dtype == "bfloat16"
    games = [made.game for made in generate_games(2, 9)]
    assert play_games(loaded, games, horizon=2) == play_games(trained, games, horizon=2)
    assert load_model(tmp_path / "one" / "best").config.max_positions == 4096
    agent = f"planner:{tmp_path / 'one' / 'best'}"
    check_agent(agent, 0.0, "constrained")
    panel = _first_games(load_panel("generated_unseen", None, None), 2)
    episodes, asked = play_panel(panel, Settings(agent, 0.0, 0, 2, 0, "constrained"))
    assert asked is None
    assert len(episodes) == 2
    assert all(all(episode.valid) for episode in episodes)
    act = lone_agent(agent, 0, games[0])
    assert len(act([opening_text(games[0], games[0].initial)], [("look",)])) == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("context", 4097, r"context \(4097\) must lie in \[1, 4096\]"),
        ("context", "all", r"context \('all'\) must lie in"),
        ("dtype", "float8", r"dtype must be one of float32, bfloat16, found 'float8'"),
        ("dtype", ["float32"], r"dtype must be one of float32, bfloat16, found \['float32'\]"),
    ],
)
def test_a_changed_description_is_one_line(field, value, message, tmp_path):
    base = small_base(tmp_path)
    tokenizer = SubwordTokenizer(base.tokenizer, base.config.vocab_size)
    planner = Planner(base.config, base.params, tokenizer, FORMATS["plain"], {}, 2048)
    save_planner(tmp_path, planner)
    file = tmp_path / "planner.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(ValueError, match=message) as refused:
        load_planner(tmp_path, HOUSEHOLD)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tokeniser_larger_than_its_model_is_refused(tmp_path, capsys):
    write_folder(tmp_path / "model", "smollm2")
    with pytest.raises(SystemExit, match="2"):
        main([*SHORT[:4], "--preset", f"hf:{tmp_path / 'model'}", "--runs-dir", str(tmp_path)])
    assert "tokens, its model 131" in capsys.readouterr().err


def test_a_context_shorter_than_the_rows_is_refused(tmp_path, capsys):
    tokenizer = small_tokenizer()
    model = small_config(len(tokenizer) + 3, max_positions=1000)
    base = LanguageModel(model, init_params(model, jax.random.key(0)), tokenizer, "base")
    save_model(tmp_path / "model", base)
    options = [*SHORT[:4], "--preset", f"hf:{tmp_path / 'model'}", "--runs-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="2"):
        main([*options, "--row-tokens", "512"])
    error = capsys.readouterr().err
    assert "row_tokens (512): episodes may have 1024 tokens, twice as many; the context" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_split_depends_on_names_alone(tmp_path):
    paths = [
        tmp_path / f"pick-Egg-None-Fridge-{plan}" / f"trial_{n}" / "game.tw-pddl"
        for plan in range(1, 60)
        for n in range(10)
    ]
    plain, held = split_games(paths), split_games(paths[::-1], hold_out_floor_plans=True)
    assert set(plain.train) | set(plain.validation) == set(paths)
    assert 0.02 < len(plain.validation) / len(paths) < 0.06
    assert not plain.held_out
    plans = {path.parent.parent.name for path in held.held_out}
    assert 3 < len(plans) < 20
    assert not plans & {path.parent.parent.name for path in (*held.train, *held.validation)}
    assert len(held.held_out) == 10 * len(plans)
    assert share_below("a", 1.0)
    assert not share_below("a", 0.0)


def demonstrator(tmp_path, share=0.5):
    games = [made.game for made in generate_games(4, 3)]
    return Demonstrator(
        paths=[], generated=games, generated_share=1.0,
        writer=EpisodeWriter(FORMATS["compact"], entity_tokenizer()),
        shapes=[Shape(2, 256, 115), Shape(1, 512, 230)], noise=Noise(), seed=0,
        visited=visited_states(tmp_path), visited_share=share,
    )  # fmt: skip


def test_a_chunk_depends_on_its_number_and_on_what_was_visited_before_it(tmp_path):
    before = demonstrator(tmp_path)
    plain = [before.episodes(chunk) for chunk in (2, 3)]
    turns = [LabelledTurn("look", "look", "", "Nothing happens.")]
    before.visited.add(3, [("Your task is to: put a pen in desk.", turns)])
    after = [before.episodes(chunk) for chunk in (2, 3)]
    again = demonstrator(tmp_path).episodes(3)
    as_lists = [[e.tokens.tolist() for e in some] for some in (*plain, *after, again)]
    assert as_lists[0] == as_lists[2]
    assert as_lists[1] != as_lists[3]
    assert as_lists[3] == as_lists[4]
    shortest = min(map(len, as_lists[3]))
    assert sum(len(tokens) == shortest for tokens in as_lists[3]) > 0.3 * len(as_lists[3])


def written_demonstrations(folder):
    file = folder / "demonstrations.jsonl"
    write_demonstrations(file, [made.game for made in generate_games(3, 11)], "searching")
    return file


def test_recorded_episodes_take_part_in_their_share(tmp_path, small_model, capsys):
    file = written_demonstrations(tmp_path)
    options = [*SHORT, "--demonstrations", str(file), "--demonstrations-share", "0.4"]
    config = read_command_line([*options, "--renumbered-share", "0"])
    run = alfworld_planner.Run(config, tmp_path / "run", alfworld_planner.Reporter())
    assert "and 3 recorded episodes (40% of the demonstrations)" in run.describe()
    games = [made.game for made in generate_games(3, 11)]
    as_recorded = set()
    for game in games:
        played = demonstrate(game, "searching")
        rows = zip(played["commands"], played["subgoals"], played["observations"][1:])
        turns = [LabelledTurn(command, command, subgoal, seen) for command, subgoal, seen in rows]
        episode = run.demonstrator.writer.write(played["observations"][0], turns)
        as_recorded.add(tuple(episode.tokens))
    made = [tuple(episode.tokens) for episode in run.demonstrator.episodes(0)]
    share = sum(tokens in as_recorded for tokens in made) / len(made)
    assert 0.3 < share < 0.5
    assert as_recorded <= set(made)


def test_a_plain_tokeniser_knows_the_words_of_recorded_episodes(tmp_path, small_model):
    file = written_demonstrations(tmp_path)
    file.write_text(file.read_text().replace("Nothing happens", "Nobody cares").replace(
        "You are in the middle", "Thou art amid"))  # fmt: skip
    config = read_command_line([*SHORT, "--demonstrations", str(file), "--style", "plain"])
    run = alfworld_planner.Run(config, tmp_path / "run", alfworld_planner.Reporter())
    assert {"Thou", "art", "amid"} <= set(run.learner.tokenizer.words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": None}, "found format None, expected 'jaxagent.demonstrations.1'"),
        ({"format": "jaxagent.demonstrations.0"}, "found format 'jaxagent.demonstrations.0', exp"),
        ({"commands": "look"}, "commands must be a list of texts"),
        ({"subgoals": [1]}, "subgoals must be a list of texts"),
        ({"observations": []}, "0 observations; expected as many subgoals as commands"),
        ([], "found a list without a format, expected 'jaxagent.demonstrations.1'"),
        ("", "is not JSON: expected format 'jaxagent.demonstrations.1'"),
    ],
)
def test_demonstrations_of_another_format_are_one_line(change, message, tmp_path, capsys):
    file = written_demonstrations(tmp_path)
    first, second, *rest = file.read_text().splitlines()
    if isinstance(change, dict):
        changed = json.dumps({**json.loads(second), **change})
    else:
        changed = json.dumps(change) if change != "" else ""
    file.write_text("\n".join([first, changed, *rest]))
    with pytest.raises(SystemExit, match="2"):
        main([*SHORT, "--demonstrations", str(file), "--runs-dir", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}:2")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[[1, 2]]", "found a list without a format, expected 'jaxagent.visited.1'"),
        ('{"format": "jaxagent.visited.0"}', "found format 'jaxagent.visited.0', expected 'jaxag"),
        ('{"format": "jaxagent.visited.1"}', "episode 0 is not what 'jaxagent.visited.1' holds"),
        (
            '{"format": "jaxagent.visited.1", "episodes": [["a", [["b", "c", "d"]]]]}',
            "episode 0 is not what 'jaxagent.visited.1' holds",
        ),
    ],
)
def test_rounds_of_another_format_are_one_line(content, message, tmp_path):
    file = tmp_path / "from-000000003.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        visited_states(tmp_path)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)
    file.rename(tmp_path / "from-here.json")
    with pytest.raises(ValueError, match="a round is named by a number"):
        visited_states(tmp_path)


def test_the_share_of_renumbered_episodes_is_the_run_s(tmp_path, small_model):
    def episodes(share):
        made = dataclasses.replace(demonstrator(tmp_path), renumbered_share=share).episodes(0)
        return [episode.tokens.tolist() for episode in made]

    assert episodes(0.0) != episodes(1.0)
    config = read_command_line([*SHORT, "--renumbered-share", "0.25"])
    run = alfworld_planner.Run(config, tmp_path, alfworld_planner.Reporter())
    assert run.demonstrator.renumbered_share == 0.25


def test_labels_of_visited_states_are_the_expert_s(tmp_path):
    game = next(generate_games(1, 3)).game
    episode = Episode(game.name, "", game.task_text, [], [], [], [], False)
    opening = opening_text(game, game.initial)
    episode = episode._replace(observations=[opening], commands=["look", "look"])
    text, turns = label_episode(game, episode)
    assert text == opening
    expert = SearchingExpert(opening)
    assert [turn.command for turn in turns] == ["look", "look"]
    first = expert.act(opening, admissible_commands(game, game.initial))
    assert (turns[0].label, turns[0].subgoal) == first


def test_labels_end_where_an_agent_is_stuck():
    game = next(generate_games(1, 3)).game
    opening = opening_text(game, game.initial)
    commands = ["look", "open sesame", "open sesame", "look", *["open sesame"] * 9]
    episode = Episode(game.name, "", game.task_text, [opening], commands, [], [], False)
    _, turns = label_episode(game, episode)
    assert [turn.command for turn in turns] == commands[:7]


def names_of(text):
    return re.findall(r"\b[a-z]+ \d+\b", text)


@pytest.mark.parametrize("seed", range(6))
def test_other_numbers_tell_the_same_story(seed):
    """An expert that reads the renumbered text says the renumbered label, all through."""
    game = list(generate_games(6, 3))[seed].game
    played = demonstrate_noisily(game, random.Random(seed), Noise(random_shares=(0.0,)))
    turns = [
        LabelledTurn(t.command, t.label, t.subgoal, t.observation) for t in played.turns
    ]  # fmt: skip
    before = LabelledEpisode(played.opening, turns)
    after = renumbered(before, random.Random(seed))
    new = {}
    told = [(each.opening, *itertools.chain(*each.turns)) for each in (before, after)]
    for old, now in zip(*told):
        assert re.sub(r"\d+", "#", old) == re.sub(r"\d+", "#", now)
        for a, b in zip(names_of(old), names_of(now)):
            assert new.setdefault(a, b) == b
    assert len(set(new.values())) == len(new)
    assert new != {name: name for name in new}
    kinds = kinds_of_things()
    assert all(int(b.split()[1]) <= kinds[b.split()[0]] for b in new.values())
    # The order of the things of a kind, in which the room is described, stays.
    room = names_of(after.opening)
    assert room == sorted(room, key=lambda name: (name.split()[0], -int(name.split()[1])))

    state, expert, text = game.initial, SearchingExpert(after.opening), after.opening
    for turn, now in zip(before.turns, after.turns):
        admissible = [
            re.sub(r"\b[a-z]+ \d+\b", lambda found: new.get(found.group(), found.group()), command)
            for command in admissible_commands(game, state)
        ]
        choice = expert.act(text, admissible)
        assert choice.subgoal == now.subgoal
        if turn.command == turn.label and not now.label.startswith("go to "):
            assert choice.command == now.label
        state, text = step(game, state, turn.command).state, now.observation


def test_goals_are_reworded_in_the_opening():
    text = "You see a desk 1.\n\nYour task is to: put a pen in desk."
    assert with_goal(text, "stow the pen") == "You see a desk 1.\n\nYour task is to: stow the pen."
    assert with_goal("nothing asked", "x") == "nothing asked"


def test_files_and_the_command_line_are_read_in_order(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("style: compact-hierarchical\nnum_updates: 300\nrow_tokens: 512\n")
    config = read_command_line(["--config", str(file), "--row-tokens", "256"])
    assert (config.style, config.run.num_updates, config.row_tokens) == (
        "compact-hierarchical", 300, 256,
    )  # fmt: skip
    assert read_command_line(["--style", "plain"]).row_tokens == 768


def test_a_round_plays_each_game_once(small_model):
    class Looker:
        most_games = 9

        def begin(self, openings):
            self.count = len(openings)

        def act(self, observations, admissible):
            return [Reply("look" if commands else "") for commands in admissible]

    games = [made.game for made in generate_games(2, 3)]
    episodes = play_games(Looker(), games, ["stow it", ""], horizon=3)  # type: ignore[arg-type]
    assert [len(episode.commands) for episode in episodes] == [3, 3]
    assert episodes[0].task == "stow it"
    assert "stow it" in episodes[0].observations[0]
    assert episodes[1].task == games[1].task_text


def described_games(folder, split, count):
    """Games of the generator as files, with what two people might have written of each."""
    made = sorted(generate_games(count, 21), key=lambda each: each.game.name)
    for each in made:
        place = folder / "json_2.1.1" / split / each.game.name
        place.mkdir(parents=True)
        written_game(each.game_data, place)
        said = [{"task_desc": f"Please do {each.game.name} {who}."} for who in "ab"]
        annotations = json.dumps({"turk_annotations": {"anns": said}})
        (place / "traj_data.json").write_text(annotations)
    return [each.game for each in made]


def test_rounds_with_human_goals_play_what_people_wrote(tmp_path, small_model, capsys):
    described_games(tmp_path, "train", 5)
    options = [*SHORT, "--source", "alfworld", "--data", str(tmp_path), "--goals", "human"]
    config = read_command_line([*options, "--dagger", "1", "--dagger-games", "4"])
    run = alfworld_planner.Run(config, tmp_path / "run", alfworld_planner.Reporter())
    params = run.learner.imitation.init(jax.random.key(0)).params
    run._visit(1, params, Position(0, 1))
    episodes = run.visited.before(2)
    assert episodes
    assert all(re.search(r"Your task is to: please do .* [ab]\.$", e.opening) for e in episodes)
    assert all(turn.label for episode in episodes for turn in episode.turns)


def test_a_panel_is_played_by_the_words_of_people(tmp_path, capsys):
    games = described_games(tmp_path, "valid_seen", 3)
    panel = load_panel("valid_seen", tmp_path)
    assert [game.name for game, _ in panel.games] == [game.name for game in games]
    goals = evaluate_text._human_goals(_first_games(panel, 2), tmp_path)
    assert goals == [f"please do {game.name.lower()} a" for game in games[:2]]
    settings = Settings("planner:tiny", 0.0, 0, 2, 0, "free", "human")
    episodes, _ = play_panel(_first_games(panel, 2), settings, goals)
    for episode, goal in zip(episodes, goals):
        assert episode.observations[0].endswith(f"Your task is to: {goal}.")
    capsys.readouterr()
    arguments = ["--agent", "planner:tiny", "--panel", "generated_unseen", "--goals", "human"]
    assert evaluate_text.main(arguments) == 2
    expected = "error: --goals human: nobody described the games of generated_unseen\n"
    assert capsys.readouterr().err == expected


def test_rounds_of_one_chunk_are_all_kept(tmp_path, small_model, capsys):
    """A chunk lasts for many updates: three rounds fall into the first one."""
    options = [*SHORT, "--runs-dir", str(tmp_path), "--dagger", "3", "--dagger-games", "2"]
    config = read_command_line(options)
    run = alfworld_planner.Run(config, tmp_path / "run", alfworld_planner.Reporter())
    params = run.learner.imitation.init(jax.random.key(0)).params
    for number in (1, 2, 3):
        run._visit(number, params, Position(0, number))
    files = sorted(path.name for path in (tmp_path / "run" / "visited").iterdir())
    assert files == [f"from-000000002-round-00{number}.json" for number in (1, 2, 3)]
    assert len(run.visited.before(2)) == 6
    assert not run.visited.before(1)
    again = visited_states(tmp_path / "run" / "visited")
    assert again.before(2) == run.visited.before(2)
    run._visit(2, params, Position(0, 2))  # of an attempt that broke off after it
    assert len(visited_states(tmp_path / "run" / "visited").before(2)) == 6


def test_files_of_rounds_before_they_were_numbered_are_read(tmp_path):
    kept = {"format": "jaxagent.visited.1", "episodes": [["a", []]]}
    (tmp_path / "from-000000003.json").write_text(json.dumps(kept))
    assert visited_states(tmp_path).before(3) == [LabelledEpisode("a", [])]
    (tmp_path / "from-².json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="a round is named by a number"):
        visited_states(tmp_path)


def test_labels_are_the_expert_s_whatever_words_the_task_has():
    game = next(generate_games(1, 3)).game
    opening = opening_text(game, game.initial)
    reworded = with_goal(opening, "be so kind as to do the thing")
    episode = Episode(game.name, "", "", [opening], ["look", "inventory"], [], [], False)
    plain, human = (
        label_episode(game, episode._replace(observations=[o])) for o in (opening, reworded)
    )
    assert human[0] == reworded
    assert human[1] == plain[1]
