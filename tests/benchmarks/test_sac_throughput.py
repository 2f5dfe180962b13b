"""What the off-policy benchmark counts, and that both sides do the same work."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from benchmarks import sac_throughput
from benchmarks.sac_throughput import buffer_bytes, configuration, main, relabelling_seconds
from jaxagent.models.critics import CriticEnsemble
from tests.training.skill_run import make_trainer, run_config


@pytest.fixture(scope="module")
def trained():
    trainer = make_trainer(run_config(4))
    return trainer, trainer.init([0])


def test_the_buffer_takes_hardly_more_than_its_fields(trained):
    size = buffer_bytes(*trained)
    # features, next features, goal and action of one float each, and two flags.
    assert size["fields"] == 4 * 4 + 2
    assert 1.0 <= size["ratio"] <= 1.2


def test_relabelling_is_timed_on_the_trainer_itself(trained):
    seconds = relabelling_seconds(*trained, repeats=2)
    assert 0.0 <= seconds < 5.0


def test_both_sides_do_the_same_work():
    config = configuration()
    run, sac = config.run, config.sac
    # Brax steps every environment once, then so many gradient steps.
    assert sac.updates_per_iteration % run.unroll_length == 0
    ours = CriticEnsemble(1, 4, config.encoder_sizes, sac.critic_hidden_sizes)
    action = jnp.zeros((1, 2))
    params = jax.eval_shape(ours.init, jax.random.key(0), jnp.zeros((1, 10)), action)
    count = sum(x.size for x in jax.tree.leaves(params))
    sizes = (11 + 2, *sac_throughput.PEER_SIZES, 1)  # of Brax's own observation
    theirs = sum(a * b + b for a, b in itertools.pairwise(sizes))
    assert theirs == pytest.approx(count, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "(0) must be a whole number of at least 1"),
        (["--against", "nobody"], "invalid choice"),
        (["--json", "/nowhere/at/all.json"], "must be a file in an existing folder"),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
