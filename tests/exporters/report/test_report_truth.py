"""The report on four simulated weeks against the truth beside them: numbers, sentences, and the plan it proposes.

The truth is counted by the simulator, or reckoned here from what it says was done: how long prompts were, how many requests
people were to send. Where the report states bounds they are the tolerance; a sum may lack what was asked while nobody watched.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from building import build_once
from simulation_truth import END, TRUTH, PastFleet

from agent.config.load import load as load_config
from agent.demo.simulation.engine import PREFILL_EXPONENT
from agent.demo.simulation.scenario import DAY, HOUR, Pattern, TierScenario
from agent.demo.simulation.weeks import CONFIG, HISTORY
from agent.history.store import HistoryStore
from agent.reporting.generate import files_of, query_report_inputs
from exporters.report.records import report_schema
from rules.plan.curve import Curve
from rules.plan.schema import Plan, TierPlan, parse_plan

pytestmark = pytest.mark.slow

MIDNIGHT = END - 8 * HOUR
CHAT, RAG, CODE = "chat-h100", "rag-l40s", "code-h100"
TIERS = (CHAT, RAG, CODE)
Z95, Z99 = 1.6449, 2.3263

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The reports on four weeks and on their last seven full days, their texts, the plans, and the truth."""

    month: Json
    week: Json
    texts: Mapping[str, str]
    plan: Plan
    truth: Json

    def tier(self, name: str, which: str = "month") -> Json:
        return next(one for one in getattr(self, which)["tiers"] if one["tier"] == name)

    def days(self, name: str, which: str = "month") -> list[Json]:
        """The truth of the days that the report is about."""
        report = getattr(self, which)
        days = self.truth["tiers"][name]["days"]
        return [one for one in days if one["day"] + DAY > report["since"] and one["day"] < report["until"]]

    def total(self, name: str, key: str, which: str = "month") -> float:
        return math.fsum(one[key] for one in self.days(name, which))

    def rate(self, name: str, t: float) -> float:
        """Requests a second that the story has people send at `t`."""
        told = self.truth["tiers"][name]
        changed = told["demand_changed"]
        story = TierScenario(tier=name, replicas=told["replicas"], pattern=Pattern(**told["demand"]))
        if changed is not None:
            story = replace(story, changes_at=changed["at"], then=Pattern(**changed["after"]))
        return story.rate(t, f"{self.truth['seed']}/{name}")

    def unwatched(self, name: str) -> float:
        """Requests of the time in which sizewatch itself did not run."""
        spans = [(one["begin"], one["end"]) for one in self.truth["not_watched"]]
        return math.fsum(self.rate(name, a + step * 60.0) * 60.0 for a, b in spans for step in range(int((b - a) / 60)))

    def longer(self, name: str, t: float) -> float:
        """How many times as long as planned prompts are at `t`."""
        drift = self.truth["tiers"][name]["prompt_drift"]
        if drift is None:
            return 1.0
        place = min(1.0, max(0.0, (t - drift["begin"]) / (drift["end"] - drift["begin"])))
        return 1 + place * (float(drift["factor"]) - 1)


@pytest.fixture(scope="module", name="told")
def report_on_four_weeks(tmp_path_factory: pytest.TempPathFactory, past_fleet: PastFleet) -> Told:
    return build_once(tmp_path_factory, "report-truth", lambda _: told_of(past_fleet.folder))


def told_of(folder: Path) -> Told:
    loaded = load_config(folder / CONFIG, environment={})
    with HistoryStore.open_reader(folder / HISTORY) as store:
        month = query_report_inputs(store, loaded, END - 28 * DAY, END)
        config = loaded.config.model_copy(
            update={"forecast": loaded.config.forecast.model_copy(update={"enabled": False})}
        )
        week = query_report_inputs(store, replace(loaded, config=config), MIDNIGHT - 7 * DAY, MIDNIGHT)
    texts, _ = files_of(month)
    assert loaded.plan is not None
    return Told(
        month=json.loads(texts["report.json"]),
        week=json.loads(files_of(week)[0]["report.json"]),
        texts=texts,
        plan=loaded.plan,
        truth=json.loads((folder / TRUTH).read_text()),
    )


