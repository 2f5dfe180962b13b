"""What is compared with what, how the figures are made of epochs, and what is written."""

import json
import math

import pytest

from benchmarks import ppo_throughput
from benchmarks.brax_peer import Epoch
from benchmarks.ppo_throughput import (
    Throughput,
    compile_ratio,
    main,
    our_epochs,
    return_ratio,
    same_work,
    throughput_ratio,
    throughput_ratio_to_fastest,
    until_return,
)
from experiments.ant_config import AntConfig
from tests.training.probe_run import LENGTH, NUM_ENVS, make_trainer, run_config


def side(name="x", *, rate=500.0, compiling=20.0, evaluation=0.0) -> Throughput:
    """Two warm epochs, the first of which compiles, and three of 1,000 steps."""
    warm = [
        Epoch(0, 3.0 + evaluation, 0.0, evaluation, None),
        Epoch(
            1000, compiling + 1000 / rate + evaluation, compiling + 1000 / rate, evaluation, None
        ),
        Epoch(2000, 1000 / rate + evaluation, 1000 / rate, evaluation, None),
    ]
    steady = [
        Epoch(3000 + 1000 * i, 1000 / r + evaluation, 1000 / r, evaluation, None)
        for i, r in enumerate((rate, 2 * rate, rate / 2))
    ]
    return Throughput(name, warm + steady)


def test_rates_leave_out_the_warm_up_and_evaluations():
    assert side(rate=500.0, evaluation=7.0).rates() == [500.0, 1000.0, 250.0]
    row = side(rate=500.0).row()
    assert row["steps_per_second"] == {"median": 500.0, "low": 250.0, "high": 1000.0}


@pytest.mark.parametrize("evaluation", [0.0, 7.0])
def test_compile_seconds_leave_out_steady_work(evaluation):
    # 3 s until the first epoch, 20 s in it.
    assert side(evaluation=evaluation).compile_seconds() == pytest.approx(23.0)


def test_a_second_compilation_counts_as_compiling():
    twice = side()
    again = twice.epochs[2]
    twice.epochs[2] = again._replace(
        wall_seconds=again.wall_seconds + 9.0, training_seconds=again.training_seconds + 9.0
    )
    assert twice.compile_seconds() == pytest.approx(32.0)
    assert twice.rates() == side().rates()


def test_ratios_are_against_brax_as_shipped_and_against_the_better_peer():
    rows = [side(rate=600.0, compiling=10.0).row(), side(rate=200.0).row(), side(rate=300.0).row()]
    rows[1]["compile_seconds"] = 26.0
    rows[2]["compile_seconds"] = 52.0
    assert throughput_ratio(rows) == pytest.approx(3.0)
    assert throughput_ratio_to_fastest(rows) == pytest.approx(2.0)
    assert compile_ratio(rows) == pytest.approx(0.5)


def test_both_sides_do_the_same_work():
    ours, theirs = same_work(seed=3, rounds=5)
    batch = ours.run.num_envs * ours.run.unroll_length
    assert batch == theirs.steps_per_update
    assert (ours.run.num_envs, ours.run.unroll_length) == (theirs.num_envs, theirs.unroll_length)
    assert batch // ours.ppo.num_minibatches == theirs.batch_size * theirs.unroll_length
    assert ours.ppo.num_epochs == theirs.num_updates_per_batch
    assert ours.run.episode_length == theirs.episode_length
    assert ours.run.evaluation_episodes == theirs.num_eval_envs
    assert ours.run.seed == theirs.seed == 3
    updates = ours.run.num_iterations / (theirs.num_evals - 1)
    assert updates == ppo_throughput.ITERATIONS_PER_EPOCH
    assert theirs.num_timesteps == ours.run.total_steps


def test_our_epochs_train_and_evaluate_to_the_end(monkeypatch):
    """The real trainer; only the Ant, which takes a minute to compile, is another environment."""
    monkeypatch.setattr(ppo_throughput, "build", lambda config, _: (make_trainer(config.run), None))
    config = AntConfig(run=run_config(iterations=3))
    evaluated = list(our_epochs(config, 2, evaluated=True))
    assert [epoch.steps for epoch in evaluated] == [0, 2 * NUM_ENVS * LENGTH, 3 * NUM_ENVS * LENGTH]
    assert evaluated[0].training_seconds == 0.0
    for epoch in evaluated:
        assert math.isfinite(epoch.episode_return)
        assert epoch.wall_seconds >= epoch.training_seconds + epoch.evaluation_seconds
        assert epoch.evaluation_seconds > 0.0
    # Two more iterations of learning change what the policy earns.
    assert evaluated[1].episode_return != evaluated[0].episode_return


