"""The table of `benchmarks/prewarm.py`, over a trace written here: what a person sees who runs it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

SCRIPT = ROOT / "benchmarks" / "prewarm.py"


def trace(folder: Path, name: str, days: int) -> Path:
    random = np.random.default_rng(1)
    place = np.arange(days * 48)
    counts = 1000 * (1.4 + np.sin(2 * np.pi * place / 48)) * random.lognormal(0, 0.05, len(place))
    rows = "\n".join(f"{1800 * at},{count:.0f}" for at, count in zip(place, counts, strict=True))
    path = folder / f"{name}.csv"
    path.write_text(f"timestamp,requests\n{rows}\n")
    return path


def ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_each_trace_has_its_rows_and_one_too_short_is_skipped_aloud(tmp_path: Path) -> None:
    done = ran(trace(tmp_path, "office", 21), trace(tmp_path, "young", 5), "--start", "4m")
    assert done.returncode == 0, done.stderr
    assert "skipped young: 5.0 days are too short" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith(
        "Cold start 4m: a missing minute costs 1200 warm ones, so the quantile is 0.99583; hold 5 minutes"
    )
    rows = [line.split() for line in lines if line.startswith("office")]
    assert [row[1] for row in rows[:2]] == ["linear", "step"]
    assert all(float(row[2]) < 1.0 and 0.9 < float(row[4]) < 2.0 for row in rows[:2])
    assert any(line.startswith("1 traces, step between bins: violated") for line in lines)
    for row in rows[:2]:
        violated, cost, alone = (float(cell) for cell in row[-3:])
        assert violated <= float(row[2])
        assert 1.09 < alone < 1.14
        assert cost == pytest.approx(float(row[4]) * alone, rel=2e-3)
    assert any(
        " step between bins: with the margin violated" in line and "the margin alone 1.1" in line for line in lines
    )


def test_without_any_trace_that_can_be_tried_it_fails(tmp_path: Path) -> None:
    done = ran(trace(tmp_path, "young", 5), "--start", "3m")
    assert done.returncode == 2
    assert ran(trace(tmp_path, "young", 5), "--start", "3").returncode == 2


def test_a_trace_can_be_cut_at_a_time(tmp_path: Path) -> None:
    done = ran(trace(tmp_path, "office", 25), "--start", "3m", "--end", "office=1970-01-09T00:00")
    assert "skipped office: 8.0 days are too short" in done.stderr
    assert "--end takes TRACE=TIME" in ran(tmp_path / "office.csv", "--end", "office").stderr