def test_each_event_is_one_loud_incident(told: Told) -> None:
    """The drift, the trap and the cascade; the fill makes no forecasts that could miss."""
    found = {name: told.tier(name)["grouped_incidents"] for name in TIERS}
    assert {name: [(one["root"], one["severity"]) for one in rows] for name, rows in found.items()} == {
        CHAT: [("WorkloadDrift", "warning")],
        RAG: [("UtilizationTrap", "info")],
        CODE: [("WorkloadDrift", "critical")],
    }
    cascade = told.truth["tiers"][CODE]["kv_cascade"]
    (paged,) = found[CODE]
    assert cascade["begin"] <= paged["started_at"] <= cascade["alert_at"] < paged["ended_at"]
    assert paged["symptoms"][0]["rule"] == "KvCacheCascade"
    (drifting,) = found[CHAT]
    drift = told.truth["tiers"][CHAT]["prompt_drift"]
    assert drift["begin"] < drifting["started_at"] < drift["end"]
    assert drifting["ended_at"] is None
    (trap,) = found[RAG]
    assert trap["idle"]["cost_per_day"] > 0
    assert f"{trap['idle']['replicas']:.1f} replicas idle" in told.texts["report.md"]


def row(tier: Json, key: str) -> Json:
    return next(one for one in tier["monitoring"] if one["key"] == key)


def lognormal(planned: Any, factor: float = 1.0) -> tuple[float, float]:
    """Median and sigma of lengths with these quantiles, scaled."""
    return planned.p50 * factor, math.log(planned.p95 / planned.p50) / Z95


def quantile_of(told: Told, name: str, planned: Any, q: float, grows: bool) -> float:
    """The quantile of lengths over the last seven days of the month's report, hour by hour."""
    hours = [END - 7 * DAY + (n + 0.5) * HOUR for n in range(168)]
    parts = [(told.rate(name, t), lognormal(planned, told.longer(name, t) if grows else 1.0)) for t in hours]
    whole = math.fsum(weight for weight, _ in parts)

    def below(x: float) -> float:
        shares = (w * 0.5 * (1 + math.erf(math.log(x / median) / s / math.sqrt(2))) for w, (median, s) in parts)
        return math.fsum(shares) / whole

    low, high = 1.0, 1e6
    while high - low > 1e-3 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if below(middle) < q else (low, middle)
    return low


def usable(plan: TierPlan, slower: float = 1.0) -> float:
    """The load at which TTFT P99, so many times the benchmark's, crosses its objective: by logarithms between points."""
    assert plan.curve is not None
    points, limit = plan.curve.points, plan.slo.ttft_p99_seconds / slower
    for before, after in pairwise(points):
        if before.ttft_p99_seconds <= limit < after.ttft_p99_seconds:
            share = math.log(limit / before.ttft_p99_seconds) / math.log(
                after.ttft_p99_seconds / before.ttft_p99_seconds
            )
            return before.completed_rps + share * (after.completed_rps - before.completed_rps)
    raise AssertionError("the benchmark does not cross the objective")


@pytest.mark.parametrize("name", TIERS)
def test_requests_and_tokens_are_the_served(told: Told, name: str) -> None:
    for which in ("month", "week"):
        tier = told.tier(name, which)
        served = told.total(name, "finished", which) - (told.unwatched(name) if which == "month" else 0.0)
        assert tier["workload"]["requests"] == pytest.approx(served, rel=2e-4)
        prompts = told.total(name, "prompt_tokens", which) / told.total(name, "generation_tokens", which)
        bound = next(one for one in tier["questions"] if one["key"] == "bound")
        asked = bound["numbers"]["prompt_by_generated_tokens"]["value"]
        assert asked == pytest.approx(prompts, rel=1e-3)


@pytest.mark.parametrize("name", TIERS)
def test_average_and_peak_are_the_peoples(told: Told, name: str) -> None:
    tier = told.tier(name)["workload"]
    seconds = told.total(name, "seconds")
    assert tier["average_rps"] == pytest.approx(told.total(name, "arrived") / seconds, rel=5e-3)
    quarters = [told.truth["begin"] + 900.0 * n for n in range(28 * 96)]
    assert tier["peak_rps"] == pytest.approx(max(told.rate(name, t + 450.0) for t in quarters), rel=0.04)


