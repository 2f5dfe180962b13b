"""Ratios and tables of `benchmarks.ppo_throughput`; the first row is ours, then the peers."""

import math
from typing import Any

from rich.table import Table

from benchmarks.measurement import ratio


def throughput_ratio(rows: list[dict[str, Any]]) -> float:
    """Our median steps a second over Brax's as it is shipped: the first peer, on one device."""
    medians = [row["steps_per_second"]["median"] for row in rows]
    return ratio(medians[0], medians[1])


def throughput_ratio_to_fastest(rows: list[dict[str, Any]]) -> float:
    """Our median steps a second over the fastest peer's, Brax given our device layout."""
    medians = [row["steps_per_second"]["median"] for row in rows]
    return ratio(medians[0], max(medians[1:]))


def compile_ratio(rows: list[dict[str, Any]]) -> float:
    """Our compile time over the quicker peer's."""
    seconds = [row["compile_seconds"] for row in rows]
    return ratio(seconds[0], min(seconds[1:]))


def return_ratio(rows: list[dict[str, Any]]) -> float:
    """Our seconds to the target over the faster peer's; nan where we did not reach it.

    A peer that stopped at its cap counts with its seconds until then, which makes the ratio an
    upper bound, if no peer reached the target.
    """
    ours, *peers = rows
    reached = [row["seconds"] for row in peers if row["outcome"] == "reached"]
    capped = [row["seconds"] for row in peers if row["outcome"] == "cap"]
    if ours["outcome"] != "reached":
        return math.nan
    return ratio(ours["seconds"], min(reached or capped))


def throughput_table(rows: list[dict[str, Any]], title: str) -> Table:
    """What the throughput part shows."""
    table = Table(title=title)
    for column in ("", "steps/s (median)", "lowest", "highest", "compile s"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        rate = row["steps_per_second"]
        figures = [f"{rate[name]:,.0f}" for name in ("median", "low", "high")]
        table.add_row(row["name"], *figures, f"{row['compile_seconds']:.1f}")
    return table


def return_table(rows: list[dict[str, Any]], target: float) -> Table:
    """What the return part shows."""
    table = Table(title=f"Ant, spring: wall time to an evaluated return of {target:,.0f}")
    columns = ("", "seconds", "evaluating, after the first", "evaluations", "steps", "return", "")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    outcomes = {
        "reached": "reached",
        "cap": "not reached",
        "slower": "stopped: slower than the other Brax row",
    }
    for row in rows:
        bound = "" if row["outcome"] == "reached" else "> "
        table.add_row(
            row["name"],
            f"{bound}{row['seconds']:,.0f}",
            f"{row['evaluation_seconds']:,.0f}",
            str(row["evaluations"]),
            f"{row['steps']:,}",
            f"{row['return']:,.0f}",
            outcomes[row["outcome"]],
        )
    return table
