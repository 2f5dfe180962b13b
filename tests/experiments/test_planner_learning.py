"""Arms and seeds of learning without demonstrations: one command, one table."""

import json

import numpy as np
import pytest

from experiments import alfworld_planner
from experiments.planner_learning import ARMS, main, options_of, read_command_line, summarize
from tests.experiments.test_alfworld_planner import small_model  # noqa: F401 (a fixture)

SHORT = (
    "--no-hold-out-floor-plans --source generated --generated-games 12 --num-updates 3 "
    "--warmup-updates 1 --num-validations 1 --validation-games 2 --final-games 4 --rows 2 "
    "--num-devices 1 --horizon 3 --walks 150 --walk-steps 60 --play-interval 2 --play-games 2 "
    "--play-steps 3"
).split()


def test_arms_and_seeds_are_trained_once_and_compared(tmp_path, small_model, capsys, monkeypatch):  # noqa: F811
    options = ["--arms", "hindsight", "without_visits", "--seeds", "2"]
    arguments = [*options, "--runs-dir", str(tmp_path), *SHORT]
    assert main(arguments) == 0
    folder = tmp_path / "planner-learning"
    report = json.loads((folder / "compare.json").read_text())
    assert list(report["arms"]) == ["hindsight", "without_visits"]
    assert "--no-inserted-visits" in report["arms"]["without_visits"]
    assert set(report["panels"]) == {"generated_unseen"}
    by_arm = report["result"]["generated_unseen constrained"]
    assert [len(by_arm[arm]["won"]) for arm in by_arm] == [2, 2]
    assert by_arm["hindsight"]["games"] == 4
    configs = [
        (folder / f"{arm}-{seed}" / "config.yaml").read_text()
        for arm in ("hindsight", "without_visits")
        for seed in (0, 1)
    ]
    assert ["inserted_visits: true" in config for config in configs] == [True, True, False, False]
    assert all(f"seed: {number % 2}\n" in config for number, config in enumerate(configs))
    capsys.readouterr()

    def never(arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(alfworld_planner, "main", never)
    assert main(arguments) == 0
    assert "games won within 50 steps" in capsys.readouterr().out


def judged(won, games=10):
    score = {"success": won / games, "won": won, "games": games,
             "success_low": 0.0, "success_high": 1.0}  # fmt: skip
    return {"panels": {"p": "hash"}, "p free": {"all": score, "put": score}}


def test_statistics_are_over_seeds():
    seeds = [judged(won) for won in (2, 4, 6, 8, 10)]
    result = summarize({"a": seeds})["p free"]["a"]
    assert result["won"] == [2, 4, 6, 8, 10]
    np.testing.assert_allclose(result["over_seeds"]["interquartile_mean"], 0.6)
    assert result["by_type"] == {"put": pytest.approx(0.6)}


def test_every_arm_is_what_its_name_says():
    known = read_command_line(["--seeds", "1"])
    assert known.arms == list(ARMS)
    from experiments.planner_config import read_command_line as read

    configs = {arm: read(options_of(known, arm, 7)) for arm in ARMS}
    assert {c.run.seed for c in configs.values()} == {7}
    assert {c.stage for c in configs.values()} == {"rl"}
    assert all(c.hold_out_floor_plans for c in configs.values())
    assert configs["without_play"].play.play_interval == 0
    assert not configs["without_visits"].play.inserted_visits
    assert configs["own_successes"].algorithm == "own_successes"
    assert configs["hindsight"].play.inserted_visits
    assert configs["without_other_things"].play.other_things == 0.0
    assert configs["hindsight"].play.other_things > 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seeds 0", "seeds (0) must be at least 1"),
        ("--seed 3", "--seed is given to each run by this program"),
        ("--name a", "--name is given to each run by this program"),
        ("--arms luck", "invalid choice: 'luck'"),
        ("--walks 0", "walks (0) must be at least 1"),
        ("--nonsense", "nonsense"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(options, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(options.split())
    assert left.value.code == 2
    assert message in capsys.readouterr().err
