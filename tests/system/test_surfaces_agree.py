"""One capacity, one count: every surface is asked about the same demand, plan and history, and all must say the same.

Two fleets of the guide's tier with two weeks behind them: one that serves as planned, one whose replicas break the SLO at far
less than the benchmark says. What is compared is what users see: the JSON of the commands, the report, the next plan, the
page of metrics and the status page of a daemon that stands on the same history.

And a real engine under an overload (`tests/recordings/overload`): three quiet minutes, four of 4 rps of which 2.8 finish, then
the recovery. A daemon scrapes its pages on a simulated clock; at ten moments every surface is asked.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from building import build_once
from daemon_runs import at, run_command
from loopback import answering
from paths import TESTS
from report_samples import DAY, START, book, hour

from agent.config.load import load
from agent.daemon.assembly import assemble
from agent.daemon.status_builder import status
from agent.history.store import HistoryStore
from agent.sources.recording import load as load_recording
from agent.sources.recording import scrapes
from exporters.grafana import dashboards
from exporters.metrics import exposition
from exporters.status.page import render_page, status_json
from exporters.status.plan_comparison import compare_with_plan
from exporters.status.records import AgentHealth, AgentStatus
from rules.catalogue.registry import ACTIONS
from rules.plan.replica_count import Margin, count_fleet, count_replicas
from rules.plan.schema import Plan, parse_plan
from rules.telemetry.windows import Window

TIER, REPLICAS, DAYS = "h100-llama70b-fp8", 13, 15
NOW = START + DAYS * DAY + 45.0
GUIDE = TESTS / "plans" / "guide-h100.yaml"
USUAL = Margin(target_utilization=0.9, survives_loss_from=4)
LENGTHS = {"prompts": 1300.0, "outputs": 230.0, "kv": 0.3}

Json = Mapping[str, Any]


def as_planned(number: int) -> Window:
    """119 rps at every hour: 9.15 a replica, and every first token after 0.15 s."""
    return hour(number, 119.0, REPLICAS, ttft={0.15: 1.0}, **LENGTHS)


def slower(number: int) -> Window:
    """By day 62 rps, 4.8 a replica, of which one in twenty waits 3 s; 35 at night, 2.7 a replica, which are served well."""
    if 8 <= number % 24 < 20:
        return hour(number, 62.0, REPLICAS, ttft={0.15: 0.95, 3.0: 0.05}, **LENGTHS)
    return hour(number, 35.0, REPLICAS, ttft={0.15: 1.0}, **LENGTHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surfaces:
    """What every surface says of one fleet."""

    config: Path
    plan: Plan
    prewarm: Json
    check: Json
    report: Json
    next_plan: Plan
    shown: str
    status: AgentStatus
    page: str

    @property
    def recommendation(self) -> Json:
        found: Json = self.prewarm["recommendation"]
        return found

    @property
    def capacity(self) -> float:
        found: float = self.recommendation["count"]["capacity"]["rps"]
        return found

    def whatif(self, rps: float) -> Json:
        """13 replicas at this load."""
        words = ("whatif", "-c", str(self.config), "--tier", TIER, "--instances", "13", "--rps", repr(rps))
        found: Json = json.loads(said(*words, "--format", "json"))
        return found

    def metric(self, name: str) -> float:
        return read_gauge(self.page, name, TIER)


def read_gauge(page: str, name: str, tier: str) -> float:
    (line,) = (line for line in page.splitlines() if line.startswith(f'{name}{{tier="{tier}"}}'))
    return float(line.rpartition(" ")[2])


def run_at(now: float, *words: str) -> tuple[int, str]:
    """Return the exit code of a command at that time, and its standard output."""
    with at(now):
        return run_command(*words)[:2]


def said(*words: str) -> str:
    code, out = run_at(NOW, *words)
    assert code in (0, 1), words
    return out


def surfaces(folder: Path, made: Callable[[int], Window]) -> Surfaces:
    folder.mkdir()
    plan = parse_plan(yaml.safe_load(GUIDE.read_text()))
    (folder / "plan.yaml").write_text(GUIDE.read_text())
    path = folder / "sizewatch.yaml"
    target = {"url": "http://127.0.0.1:9/metrics", "tier": TIER, "replica": "r0"}
    path.write_text(yaml.safe_dump({"plan": "plan.yaml", "targets": [target], "gpus": {"source": "none"}}))
    history = folder / "sizewatch-data" / "history.db"
    history.parent.mkdir(mode=0o700)
    with HistoryStore(history) as store:
        book(store, plan, [made(number) for number in range(DAYS * 24)], TIER)

    prewarm = json.loads(said("prewarm", "-c", str(path), "--tier", TIER, "--format", "json"))
    check = json.loads(said("check", "-c", str(path), "--format", "json"))
    said("report", "-c", str(path), "--out", str(folder / "weekly"))
    with at(NOW):
        parts = assemble(load(path), clock=lambda: NOW)
        try:
            parts.forecast(NOW)
            told = status(parts, NOW, AgentHealth(), started_at=NOW)
        finally:
            parts.close(NOW)
    proposed = folder / "weekly" / "plan.next.yaml"
    return Surfaces(
        config=path,
        plan=plan,
        prewarm=prewarm,
        check=check["tiers"][0],
        report=json.loads((folder / "weekly" / "report.json").read_text())["tiers"][0],
        next_plan=parse_plan(yaml.safe_load(proposed.read_text())),
        shown=said("plan", "show", str(proposed), "--tier", TIER),
        status=told,
        page=exposition.render(told, "text/plain")[0].decode(),
    )


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Surfaces:
    return build_once(tmp_path_factory, "planned", partial(surfaces, made=as_planned))


@pytest.fixture(scope="module")
def refuted(tmp_path_factory: pytest.TempPathFactory) -> Surfaces:
    return build_once(tmp_path_factory, "refuted", partial(surfaces, made=slower))


@pytest.fixture(params=["planned", "refuted"])
def fleet(request: pytest.FixtureRequest) -> Surfaces:
    found: Surfaces = request.getfixturevalue(request.param)
    return found


def test_guide_tier_is_counted_alike(planned: Surfaces) -> None:
    one = planned.recommendation
    assert one["quantile_rps"] == pytest.approx(119.0, rel=0.01)
    assert (one["for_forecast"], one["replicas"]) == (12, 12)
    assert one["count"]["utilization"] <= 0.9
    assert one["count"]["utilization_one_lost"] <= 1.0
    assert planned.metric("sizewatch_recommended_replicas") == 12
    assert planned.whatif(one["quantile_rps"])["needed"]["replicas"] == 12
    needs = "the peak needs 12 replicas (119 rps at 12 rps a replica at up to 0.9 of it, one may be lost: 12)"
    assert needs in planned.report["proposal"]["evidence"]


def test_production_that_refutes_the_benchmark_counts_everywhere(refuted: Surfaces) -> None:
    assert 35 / REPLICAS < refuted.capacity < 62 / REPLICAS
    assert refuted.report["curve"]["benchmark_refuted"]
    point = refuted.next_plan.tiers[TIER].operating_point
    assert point.source == "production"
    assert point.usable_rps == pytest.approx(refuted.capacity, rel=0.01)
    assert point.low == pytest.approx(35 / REPLICAS, rel=0.01)
    assert point.high == pytest.approx(62 / REPLICAS, rel=0.01)


def test_every_surface_has_one_capacity(fleet: Surfaces) -> None:
    said = {
        "gauge": fleet.metric("sizewatch_capacity_rps"),
        "whatif": fleet.whatif(50.0)["usable"]["rps"],
        "report": fleet.report["curve"]["usable"]["rps"],
        "check": fleet.check["capacity_rps"],
        "status page": next(one for one in fleet.status.tiers if one.name == TIER).context.capacity.rps,
    }
    assert said == {name: pytest.approx(fleet.capacity) for name in said}
    (tile,) = (one for one in compare_with_plan(fleet.status.tiers[0]) if one.row.key == "completed_rps_per_replica")
    assert tile.planned.value == pytest.approx(fleet.capacity)
    assert "sizewatch_capacity_rps" in dashboards.USABLE_RPS


@pytest.mark.parametrize("rps", [3.0, 14.0, 50.0, 119.0])
def test_every_surface_counts_one_demand_alike(fleet: Surfaces, rps: float) -> None:
    asked = fleet.whatif(rps)
    expected = max(1, count_replicas(rps, fleet.capacity, USUAL))
    assert asked["needed"]["replicas"] == expected
    assert asked["utilization"] == pytest.approx(rps / (13 * fleet.capacity))
    assert asked["needed"]["utilization"] == pytest.approx(rps / (expected * fleet.capacity))


def test_the_forecast_is_counted_as_any_demand(fleet: Surfaces) -> None:
    one = fleet.recommendation
    assert one["for_forecast"] == fleet.whatif(one["quantile_rps"])["needed"]["replicas"]
    assert fleet.metric("sizewatch_recommended_replicas") == one["replicas"]
    for step in fleet.prewarm["schedule"]:
        counted = fleet.whatif(step["demand_rps"])["needed"]["replicas"]
        assert step["replicas"] == max(counted, one["minimum_warm"])


def test_step_11_agrees_on_three_surfaces(fleet: Surfaces) -> None:
    peak = fleet.report["count"]["demand_rps"]
    needed = count_fleet(peak, fleet.capacity, 1.3, USUAL, 2)
    assert fleet.report["count"]["replicas"] == needed
    assert fleet.report["proposal"]["replicas"] == needed
    assert fleet.next_plan.tiers[TIER].fleet is not None
    assert fleet.next_plan.tiers[TIER].fleet.instances == needed
    assert f"Step 11 {needed} replicas" in " ".join(fleet.shown.split())
    assert fleet.whatif(peak)["fleet"]["replicas"] == needed
    counted = fleet.whatif(peak)["needed"]["replicas"]
    assert any(f"the peak needs {counted} replicas" in text for text in fleet.report["proposal"]["evidence"])


def test_utilization_is_load_by_capacity(fleet: Surfaces) -> None:
    row = next(one for one in fleet.report["monitoring"] if one["key"] == "fleet_utilization")
    served = fleet.report["workload"]["average_rps"] / (REPLICAS * fleet.capacity)
    assert row["observed"]["value"] == pytest.approx(served, rel=0.01)


OVERLOADED = "cpu-small"
PLAN = TESTS / "plans" / "cpu-small-short.yaml"
OVERLOAD_BEGIN, OVERLOAD_END = 180.0, 420.0
"""Seconds after the first scrape at which long requests begin and end to arrive."""

MOMENTS = (100.0, 170.0, 240.0, 285.0, 330.0, 375.0, 415.0, 480.0, 600.0, 830.0)
HEIGHT, LAST = 415.0, 830.0
ARRIVING_RPS, COMPLETED_RPS = 4.0, 2.8
"""What the clients sent, and what they had back in the last two minutes of the overload."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What every surface says at one moment; `whatif` by instances, exit codes beside the documents."""

    prewarm: Json
    check: tuple[int, Json]
    whatif: Mapping[int, tuple[int, Json]]
    overview: tuple[int, str]
    api: Json
    page: str
    metrics: str
    report: Json | None

    @property
    def recommended(self) -> int:
        count: int = self.prewarm["recommendation"]["replicas"]
        return count

    @property
    def words(self) -> str:
        """The status page as text."""
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.page))

    def read_gauge(self, name: str) -> float:
        return read_gauge(self.metrics, name, OVERLOADED)


