"""A run from its first iteration to its last: programs, resume, guards, signals, comparison."""

import dataclasses
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.probe import ProbeSimulator, goal_reach
from jaxagent.training.checkpoint import CheckpointError, Checkpoints
from jaxagent.training.evaluate import evaluate
from jaxagent.training.interruption import Interrupted
from jaxagent.training.loop import switch_guidance
from jaxagent.training.metrics import read_metrics
from jaxagent.training.nonfinite import NonFiniteTraining
from jaxagent.training.trainer import seed_keys
from jaxagent.training.trials import compare_arms
from tests.training.probe_run import LENGTH, NUM_ENVS, make_arm, make_trainer, run_config


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """The run that the others are compared with: six iterations, never disturbed."""
    return make_arm(tmp_path_factory.mktemp("whole"), run_config())


@pytest.fixture(scope="module")
def finished(arm):
    return arm.train(resume=False)


def again(arm, folder, **changes):
    """The same programs in another folder."""
    folder.mkdir(exist_ok=True)
    return dataclasses.replace(arm, folder=folder, **changes)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, bits(a), bits(b))


def bits(tree):
    def plain(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(plain, tree)


class StopAfter:
    """A reporter that raises a real signal after some iterations."""

    def __init__(self, reporter, iteration, number):
        self._reporter, self._iteration, self._number = reporter, iteration, number

    def __getattr__(self, name):
        return getattr(self._reporter, name)

    def advance(self, iteration, rate):
        if iteration == self._iteration:
            os.kill(os.getpid(), self._number)


class Listening:
    """A reporter that keeps what was said."""

    def __init__(self, reporter, said):
        self._reporter, self._said = reporter, said

    def __getattr__(self, name):
        return getattr(self._reporter, name)

    def say(self, text):
        self._said.append(text)


def test_a_run_logs_evaluates_and_saves(arm, finished):
    _, report = finished
    records = read_metrics(arm.folder / "metrics.jsonl")
    assert [r["iteration"] for r in records if r["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    assert [r["iteration"] for r in evaluations] == [0, 2, 4, 6]
    assert evaluations[-1]["mean"] == pytest.approx(report.mean)
    last = [r for r in records if r["kind"] == "train"][-1]
    told_apart = last["reward_env"] + last["guidance_lambda"] * last["reward_guidance"]
    assert last["reward_total"] == pytest.approx(told_apart, rel=1e-4)
    assert sorted(p.name for p in (arm.folder / "checkpoints").iterdir()) == ["2", "4", "6"]
    assert any((arm.folder / "tensorboard").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("iteration", [3, 4])  # between evaluations, and at one
def test_interrupted_and_resumed_is_the_same_run(arm, finished, tmp_path, iteration, number):
    stopped = again(arm, tmp_path / "run", reporter=StopAfter(arm.reporter, iteration, number))
    with pytest.raises(Interrupted) as stop:
        stopped.train(resume=False)
    assert stop.value.signal_number == number
    said: list[str] = []
    resumed = again(arm, tmp_path / "run", reporter=Listening(arm.reporter, said))
    state, report = resumed.train(resume=True)
    steps = arm.run.num_envs * arm.run.unroll_length
    assert said[0] == f"going on from {iteration * steps:,} of {6 * steps:,} steps"
    same(state, finished[0])
    assert report == finished[1]
    whole, pieced = (read_metrics(a.folder / "metrics.jsonl") for a in (arm, resumed))
    timing = {"seconds", "steps_per_second"}
    assert [{k: v for k, v in r.items() if k not in timing} for r in whole] == [
        {k: v for k, v in r.items() if k not in timing} for r in pieced
    ]


def test_without_a_checkpoint_a_run_begins_and_says_so(arm, tmp_path):
    said: list[str] = []
    reporter = StopAfter(Listening(arm.reporter, said), 1, signal.SIGTERM)
    with pytest.raises(Interrupted):
        again(arm, tmp_path / "run", reporter=reporter).train(resume=True)
    assert said[0] == "no checkpoint yet: starting from the beginning"


def test_a_finished_run_resumed_only_says_how_it_went(arm, finished):
    before = (arm.folder / "metrics.jsonl").read_text()
    state, report = again(arm, arm.folder).train(resume=True)
    same(state, finished[0])
    assert report == finished[1]
    assert (arm.folder / "metrics.jsonl").read_text() == before


def test_each_program_compiles_once(arm):
    """They are compiled ahead of time: anything but the same types and placement is refused.

    Weak types on the second call, or what an evaluation hands back, would be just that.
    """
    trainer = arm.trainer
    state = trainer.init([0])
    types = jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), state)
    state, _ = arm.programs.iterate(state)
    assert types == jax.tree.map(
        lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), state
    )
    state, _ = arm.programs.iterate(state)
    guidance = arm.programs.observe_evaluation(state.guidance, jnp.zeros(1))
    state, _ = arm.programs.iterate(state.replace(guidance=guidance))
    state, _ = arm.programs.iterate(switch_guidance(state, 0.0))


def test_the_state_is_donated(arm):
    state = arm.trainer.init([0])
    arm.programs.iterate(state)
    with pytest.raises(RuntimeError, match="deleted"):
        _ = state.env.episode_return + 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_restores_on_another_number_of_devices(arm, finished, count):
    run = run_config()
    other = make_trainer(run, num_devices=count)
    like = other.abstract_state(1)
    checkpoints = Checkpoints(arm.folder / "checkpoints", 3)
    state, host = checkpoints.restore(like, other.shardings(like), 4)
    checkpoints.close()
    assert host["iteration"] == 4
    programs = other.compile(state)
    for _ in range(2):
        state, _ = programs.iterate(state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4),
        bits(state.agent.policy_params),
        bits(finished[0].agent.policy_params),
    )


