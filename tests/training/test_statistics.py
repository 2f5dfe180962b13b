"""Figures over seeds: worked by hand, and against SciPy."""

import numpy as np
import pytest
from scipy import stats

from jaxagent.training.evaluate import summarise
from jaxagent.training.statistics import (
    FEWEST_SEEDS,
    bootstrap_interval,
    describe_seeds,
    interquartile_mean,
    over_seeds,
    stratified_interval,
)
from jaxagent.training.trainer import Evaluation


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 6.0], 3.0),  # a quarter of three is no whole value: all count
        ([100.0, 1.0, 3.0, -50.0], 2.0),  # (1 + 3) / 2
        ([0.0, 1.0, 2.0, 3.0, 1e6], 2.0),  # one of five left out at each end: (1 + 2 + 3) / 3
        ([[0.0, 8.0], [1.0, 7.0], [2.0, 6.0], [3.0, 5.0]], 4.0),  # (2 + 3 + 5 + 6) / 4
    ],
)
def test_the_interquartile_mean_by_hand(values, mean):
    assert interquartile_mean(np.array(values)) == pytest.approx(mean)


def test_the_interquartile_mean_is_scipys_trimmed_mean():
    generator = np.random.default_rng(0)
    for count in range(1, 40):
        values = generator.normal(size=count)
        expected = stats.trim_mean(values, 0.25)
        assert interquartile_mean(values) == pytest.approx(expected)


def test_nan_is_not_trimmed_away_and_nothing_is_refused():
    assert np.isnan(interquartile_mean(np.array([1.0, 2.0, 3.0, 4.0, np.nan])))
    for function in (interquartile_mean, stratified_interval):
        with pytest.raises(ValueError, match="must be at least one number"):
            function(np.zeros((0, 3)))


def test_fewer_than_five_seeds_have_no_interval():
    for count in range(1, FEWEST_SEEDS):
        assert stratified_interval(np.arange(count)) is None
        assert over_seeds(np.arange(count))["interval_95"] is None
        assert "95 %" not in describe_seeds(np.arange(count))
    assert stratified_interval(np.arange(5.0)) is not None
    assert describe_seeds(np.array([12.3])) == "12.30 (one seed)"
    assert describe_seeds(np.array([1.0, 2.0, 6.0]), ".1f") == "3.0 (mean of 3 seeds, 1.0 to 6.0)"
    assert describe_seeds(np.array([1.0, 2.0, 4.0, 9.0]), ".0f") == "4 (mean of 4 seeds, 1 to 9)"
    words = describe_seeds(np.full(5, 2.0))
    assert words == "2.00 (interquartile mean of 5 seeds, 95 % interval 2.00 to 2.00)"


def test_seeds_are_resampled_within_each_task():
    """Two tasks on scales far apart: each draw has S scores of each, so the mean never strays.

    With seeds drawn over all scores together, the share of large ones would vary.
    """
    scores = np.stack([np.zeros(8), np.full(8, 1000.0)], axis=1)
    assert stratified_interval(scores, np.mean) == (500.0, 500.0)


def test_tasks_are_resampled_apart_from_each_other():
    """x and -x of the same seed cancel in every draw unless each task draws its own seeds."""
    score = np.arange(10.0)
    low, high = stratified_interval(np.stack([score, -score], axis=1), np.mean) or (0.0, 0.0)
    # The standard error of the mean of two independent halves: sqrt(2 * 8.25 / 10) / 2 = 0.64
    assert low == pytest.approx(-1.96 * 0.64, abs=0.15)
    assert high == pytest.approx(1.96 * 0.64, abs=0.15)


def test_the_interval_of_the_mean_is_that_of_the_normal_distribution():
    """One task, 400 scores: mean +- 1.96 standard errors; a level of 50 % gives +- 0.674."""
    scores = np.random.default_rng(3).normal(2.0, 5.0, 400)
    error = scores.std() / 20
    for level, quantile in ((0.95, 1.96), (0.5, 0.674)):
        low, high = stratified_interval(scores, np.mean, level=level) or (0.0, 0.0)
        assert low == pytest.approx(scores.mean() - quantile * error, abs=0.06)
        assert high == pytest.approx(scores.mean() + quantile * error, abs=0.06)


def test_the_coverage_that_the_documentation_states():
    generator, hits = np.random.default_rng(0), 0
    for _ in range(400):
        low, high = stratified_interval(generator.normal(size=5), draws=300) or (1.0, 0.0)
        hits += low <= 0.0 <= high
    assert 0.86 <= hits / 400 <= 0.94


def test_the_interval_can_be_made_again_and_bad_options_are_refused():
    scores = np.arange(6.0)
    assert stratified_interval(scores) == stratified_interval(scores)
    assert stratified_interval(scores, draws=9) != stratified_interval(scores, draws=9, seed=1)
    for wrong in ({"level": 1.0}, {"level": 0.0}, {"draws": 0}):
        with pytest.raises(ValueError, match="must lie in"):
            stratified_interval(scores, **wrong)


def test_the_bootstrap_interval_covers_the_mean():
    """A nominal 95 % interval of 20 normal numbers; percentile bootstraps run a little short."""
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        low, high = bootstrap_interval(generator.normal(3.0, 2.0, 20), draws=400)
        hits += low <= 3.0 <= high
    assert 0.88 <= hits / 300 <= 0.98
    assert bootstrap_interval(np.array([5.0])) == (5.0, 5.0)


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "95 % [1.0, 1.0] over episodes of one seed"),
        (3, "3 seeds, 1.0 to 3.0"),
        (5, "over 5 seeds"),
    ],
)
def test_an_evaluation_says_what_its_interval_stands_on(seeds, words):
    returns = np.tile(np.arange(1.0, seeds + 1)[:, None], (1, 4))
    episodes = np.zeros((seeds, 4))
    report = summarise(Evaluation(returns, episodes, episodes, episodes, episodes))  # type: ignore[arg-type]
    assert report.interquartile_mean == pytest.approx((seeds + 1) / 2)
    if seeds == 5:
        assert report.interval.startswith("95 % [")
        assert report.interval.endswith(words)
        assert report.low is not None
        assert report.high is not None
        assert 1.0 <= report.low < 3.0 < report.high <= 5.0
    else:
        assert report.interval == words
    assert ("low" in report.metrics()) == (seeds != 3)
