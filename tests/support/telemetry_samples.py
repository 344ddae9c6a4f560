"""Runs for the tests of telemetry: what a result file says that telemetry is asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from paths import TESTS

from agent.benchmarks.points import BenchmarkMeasurement
from rules.plan.schema import Point

BENCH = TESTS / "bench"


def run(
    source: str | Path = "bench.json",
    requests: int | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
) -> BenchmarkMeasurement:
    """A run of which the file tells this much."""
    point = Point(completed_rps=1.0, requests=requests)  # type: ignore[call-arg]
    return BenchmarkMeasurement(
        source=str(source), tool="test", loop=None, point=point, started_at=started_at, ended_at=ended_at
    )


def saved(sweep: str, tag: str) -> BenchmarkMeasurement:
    """A run of one of the real sweeps, with the requests and times of its file."""
    path = BENCH / sweep / f"bench_{tag}.json"
    told = json.loads(path.read_text())
    ended = datetime.strptime(told["date"], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    return run(path, told["completed"], ended - told["duration"], ended)
