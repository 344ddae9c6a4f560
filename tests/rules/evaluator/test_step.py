from dataclasses import replace
from typing import Any

import pytest
from evaluation_steps import EvaluationSteps
from judging_samples import EDGES, START, context
from making import cumulative, snapshot

from rules.evaluator import tier_minutes
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.verdicts.context import ForecastPoint, Projection
from rules.verdicts.verdict import ClosedSpan, Finding, Status, Subject, UnknownSpan, Verdict

A = Subject(tier="t", replica="a")
TIER = Subject(tier="t")


def at(seconds: float, rps: float = 3.0, slow: float = 0.0, **more: Any) -> Snapshot:
    """A page so many seconds after START, of a replica that serves `rps`, a share `slow` of them in 0.4 s."""
    n = round(seconds * rps)
    latencies = cumulative([0.4] * round(n * slow) + [0.08] * (n - round(n * slow)), EDGES)
    counters = {"requests_finished": float(n), "engine_steps": seconds * 50}
    histograms = dict.fromkeys(("ttft_seconds", "tpot_seconds"), latencies)
    gauges = {"requests_running": 3.0}
    return snapshot(START + seconds, counters=counters, histograms=histograms, gauges=gauges, **more)


def watched(
    watcher: EvaluationSteps, *, start: int = 0, end: int = 600, names: str = "a", **more: Any
) -> list[ClosedSpan]:
    """Turns every 15 s in [start, end] with good pages; what ended."""
    ended: list[ClosedSpan] = []
    for seconds in range(start, end + 1, 15):
        for name in names:
            watcher.apply_snapshot("t", name, at(seconds, **more))
        ended.extend(watcher.step(START + seconds)[0])
    return ended


def rule_state(watcher: EvaluationSteps, rule: str, subject: Subject = TIER) -> Verdict:
    return watcher.rules[rule, subject].result


def test_minute_closes_once_at_next() -> None:
    watcher = EvaluationSteps({"t": context()})
    closed = []
    for seconds in range(0, 200, 15):
        watcher.apply_snapshot("t", "a", at(seconds, rps=7.0))
        closed.append(watcher.step(START + seconds)[1])
    assert [len(minutes) for minutes in closed] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    binned = watcher.minutes["t"].binned
    assert [s.window.start - START for s in binned] == [0, 60, 120]
    last = closed[-1][0]
    assert (last.tier, last.replica) == ("t", "a")
    assert last.slice is binned[-1]
    assert last.slice.beyond


def test_partial_observation_judges_scraped_replicas() -> None:
    evaluator, state = Evaluator({"t": context()}), EvaluatorState()
    steps = [(0, "ab", (0, 0)), (15, "a", (15, 0)), (30, "b", (15, 30)), (45, "", (45, 45))]
    for seconds, names, times in steps:
        now = START + seconds
        scrapes = tuple(ReplicaScrape(tier="t", replica=name, t=now, snapshot=at(seconds)) for name in names)
        evaluator.step(state, Observation(now=now, scrapes=scrapes, partial=len(names) == 1))
        results = [state.rules["TargetDown", Subject(tier="t", replica=name)].result for name in "ab"]
        assert tuple(result.t - START for result in results) == times


def test_tiers_by_minute_replicas_by_turn() -> None:
    watcher = EvaluationSteps({"t": context()})
    watched(watcher, end=45)
    of_replicas = {"KvCacheCascade", "TargetDown", "EngineStalled", "TelemetryStale"}
    assert {rule for rule, _ in watcher.rules} == of_replicas | {"BenchmarkStale", "TierDown", "UnknownTooLong"}
    watched(watcher, start=60, end=75)
    assert ("TtftDivergence", TIER) in watcher.rules
    assert watcher.rules["TtftDivergence", TIER].result.t == START + 75
    watched(watcher, start=90, end=90)
    assert watcher.rules["TtftDivergence", TIER].result.t == START + 75
    assert watcher.rules["TargetDown", A].result.t == START + 90


