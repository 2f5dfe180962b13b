"""The benchmark of the losses knows how to call each of them."""

import jax
import pytest

from benchmarks.losses import compare, measure, plain_peers, problem, sizes
from jaxagent import losses

SMALL = (16, 4)


@pytest.mark.parametrize("name", sizes())
def test_every_loss_can_be_called(name):
    item = problem(name, SMALL)
    jax.eval_shape(item.function, *item.arrays)


def test_no_loss_is_missing():
    functions = {n for n in losses.__all__ if callable(getattr(losses, n)) and n.islower()}
    assert functions - set(sizes()) == {"adaptive_lambda"}


def test_a_measurement_and_a_comparison():
    item = problem("gae", SMALL)
    alone = measure(item, rounds=2)
    assert 0 < alone["fastest"] <= alone["microseconds"] <= alone["slowest"]
    beside = compare(item, "plain", plain_peers()["gae"], rounds=2)
    assert beside["ratio"] > 0
    assert beside["peer_compile_seconds"] > 0