@pytest.mark.parametrize("name", TIERS)
def test_length_quantiles_lie_within_bounds(told: Told, name: str) -> None:
    workload = told.plan.tiers[name].workload
    assert workload is not None
    for one in told.tier(name)["workload"]["lengths"]:
        prompts = one["what"] == "prompts"
        planned = workload.prompt_tokens if prompts else workload.generation_tokens
        true = quantile_of(told, name, planned, float(one["quantile"][1:]) / 100, prompts)
        seen = one["observed"]
        assert (seen["low"] or 0.0) <= true * 1.001, one
        assert seen["high"] is None or true <= seen["high"] * 1.001, one
        assert one["planned"] == getattr(planned, one["quantile"])


@pytest.mark.parametrize("name", TIERS)
def test_latencies_are_the_benchmarks_or_the_storys(told: Told, name: str) -> None:
    drift = told.truth["tiers"][name]["prompt_drift"]
    slower = drift["factor"] ** PREFILL_EXPONENT if drift else 1.0
    curve = Curve.from_plan(told.plan.tiers[name])
    assert curve is not None
    for point in told.tier(name)["curve"]["production"]:
        bin, _ = curve.place(point["rps"], None)
        assert bin is not None
        expected = curve.expectation(bin, "ttft_p99_seconds", point["rps"])
        assert expected is not None
        seen = point["ttft_p99"]
        # A drift that grows makes a mixture between the benchmark's own and the slowest of the week.
        assert seen["low"] <= expected.value * slower * 1.05, point
        assert expected.value <= seen["high"] * 1.05, point


@pytest.mark.parametrize("name", TIERS)
def test_hits_use_and_cost_are_served(told: Told, name: str) -> None:
    tier, plan = told.tier(name, "week"), told.plan.tiers[name]
    assert plan.workload is not None
    assert plan.cost is not None
    prompts, outputs = plan.workload.prompt_tokens, plan.workload.generation_tokens
    assert row(tier, "prefix_hit_ratio")["observed"]["value"] == pytest.approx(plan.workload.prefix_hit_ratio, abs=1e-4)
    restarts = [
        one for one in told.truth["tiers"][name]["restarts"] if told.week["since"] <= one["gone"] < told.week["until"]
    ]
    down = math.fsum(one["ready"] - one["gone"] for one in restarts)
    ready = told.total(name, "replica_seconds", "week") - down
    made = told.total(name, "generation_tokens", "week")
    paid = ready / 3600 * plan.gpu.per_replica * plan.cost.gpu_hour_price
    measured = next(one for one in tier["costs"] if one["name"] == "measured")
    assert measured["per_million_tokens"] == pytest.approx(paid / made * 1e6, rel=2e-3)
    # Prompt tokens and outputs against those at capacity; the cache served as large a share as planned.
    assert prompts is not None
    assert outputs is not None
    whole = ready * usable(plan)
    used = [
        tokens / (whole * (planned.mean or 0.0))
        for tokens, planned in ((told.total(name, "prompt_tokens", "week"), prompts), (made, outputs))
    ]
    if tier["curve"]["usable"]["source"] == "production":
        # What production takes was measured on this week's own requests.
        used = [told.total(name, "finished", "week") / (ready * tier["curve"]["usable"]["rps"])]
    observed = row(tier, "fleet_utilization")["observed"]
    assert observed["value"] == pytest.approx(sum(used) / len(used), rel=5e-3)
    assert (observed["low"], observed["high"]) == (
        pytest.approx(min(used), rel=5e-3),
        pytest.approx(max(used), rel=5e-3),
    )


def test_unwatched_hours_alone_are_missing(told: Told) -> None:
    for name in TIERS:
        restarts = told.truth["tiers"][name]["restarts"]
        replicas = told.truth["tiers"][name]["replicas"]
        down = math.fsum(one["ready"] - one["gone"] for one in restarts) / replicas / HOUR
        silent = math.fsum(one["end"] - one["begin"] for one in told.truth["not_watched"]) / HOUR
        part = told.tier(name)["quality"]
        assert part["hours"] == 672.0
        assert part["hours_seen"] == pytest.approx(672.0 - silent - down, abs=0.2)


