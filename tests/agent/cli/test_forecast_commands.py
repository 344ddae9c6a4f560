"""`sizewatch backtest`, `forecast` and `prewarm` as a user has them: answers, files, manifests, and wrong traces."""

import csv
import json
import math
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from forecast_traffic import week
from history_samples import START, booking
from paths import ROOT, TESTS
from report_samples import finding

from agent.cli import main
from agent.config.load import load
from agent.forecasting.input_series import input_from_csv
from agent.forecasting.messages import ForecastResponse
from agent.forecasting.prewarm_result import PlanOverrides, prewarm_from_csv, prewarm_from_history
from agent.forecasting.results import COLUMNS
from agent.history.store import HistoryStore
from exporters.autoscaling.manifests import GAUGE
from forecast.series.binned import Series
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import NET_CHANGE, Window
from rules.verdicts.verdict import Subject

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


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("traces") / "hours.csv", week(6))


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("traces") / "hours.csv", week(10))


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
    rows = rows_of(emitted)
    assert tuple(rows[0]) == COLUMNS
    came = {row["timestamp"]: float(row["requests"]) for row in rows_of(trace)}
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


def test_repeated_clock_hour_is_two_hours(tmp_path: Path) -> None:
    autumn = datetime(2025, 10, 20, 12, tzinfo=BERLIN).timestamp()
    series = week(6)
    hours = Series(start=autumn, bin_seconds=3600.0, values=series.values)
    trace = written(tmp_path / "berlin.csv", hours, zone=BERLIN)
    config = tmp_path / "sizewatch.yaml"
    config.write_text(yaml.safe_dump({"forecast": {"zone": "Europe/Berlin"}}))
    emitted = tmp_path / "forecasts.csv"
    assert main.main(["backtest", "--history", str(trace), "-c", str(config), *FEW, "--emit", str(emitted)]) == 0
    targets = [row["target"] for row in rows_of(emitted) if row["method"] == "same as now"]
    assert targets == [line.partition(",")[0] for line in trace.read_text().splitlines()[-24:]]


def test_forecast_of_a_trace_has_its_points(trace: Path, capsys: Captured) -> None:
    assert main.main(["forecast", "--tier", "chat", "--history", str(trace), "--horizon", "6h", "--json"]) == 0
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


def begun(folder: Path) -> Path:
    """A configuration whose history is empty."""
    (folder / "data").mkdir()
    HistoryStore(folder / "data" / "history.db").close()
    return configured(folder)


