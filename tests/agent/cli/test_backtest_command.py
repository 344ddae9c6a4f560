"""`sizewatch backtest` and `sizewatch forecast` as a user has them: answers, files, and one sentence for what is wrong."""

import csv
import gzip
import json
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from forecast_traffic import week
from history_samples import START, booking
from paths import ROOT

from agent.cli import main
from agent.config.load import load
from agent.forecasting.results import COLUMNS
from agent.history.store import HistoryStore
from forecast.series.binned import Series

Captured = pytest.CaptureFixture[str]

BERLIN = ZoneInfo("Europe/Berlin")
FEW = ("--test-days", "1", "--horizons", "15m")


def written(path: Path, series: Series, *, zone: ZoneInfo | None = None) -> Path:
    """The series as CSV, in UTC, or by the clock of a zone."""
    rows = ["timestamp,requests"]
    for place, value in enumerate(series.values):
        moment = datetime.fromtimestamp(series.time(place), zone or UTC)
        text = moment.strftime("%Y-%m-%d %H:%M:%S") if zone else moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        rows.append(f"{text},{value:.0f}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("traces") / "hours.csv", week(6))


def test_table_names_every_method(trace: Path, capsys: Captured) -> None:
    assert main.main(["backtest", "--history", str(trace), *FEW]) == 0
    told = capsys.readouterr()
    assert "sizewatch *" in told.out
    assert "same as now (naive)" in told.out
    assert "bins of 5m were asked for; the file's own are 1h and are kept" in told.out
    assert "before the test: same as last week" in told.out
    assert told.err == ""


def test_emitted_forecasts_give_the_same_score(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    emitted = tmp_path / "forecasts.csv"
    words = ["backtest", "--history", str(trace), "--test-days", "1", "--horizons", "15m,24h", "--emit", str(emitted)]
    assert main.main([*words, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    with emitted.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    with trace.open(newline="") as file:
        came = {row["timestamp"]: float(row["requests"]) for row in csv.DictReader(file)}
    ours = [row for row in rows if (row["method"], row["horizon_minutes"]) == ("sizewatch", "15")]
    assert len(ours) == 24
    assert all(row["origin"] == row["target"] for row in ours), "the next bin begins where the last one seen ends"
    error = sum(abs(came[row["target"]] - float(row["q50"])) for row in ours) / sum(came[row["target"]] for row in ours)
    score = next(one for one in report["scores"] if (one["method"], one["horizon_seconds"]) == ("sizewatch", 900.0))
    assert error == pytest.approx(score["wape"], rel=1e-6)
    quantiles = [[float(row[name]) for name in ("q05", "q50", "q95", "q99")] for row in rows]
    assert all(low <= high for row in quantiles for low, high in pairwise(row))
    day = [row for row in rows if (row["method"], row["horizon_minutes"]) == ("sizewatch", "1440")]
    assert [row["target"] for row in day] == list(came)[-24:]
    assert {row["origin"] for row in day} == {day[0]["target"]}


def test_naive_forecast_is_the_bin_before(trace: Path, tmp_path: Path) -> None:
    emitted = tmp_path / "forecasts.csv"
    assert main.main(["backtest", "--history", str(trace), *FEW, "--emit", str(emitted)]) == 0
    with trace.open(newline="") as file:
        came = [(row["timestamp"], float(row["requests"])) for row in csv.DictReader(file)]
    before = {later: amount for (_, amount), (later, _) in pairwise(came)}
    with emitted.open(newline="") as file:
        now = [row for row in csv.DictReader(file) if row["method"] == "same as now"]
    assert [float(row["q50"]) for row in now] == [before[row["origin"]] for row in now]


def test_missing_bins_are_not_scored(tmp_path: Path, capsys: Captured) -> None:
    lines = written(tmp_path / "hours.csv", week(6)).read_text().splitlines()
    zipped = tmp_path / "hours.csv.gz"
    kept = [*lines[:-8], f"{lines[-8].partition(',')[0]},", *lines[-4:]]
    zipped.write_bytes(gzip.compress(("\n".join(kept) + "\n").encode()))
    assert main.main(["backtest", "--history", str(zipped), *FEW, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["targets"] for one in report["scores"]} == {20}


def test_repeated_clock_hour_is_two_hours(tmp_path: Path) -> None:
    autumn = datetime(2025, 10, 20, 12, tzinfo=BERLIN).timestamp()
    series = week(6)
    trace = written(
        tmp_path / "berlin.csv", Series(start=autumn, bin_seconds=3600.0, values=series.values), zone=BERLIN
    )
    config = tmp_path / "sizewatch.yaml"
    config.write_text(yaml.safe_dump({"forecast": {"zone": "Europe/Berlin"}}))
    emitted = tmp_path / "forecasts.csv"
    assert main.main(["backtest", "--history", str(trace), "-c", str(config), *FEW, "--emit", str(emitted)]) == 0
    with emitted.open(newline="") as file:
        targets = [row["target"] for row in csv.DictReader(file) if row["method"] == "same as now"]
    assert targets == [line.partition(",")[0] for line in trace.read_text().splitlines()[-24:]]


@pytest.mark.parametrize("command", ["backtest", "forecast"])
@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("2026-01-11T00:00:00Z,many", "is no count"),
        ("2026-01-11T00:00:00Z,-3", "is no count"),
        ("2026-01-06T00:00:00Z,4", "is not later than the row before; sort by time"),
        ("2026-01-10T23:00:00Z,4", "is not later than the row before; sort by time"),
    ],
)
def test_bad_row_is_refused_with_its_line(command: str, row: str, told: str, tmp_path: Path, capsys: Captured) -> None:
    lines = written(tmp_path / "bad.csv", week(6)).read_text().splitlines()
    (tmp_path / "bad.csv").write_text("\n".join([*lines, row]) + "\n")
    assert main.main([command, "--history", str(tmp_path / "bad.csv")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"bad.csv:{len(lines) + 1}: " in error
    assert told in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["backtest", "--history", "nowhere.csv"], "No such file or directory"),
        (["backtest", "--history", "two.csv"], "has 2 rows"),
        (["forecast", "--history", "two.csv"], "has 2 rows"),
        (["backtest", "--history", "short.csv", "--test-days", "0"], "0 days cannot be tested"),
        (["backtest", "--history", "short.csv", "--bin", "7h"], "do not divide a day"),
        (["forecast", "--history", "short.csv", "--bin", "7h"], "do not divide a day"),
        (["backtest", "--history", "short.csv", *FEW, "--emit", "no/folder.csv"], "cannot be written"),
        (["backtest", "--history", "short.csv", *FEW, "--emit", "."], "cannot be written: Is a directory"),
        (["backtest"], "no configuration"),
    ],
)
def test_impossible_request_is_one_sentence(
    words: list[str], told: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "short.csv", week(6))
    (tmp_path / "two.csv").write_text("timestamp,requests\n2026-01-01T00:00:00Z,1\n2026-01-01T00:05:00Z,1\n")
    assert main.main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("words", [["--horizons", "2d"], ["--horizons", "15"], ["--horizons", ""], ["--bin", "0s"]])
def test_wrong_arguments_are_refused(words: list[str]) -> None:
    assert main.main(["backtest", "--history", "x.csv", *words]) == 2


def test_forecast_of_a_trace_has_its_points(trace: Path, capsys: Captured) -> None:
    assert (
        main.main(["forecast", "--tier", "chat", "--history", str(trace), "--horizon", "6h", "--format", "json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["tier"] == "chat"
    assert len(found["points"]) == 6
    assert found["points"][0]["t"] == found["made_at"] == week(6).end
    assert found["forecasts"] > 12
    last = week(6).values[-24] / 3600
    assert found["points"][0]["q50"] == pytest.approx(last, rel=0.3), "a day is like the day before"


def test_little_history_is_said(tmp_path: Path, capsys: Captured) -> None:
    trace = written(tmp_path / "young.csv", week(1, 600.0))
    assert main.main(["forecast", "--history", str(trace)]) == 0
    told = capsys.readouterr().out
    assert "by same as now" in told
    assert "needs 2 days of history, has 24 hours" in told
    emitted = tmp_path / "emitted.csv"
    assert main.main(["backtest", "--history", str(trace), "--emit", str(emitted)]) == 0
    assert "little history (24 hours)" in capsys.readouterr().out
    assert "nan" not in emitted.read_text(), "what was not said is no row"
    assert main.main(["backtest", "--history", str(trace), "--horizons", "24h"]) == 3
    assert "has 24 hours; horizons of 6 hours and more need 5 days" in capsys.readouterr().err
    assert main.main(["backtest", "--history", str(written(tmp_path / "short.csv", week(6)))]) == 3
    assert "needs 18 days (4 to learn from), has 6.0: test at most 2" in capsys.readouterr().err


def test_first_hour_has_no_forecast_yet(tmp_path: Path, capsys: Captured) -> None:
    trace = written(tmp_path / "young.csv", Series(start=week(1).start, bin_seconds=300.0, values=week(1).values[:12]))
    assert main.main(["forecast", "--history", str(trace)]) == 3
    assert "nothing is expected: no forecast yet" in capsys.readouterr().out


def configured(folder: Path, **forecast: object) -> Path:
    data = {
        "plan": str(ROOT / "tests" / "plans" / "cpu-small.yaml"),
        "targets": [{"url": "http://127.0.0.1:9", "tier": "cpu-small", "replica": "r"}],
        "data_dir": str(folder / "data"),
        "gpus": {"source": "none"},
        "forecast": forecast,
    }
    path = folder / "sizewatch.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def booked(folder: Path, hours: int, *, until: float) -> None:
    """So many hours of a tier's minutes in the history, a request more in each minute of the day."""
    path = load(configured(folder)).config.history_path
    path.parent.mkdir(exist_ok=True)
    newest = int((until - START) // 60)
    with HistoryStore(path) as store:
        store.book(
            [
                booking(minute, tier="cpu-small", finished=60.0 + minute % 1440 / 24)
                for minute in range(newest - 60 * hours, newest)
            ]
        )


@pytest.mark.parametrize("command", ["forecast", "backtest"])
def test_daemon_history_is_read_without_a_trace(command: str, tmp_path: Path, capsys: Captured) -> None:
    booked(tmp_path, 24, until=time.time())
    assert main.main([command, "-c", str(configured(tmp_path)), "--tier", "cpu-small"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("cpu-small: ")
    assert "little history" in told or "needs 2 days of history" in told
    assert "newest demand" not in told


def test_old_history_is_said_to_be_old(tmp_path: Path, capsys: Captured) -> None:
    booked(tmp_path, 13, until=time.time() - 7200)
    assert main.main(["forecast", "-c", str(configured(tmp_path))]) == 0
    assert "the newest demand that was kept is " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["forecast", "--tier", "nobody"], 2, "there is no tier nobody; there are cpu-small"),
        (["forecast", "--bin", "90s"], 2, "demand is kept by the minute"),
        (["forecast"], 3, "the history holds no 5 min of its demand from end to end yet"),
        (["backtest"], 3, "the history holds no 5 min of its demand from end to end yet"),
    ],
)
def test_history_that_cannot_answer_is_refused(
    words: list[str], code: int, told: str, tmp_path: Path, capsys: Captured
) -> None:
    booked(tmp_path, 0, until=time.time())
    assert main.main([*words, "-c", str(configured(tmp_path))]) == code
    assert told in capsys.readouterr().err


def test_unknown_country_is_refused_with_its_key(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    config = configured(tmp_path, country="XX")
    assert main.main(["forecast", "--history", str(trace), "-c", str(config)]) == 2
    assert "forecast.country" in capsys.readouterr().err


def test_known_events_scale_the_forecast(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    begin = datetime.fromtimestamp(week(6).end, UTC)
    event = {"name": "launch", "start": begin.strftime("%Y-%m-%dT%H:%M:%S"), "duration": "1h", "factor": 3.0}
    words = ["forecast", "--history", str(trace), "--horizon", "2h", "--format", "json"]
    assert main.main(words) == 0
    plain = json.loads(capsys.readouterr().out)["points"]
    assert main.main([*words, "-c", str(configured(tmp_path, events=[event]))]) == 0
    launched = json.loads(capsys.readouterr().out)["points"]
    assert launched[0]["q95"] == pytest.approx(3 * plain[0]["q95"])
    assert launched[1]["q95"] == pytest.approx(plain[1]["q95"])
