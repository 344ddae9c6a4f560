"""Recordings of a real GPU that others made, with minutes between two scrapes: nothing is said that their clients refute.

They lie in ../shared and are not ours to copy; where they are not, all of this is skipped, loudly.
"""

import csv
import functools
import gzip
import math
from pathlib import Path

import pytest
from paths import SHARED
from recorded import findings

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from rules.telemetry.gauges import IN_SYSTEM_BY_LITTLE, STEP_GAUGES
from rules.verdicts.verdict import Finding

PUBLIC = SHARED / "recordings" / "public"
PRESSURE = PUBLIC / "kv_pressure_4090"
FOLDERS = (PRESSURE, *sorted((PUBLIC / "cells_4090").glob("*")))

pytestmark = pytest.mark.skipif(
    not PRESSURE.exists(),
    reason="LOUD: ../shared/recordings/public is absent: recordings of a real GPU were not judged",
)


@functools.cache
def judged() -> dict[str, Finding]:
    return findings(replay(load(PRESSURE)[0], load_plan(PRESSURE / "plan.yaml")))


@functools.cache
def requests(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "requests.csv.gz", "rt", newline="") as rows:
        return list(csv.DictReader(rows))


@pytest.mark.parametrize(("rule", "column", "limit"), [("TtftSloBurn", "ttft_s", 2.0), ("TpotSloBurn", "tpot_s", 0.1)])
def test_slow_share_is_within_bounds(rule: str, column: str, limit: float) -> None:
    """69.3 % and 58.1 % by the clients; a TTFT on the way to them is a little longer."""
    values = [float(row[column]) for row in requests(PRESSURE) if row["ok"] == "True" and row[column]]
    truth = sum(value > limit for value in values) / len(values)
    verdict = judged()[rule].worst
    assert (verdict.observed.low or 0.0) - 0.005 <= truth <= (verdict.observed.high or 1.0) + 0.005
    assert f"of {len(values):,} requests" in verdict.sentence


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_requests_in_system_match_clients(folder: Path) -> None:
    """Nobody is there at either end of a cell: Little's law is exact. Clients have a request a little longer."""
    recording, _ = load(folder)
    cells: dict[str, float] = {}
    for row in requests(folder):
        cells[row["cell"]] = cells.get(row["cell"], 0.0) + float(row["latency_s"] or 0.0)
    whole = [
        one.window
        for one in replay(recording, None, 1.0).windows
        if one.replica and IN_SYSTEM_BY_LITTLE in one.window.gauges
    ]
    assert len(whole) == len(cells)
    for window, spent in zip(whole, cells.values(), strict=True):
        told = window.gauges[IN_SYSTEM_BY_LITTLE]
        assert told.minimum == told.maximum
        assert 0.85 * spent / window.span <= told.minimum <= spent / window.span
        assert not any(window.gauge(family) for family in STEP_GAUGES)
        assert math.isclose(told.seconds, window.span, rel_tol=0.02)
