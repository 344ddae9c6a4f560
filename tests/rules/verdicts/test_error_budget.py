"""What a budget counts and remembers, and what the rules about users' waiting find in recordings."""

import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import recorded
from daemon_runs import PLAN, configuration, write
from engine_server import engines
from evaluation_steps import EvaluationSteps
from judging_samples import EDGES, START, context, each, minute, minutes
from making import cumulative, snapshot

from agent.config.files import load_plan
from agent.config.load import load
from agent.daemon.assembly import assemble
from agent.history.schema import HistoryError
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.replay.replay import replay
from agent.sources.recording import load as recorded_load
from rules.catalogue.registry import BURNS
from rules.confidence import Certainty
from rules.evaluator import tier_minutes
from rules.evaluator.alert_severity import alert_severity
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.plan.schema import plan_version
from rules.telemetry.gauges import interpolate
from rules.telemetry.windows import Window
from rules.verdicts import error_budget
from rules.verdicts.error_budget import Budget
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, Status, Subject

DAY, HOUR = 86_400.0, 3600.0
PROMISED = {"ttft_p99_seconds": 0.26, "tpot_p99_seconds": 0.52}
TTFT, TPOT = "ttft_seconds", "tpot_seconds"


def tier() -> TierContext:
    return context(slo=PROMISED)


def of(several: list[Window], seen: TierContext | None = None) -> Budget:
    return of_more(error_budget.empty_budget(seen or tier()), several)


def of_more(kept: Budget, several: list[Window]) -> Budget:
    for one in several:
        kept = error_budget.add_minute(kept, one)
    return kept


def whole(
    kept: Budget, family: str = TTFT, back: float = 3 * DAY, now: float = START + HOUR
) -> error_budget.SlowRequestCount:
    return error_budget.count_slow_requests(kept, family, now - back, now)


def test_each_objective_counts_its_own_slow_requests() -> None:
    kept = of(each(3, lambda n: minute(n, slow=18)))
    found = whole(kept)
    assert (found.n, found.low, found.best, found.high, found.seconds) == (540, 54, 54, 54, 180)
    assert len(error_budget.list_slow_rows(kept, TTFT, 0.099, START, START + HOUR)) == 3
    assert len(error_budget.list_slow_rows(kept, TTFT, 0.1, START, START + HOUR)) == 0
    assert whole(kept, TPOT).best == 0
    with pytest.raises(ValueError):
        whole(kept, "queue_seconds")


def test_objective_inside_bucket_leaves_bounds() -> None:
    """None is surely slow: rows are slow by the best estimate."""
    kept = of([minute(0, slow=18), minute(1), minute(2, slow=18)], context(slo={"ttft_p99_seconds": 0.3}))
    first = error_budget.count_slow_requests(kept, TTFT, START, START + 60)
    assert (first.low, first.high) == (0, 18)
    assert 0 < first.best < 18
    share = first.best / first.n
    rows = error_budget.list_slow_rows(kept, TTFT, share / 2, START, START + HOUR)
    assert rows == [(START, START + 60), (START + 120, START + 180)]
    assert len(error_budget.list_slow_rows(kept, TTFT, share * 2, START, START + HOUR)) == 0
    unpromised = whole(kept, TPOT)
    assert (unpromised.n, unpromised.best) == (0, 0)


def test_replicas_share_their_minute() -> None:
    kept = of([minute(0, slow=18), minute(0, slow=0), minute(1)])
    found = whole(kept)
    assert (found.n, found.best, found.seconds) == (540, 18, 120)
    assert error_budget.count_observed_seconds(kept) == 120
    rows = kept.rows[:]
    error_budget.add_minute(kept, minute(0, slow=5))
    assert kept.rows == rows, "a budget that is held does not change"


def test_observed_time_leaves_holes() -> None:
    half = replace(minute(0), covered_seconds=30.0)
    silent = replace(minute(0), counters={}, gauges={}, histograms={})
    seconds = [whole(of(several)).seconds for several in ([half, half], [half, minute(0)], [silent])]
    assert seconds == [30, 60, 0]
    kept = of([minute(number) for number in (*range(10), *range(600, 605))])
    assert len(kept.rows) == (2 + 5) * error_budget.ROW
    assert error_budget.count_observed_seconds(kept) == pytest.approx(15 * 60)


def test_late_minute_takes_its_place() -> None:
    late, ordered = of([minute(0), minute(2), minute(1, slow=9)]), of([minute(0), minute(1, slow=9), minute(2)])
    assert late.rows == ordered.rows


def test_window_is_told_alone() -> None:
    kept = of(each(10, lambda n: minute(n, slow=n)))
    assert error_budget.count_slow_requests(kept, TTFT, START + 300, START + 600).best == 5 + 6 + 7 + 8 + 9
    assert error_budget.count_slow_requests(kept, TTFT, START + 340, START + 600).best == 6 + 7 + 8 + 9


def restored(covered_seconds: float) -> Budget:
    """The budget of an hour that the history keeps."""
    hour = replace(minute(0), end=START + HOUR, expected_seconds=HOUR, covered_seconds=covered_seconds)
    return error_budget.restore_budget(tier(), [load_bins.bin_window(hour, None, "")], [])