def run_json(now: float, *words: str) -> tuple[int, Json]:
    code, text = run_at(now, *words, "--format", "json")
    return code, json.loads(text)


def build_response(body: bytes, kind: str = "text/plain; version=0.0.4") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def watch_recording(into: Path, later: float) -> dict[float, Moment]:
    """Return the surfaces at each of MOMENTS, of a daemon that scrapes the recorded pages so many seconds later."""
    into.mkdir()
    recording, _ = load_recording(recorded.folder("overload"))
    pages = [one for one in scrapes(recording, []) if one.body is not None]
    begin = pages[0].t + later
    clock = [begin]
    moments: dict[float, Moment] = {}
    served, answer = [build_response(b"")], [build_response(b"")]
    (into / "plan.yaml").write_text(PLAN.read_text())
    config = into / "sizewatch.yaml"
    with answering(served) as engine, answering(answer) as web:
        target = {"url": f"{engine}/metrics", "tier": OVERLOADED, "replica": "r0"}
        whole = {"plan": "plan.yaml", "targets": [target], "gpus": {"source": "none"}, "scrape_interval": "5s"}
        config.write_text(yaml.safe_dump(whole))
        with at(begin):
            daemon = assemble(load(config), clock=lambda: clock[0])
        try:
            due = list(MOMENTS)
            for before, scrape in zip([None, *pages], pages, strict=False):
                now = clock[0] = scrape.t + later
                served[0] = build_response(scrape.body or b"")
                with at(now):
                    daemon.loop.run_cycle()
                    if before is None or before.t // 60 != scrape.t // 60:
                        daemon.forecast(now)
                if due and now - begin >= due[0]:
                    offset = due.pop(0)
                    moments[offset] = ask_surfaces(daemon, config, now, answer, web, offset in (HEIGHT, LAST))
        finally:
            daemon.close(clock[0])
    return moments


