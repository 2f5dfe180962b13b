"""Evaluation from the command line: scores, result file, transcripts, refusals."""

import json
import math
from html.parser import HTMLParser

import pytest

from envs.household.panels import load_panel
from envs.text.scores import score, score_by_type, wilson_interval
from envs.text.transcripts import write_transcripts
from experiments import evaluate_text
from experiments.evaluate_text import main
from jaxagent.text import Episode
from tests.text.reference import fewest_steps, useful_commands


def test_wilson_interval_by_hand():
    # p = 0.9, n = 10, z = 1.96: centre (0.9 + 0.19208)/(1.38416) = 0.78898, half-width
    # 1.96 sqrt(0.009 + 0.009604)/1.38416 = 0.19314.
    low, high = wilson_interval(9, 10, z=1.96)
    assert low == pytest.approx(0.78898 - 0.19314, abs=1e-4)
    assert high == pytest.approx(0.78898 + 0.19314, abs=1e-4)
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[1] == pytest.approx(1.0)
    assert wilson_interval(0, 1)[1] < 1.0
    for wrong in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="successes"):
            wilson_interval(*wrong)


def episode(won, commands, valid=None, observations=None, kind="pick"):
    observations = observations or [str(i) for i in range(len(commands) + 1)]
    valid = valid or [True] * len(commands)
    return Episode("g", kind, "t", observations, commands, [""] * len(commands), valid, won)


def test_scores_by_hand():
    episodes = [
        episode(True, ["a", "b"]),
        episode(False, ["a", "a", "a", "b"], [True, False, False, True], ["x", "x", "x", "y", "x"]),
    ]
    result = score(episodes)
    assert (result.games, result.won, result.success) == (2, 1, 0.5)
    assert (result.mean_steps, result.mean_steps_won) == (3.0, 2.0)
    assert result.inadmissible_share == pytest.approx(2 / 6)
    # "a" answered "x" three times: two repeats.
    assert result.repeated_share == pytest.approx(2 / 6)
    assert score(episodes[1:]).mean_steps_won is None
    assert list(score_by_type([*episodes, episode(True, ["a"], kind="look")])) == [
        "look", "pick", "all",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no episodes"):
        score([])


def run(tmp_path, *arguments):
    code = main(["--panel", "generated_unseen", "--out", str(tmp_path), *arguments])
    assert code == 0
    return json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize(
    ("agent", "least"), [("expert", 1.0), ("omniscient", 1.0), ("planner:rules", 0.95)]
)
def test_agents_on_the_generated_panel(agent, least, tmp_path, capsys):
    result = run(tmp_path, "--agent", agent)
    assert result["scores"]["all"]["success"] >= least
    assert result["scores"]["all"]["inadmissible_share"] == 0.0
    assert (result["games"], result["horizon"]) == (120, 50)
    assert result["text_versions"] == ["0.4"]
    assert len(result["panel_hash"]) == 64
    assert result["engine"].startswith("jaxagent ")
    assert f"hash {result['panel_hash'][:16]}" in capsys.readouterr().out


def test_results_are_the_same_over_workers(tmp_path):
    alone = run(tmp_path, "--agent", "random", "--seed", "3", "--horizon", "20")
    spread = run(tmp_path, "--agent", "random", "--seed", "3", "--horizon", "20", "--workers", "2")
    other = run(tmp_path, "--agent", "random", "--seed", "4", "--horizon", "20")
    assert alone == spread
    assert alone["scores"] != other["scores"]


def test_temperature_samples(tmp_path):
    for agent in ("expert", "planner:rules"):
        greedy = run(tmp_path, "--agent", agent)
        warm = run(tmp_path, "--agent", agent, "--temperature", "1.0", "--seed", "1")
        assert warm["temperature"] == 1.0
        assert warm["scores"]["all"]["mean_steps"] > greedy["scores"]["all"]["mean_steps"]
        assert warm == run(tmp_path, "--agent", agent, "--temperature", "1.0", "--seed", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent", "planner:gpt"], "--agent planner:gpt: unknown; known agents: random, expert"),
        (["--agent", "random", "--temperature", "1"], "agent random samples nothing"),
        (["--agent", "expert", "--temperature", "-1"], "must not be negative"),
        (["--agent", "expert", "--horizon", "0"], "--horizon 0 must be at least 1"),
        (["--agent", "expert", "--expect-hash", "abc0"], "its games changed"),
        (["--agent", "expert", "--panel", "valid_seen", "--data", "/nowhere"], "does not exist"),
        (["--agent", "omniscient", "--out", __file__], "--out"),
    ],
)
def test_refusals_take_one_line_and_status_two(arguments, message, capsys):
    panel = [] if "--panel" in arguments else ["--panel", "generated_unseen"]
    assert main([*panel, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_lost_episodes_make_no_score(monkeypatch, capsys):
    def losing(env, games):
        step = env.step([""] * env.num_envs)
        step.info.lost[0] = True
        return step.observations, step.info._replace(admissible=[[] for _ in games])

    monkeypatch.setattr(evaluate_text.BatchEnv, "reset", losing)
    monkeypatch.setattr(evaluate_text, "make_player", lambda *arguments: None)
    assert main(["--panel", "generated_unseen", "--agent", "expert"]) == 2
    assert "1 of 120 episodes were cut off" in capsys.readouterr().err


class Outline(HTMLParser):
    """Classes of the transcripts in order, and whether any script element exists."""

    def __init__(self):
        super().__init__()
        self.states, self.tags = [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "details":
            self.states.append(dict(attrs)["class"])


def test_transcripts_show_failures_first_and_escape_text(tmp_path):
    nasty = "<script>alert('x')</script>"
    episodes = [
        episode(True, ["look"]),
        episode(False, [nasty], [False], ["start", nasty]),
        episode(True, ["look"]),
    ]
    path = tmp_path / "t.html"
    write_transcripts(path, f"title {nasty}", episodes, score_by_type(episodes))
    outline = Outline()
    outline.feed(path.read_text())
    assert outline.states == ["lost", "won", "won"]
    assert "script" not in outline.tags
    assert "class='refused'" in path.read_text()


def test_mean_steps_of_the_omniscient_agent_is_the_fewest_that_a_search_finds(tmp_path):
    result = run(tmp_path, "--agent", "omniscient", "--limit", "24")
    games = [made.game for made in load_panel("generated_unseen").games[:24]]
    fewest = [fewest_steps(game, commands=useful_commands) for game in games]
    assert result["scores"]["all"]["mean_steps"] == pytest.approx(math.fsum(fewest) / 24)