def test_slow_requests_start_and_end_finding() -> None:
    watcher = EvaluationSteps({"t": context(slo={"ttft_p99_seconds": 0.26})})
    began = watched(watcher, slow=0.1)
    felt = rule_state(watcher, "TtftDivergence").missed
    assert (felt.objective, felt.limit_seconds, felt.share.value) == ("TTFT", 0.26, pytest.approx(0.1))
    assert rule_state(watcher, "KvEviction").missed is None
    assert not [e for e in began if isinstance(e, Finding)]
    for seconds in range(615, 1200, 15):
        latencies = cumulative([0.4] * 180 + [0.08] * (seconds * 3 - 180), EDGES)
        page = replace(at(seconds), histograms=dict.fromkeys(("ttft_seconds", "tpot_seconds"), latencies))
        watcher.apply_snapshot("t", "a", page)
        began.extend(watcher.step(START + seconds)[0])
    (finding,) = [e for e in began if isinstance(e, Finding) and e.rule == "TtftDivergence"]
    assert finding.started_at == START + 195
    assert START + 600 < finding.ended_at < START + 1000


def test_down_target_and_return_are_told() -> None:
    watcher = EvaluationSteps({"t": context()})
    watched(watcher, end=60)
    for seconds in (75, 90, 105):
        assert watcher.apply_failed_scrape("t", "a", START + seconds, error="refused") is not None
        watcher.step(START + seconds)
    sentence = rule_state(watcher, "TargetDown", A).sentence
    assert sentence == "No usable metrics page for 45 s; 3 scrapes in a row failed: connection refused"
    ended = watched(watcher, start=120, end=135)
    found = [(e.rule, e.started_at, e.ended_at) for e in ended if isinstance(e, Finding)]
    assert found == [(rule, START + 105, START + 120) for rule in ("TargetDown", "TierDown")]
    spans = [e for e in ended if isinstance(e, UnknownSpan) and e.rule == "TelemetryStale"]
    assert [(s.reason, s.started_at, s.ended_at) for s in spans] == [(Gap.SCRAPE_FAILED, START + 75, START + 120)]


def test_stop_hands_over_open_minutes() -> None:
    watcher = EvaluationSteps({"t": context()})
    watched(watcher, end=90, names="ab")
    closed = watcher.flush()
    spans = [(c.replica, c.slice.window.start - START, c.slice.window.end - START) for c in closed]
    assert spans == [("a", 60, 90), ("b", 60, 90)]


def test_gpu_problem_is_kept_until_solved() -> None:
    watcher = EvaluationSteps({"t": context()})
    watcher.set_gpu_problem("t", "a", "GPU-1 has not been read for 150 s")
    watched(watcher, end=30)
    assert rule_state(watcher, "TelemetryStale", A).sentence == "GPU-1 has not been read for 150 s"
    watcher.set_gpu_problem("t", "a", "")
    ended = watched(watcher, start=45, end=45)
    assert [(e.rule, e.ended_at) for e in ended] == [("TelemetryStale", START + 45)]


@pytest.mark.parametrize("names", ["ab", "cd"])
def test_new_configuration_goes_on(names: str) -> None:
    """With the same replicas, or with others: a new version of the engine is rolled out, as slow as the one before."""
    before = EvaluationSteps({"t": context()})
    watched(before, end=300, names="ab", slow=0.1)
    kept = projection(START + 60)
    before.state.projections = {"t": kept, "u": replace(kept, tier="u")}
    after = EvaluationSteps({"t": context(requests=100)})
    after.take_state(before, {("t", name) for name in names})
    assert after.projections == {"t": kept}
    assert set(after.replicas) == ({("t", "a"), ("t", "b")} if names == "ab" else set())
    ended = watched(after, start=315, end=375, names=names, slow=0.1)
    assert [one.rule for one in ended if one.subject == TIER and isinstance(one, Finding)] == []
    assert after.rules["TtftDivergence", TIER].finding.started_at == START + 195
    assert rule_state(after, "TtftDivergence").certainty.value == "likely"
    assert names == "cd" or len(after.minutes["t"].binned) == 2 * 6