@pytest.mark.parametrize("name", TIERS)
def test_restarts_have_their_unseen_time(told: Told, name: str) -> None:
    known = [one for one in told.truth["tiers"][name]["restarts"] if one["ready"] >= told.month["since"]]
    rows = told.tier(name)["restarts"]
    assert sum(one["times"] for one in rows) == len(known)
    assert sum(one["untimed"] for one in rows) == 0
    down = math.fsum(one["ready"] - one["gone"] for one in known)
    # Pages are 15 s apart around a restart: one before it and one after.
    assert down <= sum(one["unseen_seconds"] for one in rows) <= down + 30.0 * len(known)
    assert all(one["first"] >= told.month["since"] and one["last"] < told.month["until"] for one in rows)


def test_drift_has_factor_and_direction(told: Told) -> None:
    chat = told.tier(CHAT)
    median = next(one for one in chat["workload"]["lengths"] if (one["what"], one["quantile"]) == ("prompts", "p50"))
    true = [told.longer(CHAT, END - 7 * DAY + (n + 0.5) * HOUR) for n in range(168)]
    assert min(true) * 0.9 < median["factor"] < max(true) * 1.1
    assert chat["workload"]["towards"] == "rag"
    assert "Prompts are at least" in chat["drift"][0]["sentence"]
    assert "does not confirm the benchmark (prompts are longer than planned)" in chat["verdict"]
    drift = told.truth["tiers"][CHAT]["prompt_drift"]
    (told_of,) = (one for one in chat["incidents"] if one["rule"] == "WorkloadDrift")
    assert drift["begin"] < told_of["started_at"] < drift["end"]
    assert told_of["ended_at"] is None
    for name in (RAG, CODE):
        assert told.tier(name)["workload"]["towards"] == ""
        assert "production confirms the benchmark" in told.tier(name)["verdict"]


def test_cascade_has_stages_before_the_alert(told: Told) -> None:
    true = told.truth["tiers"][CODE]["kv_cascade"]
    code = told.tier(CODE)
    (cascade,) = (one for one in code["incidents"] if one["rule"] == "KvCacheCascade")
    worst = cascade["worst"]
    assert worst["subject"]["replica"] == f"{CODE}-{true['replica']}"
    assert (worst["worst"]["status"], worst["worst"]["certainty"]) == ("critical", "certain")
    reached: dict[int, float] = {}
    for step in worst["transitions"]:
        reached.setdefault(step["stage"], step["t"] - true["begin"])
    # The cache fills from 60 s on, evicts after 120 s, requests wait after 150 s; pages are 15 s apart, a stage holds for one.
    assert 60 < reached[1] < reached[2] <= reached[3] < reached[4]
    assert 120 <= reached[2] <= 165
    assert 150 <= reached[3] <= 210
    assert reached[4] < true["alert_at"] - true["begin"]
    (alert,) = cascade["foreign"]
    assert (alert["started_at"], alert["ended_at"]) == (true["alert_at"], true["alert_until"])
    assert "KV cache cascade" in alert["text"]
    assert "critical in this time: KV cache cascade" in code["verdict"]
    at = datetime.fromtimestamp(true["begin"] + reached[1], UTC)
    assert f"  - {at:%a %d %b %H:%M:%S} UTC: stage 1, filling" in told.texts["report.md"]
    assert not [one for name in (CHAT, RAG) for one in told.tier(name)["incidents"] if one["rule"] == "KvCacheCascade"]


def test_changed_plan_is_in_the_verdict(told: Told) -> None:
    at = datetime.fromtimestamp(told.truth["tiers"][CODE]["plan_changed_at"], UTC)
    assert at.weekday() == 2
    assert f"{CODE} (under another plan until {at:%a %d %b %H:%M} UTC)" in told.tier(CODE)["verdict"]
    assert told.tier(CODE)["quality"]["remarks"][0].startswith(f"The plan changed on {at:%a %d %b %H:%M} UTC")


