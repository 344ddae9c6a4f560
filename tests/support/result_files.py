"""Loads of one benchmark result file, for tests."""

from pathlib import Path

from agent.benchmarks.formats import read_all_results
from agent.benchmarks.run_model import BenchmarkRun


def read_results(path: Path) -> tuple[BenchmarkRun, ...]:
    """Return all loads of a file in its order. Raise the first error of a load too."""
    found, others = read_all_results((path,))
    if others:
        raise others[0]
    return tuple(found)