def test_late_minute_joins_its_row() -> None:
    """Rows never overlap, so that the rows of a time stand side by side."""
    now = START + 7 * HOUR
    late = of_more(restored(HOUR), [minute(7, slow=9), minute(60 * 7)])
    assert len(late.rows) == 2 * error_budget.ROW
    assert (whole(late, now=now + HOUR).n, whole(late, now=now + HOUR).best) == (540, 9)
    assert error_budget.count_slow_requests(late, TTFT, START + 500, now).n == 360


@pytest.mark.parametrize(("seconds", "at", "overdue"), [(60, 179, 14), (60, 181, 0), (120, 419, 14), (120, 421, 0)])
def test_rare_scrapes_show_their_queue(seconds: float, at: float, overdue: float) -> None:
    seen = of([replace(minute(0), end=START + seconds, gauges={"requests_overdue": interpolate(14, 14, seconds)})])
    assert error_budget.count_overdue(seen, "ttft_seconds", START + at) == overdue


def test_partial_hour_gains_minutes() -> None:
    kept = restored(600)
    known = error_budget.count_observed_seconds(kept)
    late = of_more(kept, [*(minute(number) for number in range(10, 60)), minute(60 * 8)])
    assert error_budget.count_observed_seconds(late) == min(HOUR, known + 50 * 60) + 60


def test_eventless_requests_follow_no_burn() -> None:
    """After the burn 180 requests have 360 events, and 180 have none."""
    burning, calm = (
        replace(minute(number), histograms={"itl_seconds": minute(number, rps=6, slow=slow).histograms[TTFT]})
        for number, slow in ((0, 36), (1, 0))
    )
    silent = replace(minute(2), histograms={"itl_seconds": ()})
    kept = of([burning, calm, silent], context(slo={"ttft_p99_seconds": 0.26, "itl_p99_seconds": 0.26}))
    assert error_budget.list_slow_rows(kept, "itl_seconds", 0.05, START, START + HOUR) == [(START, START + 60)]
    after = error_budget.count_slow_requests(kept, "itl_seconds", START + 60, START + HOUR)
    assert (after.n, after.high) == (180, 0)


def test_three_days_fit_and_lose_nothing() -> None:
    kept = of(each(4 * 24 * 60, lambda n: minute(n, slow=1.8)))
    now = START + 4 * DAY
    assert 8 * len(kept.rows) < 230_000
    assert kept.rows[0] >= now - 3 * DAY - HOUR
    found = whole(kept, now=now)
    assert found.n == pytest.approx(3 * 1440 * 180, rel=0.002)
    assert found.best / found.n == pytest.approx(0.01)
    assert found.seconds == pytest.approx(3 * DAY, rel=0.002)
    recent = whole(kept, back=HOUR, now=now)
    assert (recent.n, recent.seconds) == (60 * 180, HOUR)
    assert len(error_budget.list_slow_rows(kept, TTFT, 0.0, now - HOUR, now)) == 60


def test_changed_promise_forgets_counts() -> None:
    seen = minutes(tier(), {"a": each(5, lambda n: minute(n, slow=18))})
    assert whole(seen.budget).best == 90
    stricter = context(slo={"ttft_p99_seconds": 0.05})
    assert whole(tier_minutes.rebin_minutes(seen, stricter).budget).n == 0
    assert tier_minutes.rebin_minutes(seen, tier()).budget is seen.budget


def test_restarted_agent_restores_budget(tmp_path: Path) -> None:
    keeping = HistoryService(lambda: HistoryStore(tmp_path / "h.db"))
    before, now, curve = error_budget.empty_budget(tier()), START + 5 * HOUR, tier().curve
    closed: list[ClosedMinute] = []
    for number in range(300):
        for replica in ("a", "b"):
            one = minute(number, slow=18 if number < 60 else 0)
            before = error_budget.add_minute(before, one)
            closed.append(ClosedMinute(tier="t", replica=replica, slice=load_bins.bin_window(one, curve, replica)))
    keeping.write_cycle(closed)
    found = keeping.budget(tier(), now)
    keeping.close()
    for back in (300.0, 1800.0, HOUR, 2 * HOUR, 6 * HOUR, 3 * DAY):
        assert whole(found, back=back, now=now).n == whole(before, back=back, now=now).n, back
        assert whole(found, back=back, now=now).best == whole(before, back=back, now=now).best, back
    assert math.isclose(whole(found, now=now).seconds, 5 * HOUR)


def test_restored_budget_goes_on() -> None:
    watcher = EvaluationSteps({"t": tier()})
    watcher.restore_error_budget("t", of(each(10, lambda n: minute(n, slow=18))))
    for scrape in range(9):
        watcher.apply_snapshot("t", "a", snapshot(START + 600 + 15 * scrape))
    watcher.step(START + 720)
    assert whole(watcher.minutes["t"].budget).best == 180


