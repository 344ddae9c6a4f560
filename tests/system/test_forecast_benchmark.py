"""The benchmark of forecasts runs as it is documented, and its tables hold what was asked for."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from traffic_samples import week
from waiting import CEILING_SECONDS

from forecast.series.binned import Series


def written(path: Path, series: Series) -> str:
    rows = [f"{series.time(place) - series.start:.0f},{value:.0f}" for place, value in enumerate(series.values)]
    path.write_text("\n".join(["timestamp,requests", *rows]) + "\n")
    return str(path)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/forecast.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False)


def test_the_tables_and_the_goals_are_of_the_traces_given(tmp_path: Path) -> None:
    whole = written(tmp_path / "servegen_mlarge_all.csv", week(12))
    young = written(tmp_path / "young.csv", week(1, 600.0))
    nothing = tmp_path / "requests.csv"
    nothing.write_text("arrival_s,prompt_tokens\n0.1,5\n")
    found = run(
        *(whole, young, str(nothing), "--test-days", "3", "--methods", "sizewatch,same as now,same as yesterday"),
        *("--emit", str(tmp_path / "emitted"), "--end", f"servegen_mlarge_all={'1970-01-11T00:00'}"),
    )
    assert found.returncode == 0, found.stderr
    assert "skipped requests: " in found.stderr
    assert "done servegen_mlarge_all: 240 bins of 1 h" in found.stderr
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    rows = [line for line in lines if line.startswith("servegen_mlarge_all")]
    assert sum(" sizewatch " in row for row in rows) == 2
    assert sum("published: median of five 0.184 2.58 0.974 0.952 0.941" in row for row in rows) == 1
    assert any(line.startswith("same as now 1.000 1.000 ") for line in lines)
    assert "same as yesterday 1.759 1.908 1.000 1.000" in lines
    assert "published: median of five, on 1 of these 0.974 0.952 0.957 0.684" in lines
    goals = [line for line in lines if line.endswith(("met", "NOT MET"))]
    assert len(goals) == 9
    ratio = next(row for row in rows if " sizewatch " in row).split()[4]
    assert f"15 min WAPE by same as now at most 0.68 {ratio} " in goals[0], "little history has a goal of its own"
    little = next(line for line in goals if line.startswith("little history"))
    assert "at most 1.02 1.000 met" in little
    with (tmp_path / "emitted" / "servegen_mlarge_all.csv").open(newline="") as file:
        emitted = list(csv.DictReader(file))
    assert {row["target"] for row in emitted} == {str(hour * 3600) for hour in range(7 * 24, 10 * 24)}
    assert sorted(path.name for path in (tmp_path / "emitted").iterdir()) == ["servegen_mlarge_all.csv", "young.csv"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nowhere.csv",), 2, "skipped nowhere: nowhere.csv: there is no such file"),
        (("x.csv", "--methods", "prophecy"), 2, "there is no method prophecy"),
        (("x.csv", "--end", "soon"), 2, "is no time such as 1995-08-31T04:00"),
    ],
)
def test_what_cannot_be_is_told(words: tuple[str, ...], code: int, told: str) -> None:
    found = run(*words)
    assert found.returncode == code
    assert told in found.stderr
    assert "Traceback" not in found.stderr
