"""The loop of planner and worker, with planners that behave and planners that do not."""

import subprocess
import sys

import pytest

from envs.household.demonstrations import demonstrate
from envs.household.describe import opening_text
from envs.household.engine import admissible_commands, step
from envs.household.frequencies import presence
from envs.text.batch import BatchEnv
from jaxagent.planning.text_agent import (
    AdmissibleWorker,
    LoopSettings,
    PlannerView,
    Result,
    RulePlanner,
    TextAgent,
    allowed_subgoal,
)
from tests.text.small import small_game


class Scripted:
    """Proposes from a list, the last entry for ever; remembers what it was shown."""

    def __init__(self, *proposals):
        self.proposals, self.views = list(proposals), []

    def propose(self, view: PlannerView) -> str:
        self.views.append(view)
        return self.proposals.pop(0) if len(self.proposals) > 1 else self.proposals[0]


def run(agent, game, steps=40):
    state, text = game.initial, opening_text(game, game.initial)
    commands = []
    while not state.won and len(commands) < steps:
        commands.append(agent.act(text, admissible_commands(game, state)))
        outcome = step(game, state, commands[-1])
        assert outcome.valid
        state, text = outcome.state, outcome.feedback
    return state.won, commands


def agent_for(game, planner, **settings):
    return TextAgent(
        planner,
        AdmissibleWorker(),
        opening_text(game, game.initial),
        fallback=settings.pop("fallback", None),
        settings=LoopSettings(**settings),
    )


def prior(thing, place):
    return presence().get((thing, place), 0.0)


def test_rules_win_generated_games(generated):
    won = 0
    for made in generated:
        worker = AdmissibleWorker(prior)
        agent = TextAgent(RulePlanner(), worker, opening_text(made.game, made.game.initial))
        won += run(agent, made.game, 50)[0]
    assert won >= 0.95 * len(generated)


def test_subgoals_are_asked_for_one_by_one_with_results_and_history():
    game = small_game()
    planner = Scripted("take apple", "put apple in/on sinkbasin")
    agent = agent_for(game, planner, history_window=2)
    won, commands = run(agent, game)
    assert won
    assert commands[-2:] == ["go to sinkbasin 1", "move apple 2 to sinkbasin 1"]
    first, second = planner.views
    assert (first.task, first.history, first.results) == ("put a apple in sinkbasin", (), ())
    assert second.results == (Result("take apple", "done"),)
    assert [turn.command for turn in second.history] == commands[-4:-2]
    assert second.history[-1].subgoal == "take apple"
    assert len(second.history) <= 2


@pytest.mark.parametrize(
    ("subgoal", "allowed"),
    [
        ("take apple", True),
        ("take apple 2", True),
        ("put apple in/on fridge", True),
        ("put apple 1 in/on fridge 1", True),
        ("use desklamp", True),
        ("find apple", True),
        ("put apple", False),
        ("go to fridge 1", False),
        ("eat apple", False),
        ("take apple; rm -rf /", False),
        ("", False),
        ("take", False),
    ],
)
def test_white_list(subgoal, allowed):
    assert allowed_subgoal(subgoal) is allowed


def test_a_planner_off_the_white_list_is_asked_again_and_then_replaced():
    game = small_game()
    planner, fallback = Scripted("eat the apple"), RulePlanner()
    agent = agent_for(game, planner, proposals=3, fallback=fallback)
    agent.act(opening_text(game, game.initial), admissible_commands(game, game.initial))
    assert len(planner.views) == 3
    assert planner.views[2].results[-1] == Result("eat the apple", "not an allowed sub-goal")
    assert agent.subgoal == "take apple"
    assert run(agent_for(game, Scripted("eat the apple"), fallback=fallback), game)[0]


def test_without_a_fallback_every_command_is_still_admissible():
    game = small_game()
    won, commands = run(agent_for(game, Scripted("???")), game, steps=25)
    assert not won
    assert len(set(commands)) > 3  # it does not stand still either