def ask_surfaces(daemon: Any, config: Path, now: float, answer: list[bytes], web: str, with_report: bool) -> Moment:
    daemon.forecast(now)
    found = status(daemon, now, AgentHealth(), started_at=now - 60)
    api = status_json(found)
    answer[0] = build_response(json.dumps(api).encode(), "application/json")
    ask = ("-c", str(config), "--tier", OVERLOADED)
    report = None
    if with_report:
        out = config.parent / f"report-{now:.0f}"
        run_at(now, "report", "-c", str(config), "--since", "1h", "--out", str(out))
        report = json.loads((out / "report.json").read_text())["tiers"][0]
    return Moment(
        prewarm=run_json(now, "prewarm", *ask)[1],
        check=run_json(now, "check", "-c", str(config)),
        whatif={count: run_json(now, "whatif", *ask, "--instances", str(count)) for count in (1, 2, 3, 6)},
        overview=run_at(now, "status", "--url", web),
        api=api,
        page=render_page(found).decode(),
        metrics=exposition.render(found, "text/plain")[0].decode(),
        report=report,
    )


@pytest.fixture(scope="module", params=[0.0, 8 * 3600.0], ids=["across midnight", "within a day"])
def moments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Moment]:
    """It was recorded across midnight (UTC), when capacities are estimated anew."""
    later: float = request.param
    return build_once(tmp_path_factory, f"overload-{later:.0f}", partial(watch_recording, later=later))


