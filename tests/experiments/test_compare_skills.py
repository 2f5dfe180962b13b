"""Two arms over the same seeds, told with an interval; on sizes of seconds."""

import json

import numpy as np
import pytest

from experiments import compare_skills
from experiments.skills_config import read_command_line
from tests.experiments.test_train_skills import SMALL


@pytest.mark.parametrize("name", compare_skills.COMPARISONS)
def test_the_arms_differ_in_one_thing(name):
    both, arms = compare_skills.COMPARISONS[name]
    configs = {
        arm: read_command_line([*both.split(), *option.split()]) for arm, option in arms.items()
    }
    assert set(configs) == {"with", "without"}
    assert configs["with"] != configs["without"]
    assert configs["with"].run == configs["without"].run


def test_the_figures_are_over_seeds():
    evaluations = [
        {"steps": s, "success_rate": [x] * 5, "touched_rate": [1.0] * 5}
        for s, x in ((0, 0.0), (10, 0.5), (20, 1.0))
    ]
    arm = compare_skills.summarise({"with": evaluations})["with"]
    assert arm["final"] == {"num_seeds": 5, "interquartile_mean": 1.0, "interval_95": [1.0, 1.0]}
    assert arm["whole"]["interquartile_mean"] == 0.75  # what was before the training left out


def test_hindsight_is_compared_and_gone_on_with(tmp_path, capsys):
    sizes = [*SMALL, "--runs-dir", str(tmp_path)]
    arguments = ["hindsight", "--num-seeds", "2", *sizes]
    assert compare_skills.main(arguments) == 0
    said = capsys.readouterr().out
    assert "mean of 2 seeds" in said
    folder = tmp_path / "compare-hindsight"
    result = json.loads((folder / "compare.json").read_text())
    assert (folder / "compare.png").exists()
    assert np.array(result["with"]["success_rate"]).shape == (3, 2)
    assert result["without"]["steps"] == [0, 160, 320]
    assert compare_skills.main(arguments) == 0  # nothing is trained twice
    assert json.loads((folder / "compare.json").read_text()) == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("warm_start --relabel-shar 1", "--relabel-share"),
        # The second arm alone refuses it: it has easy goals, which need a curriculum.
        ("curriculum --curriculum off", "need a curriculum"),
    ],
)
def test_what_either_arm_refuses_is_refused_before_anything_is_trained(
    arguments, message, capsys, monkeypatch
):
    monkeypatch.setattr(compare_skills, "run_arm", lambda *_: pytest.fail("an arm was trained"))
    with pytest.raises(SystemExit) as stop:
        compare_skills.main(arguments.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
