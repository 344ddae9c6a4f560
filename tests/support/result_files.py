"""Loads of one benchmark result file, for tests."""

from __future__ import annotations

from pathlib import Path

from agent.benchmarks.formats import AUTO, read_all_results
from agent.benchmarks.points import BenchmarkMeasurement


def read_results(path: Path, tool: str = AUTO) -> tuple[BenchmarkMeasurement, ...]:
    """Return all loads of a file in its order. Raise the first error of a load too."""
    found, others = read_all_results((path,), tool)
    if others:
        raise others[0]
    return tuple(found)