def test_gone_replica_ends_its_findings() -> None:
    before = EvaluationSteps({"t": context()})
    watched(before, end=60, names="ab")
    for seconds in (75, 90, 105):
        before.apply_failed_scrape("t", "b", START + seconds)
        before.apply_snapshot("t", "a", at(seconds))
        before.step(START + seconds)
    gone = Subject(tier="t", replica="b")
    after = EvaluationSteps({"t": context()})
    after.take_state(before, {("t", "a")})
    assert ("t", "b") not in after.replicas
    after.apply_snapshot("t", "a", at(120))
    ended = [one for one in after.step(START + 120)[0] if one.subject == gone]
    unknown = dict.fromkeys(("KvCacheCascade", "EngineStalled", "TelemetryStale"), UnknownSpan)
    assert {one.rule: type(one) for one in ended} == {"TargetDown": Finding, **unknown}
    assert {one.ended_at for one in ended} == {START + 120}
    assert after.step(START + 135)[0] == ()
    assert not [subject for _, subject in after.rules if subject == gone]


def projection(made_at: float) -> Projection:
    """A forecast by bins of five minutes for a lead of three, which was right 95 times of 100."""
    points = tuple(ForecastPoint(t=made_at + 300.0 * n, q50=1.0, q95=2.0, q99=3.0) for n in range(3))
    quality = {"method": "sizewatch", "covered": 95, "forecasts": 100}
    return Projection(tier="t", made_at=made_at, horizon_seconds=180.0, points=points, **quality)


def unknown(watcher: EvaluationSteps, rule: str) -> tuple[Gap, str]:
    result = watcher.rules[rule, TIER].result
    return result.reason, result.text


def test_newest_forecast_counts_until_outlived() -> None:
    watcher = EvaluationSteps({"t": context()})
    watched(watcher, end=150)
    assert unknown(watcher, "ForecastDegraded") == (Gap.TOO_FEW_REQUESTS, "no forecast is made yet")
    watcher.state.projections = {"t": projection(START + 150)}
    watched(watcher, start=165, end=225)
    assert rule_state(watcher, "ForecastDegraded").status is Status.OK
    watched(watcher, start=240, end=900)
    reason, text = unknown(watcher, "ForecastDegraded")
    assert reason is Gap.STALE
    assert text.startswith("the forecast was made 12 min ago")
    watcher.state.projections = {}
    watched(watcher, start=915, end=975)
    assert unknown(watcher, "ForecastDegraded")[1] == "no forecast is made yet"


def test_queue_is_of_present_pages() -> None:
    watcher = EvaluationSteps({"t": context()})
    assert watcher.state.requests_waiting("t") is None
    for seconds in range(0, 121, 15):
        for name, waiting in (("a", 5.0), ("b", 2.0)):
            page = at(seconds)
            watcher.apply_snapshot("t", name, replace(page, gauges=page.gauges | {"requests_waiting": waiting}))
        watcher.step(START + seconds)
    assert watcher.state.requests_waiting("t") == 7.0
    pages, watcher.state.replicas = watcher.state.replicas, {}
    assert round(watcher.state.requests_waiting("t"), 6) == 7.0, "a store sums up minutes and has no pages"
    watcher.state.replicas = pages
    watcher.apply_failed_scrape("t", "a", START + 135, Gap.SCRAPE_FAILED)
    assert watcher.state.requests_waiting("t") == 2.0, "the page of a replica that is away is not its queue"
    assert watcher.state.requests_waiting("other") is None


def test_defect_of_one_tier_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    add_minutes = tier_minutes.add_minutes

    def fails_for_u(before: Any, binned: Any, tier: Any, now: float) -> Any:
        if tier.name == "u":
            raise ZeroDivisionError
        return add_minutes(before, binned, tier, now)

    monkeypatch.setattr(tier_minutes, "add_minutes", fails_for_u)
    evaluator, state = Evaluator(tiers={"t": context(), "u": replace(context(), name="u")}), EvaluatorState()
    defects: set[tuple[str, str]] = set()
    for seconds in range(0, 200, 15):
        scrapes = tuple(ReplicaScrape(tier=tier, replica="a", t=START + seconds, snapshot=at(seconds)) for tier in "tu")
        defects |= set(evaluator.step(state, Observation(now=START + seconds, scrapes=scrapes)).defects)
    assert defects == {("u", "a")}
    assert state.minutes["t"] != state.minutes.get("u")
