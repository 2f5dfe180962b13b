"""The supervised loop: taken up in the middle it ends the same, and its stream needs no memory."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

from jaxagent.agents.planner import Imitation, ImitationConfig
from jaxagent.training.checkpoint import CheckpointError
from jaxagent.training.chunks import Position, grouped, stream
from jaxagent.training.interruption import Interrupted
from jaxagent.training.metrics import read_metrics
from jaxagent.training.nonfinite import NonFiniteTraining
from jaxagent.training.packing import pack
from jaxagent.training.progress import Reporter
from jaxagent.training.sft import SFTRunConfig, Teaching, Validation, data_mesh
from tests.agents.test_planner import MODEL, SHAPE, TOKENIZER, episodes

CONFIG = ImitationConfig(warmup_updates=2, learning_rate=1e-2)


def chunk(number: int):
    """Five batches or so, of episodes that the number decides."""
    return pack(episodes(40, seed=number), SHAPE)


def teaching(
    folder, updates=7, between=None, make=chunk, config=CONFIG, devices=1, validations=2, **changes
):
    agent = Imitation(MODEL, config, updates, factors=TOKENIZER.factors)
    return Teaching(
        imitation=agent,
        chunk=make,
        validate=lambda params: Validation(0.5, {"success": 0.5}),
        keep=lambda params, is_best: None,
        run=SFTRunConfig(num_updates=updates, num_validations=validations, **changes),
        mesh=data_mesh([4], devices),
        folder=folder,
        reporter=Reporter(),
        between=between or {},
    )


def same(one, two) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_taken_up_in_the_middle_ends_with_the_same_parameters(tmp_path, capsys):
    seen = []
    whole, validation = teaching(
        tmp_path / "whole", between={3: lambda p, at: seen.append(at)}
    ).train(resume=False)
    assert validation.metrics == {"success": 0.5}

    def stop(params, position):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM"):
        teaching(tmp_path / "cut", between={3: stop}).train(resume=True)
    # In the middle of a chunk, or this would not test the position inside it.
    assert seen[0].used < len(chunk(seen[0].chunk))
    assert "no checkpoint yet: starting from the beginning\n" in capsys.readouterr().out
    resumed, _ = teaching(tmp_path / "cut").train(resume=True)
    assert capsys.readouterr().out.startswith("going on from 3 of 7 updates\n")
    same(whole, resumed)
    lines = (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["iteration"] for r in records if r["kind"] == "evaluation"] == [3, 7]
    assert (
        records[-2]["steps"]
        == json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-2])["steps"]
    )


def test_what_was_counted_belongs_to_the_checkpoint(tmp_path):
    """Killed between two checkpoints, none of which falls on a record of the updates."""

    def die(params, position):
        raise RuntimeError("killed")

    teaching(tmp_path / "whole").train(resume=False)
    with pytest.raises(RuntimeError, match="killed"):
        teaching(tmp_path / "cut", between={5: die}).train(resume=False)
    teaching(tmp_path / "cut").train(resume=True)
    whole, cut = (
        {r["iteration"]: r["steps"] for r in read_metrics(tmp_path / name / "metrics.jsonl")}
        for name in ("whole", "cut")
    )
    assert whole[3] > 0
    assert cut == whole


@pytest.mark.parametrize("validations", [1, 3, 5, 7, 9])
def test_there_are_as_many_validations_as_were_asked_for(tmp_path, validations):
    at = SFTRunConfig(num_updates=7, num_validations=validations).validation_updates
    assert len(at) == min(validations, 7)
    assert at[-1] == 7
    assert len(set(np.diff([0, *at]))) <= 2


def test_a_run_that_was_at_its_end_stays_there(tmp_path, capsys):
    state, _ = teaching(tmp_path).train(resume=False)
    again, _ = teaching(tmp_path).train(resume=True)
    same(state, again)  # so would a run from the beginning be
    assert "going on from 7 of 7 updates\n" in capsys.readouterr().out


def test_the_best_is_the_later_of_equals(tmp_path):
    run, values, kept = teaching(tmp_path, validations=3), [0.9, 0.9, 0.8], []
    run.validate = lambda params: Validation(values.pop(0), {})
    run.keep = lambda params, is_best: kept.append("best" if is_best else "last")
    run.train(resume=False)
    assert kept == ["best", "last", "best", "last", "last"]


def test_the_optimisers_layers_are_divided_over_devices_and_gathered_on_one(tmp_path):
    config = dataclasses.replace(CONFIG, optimizer="muon")
    one, _ = teaching(tmp_path / "one", config=config).train(resume=False)
    two, _ = teaching(tmp_path / "two", config=config, devices=2).train(resume=False)
    kept = {
        jax.tree_util.keystr(path): leaf.addressable_shards[0].data.size / leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(two.optimizer_state)
    }
    momentum = [share for name, share in kept.items() if "layers" in name]
    assert momentum
    assert set(momentum) == {0.5}
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(two.params))
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    again, _ = teaching(tmp_path / "two", config=config).train(resume=True)
    same(two, again)


def test_three_updates_that_are_not_finite_stop_the_run(tmp_path):
    run = teaching(tmp_path, updates=20)
    start = run.start
    run.start = lambda: jax.tree.map(lambda x: x * np.nan if x.dtype == np.float32 else x, start())
    with pytest.raises(NonFiniteTraining, match="not finite in 3 updates in a row, at update 20"):
        run.train(resume=False)


def test_another_model_does_not_take_the_checkpoint(tmp_path):
    teaching(tmp_path).train(resume=False)
    other = teaching(tmp_path)
    other.imitation = Imitation(MODEL, CONFIG, 7)
    other.__post_init__()
    with pytest.raises(CheckpointError, match="belongs to another configuration"):
        other.train(resume=True)


def test_a_stream_goes_on_where_it_stood():
    whole = stream(chunk, 1, Position())
    taken = [next(whole) for _ in range(6)]
    for place in (0, 1, 3):
        again = stream(chunk, 1, taken[place][1])
        for expected, position in taken[place + 1 :]:
            group, at = next(again)
            assert at == position
            same(group, expected)
        again.close()
    whole.close()


def test_groups_hold_batches_of_one_shape():
    groups = grouped([*chunk(0), *chunk(1), *chunk(2)], 2)
    assert all(group.tokens.shape == (2, 4, 24) for group in groups)
    with pytest.raises(ValueError, match=r"accumulation \(9\) must not exceed"):
        next(stream(chunk, 9, Position()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_updates": 0}, r"num_updates \(0\) must be at least 1"),
        ({"seed": -1}, r"seed \(-1\)"),
        ({"name": "a/b"}, r"name \('a/b'\)"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        SFTRunConfig(**changes)


def test_devices_must_divide_the_rows():
    assert data_mesh([4, 2], None).devices.size == 2
    assert data_mesh([3], None).devices.size == 1
    with pytest.raises(ValueError, match=r"num_devices \(2\) must be one of \[1\]"):
        data_mesh([4, 3], 2)