def test_an_impossible_subgoal_is_given_up_and_replanned():
    game = small_game()
    planner = Scripted("take unicorn", "take apple", "put apple in/on sinkbasin")
    agent = agent_for(game, planner, subgoal_steps=12)
    won, _ = run(agent, game, steps=60)
    assert won
    assert agent.results[0].subgoal == "take unicorn"
    assert agent.results[0].outcome in ("going round in circles", "took too many steps")
    assert agent.results[1] == Result("take apple", "done")


def test_subgoals_have_a_limit_of_steps():
    game = small_game()
    agent = agent_for(game, Scripted("take unicorn"), subgoal_steps=3)
    run(agent, game, steps=5)
    assert agent.results[0] == Result("take unicorn", "took too many steps")


def test_subgoals_may_name_one_thing_and_one_place():
    game = small_game("two")
    planner = Scripted("find apple 1", "take apple 1", "heat apple 1", "put apple 1 in/on fridge 1")
    agent = agent_for(game, planner)
    _, commands = run(agent, game, steps=16)
    assert "take apple 1 from fridge 1" in commands
    assert "move apple 1 to fridge 1" in commands
    assert [result.outcome for result in agent.results[:4]] == ["done"] * 4
    assert not any("apple 2" in command for command in commands)


@pytest.mark.parametrize("expert", ["searching", "omniscient"])
def test_the_loop_follows_the_subgoals_of_demonstrations(expert, generated):
    """What a planner learns from demonstrations must be what the loop can carry out."""
    won = 0
    for made in generated:
        subgoals = demonstrate(made.game, expert, horizon=150)["subgoals"]
        assert all(map(allowed_subgoal, subgoals))
        plan = [aim for aim, before in zip(subgoals, ["", *subgoals]) if aim != before]
        agent = TextAgent(
            Scripted(*plan), AdmissibleWorker(prior), opening_text(made.game, made.game.initial)
        )
        won += run(agent, made.game, 60)[0]
    assert won >= 0.9 * len(generated)


class Stubborn:
    """A worker that wants the same command for ever."""

    def choose(self, subgoal, observation, admissible):
        return "look"

    def achieved(self, subgoal, command, observation):
        return False


def test_circles_are_noticed():
    game = small_game()
    agent = TextAgent(
        Scripted("take apple"), Stubborn(), opening_text(game, game.initial),
        settings=LoopSettings(repeats=2),
    )  # fmt: skip
    _, commands = run(agent, game, steps=6)
    # Once after the opening, twice after its own answer; then something else must be done.
    assert commands[:3] == ["look"] * 3
    assert commands[3] != "look"
    assert Result("take apple", "going round in circles") in agent.results


def test_a_worker_cannot_leave_the_admissible_set():
    class Wild(Stubborn):
        def choose(self, subgoal, observation, admissible):
            return "fly to the moon"

    game = small_game()
    agent = TextAgent(Scripted("take apple"), Wild(), opening_text(game, game.initial))
    assert run(agent, game, steps=8)[0] is False  # run() asserts that each command is valid


def test_nothing_admissible_is_an_error():
    game = small_game()
    agent = agent_for(game, RulePlanner())
    with pytest.raises(ValueError, match="no admissible command"):
        agent.act("", [])


@pytest.mark.parametrize(
    ("name", "value"),
    [("history_window", -1), ("proposals", 0), ("subgoal_steps", 0), ("repeats", 0)],
)
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} \\({value}\\) must be at least"):
        LoopSettings(**{name: value})
    with pytest.raises(ValueError, match="temperature"):
        AdmissibleWorker(temperature=-0.5)


def test_the_loop_plays_a_batch(generated):
    env = BatchEnv(6)
    observations, info = env.reset([made.game for made in generated[:6]])
    agents = [TextAgent(RulePlanner(), AdmissibleWorker(prior), text) for text in observations]
    while any(info.admissible):
        commands = [
            agent.act(text, list(possible)) if possible else ""
            for agent, text, possible in zip(agents, observations, info.admissible)
        ]
        observations, _, _, _, info = env.step(commands)
    assert info.won.sum() >= 5


def test_the_loop_needs_no_jax_and_no_environment():
    code = (
        "import sys\n"
        "for name in ('jax', 'flax', 'envs', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "import jaxagent.planning.text_agent\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