@pytest.fixture(params=MOMENTS)
def moment(request: pytest.FixtureRequest, moments: dict[float, Moment]) -> Moment:
    return moments[request.param]


@pytest.fixture(params=[one for one in MOMENTS if OVERLOAD_BEGIN + 90 < one <= OVERLOAD_END])
def overloaded(request: pytest.FixtureRequest, moments: dict[float, Moment]) -> Moment:
    return moments[request.param]


def test_surfaces_have_one_count_and_sentence(moment: Moment) -> None:
    decision = moment.prewarm["recommendation"]
    overview = moment.api["overview"][0]
    assert overview["recommended"] == moment.recommended
    assert moment.read_gauge("sizewatch_recommended_replicas") == moment.recommended
    # A command reads the last minute once more: its demand may differ in the third digit.
    sentence = decision["sentence"].partition(" (lead")[0]
    assert sentence in moment.overview[1]
    assert sentence in moment.words
    assert decision["sentence"].partition("); ")[2] in moment.overview[1]
    missing = moment.recommended - 1
    assert (f"start {missing} now" in moment.words) == (missing > 0)
    assert ("enough for that" in moment.words) == (missing == 0)


def test_overload_leaves_one_capacity(moment: Moment) -> None:
    usable = moment.prewarm["recommendation"]["count"]["capacity"]["rps"]
    told = {
        "gauge": moment.read_gauge("sizewatch_capacity_rps"),
        "check": moment.check[1]["tiers"][0]["capacity_rps"],
        **{f"whatif {count}": answer["usable"]["rps"] for count, (_, answer) in moment.whatif.items()},
    }
    assert told == {name: pytest.approx(usable) for name in told}


