"""`sizewatch prewarm` as a user has it: from a trace, from the daemon's history, as manifests; and what is said without."""

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from forecast_traffic import week
from paths import TESTS
from report_samples import finding
from test_backtest_command import configured as write_config
from test_backtest_command import written

from agent.cli import main
from agent.config.load import load
from agent.forecasting.input_series import input_from_csv
from agent.forecasting.messages import ForecastResponse
from agent.forecasting.prewarm_result import PlanOverrides, prewarm_from_csv, prewarm_from_history
from agent.history.store import HistoryStore
from exporters.autoscaling.manifests import GAUGE
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import NET_CHANGE, Window
from rules.verdicts.verdict import Subject

Captured = pytest.CaptureFixture[str]

GIVEN = ("--usable-rps", "0.01", "--start", "3m")
MANIFESTS = ("keda", "hpa")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("traces") / "hours.csv", week(10))


@pytest.fixture(scope="module")
def found(trace: Path) -> ForecastResponse:
    return prewarm_from_csv(trace, None, "chat", PlanOverrides(usable_rps=0.01, start_seconds=180.0), None)


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


def test_schedule_is_the_day_after_the_trace(trace: Path, found: ForecastResponse) -> None:
    end = input_from_csv(trace, None, None).series.end
    steps = found.prewarm.schedule
    assert steps[0].start == end
    assert found.prewarm.until == end + 86_400.0
    assert max(step.replicas for step in steps) > min(step.replicas for step in steps)


def test_trace_is_explained_on_request(trace: Path, capsys: Captured) -> None:
    code, out, err = said(capsys, "--history", str(trace), "--tier", "chat", *GIVEN, "--explain")
    assert (code, err) == (0, "")
    assert out.startswith("As of the end of the trace, 2026-01-15 00:00 (UTC): this is not live.\n\nchat: ")
    assert "replicas wanted at" in out
    for strategy in ("static peak", "reacting at 70%", "pre-warming with the margin", "perfect foresight"):
        assert strategy in out
    assert "* cheaper, or as good without a forecast. The last 7 days: " in out
    code, out, _ = said(capsys, "--history", str(trace), "--tier", "chat", *GIVEN, "--format", "json")
    told = json.loads(out)
    assert (code, told["tier"], told["recommendation"]["lead_seconds"]) == (0, "chat", 180.0)
    assert told["as_of"] == input_from_csv(trace, None, None).series.end


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifest_is_yaml_with_one_owner(live: Path, kind: str, capsys: Captured) -> None:
    words = ["--history", str(live), "--tier", "chat", *GIVEN, "--format", kind, "--workload", "Deployment/chat"]
    code, out, err = said(capsys, *words, "--namespace", "serving", "--maximum", "50")
    assert (code, err) == (0, "")
    objects = [one for one in yaml.safe_load_all(out) if one]
    assert all(one["metadata"].get("namespace", "serving") == "serving" for one in objects)
    assert GAUGE in out
    if kind == "keda":
        told = " ".join(out.replace("\n#", " ").split())
        assert "repeated every day: enough with 99% certainty, of demand up to" in told


@pytest.mark.parametrize("kind", MANIFESTS)
def test_old_trace_makes_no_manifest(trace: Path, kind: str, capsys: Captured) -> None:
    words = ["--history", str(trace), "--tier", "chat", *GIVEN, "--format", kind, "--workload", "Deployment/chat"]
    code, out, err = said(capsys, *words)
    assert (code, out) == (3, "")
    assert re.search(r"no manifest: chat: the trace ended \d+ d.* ago", err)


