"""The arithmetic of figures, and a command line that refuses in one line."""

import argparse
import math

import pytest

from benchmarks.measurement import Parser, json_file, positive, ratio, spread, without_nan


def test_spread_is_median_and_extremes():
    assert spread([4.0, 1.0, 10.0]) == (4.0, 1.0, 10.0)
    assert spread([1.0, 3.0]).median == 2.0


def test_spread_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_ratio_is_nan_where_something_was_not_measured():
    assert ratio(6.0, 4.0) == 1.5
    for ours, theirs in ((math.nan, 1.0), (1.0, math.nan), (1.0, 0.0), (1.0, math.inf)):
        assert math.isnan(ratio(ours, theirs))


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_counts_are_positive_whole_numbers(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        positive(text)
    assert positive("3") == 3


def test_json_needs_a_folder_that_exists(tmp_path):
    assert json_file(str(tmp_path / "figures.json")) == tmp_path / "figures.json"
    for wrong in (tmp_path, tmp_path / "missing" / "figures.json"):
        with pytest.raises(argparse.ArgumentTypeError, match="existing folder"):
            json_file(str(wrong))


def test_parser_refuses_in_one_line(capsys):
    with pytest.raises(SystemExit) as left:
        Parser(prog="x").parse_args(["--bogus"])
    assert left.value.code == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "--bogus" in complaint


def test_json_has_no_nan():
    tree = {"a": math.nan, "b": [1.0, math.inf], "c": ("x", 2, None)}
    assert without_nan(tree) == {"a": None, "b": [1.0, None], "c": ["x", 2, None]}