def test_restarted_daemon_judges_last_hour(tmp_path: Path) -> None:
    """An earlier run booked ten minutes of 29 requests in 0.4 s each: 2 s are promised, then 0.26 s."""
    now = time.time() // 60 * 60
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.read_text(encoding="utf-8"), encoding="utf-8")
    with engines() as served:
        path = write(tmp_path, {**configuration(served), "plan": "plan.yaml"})
        loaded = load(path)
        (planned,) = loaded.plan.tiers.values() if loaded.plan else ()
        file = Path(str(loaded.config.history_path))
        file.parent.mkdir(mode=0o700)
        shift = (now - START) / 60 - 11
        made = (load_bins.bin_window(minute(n + shift, slow=29), None, "r0") for n in range(10))
        with HistoryStore(file) as store:
            store.book([ClosedMinute(tier="cpu-small", plan_version=plan_version(planned), slice=one) for one in made])
        parts = assemble(loaded, clock=lambda: now)
        found = whole(parts.loop.state.minutes["cpu-small"].budget, now=now)
        assert (found.n, found.best) == (1800, 0)
        plan.write_text(re.sub("ttft_p99_seconds: 2.0", "ttft_p99_seconds: 0.26", plan.read_text()), encoding="utf-8")
        stricter = assemble(load(path), parts, clock=lambda: now)
        stricter.take_state(parts, now, "a test")
        found = whole(stricter.loop.state.minutes["cpu-small"].budget, now=now)
        assert (found.n, found.best) == (1800, 290)
        stricter.close(now)


def test_unreadable_history_tells_nothing(tmp_path: Path) -> None:
    def locked() -> HistoryStore:
        raise HistoryError(tmp_path, "locked")

    keeping = HistoryService(locked)
    assert keeping.budget(tier(), START) is None
    assert keeping.error is not None
    keeping.close()


RULES = frozenset({*BURNS, "QueueGrowing", "GpuSaturated"})
BURN = ("TtftSloBurn", Subject(tier="t"))


def findings(name: str) -> dict[str, Finding]:
    """What fires where the plan promises whole requests and output events too."""
    recording, _ = recorded_load(recorded.folder(name))
    plan = load_plan(recorded.PLANS / "cpu-small-open.yaml")
    tier = plan.tiers["cpu-small"]
    slo = tier.slo.model_copy(update={"itl_p99_seconds": 0.4, "e2e_p99_seconds": 5.0})
    done = replay(recording, plan.model_copy(update={"tiers": {"cpu-small": tier.model_copy(update={"slo": slo})}}))
    every = [e for e in done.ended if isinstance(e, Finding)]
    found = [*every, *(s.finding for s in done.rule_states if s.finding is not None)]
    return {e.rule: e for e in found if e.rule in RULES}


@pytest.mark.parametrize("name", ["steady", "diurnal", "diurnal_quiet", "near_full_healthy", "kv_brim_healthy"])
def test_healthy_traffic_breaks_no_promise(name: str) -> None:
    assert findings(name) == {}


def test_cascade_breaks_the_promise_once() -> None:
    """Five minutes of it spend less than a page's budget: the cascade's page came before, and this is likely.

    By requests.csv 174 of 279 requests took longer than 5 s. Most of their time passed in the queue.
    """
    found = findings("kv_cascade")
    burn, whole = found["TtftSloBurn"].worst, found["E2eSloBurn"].worst
    assert {(one.status, one.certainty) for one in (burn, whole)} == {(Status.CRITICAL, Certainty.LIKELY)}
    assert [cause.cause for cause in burn.causes] == ["prompt lengths", "output lengths", "evictions", "queueing"]
    assert "throttling" in burn.causes[0].against[0]
    assert whole.sentence.startswith("62.4% of 279 requests in 5.5 min missed the 5 s E2E objective")
    queue = next(cause for cause in whole.causes if cause.cause == "queueing")
    assert queue.evidence[0].endswith("of the time of requests is spent in the queue")
    assert "ItlSloBurn" not in found, "its tokens came in time"


def test_burn_pages_once_and_resolves() -> None:
    """3 requests a second, all of them in 0.4 s for twelve minutes, then in 0.08 s; 0.26 s are promised."""
    watcher = EvaluationSteps({"t": context(slo={"ttft_p99_seconds": 0.26})})
    seen: list[tuple[float, bool]] = []
    for seconds in range(0, 1260, 15):
        slow = min(seconds, 720) * 3
        latencies = cumulative([0.4] * slow + [0.08] * (seconds * 3 - slow), EDGES)
        made = snapshot(
            START + seconds, counters={"requests_finished": seconds * 3.0}, histograms={"ttft_seconds": latencies}
        )
        watcher.apply_snapshot("t", "a", made)
        watcher.step(START + seconds)
        state = watcher.rules.get(BURN)
        certain = state.finding.certain_transitions if state is not None and state.finding is not None else ()
        pages = any(alert_severity(BURN[0], each.status) is Severity.PAGE for each in certain)
        if not seen or seen[-1][1] != pages:
            seen.append((seconds, pages))
    assert [pages for _, pages in seen] == [False, True, False]
    fired, resolved = seen[1][0], seen[2][0]
    assert 9 * 60 <= fired <= 10 * 60 + 15
    assert 12 * 60 < resolved <= 12 * 60 + 360