def test_maximum_is_twice_the_most_wanted(live: Path, capsys: Captured) -> None:
    words = ("--history", str(live), "--tier", "chat", *GIVEN, "--format", "keda", "--workload", "Deployment/chat")
    found = prewarm_from_csv(live, None, "chat", PlanOverrides(usable_rps=0.01, start_seconds=180.0), None)
    one = found.prewarm.recommendation
    most = max(one.replicas, *(step.replicas for step in found.prewarm.schedule))
    assert yaml.safe_load(said(capsys, *words)[1])["spec"]["maxReplicaCount"] == 2 * most
    assert yaml.safe_load(said(capsys, *words, "--maximum", "99")[1])["spec"]["maxReplicaCount"] == 99


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--format", "keda"), "say with --workload what is scaled"),
        (("--format", "keda", "--workload", "Pod/chat"), "workload kind 'Pod' is not known here"),
        (("--format", "keda", "--workload", "Deployment/Chat!"), "is no Kubernetes name"),
        (("--format", "keda", "--workload", "Deployment/chat", "--prometheus", "ftp://x"), "is no address"),
        (("--format", "keda", "--workload", "chat"), "is no KIND/NAME"),
        (("--usable-rps", "0"), "must be from 1e-09 to 1e+09"),
        (("--usable-rps", "nan"), "must be from 1e-09 to 1e+09"),
        (("--maximum", "0"), "0 is not in the range x>=1"),
        (("--token-secret", "a"), "is no NAME/KEY"),
    ],
)
def test_wrong_option_gets_one_sentence(trace: Path, words: tuple[str, ...], sentence: str, capsys: Captured) -> None:
    code, out, err = said(capsys, "--history", str(trace), "--tier", "chat", *GIVEN, *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


def test_missing_facts_give_no_recommendation(trace: Path, capsys: Captured) -> None:
    code, out, _ = said(capsys, "--history", str(trace))
    assert code == 3
    assert "--usable-rps" in out
    code, out, _ = said(capsys, "--history", str(trace), "--usable-rps", "1")
    assert code == 3
    assert "how long a start takes is not known" in out
    code, out, err = said(capsys, "--history", str(trace), "--format", "keda", "--workload", "Deployment/chat")
    assert (code, out) == (3, "")
    assert "no manifest: trace: no recommendation" in err


def configured(folder: Path, *, history: bool) -> Path:
    """A configuration of one tier of the plan; with an empty history where there is to be one."""
    if history:
        (folder / "data").mkdir()
        HistoryStore(folder / "data" / "history.db").close()
    return write_config(folder)


@pytest.mark.parametrize(
    ("history", "words", "code", "text"),
    [
        (True, (), 3, "no demand of this tier has been kept yet"),
        (True, ("--bin", "5m"), 2, "--bin is for --history"),
        (True, ("--tier", "h100"), 2, "there is no tier h100; there are cpu-small"),
        (False, (), 2, "`sizewatch run` makes it"),
    ],
)
def test_history_that_cannot_answer_is_said(
    history: bool, words: tuple[str, ...], code: int, text: str, tmp_path: Path, capsys: Captured
) -> None:
    ended, out, err = said(capsys, "-c", str(configured(tmp_path, history=history)), *words)
    assert ended == code
    assert text in (err if code == 2 else out)


def test_plan_scales_a_trace(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ("--history", str(trace), "-c", str(configured(tmp_path, history=False)), "--start", "3m")
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
    words = ("-c", str(configured(tmp_path, history=True)), "--format", "json")
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
    loaded, begin = load(configured(tmp_path, history=True)), 1_768_000_020.0 // 60 * 60
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


def test_pools_are_counted_at_the_forecast(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    tier = yaml.safe_load((TESTS / "plans" / "cpu-pools.yaml").read_text())["tiers"]["cpu-pools"]
    rates = {"prefill_tokens_per_second": 1000, "decode_tokens_per_second": 10}
    (tmp_path / "plan.yaml").write_text(
        yaml.safe_dump({"schema": 1, "tiers": {"t": {**tier, "disaggregation": rates}}})
    )
    target = {"tier": "t", "url": "http://127.0.0.1:9/metrics", "pool": "decode"}
    config = tmp_path / "sizewatch.yaml"
    config.write_text(yaml.safe_dump({"plan": "plan.yaml", "data_dir": str(tmp_path), "targets": [target]}))
    code, out, _ = said(capsys, "--history", str(trace), "-c", str(config), "--start", "3m")
    assert code == 0
    rps = float(re.findall(r"decode pool, 95% of demand: ([\d.]+) rps", out)[0])
    assert f"prefill pool, 95% of demand: {rps:.3g} rps at 1.95 rps a replica at up to 0.9 of it: 1" in out
    assert "no recommendation" not in out
    config.write_text(config.read_text() + "thresholds: {t: {NoHeadroom: {above: 0.45}}}\n")
    assert "at up to 0.45 of it" in said(capsys, "--history", str(trace), "-c", str(config), "--start", "3m")[1]
    config.write_text(config.read_text().replace("0.45", "0.9"))
    code, out, _ = said(capsys, "--history", str(trace), "-c", str(config), "--start", "3m", "--format", "json")
    assert json.loads(out)["pools"] == {"prefill": 1, "decode": math.ceil(rps * 64 / 10 / 0.9)}
    keda = ("--format", "keda", "--workload", "Deployment/d")
    assert said(capsys, "--history", str(trace), "-c", str(config), *keda)[0] == 3