def test_one_and_two_devices_play_and_learn_the_same():
    run = run_config(2)
    results = []
    for count in (1, 2):
        trainer = make_trainer(run, num_devices=count)
        state = trainer.init([0])
        programs = trainer.compile(state)
        state, _ = programs.iterate(state)
        evaluation, _ = evaluate(trainer, programs.evaluate, state, 0)
        results.append((bits(state.env), bits(state.agent), evaluation.episode_return))
    (env_one, agent_one, return_one), (env_two, agent_two, return_two) = results
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), env_one, env_two
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), agent_one, agent_two
    )
    np.testing.assert_allclose(return_one, return_two, rtol=1e-3, atol=1e-4)


def test_several_seeds_are_the_single_runs_side_by_side(arm, tmp_path):
    single = arm.trainer.init([0])
    for _ in range(2):
        single, _ = arm.programs.iterate(single)
    pair = arm.trainer.init([1, 0])
    programs = arm.trainer.compile(pair)
    for _ in range(2):
        pair, metrics = programs.iterate(pair)
    assert metrics["kl"].shape == (2,)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[1], b[0], rtol=1e-4, atol=1e-6),
        bits(pair.agent.policy_params),
        bits(single.agent.policy_params),
    )
    run = run_config(2, num_seeds=2)
    both = make_arm(tmp_path / "seeds", run, arm.trainer, programs)
    _, report = both.train(resume=False)
    assert len(report.episode_return) == 2
    assert (report.low, report.high) == (None, None)  # two seeds say too little for an interval


def test_seeds_in_one_vmap_are_the_seeds_one_after_the_other(arm):
    """An accelerator takes all seeds at once, a CPU one after the other."""
    at_once = dataclasses.replace(arm.trainer.layout, map_seeds=False)
    results = []
    for trainer in (arm.trainer, dataclasses.replace(arm.trainer, layout=at_once)):
        state = trainer.init([0, 1])
        programs = trainer.compile(state)
        for _ in range(2):
            state, _ = programs.iterate(state)
        evaluation, _ = evaluate(trainer, programs.evaluate, state, 0)
        results.append((bits(state.agent.policy_params), evaluation.episode_return))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)


def test_evaluation_is_without_guidance_and_exploration(arm):
    """Its return is the sum of R_env under tanh(loc), computed here step by step."""
    trainer, simulator = arm.trainer, goal_reach()
    state = trainer.init([5])
    guided, _ = evaluate(trainer, arm.programs.evaluate, state, 9)
    unguided, _ = evaluate(trainer, arm.programs.evaluate, switch_guidance(state, 0.0), 9)
    np.testing.assert_array_equal(guided.episode_return, unguided.episode_return)
    agent = jax.tree.map(lambda x: x[0], state.agent)
    for episode in range(2):
        key = jax.random.fold_in(seed_keys(jnp.asarray(9)).evaluation, episode)
        now = simulator.reset(jax.random.split(key)[0])
        total, steps = 0.0, 0
        for _ in range(trainer.evaluation_length):
            loc, _ = trainer.agent.distribution(agent, now.observation[None])
            now = simulator.step(now, jnp.tanh(loc[0]))
            total, steps = total + float(now.reward), steps + 1
            if bool(now.terminated):
                break
        assert guided.episode_return[0, episode] == pytest.approx(total, abs=1e-4)
        assert guided.episode_length[0, episode] == steps
        assert guided.success[0, episode] == bool(now.success)