def test_failed_forecast_alone_is_told(told: Told) -> None:
    """What people send to this tier became another thing three days ago, and its forecast learnt the weeks before."""
    assert told.truth["tiers"][CODE]["demand_changed"] is not None
    failed = told.tier(CODE)["prewarming"]
    assert failed["error_ratio"] > 1.0
    assert failed["failed"].startswith(f"its error is {failed['error_ratio']:.2f} times that of the simplest one, ")
    of_code = told.texts["report.md"].partition(f"## {CODE}")[2]
    assert f"The forecast was no better than none: {failed['failed']}." in of_code
    for name in (CHAT, RAG):
        part = told.tier(name)["prewarming"]
        assert told.truth["tiers"][name]["demand_changed"] is None
        assert part["error_ratio"] < 1.0
        assert part["failed"] == ""


def test_trap_is_in_its_tier_alone(told: Told) -> None:
    for name in TIERS:
        trap = told.tier(name)["trap"]
        assert (trap["status"] in ("warning", "critical")) is told.truth["tiers"][name]["utilization_trap"], trap
    rag = told.tier(RAG)
    assert rag["trap"]["certainty"] == "certain"
    # The night is the quietest time of a tier that is busiest at 13:00, and batch work fits there.
    quietest = min(rag["week"], key=lambda one: one["utilization"])
    assert quietest["hour"] in {23, 0, 1, 2, 3}
    assert quietest["weekday"] in {5, 6, 0}


@pytest.mark.parametrize("name", TIERS)
def test_replica_capacity_lies_within_bounds(told: Told, name: str) -> None:
    drift = told.truth["tiers"][name]["prompt_drift"]
    true = usable(told.plan.tiers[name], drift["factor"] ** PREFILL_EXPONENT if drift else 1.0)
    usable_now = told.tier(name)["curve"]["usable"]
    assert usable_now["low"] <= true <= usable_now["high"] * 1.001
    assert usable_now["rps"] == pytest.approx(true, rel=0.05)
    assert usable_now["planned_rps"] == pytest.approx(usable(told.plan.tiers[name]), rel=1e-6)


@pytest.mark.parametrize(("name", "kind"), [(CHAT, "grow"), (RAG, "shrink"), (CODE, "keep")])
def test_the_proposed_plan_is_the_right_one(told: Told, name: str, kind: str) -> None:
    plan = told.plan.tiers[name]
    assert plan.fleet is not None
    drift = told.truth["tiers"][name]["prompt_drift"]
    true = usable(plan, drift["factor"] ** PREFILL_EXPONENT if drift else 1.0)
    peak = max(told.rate(name, told.truth["begin"] + 900.0 * n + 450.0) for n in range(28 * 96))
    right = max(plan.fleet.minimum_warm or 0, math.ceil(peak * (plan.fleet.safety_factor or 0.0) / true))
    for which in ("month", "week"):
        proposal = told.tier(name, which)["proposal"]
        assert (proposal["kind"], proposal["now"], proposal["replicas"]) == (kind, plan.fleet.instances, right)
        # No load of production came near to what a replica can take: whatever is said of it is a best estimate.
        assert proposal["certainty"] == "likely"
    proposed = parse_plan(yaml.safe_load(told.texts["plan.next.yaml"]))
    fleet = proposed.tiers[name].fleet
    assert fleet is not None
    assert fleet.instances == right


def test_the_headline_and_the_money_add_up(told: Told) -> None:
    assert told.month["headline"] == f"Grow {CHAT}; shrink {RAG}; keep {CODE}: 96 USD a day more."
    # A replica more of two GPUs at 2.5 USD, and one less of one GPU at 1 USD, by 24 hours.
    assert [told.tier(name)["saves_a_day"] for name in TIERS] == [-120.0, 24.0, 0.0]
    assert told.month["simulated"] is True
    assert all("imulated" in text or "SIMULATED" in text for text in told.texts.values())


def test_the_report_holds_by_its_schema(told: Told) -> None:
    validator = jsonschema.Draft202012Validator(report_schema())
    assert list(validator.iter_errors(told.month)) == []
    assert list(validator.iter_errors({key: value for key, value in told.month.items() if key != "headline"})) != []


def test_whole_and_recent_lengths_differ(told: Told) -> None:
    """Over a month a drift hides: what was measured over all of it was measured at shorter prompts than those of last week."""
    chat = told.tier(CHAT)
    assert "P95 2,000 to 5,000 tokens" in chat["lengths"]
    assert "P95 5,000 to 10,000 tokens" in chat["curve"]["lengths"]
    assert {one["lengths"] for one in chat["questions"]} == {chat["lengths"]}