def booked(folder: Path, hours: int, *, until: float) -> None:
    """So many hours of a tier's minutes in the history, a request more in each minute of the day."""
    path = load(configured(folder)).config.history_path
    path.parent.mkdir(exist_ok=True)
    newest = int((until - START) // 60)
    with HistoryStore(path) as store:
        minutes = range(newest - 60 * hours, newest)
        store.book([booking(minute, tier="cpu-small", finished=60.0 + minute % 1440 / 24) for minute in minutes])


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


GIVEN = ("--usable-rps", "0.01", "--start", "3m")
MANIFESTS = ("keda", "hpa")


@pytest.fixture(scope="module")
def found(long_trace: Path) -> ForecastResponse:
    return prewarm_from_csv(long_trace, None, "chat", PlanOverrides(usable_rps=0.01, start_seconds=180.0), None)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that ends with this hour."""
    hours = week(10)
    end = (time.time() // 3600 + 1) * 3600
    return written(tmp_path_factory.mktemp("live") / "hours.csv", replace(hours, start=end - 10 * 86_400.0))


def said(capsys: Captured, *words: str) -> tuple[int, str, str]:
    code = main.main(["prewarm", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_recommendation_covers_quantile_and_present_need(found: ForecastResponse) -> None:
    one = found.prewarm.recommendation
    assert one.lead_seconds == 180.0
    assert one.count.capacity.reason == "--usable-rps"
    assert one.lead_source == "--start"
    assert one.replicas * 0.01 >= one.now_rps
    assert one.quantile_rps is None or one.replicas * 0.01 >= one.quantile_rps
    assert one.replicas >= one.needed_now >= 1


def test_schedule_is_the_day_after_the_trace(long_trace: Path, found: ForecastResponse) -> None:
    end = input_from_csv(long_trace, None, None).series.end
    steps = found.prewarm.schedule
    assert steps[0].start == end
    assert found.prewarm.until == end + 86_400.0
    assert max(step.replicas for step in steps) > min(step.replicas for step in steps)


def test_trace_is_explained_on_request(long_trace: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "--history", str(long_trace), "--tier", "chat", *GIVEN, "--explain")
    assert (code, err) == (0, "")
    assert out.startswith("As of the end of the trace, 2026-01-15 00:00 (UTC): this is not live.\n\nchat: ")
    assert "replicas wanted at" in out
    for strategy in ("static peak", "reacting at 70%", "pre-warming with the margin", "perfect foresight"):
        assert strategy in out
    assert "* cheaper, or as good without a forecast. The last 7 days: " in out
    code, out, _ = said(capsys, "--history", str(long_trace), "--tier", "chat", *GIVEN, "--format", "json")
    told = json.loads(out)
    assert (code, told["tier"], told["recommendation"]["lead_seconds"]) == (0, "chat", 180.0)
    assert told["as_of"] == input_from_csv(long_trace, None, None).series.end


def manifest(capsys: Captured, trace: Path, kind: str, *words: str) -> tuple[int, str, str]:
    history = ("--history", str(trace), "--tier", "chat", *GIVEN)
    return said(capsys, *history, "--format", kind, "--workload", "Deployment/chat", *words)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifest_is_yaml_with_one_owner(live: Path, kind: str, capsys: Captured) -> None:
    code, out, err = manifest(capsys, live, kind, "--namespace", "serving", "--maximum", "50")
    assert (code, err) == (0, "")
    objects = [document for document in yaml.safe_load_all(out) if document]
    assert all(document["metadata"].get("namespace", "serving") == "serving" for document in objects)
    assert GAUGE in out
    if kind == "keda":
        told = " ".join(out.replace("\n#", " ").split())
        assert "repeated every day: enough with 99% certainty, of demand up to" in told


@pytest.mark.parametrize("kind", MANIFESTS)
def test_old_trace_makes_no_manifest(long_trace: Path, kind: str, capsys: Captured) -> None:
    code, out, err = manifest(capsys, long_trace, kind)
    assert (code, out) == (3, "")
    assert re.search(r"no manifest: chat: the trace ended \d+ d.* ago", err)


def test_maximum_is_twice_the_most_wanted(live: Path, capsys: Captured) -> None:
    found = prewarm_from_csv(live, None, "chat", PlanOverrides(usable_rps=0.01, start_seconds=180.0), None).prewarm
    most = max(found.recommendation.replicas, *(step.replicas for step in found.schedule))
    for words, replicas in (((), 2 * most), (("--maximum", "99"), 99)):
        text = manifest(capsys, live, "keda", *words)[1]
        assert yaml.safe_load(text)["spec"]["maxReplicaCount"] == replicas


def test_plan_scales_a_trace(long_trace: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ("--history", str(long_trace), "-c", str(configured(tmp_path)), "--start", "3m")
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert "(at most 7.34 rps) a replica: the benchmark's 7.34 rps a replica" in out


def closed(begin: float, place: int, replica: str | None, **families: Any) -> ClosedMinute:
    """A minute of a replica, so many minutes after `begin`."""
    start = begin + 60 * place
    window = Window(start=start, end=start + 60, expected_seconds=60, covered_seconds=60, **families)
    return ClosedMinute(tier="cpu-small", plan_version="", slice=bin_window(window, None, replica))


def test_drain_is_the_time_of_requests(tmp_path: Path, capsys: Captured) -> None:
    """120 requests of 10 to 20 s: the drain is 20 s. Without a recommendation it is told too."""
    words = ("-c", str(begun(tmp_path)), "--format", "json")
    told = json.loads(said(capsys, *words)[1])
    assert "the duration of requests is not known" in told["drain"]
    begin = time.time() // 3600 * 3600 - 7200
    times = Histogram(edges=(10.0, 20.0, math.inf), counts=(0.0, 12.0, 0.0), total=180.0)
    with HistoryStore(tmp_path / "data" / "history.db") as store:
        store.book(closed(begin, place, "r", histograms={"e2e_seconds": (times,)}) for place in range(10))
    drain = json.loads(said(capsys, *words)[1])["drain"]
    assert (drain["seconds"], drain["grace_seconds"]) == (20, 15 + 20 + 20)


@pytest.mark.parametrize(
    ("seen", "burning", "ready", "words"),
    [
        ([("r0", "r1")] * 6, False, 2, "2 are ready: 1 may go"),
        ([("r0", "r1")] * 6, True, 2, "2 are ready: enough for that"),
        ([("r0", "r1")] * 5 + [("r0",)], False, 1, "1 is ready: enough for that"),
        ([(None,)] * 6, False, None, "how many are ready is not known"),
    ],
)
def test_ready_replicas_are_of_the_newest_minute(
    seen: list[tuple[str | None, ...]], burning: bool, ready: int | None, words: str, tmp_path: Path
) -> None:
    """A tier that is read as sums has no replicas in its history. None may go while the SLO is broken."""
    loaded, begin = load(begun(tmp_path)), 1_768_000_020.0 // 60 * 60
    with HistoryStore(tmp_path / "data" / "history.db") as store:
        if burning:
            episode = finding("TtftSloBurn", 0.0, None)
            store.book(spans=[replace(episode, subject=Subject(tier="cpu-small", replica=None), started_at=begin)])
        for place, replicas in enumerate(seen):
            counters = {"requests_finished": 60.0, NET_CHANGE: 0.0}
            store.book(closed(begin, place, name, counters=counters) for name in replicas)
    decided = prewarm_from_history(loaded, "cpu-small", PlanOverrides(), begin + 60 * len(seen) + 30).prewarm
    assert decided.recommendation.ready == ready
    assert decided.recommendation.sentence.split("; ")[1] == words


def test_pools_are_counted_at_the_forecast(long_trace: Path, tmp_path: Path, capsys: Captured) -> None:
    tier = yaml.safe_load((TESTS / "plans" / "cpu-pools.yaml").read_text())["tiers"]["cpu-pools"]
    rates = {"prefill_tokens_per_second": 1000, "decode_tokens_per_second": 10}
    plan = {"schema": 1, "tiers": {"t": {**tier, "disaggregation": rates}}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    target = {"tier": "t", "url": "http://127.0.0.1:9/metrics", "pool": "decode"}
    config = tmp_path / "sizewatch.yaml"
    config.write_text(yaml.safe_dump({"plan": "plan.yaml", "data_dir": str(tmp_path), "targets": [target]}))
    code, out, _ = said(capsys, "--history", str(long_trace), "-c", str(config), "--start", "3m")
    assert code == 0
    rps = float(re.findall(r"decode pool, 95% of demand: ([\d.]+) rps", out)[0])
    assert f"prefill pool, 95% of demand: {rps:.3g} rps at 1.95 rps a replica at up to 0.9 of it: 1" in out
    assert "no recommendation" not in out
    config.write_text(config.read_text() + "thresholds: {t: {NoHeadroom: {above: 0.45}}}\n")
    assert "at up to 0.45 of it" in said(capsys, "--history", str(long_trace), "-c", str(config), "--start", "3m")[1]
    config.write_text(config.read_text().replace("0.45", "0.9"))
    code, out, _ = said(capsys, "--history", str(long_trace), "-c", str(config), "--start", "3m", "--format", "json")
    assert json.loads(out)["pools"] == {"prefill": 1, "decode": math.ceil(rps * 64 / 10 / 0.9)}
    keda = ("--format", "keda", "--workload", "Deployment/d")
    assert said(capsys, "--history", str(long_trace), "-c", str(config), *keda)[0] == 3