def test_three_non_finite_updates_in_a_row_stop_the_run(tmp_path):
    def advance(observation, action):
        # The squashed action is finite, its use is not: gradients become NaN, observations do not.
        return observation, jnp.where(observation[0] > -2, 1e38, 0.0) * 10, jnp.zeros((), bool)

    simulator = ProbeSimulator("overflow", 1, lambda key: jnp.zeros(1), advance)
    run = run_config(6)
    trainer = make_trainer(run, dataclasses.replace(simulator))
    arm = make_arm(tmp_path / "bad", run, trainer)
    # An infinite reward is contained by the batch, so poison the critic instead.
    state = arm.trainer.init([0])
    poisoned = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), state.agent.critic_params)
    init = trainer.init
    object.__setattr__(
        trainer,
        "init",
        lambda seeds: init(seeds).replace(agent=init(seeds).agent.replace(critic_params=poisoned)),
    )
    names = "gradients of policy_loss and value_loss were not finite in "
    with pytest.raises(NonFiniteTraining, match=f"^{names}3 updates in a row, at iteration 3"):
        arm.train(resume=False)
    dump = Checkpoints(tmp_path / "bad" / "nonfinite", 1)
    like = trainer.abstract_state(1)
    restored, host = dump.restore(like, trainer.shardings(like))
    dump.close()
    assert host["iteration"] == 3
    assert int(restored.agent.nonfinite_updates[0]) == 3
    # Nothing non-finite reached the policy.
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(restored.agent.policy_params))


def test_one_bad_seed_is_stopped_and_the_others_go_on(arm, finished, tmp_path):
    """Seed 1 gets critics that are no numbers; seed 0 learns what it learns alone."""
    run = run_config(6, num_seeds=2)
    trainer = arm.trainer
    fresh = trainer.init([0, 1])
    critics = jax.tree.map(lambda x: x.at[1].set(jnp.nan), fresh.agent.critic_params)
    programs = trainer.compile(fresh)
    said: list[str] = []
    both = dataclasses.replace(
        make_arm(tmp_path / "both", run, trainer, programs),
        reporter=Listening(arm.reporter, said),
        prepare=lambda state: state.replace(agent=state.agent.replace(critic_params=critics)),
    )
    state, _ = both.train(resume=False)
    (line,) = (text for text in said if "stopped" in text)
    assert f"{3 * NUM_ENVS * LENGTH:,} steps   seed 1 is stopped" in line
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[0], b[0], rtol=1e-3, atol=1e-5),
        bits(state.agent.policy_params),
        bits(finished[0].agent.policy_params),
    )
    records = read_metrics(both.folder / "metrics.jsonl")
    trained = [r for r in records if r["kind"] == "train"]
    assert [r.get("stopped_seeds", []) for r in trained] == [[], [], [1], [1], [1], [1]]
    assert records[-1]["stopped_seeds"] == [1]
    assert all(np.isfinite(r["policy_loss"]) for r in trained[3:])
    # Stopped means stopped: with critics that are numbers again it learns no more.
    healed = jax.tree.map(lambda x: jnp.nan_to_num(x), state.agent.critic_params)
    state = state.replace(agent=state.agent.replace(critic_params=healed))
    before = bits(state.agent)
    after, _ = programs.iterate(jax.device_put(state, trainer.shardings(state)))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b[1]), before, bits(after.agent))
    said.clear()
    dataclasses.replace(both).train(resume=True)
    assert "seed 1 is stopped" in "".join(said)


def test_a_loss_that_is_not_finite_stops_the_run_at_once(arm, tmp_path):
    """A squared error overflows while its gradient is still a number."""

    def iterate(state):
        state, metrics = arm.programs.iterate(state)
        return state, metrics | {"value_loss": metrics["value_loss"] + np.inf}

    overflowing = again(arm, tmp_path / "inf", programs=arm.programs._replace(iterate=iterate))
    with pytest.raises(NonFiniteTraining, match=r"^value_loss is not finite \(inf\), at iter.* 1;"):
        overflowing.train(resume=False)
    assert (tmp_path / "inf" / "nonfinite" / "1").exists()


def test_a_foreign_checkpoint_is_refused(arm, finished, tmp_path):
    run = run_config(num_envs=8)
    other = make_trainer(run)
    like = other.abstract_state(1)
    checkpoints = Checkpoints(arm.folder / "checkpoints", 3)
    with pytest.raises(CheckpointError, match=r"6: belongs to another configuration: .*\[1, 16"):
        checkpoints.restore(like, other.shardings(like))
    checkpoints.close()


def test_the_unguided_arm_is_rewarded_by_the_task_alone(arm, tmp_path):
    for name, guided in (("guided", True), ("unguided", False)):
        again(arm, tmp_path / name, guided=guided).train(resume=False)
    train = [
        r for r in read_metrics(tmp_path / "unguided" / "metrics.jsonl") if r["kind"] == "train"
    ]
    assert {r["guidance_lambda"] for r in train} == {0.0}
    assert all(r["reward_total"] == pytest.approx(r["reward_env"]) for r in train)
    assert any(r["reward_guidance"] != 0 for r in train)
    result = compare_arms(tmp_path, "test", False, -1e9, arm.reporter)
    assert (tmp_path / "compare.png").stat().st_size > 5000
    assert result["guided"]["steps_to_threshold"] == [0.0]
    assert result == json.loads((tmp_path / "compare.json").read_text())
