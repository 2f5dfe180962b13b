"""A skill led through a course, and by words: the arm's reacher stands in for the Ant, cheaply."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import ant_navigation
from experiments.ant_navigation import read_course
from jaxagent.models.normaliser import init_normaliser
from jaxagent.models.skill_policy import SkillPolicy
from jaxagent.models.skills import SkillParams, save_skill

QUICK = "--timeout-steps 12 --stall-steps 6 --stall-distance 0.01 --attempts 1".split()


@pytest.fixture(scope="module")
def skill(tmp_path_factory):
    """An arm that does not move: what lies under its fingertip it reaches."""
    policy = SkillPolicy(2, 4, encoder_sizes=(4,), hidden_sizes=(4,))
    still = jax.tree.map(jnp.zeros_like, policy.init(jax.random.key(0), jnp.zeros((1, 10))))
    params = SkillParams(policy_params=still, normaliser=init_normaliser(10))
    path = tmp_path_factory.mktemp("skill") / "still.npz"
    save_skill(
        path, policy, params, {"task": "reacher_goal", "backend": "spring", "threshold": 0.05}
    )
    return str(path)


def test_a_course_is_played_counted_and_drawn(skill, tmp_path, capsys):
    """The fingertip rests near (0.21, 0): the first point is there, the second is not."""
    options = ["--skill", skill, "--starts", "3", "--out", str(tmp_path), *QUICK]
    assert ant_navigation.main([*options, "--course", "0.2,0 -0.1,0", "--radius", "0.08"]) == 0
    assert "1.0 of 2" in capsys.readouterr().out
    report = json.loads((tmp_path / "navigation.json").read_text())
    assert report["completed"] == 0.0
    assert report["completed_interval"][1] > 0.3  # three failures do not prove much
    assert report["sub_goals"] == {
        "success": 3, "timeout": 0, "no_progress": 3, "fell": 0, "cut": 0,
    }  # fmt: skip
    segments = np.load(tmp_path / "segments.npz")
    np.testing.assert_allclose(segments["goal"][:, 0], [[0.2, 0.0], [-0.1, 0.0]], rtol=1e-6)
    assert segments["duration"][:, 0].tolist() == [1, 6]
    with Image.open(tmp_path / "paths.png") as image:
        assert image.size[0] > 300


def test_words_lead_it_and_are_answered(skill, tmp_path, capsys):
    options = ["--skill", skill, "--out", str(tmp_path), *QUICK, "--radius", "0.08"]
    with pytest.raises(SystemExit, match="2"):
        ant_navigation.main([*options, "--words", "dance; jump"])
    told = capsys.readouterr()
    assert (
        told.err == "error: words (dance; jump): every sub-goal was refused; nothing was walked\n"
    )
    words = "stop; turn left 90 degrees; dance; move to (-0.1, 0)"
    assert ant_navigation.main([*options, "--words", words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("stop: stopped after ")
    assert said[1].startswith("turn left 90 degrees: forward is now ")
    assert said[2].startswith("dance: refused: sub-goal ('dance') must read")
    assert said[3].startswith("move to (-0.1, 0): not reached: no more progress after 6 steps")
    report = json.loads((tmp_path / "navigation.json").read_text())
    assert [attempt["sub_goal"] for attempt in report["attempts"]] == words.split("; ")


def test_a_planner_on_the_standard_input_hears_how_it_went(skill, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("stop\nfly\n"))
    options = ["--skill", skill, "--out", str(tmp_path), *QUICK, "--radius", "0.08"]
    options += ["--words", "-"]
    assert ant_navigation.main(options) == 0
    said = capsys.readouterr().out
    assert said.count("next sub-goal?") == 3
    assert "stopped after " in said
    assert json.loads((tmp_path / "navigation.json").read_text())["verdict"] == "COMPLETE"


def test_a_course_is_read_or_refused():
    np.testing.assert_array_equal(read_course("1,2  -3,4.5"), [[1.0, 2.0], [-3.0, 4.5]])
    for text in ("", "1", "1,2,3", "a,b", "1,inf"):
        with pytest.raises(ValueError, match=r"course \(.*\) must "):
            read_course(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--skill juggle", "skill (juggle) must be one of"),
        ("--skill .", ". is not a run folder"),
        ("--course 1;2", "course (1;2) must be points X,Y of two finite numbers"),
        ("--starts 0", "starts (0) must be at least 1"),
        ("--timeout-steps 0", "timeout_steps (0) must be at least 1"),
        ("--words ;", "words (';') must have 1 to 1000 sub-goals"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, capsys, options, message):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as left:
        ant_navigation.main([*options.split(), "--out", str(out)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_radius_that_cannot_be_is_refused(skill, capsys):
    with pytest.raises(SystemExit):
        ant_navigation.main(["--skill", skill, "--radius", "0"])
    assert "threshold (0.0) must be a positive, finite number" in capsys.readouterr().err