CURVE = [
    Epoch(0, 30.0, 0.0, 5.0, 100.0),
    Epoch(1000, 10.0, 8.0, 2.0, 2999.0),
    Epoch(2000, 10.0, 8.0, 2.0, 3000.0),
    Epoch(3000, 10.0, 8.0, 2.0, 9000.0),
]


def test_time_to_return_ends_with_the_evaluation_that_shows_it():
    row = until_return("x", iter(CURVE), 3000.0, 10_000, math.inf)
    assert (row["outcome"], row["seconds"], row["steps"]) == ("reached", 50.0, 2000)
    assert (row["evaluations"], row["evaluation_seconds"]) == (3, 4.0)
    assert [point["seconds"] for point in row["curve"]] == [30.0, 40.0, 50.0]


@pytest.mark.parametrize(
    ("cap", "patience", "outcome", "seconds"),
    [(1000, math.inf, "cap", 40.0), (10_000, 35.0, "slower", 40.0), (10_000, 1e9, "reached", 60.0)],
)
def test_time_to_return_gives_up(cap, patience, outcome, seconds):
    target = 5000.0
    row = until_return("x", iter(CURVE), target, cap, patience)
    assert (row["outcome"], row["seconds"]) == (outcome, seconds)


def result(outcome, seconds):
    return {"outcome": outcome, "seconds": seconds}


def test_return_ratio_is_against_the_faster_peer():
    ours = result("reached", 200.0)
    assert return_ratio([ours, result("reached", 800.0), result("slower", 900.0)]) == 0.25
    assert return_ratio([ours, result("reached", 800.0), result("reached", 400.0)]) == 0.5
    # Nobody reached it: seconds at the cap bound the ratio from above.
    assert return_ratio([ours, result("cap", 1000.0), result("cap", 2000.0)]) == 0.2
    # One at its cap early on does not count against one that arrived.
    assert return_ratio([ours, result("cap", 300.0), result("reached", 400.0)]) == 0.5
    assert math.isnan(return_ratio([result("cap", 200.0), result("reached", 400.0)]))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], "--against"),
        (["--against", "nobody"], "nobody"),
        (["--against", "brax", "--part", "half"], "half"),
        (["--against", "brax", "--seed", "-1"], "seed"),
        (["--against", "brax", "--seed", "x"], "seed"),
        (["--against", "brax", "--steps", "0"], "steps"),
        (["--against", "brax", "--part", "throughput", "--steps", "5"], "steps"),
        (["--against", "brax", "--part", "return", "--rounds", "5"], "rounds"),
        (["--against", "brax", "--json", "/missing/folder/x.json"], "existing folder"),
        (["--against", "brax", "--nonsense"], "nonsense"),
    ],
)
def test_wrong_options_take_one_line_and_status_2(arguments, names, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1
    assert names in complaint


@pytest.fixture
def measured(monkeypatch):
    """The measuring is replaced by its outcome; what remains is what is made of it."""
    rows = [side("jaxagent", rate=600.0).row(), side("brax, 1 device", rate=300.0).row()]
    curves = {"jaxagent": CURVE, "brax, 1 device": CURVE[:2]}
    returns = [until_return(name, iter(c), 3000.0, 10_000, math.inf) for name, c in curves.items()]
    monkeypatch.setattr(ppo_throughput, "measure_throughput", lambda *_: rows)
    monkeypatch.setattr(ppo_throughput, "measure_return", lambda *_: returns)
    monkeypatch.setattr(ppo_throughput.jax.config, "update", lambda *_: None)


@pytest.mark.parametrize(
    ("part", "keys", "headline"),
    [
        ("throughput", {"throughput"}, "2.00"),
        ("return", {"return"}, "1.25"),
        ("all", {"throughput", "return"}, "2.00"),
    ],
)
@pytest.mark.usefixtures("measured")
def test_json_and_last_line(part, keys, headline, tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert main(["--against", "brax", "--part", part, "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == f"ratio: {headline}"
    assert "load average" in shown
    written = json.loads(path.read_text())
    assert written.keys() == keys | {"machine", "seed", "ratio"}
    assert f"{written['ratio']:.2f}" == headline
    assert {"load_average", "load_average_after", "cores", "jax"} <= written["machine"].keys()
    if "throughput" in keys:
        row = written["throughput"]["rows"][0]
        assert row.keys() == {"name", "steps_per_second", "compile_seconds", "epochs"}
        assert row["epochs"][1].keys() == set(Epoch._fields)
    if "return" in keys:
        row = written["return"]["rows"][1]
        assert (row["name"], row["outcome"], row["evaluations"]) == ("brax, 1 device", "cap", 2)
        assert row["curve"][1] == {"steps": 1000, "seconds": 40.0, "return": 2999.0}