def test_exit_codes_agree_with_the_words(moment: Moment) -> None:
    code, text = moment.overview
    headline = text.splitlines()[0]
    assert (code == 1) == ("incident" in headline) == bool(moment.api["overview"][0]["incidents"])
    assert headline.partition(" ")[2] in moment.words
    for whatif_code, answer in moment.whatif.values():
        assert (whatif_code == 1) == ("would break" in answer["sentence"] or "likely break" in answer["sentence"])
        assert (whatif_code == 0) == ("hold" in answer["sentence"])


def test_growing_queue_never_advises_against_replicas(overloaded: Moment) -> None:
    everything = overloaded.words + json.dumps(overloaded.api) + overloaded.overview[1] + json.dumps(overloaded.check)
    assert ACTIONS["keep_replicas"] not in everything
    assert "as planned" not in overloaded.words
    assert "no objective is surely missed" not in overloaded.words


def test_the_count_covers_what_arrives(overloaded: Moment) -> None:
    assert overloaded.recommended >= math.ceil(ARRIVING_RPS / COMPLETED_RPS)
    assert overloaded.prewarm["recommendation"]["now_requests"] == pytest.approx(ARRIVING_RPS, rel=0.15)


def test_size_is_broken_during_incident(overloaded: Moment) -> None:
    code, answer = overloaded.whatif[1]
    assert (code, answer["slo"]) == (1, "broken")
    assert re.match(r"(KV cache cascade|TTFT SLO burn) is open at this size since ", answer["sentence"])
    assert overloaded.whatif[6][0] == 0


def test_the_cause_names_the_lengths(moments: dict[float, Moment]) -> None:
    suspect = r"prompts are longer than benchmarked: mean [12]\d\d tokens, 79 benchmarked"
    root = r"prompts are [23](\.\d)? ?x,? .*as long as benchmarked"
    for offset in (240.0, 330.0, 375.0, HEIGHT):
        assert re.search(f"{suspect}|{root}", moments[offset].words, re.IGNORECASE), offset


@pytest.mark.parametrize("offset", [100.0, 170.0])
def test_quiet_minutes_gain_nothing(moments: dict[float, Moment], offset: float) -> None:
    quiet = moments[offset]
    assert (quiet.overview[0], quiet.recommended, quiet.whatif[1][0]) == (0, 1, 0)
    assert quiet.api["overview"][0]["state"] == "learning"


def test_one_replica_is_enough_after_overload(moments: dict[float, Moment]) -> None:
    last = moments[LAST]
    assert (last.overview[0], last.recommended) == (0, 1)
    # The load of a what-if is the busiest of the hour, which one replica did not carry.
    assert [last.whatif[count][0] for count in (1, 3)] == [1, 0]
    # What the overload showed stays known: of 13.9 usable, 9.4 by the work, which are 3.6 of the day's requests.
    assert last.read_gauge("sizewatch_capacity_rps") in (pytest.approx(9.4, rel=0.05), pytest.approx(3.6, rel=0.05))


@pytest.mark.parametrize("offset", [HEIGHT, LAST])
def test_the_report_proposes_no_other_size(moments: dict[float, Moment], offset: float) -> None:
    report = moments[offset].report
    assert report["proposal"]["replicas"] is None
    assert report["proposal"]["kind"] == "no_recommendation"
