"""Precision, adapters, cold starts, brief lives, experts and batch work: one table of cases a rule."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import recorded
from judging_samples import START, answered, context, each, gauge, minute, minutes, tier
from outcomes import EARLY, FAIRLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED, Wanted
from paths import ROOT
from recorded import replayed
from rule_cases import Case, check_case, check_result, check_words, judge_cases, list_cases, outcome, words

from agent.cli import main
from exporters.documents.replay import check_text
from rules.catalogue.registry import BATCH_WORK, BY_NAME
from rules.evaluator import rule_evaluation
from rules.evaluator.benchmark_check import check_benchmark
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.plan.schema import plan_version
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown

PRECISION = "QuantizationMismatch"
A100, H100, MI300 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"


def on_gpu(product: str, weights: str | None = None, kv: str | None = None, **parts: Any) -> TierContext:
    precision = {key: value for key, value in (("weights", weights), ("kv", kv)) if value is not None}
    return context(gpu={"product": product, "per_replica": 1}, precision=precision, **parts)


def formats(name: str, tier: TierContext, wanted: Wanted) -> Case:
    return Case(name, tier, each(3, minute), wanted)


PRECISION_CASES = [
    formats("fp8 on 8.0", on_gpu(A100, "fp8"), WARNED),
    formats("fp8 on 8.6", on_gpu("NVIDIA RTX A6000", "fp8"), WARNED),
    formats("fp8 on an older AMD", on_gpu("AMD Instinct MI250X", "fp8"), WARNED),
    formats("bf16 on an older GPU", on_gpu("Tesla T4", "bf16"), WARNED),
    formats("fp8 on 8.9", on_gpu("NVIDIA L4", "fp8", "fp8"), FINE),
    formats("fp8 on 9.0", on_gpu(H100, "fp8", "fp8"), FINE),
    formats("fp8 on 10.0", on_gpu("NVIDIA B200", "fp8", "fp8"), FINE),
    formats("fp8 on AMD's third generation", on_gpu(MI300, "fp8", "fp8"), FINE),
    *(formats(f"{name} on 8.0", on_gpu(A100, name), FINE) for name in ("int8", "awq-int4", "bf16")),
    formats("KV saves memory", on_gpu(A100, "bf16", "fp8"), GUESSED),
    formats("both", on_gpu(A100, "fp8", "fp8"), WARNED),
    formats("four bits may be meant for memory", on_gpu(H100, "mxfp4"), GUESSED),
    formats("four bits on 10.0", on_gpu("NVIDIA B200", "nvfp4"), FINE),
    formats("no plan", bare("t", None), UNPLANNED),
    formats("no precision", context(), UNPLANNED),
    formats("no format", on_gpu(A100), UNPLANNED),
    formats("no known GPU", on_gpu("CPU", "fp8"), UNPLANNED),
    formats("no known format", on_gpu(A100, "ternary"), UNPLANNED),
    formats("a strange one hides none", on_gpu(A100, "fp8", "ternary"), WARNED),
    formats("accepted for a tier", on_gpu(A100, "fp8", limits={PRECISION: {"fp8": 8.0}}), FINE),
    Case("too early", on_gpu(A100, "fp8"), [minute(0, seconds=59.0)], EARLY),
]

ADAPTERS = "AdapterCachePressure"
TWO_FIT = context(lora={"max_adapters": 2})


def serving(number: int, held: float | None = 0.0, running: float = 1.0, waiting: float = 0.0, **more: Any) -> Window:
    """A minute with so many requests held back on average; 3 requests a second finish, so 0.6 held are 0.2 s each."""
    gauges = {"adapters_running": gauge(running), "adapters_waiting": gauge(waiting)}
    if held is not None:
        gauges["requests_waiting_deferred"] = gauge(held)
    return minute(number, gauges=gauges, **more)


def held(mean: float, counters: Mapping[str, float] | None = None) -> list[Window]:
    return each(6, lambda n: serving(n, held=mean, counters=counters or {}))


def held_back(number: int, until: int = 99, since: int = 0, held: float = 9.0) -> Window:
    return serving(number, held=held if since <= number < until else 0.0)


LOADING, IDLE = ({"external_prefix_queried_tokens": tokens} for tokens in (5.0, 0.0))
SLOWER = context(slo={"ttft_p99_seconds": 4.0})
PRESSED = each(6, lambda n: serving(n, held=0.61, running=2.0))
CROWDED = each(6, lambda n: serving(n, held=None, running=2.0, waiting=0.6))
ENDED = each(8, lambda n: serving(n, held=None, running=2.0, waiting=0.9 if n < 6 else 0.0))
JAMMED = held(0.9)

ADAPTER_CASES = [
    Case("a tenth of the objective", TWO_FIT, PRESSED, WARNED),
    Case("just within", TWO_FIT, held(0.6), HIDDEN),
    Case("slower objective", SLOWER, held(1.1), HIDDEN),
    Case("beyond it", SLOWER, held(1.3), WARNED),
    Case("no plan", bare("t", None), PRESSED, WARNED),
    Case("two minutes", TWO_FIT, each(6, lambda n: held_back(n, since=4)), FAIRLY),
    Case("three minutes", TWO_FIT, each(6, lambda n: held_back(n, since=3)), WARNED),
    # Unknown, as it is where nothing was ever held back, would leave an alert firing for good.
    Case("over", TWO_FIT, each(8, lambda n: held_back(n, until=6, held=1.0)), FAIRLY),
    Case("over by the lists", TWO_FIT, ENDED, FAIRLY),
    Case("KV loads", TWO_FIT, held(0.61, LOADING), GUESSED),
    Case("a silent connector", TWO_FIT, held(0.61, IDLE), WARNED),
    Case("full by the lists", TWO_FIT, CROWDED, GUESSED),
    Case("three fit", context(lora={"max_adapters": 3}), CROWDED, HIDDEN),
    Case("no number fits", context(), CROWDED, HIDDEN),
    Case("few wait", TWO_FIT, each(6, lambda n: serving(n, None, 2.0, 0.5)), HIDDEN),
    Case("not measured", TWO_FIT, each(6, minute), HIDDEN),
    Case("none used", TWO_FIT, each(6, lambda n: serving(n, running=0.0)), UNSEEN),
    Case("too early", TWO_FIT, held(5.0)[:2], EARLY),
    Case("too few", TWO_FIT, each(4, lambda n: serving(n, 5.0, rps=0.4)), EARLY),
    Case("half of the tier", TWO_FIT, {"a": JAMMED, "b": each(6, serving)}, HIDDEN),
    Case("the whole tier", TWO_FIT, {"a": JAMMED, "b": JAMMED}, WARNED),
]

STARTS = "ColdStartLate"
PLANNED = context(cold_start_seconds=40)
PATIENT = context(cold_start_seconds=40, limits={STARTS: {"factor": 1.5}})


def started(number: int, *seconds: float, **more: Any) -> Window:
    """A minute in which the replica started so often."""
    counters = {"cold_starts": float(len(seconds)), "cold_start_seconds": sum(seconds), "restarts": float(len(seconds))}
    return minute(number, counters=counters, **more)


def hour(*seconds: float) -> list[Window]:
    """Minutes in which the replica started so often, once in each of the first."""
    return each(6, lambda n: started(n, seconds[n]) if n < len(seconds) else minute(n))


def known(*seconds: float) -> tuple[ReplicaStart, ...]:
    """Starts of long ago whose pages told how long they took."""
    times = [(START - 86_400 + n, took) for n, took in enumerate(seconds)]
    return tuple(ReplicaStart(replica=f"r{t}", seen_at=t, started_at=t - took, ready_at=t) for t, took in times)


def asked_for(*seconds: float, ago: float = 86_400.0) -> tuple[ReplicaStart, ...]:
    """Starts whose pods took so long from their making to Ready, of 10 s before the process ran."""
    made = []
    for n, took in enumerate(seconds):
        t = START - ago + n
        times = {"asked_at": t - took, "started_at": t - took + 10, "ready_at": t, "pod_ready_at": t}
        made.append(ReplicaStart(replica=f"p{n}", seen_at=t, **times))
    return tuple(made)


LATE = [started(0, 60.0), *each(61, lambda n: minute(n + 1))]
UNTIMED = each(6, lambda n: minute(n, counters={"restarts": 1.0} if n in (1, 2) else {}))
BOUNDED = ReplicaStart(replica="r", seen_at=START + 95, alive_at=START, silent_since=START + 15, started_at=START + 20)
BOTH = (*known(55.0), *asked_for(45.0))
KINDS = (*known(*(20.0,) * 38), *asked_for(90.0))
PROVEN = (*known(20.0), *asked_for(35.0, 38.0))
LATE_POD = (*asked_for(*(20.0,) * 40), *asked_for(50.0, ago=30.0))

START_CASES = [
    Case("within", PLANNED, hour(40.0), FAIRLY),
    Case("late", PLANNED, hour(40.1), WARNED),
    Case("a quick one hides none", PLANNED, hour(50.0, 20.0), WARNED),
    Case("two within", PLANNED, hour(30.0, 20.0), FAIRLY),
    Case("the late one is named", PLANNED, {"a": hour(30.0), "b": hour(60.0)}, WARNED),
    Case("an hour later", PLANNED, LATE, UNSEEN),
    Case("within the hour", PLANNED, LATE[:59], WARNED),
    Case("none", PLANNED, hour(), UNSEEN),
    Case("not timed", PLANNED, UNTIMED, HIDDEN),
    Case("no plan", bare("t", None), hour(), UNPLANNED),
    Case("not planned", context(), hour(50.0), UNPLANNED),
    Case("too early", PLANNED, [started(0, 60.0, seconds=59.0)], EARLY),
    Case("late days ago", PLANNED, hour(), WARNED, starts=known(30.0, 50.6)),
    Case("in time days ago", PLANNED, hour(), FAIRLY, starts=known(30.0, 40.0)),
    Case("one of twenty", PLANNED, hour(), FAIRLY, starts=known(*(20.0,) * 19, 90.0)),
    Case("two of thirty", PLANNED, hour(), WARNED, starts=known(*(20.0,) * 28, 90.0, 95.0)),
    Case("the only one", PLANNED, hour(), WARNED, starts=known(90.0)),
    Case("the last hour is told first", PLANNED, hour(50.0), WARNED, starts=known(90.0, 50.0)),
    Case("a quick hour hides none", PLANNED, hour(20.0), WARNED, starts=known(90.0, 20.0)),
    Case("both in time", PLANNED, hour(20.0), FAIRLY, starts=known(20.0)),
    Case("bounded by scrapes", PLANNED, hour(), GUESSED, starts=(BOUNDED,)),
    Case("not even bounded", PLANNED, hour(), UNSEEN, starts=(replace(BOUNDED, started_at=None),)),
    Case("within its own factor", PATIENT, hour(), FAIRLY, starts=known(59.0)),
    Case("beyond its own factor", PATIENT, hour(), WARNED, starts=known(61.0)),
    Case("beyond it days ago", PATIENT, hour(50.0), WARNED, starts=known(90.0)),
    Case("the P95 without a plan", context(), hour(), UNPLANNED, starts=known(30.0, 55.0)),
    Case("a whole one first", context(), hour(), UNPLANNED, starts=BOTH),
    # Of all together 95 % would be within the plan, and one in twenty-one would not count.
    Case("kinds apart", PLANNED, hour(), WARNED, starts=KINDS),
    Case("whole ones prove", PLANNED, hour(20.0), FINE, starts=PROVEN),
    # Its process took 40 of the 50 s: by its page alone it would be in time.
    Case("late from the request", PLANNED, hour(40.0), WARNED, starts=LATE_POD),
    Case("in time from it", PLANNED, hour(28.0), FINE, starts=asked_for(38.0, ago=30.0)),
]


def test_target_waited_for_has_its_start_measured() -> None:
    """A stopwatch beside the recording said 15.9 s; nineteen scrapes failed before."""
    done = replayed("scale_up_cold_cache", "cpu-small-open")
    (result,) = [state.result for state in done.rule_states if state.result.rule == STARTS]
    assert outcome(result) == FAIRLY
    assert "1 start took 15.6 s; 40 s are planned" in words(result)


EXPERTS = "ExpertImbalance"


def balanced(first: int, last: int, balance: float, running: float = 40.0) -> list[Window]:
    """Minutes whose forward passes had this balance, with so many requests in the batch."""
    counters = {"expert_balance_sum": balance * 600.0, "expert_balance_passes": 600.0}
    gauges = {"requests_running": gauge(running)}
    return [minute(number, counters=counters, gauges=gauges) for number in range(first, last)]


EVEN, UNEVEN = balanced(0, 5, 0.9), balanced(0, 5, 0.25)

EXPERT_CASES = [
    Case("crowded", context(), balanced(0, 5, 0.3), WARNED),
    Case("just within", context(), balanced(0, 5, 0.335), FINE),
    Case("too early", context(), balanced(0, 2, 0.3), EARLY),
    Case("three minutes", context(), balanced(0, 3, 0.3), WARNED),
    Case("over", context(), [*balanced(0, 8, 0.2), *balanced(8, 11, 0.9)], FINE),
    Case("32 requests", context(), balanced(0, 5, 0.1, 32.0), WARNED),
    Case("31 requests", context(), balanced(0, 5, 0.1, 31.0), EARLY),
    Case("small ones first", context(), [*balanced(0, 5, 0.1, 5.0), *balanced(5, 10, 0.8)], FINE),
    Case("among even ones", context(), {"a": EVEN, "b": UNEVEN, "c": EVEN}, WARNED),
    Case("not measured", context(), each(5, minute), HIDDEN),
    Case("a limit of its own", context(limits={EXPERTS: {"below": 0.5}}), balanced(0, 5, 0.4), WARNED),
    Case("batches of its own", context(limits={EXPERTS: {"minimum_running": 100.0}}), UNEVEN, EARLY),
]

TABLES = {PRECISION: PRECISION_CASES, ADAPTERS: ADAPTER_CASES, STARTS: START_CASES, EXPERTS: EXPERT_CASES}


@pytest.mark.parametrize(("rule", "case"), list_cases(TABLES), ids=str)
def test_configuration_against_the_plan(rule: str, case: Case) -> None:
    check_case(rule, case)


LENGTHS = context(workload={"prompt_tokens": {"p95": 100}})


@pytest.mark.parametrize(("rule", "tier"), [(ADAPTERS, TWO_FIT), (STARTS, PLANNED), ("WorkloadDrift", LENGTHS)])
def test_tier_that_was_never_seen(rule: str, tier: TierContext) -> None:
    assert outcome(evaluate_rule(BY_NAME[rule], tier, (), now=0.0)) is Gap.SCRAPE_FAILED


def test_precision_needs_no_telemetry() -> None:
    result = evaluate_rule(BY_NAME[PRECISION], on_gpu(A100, "fp8"), (), now=0.0)
    assert (result.status, getattr(result.expected, "low", None)) == (Status.WARNING, 8.9)


PRICED = context(cost={"gpu_hour_price": 2.0, "currency": "USD"}, cold_start_seconds=240)
MINUTES = 50


def start(replica: str, at: float, took: float = 300.0, **more: float) -> ReplicaStart:
    """A pod that was Ready `at` minutes after START, asked for `took` seconds before."""
    t = START + 60 * at
    times = {"asked_at": t - took, "silent_since": t - took, "pod_ready_at": t, **more}
    return ReplicaStart(replica=replica, seen_at=t, **times)


def lived(begin: int, end: int) -> list[Window]:
    return [minute(number) for number in range(begin, end)]


def said(
    starts: Iterable[ReplicaStart], replicas: Mapping[str, Iterable[Window]], tier: TierContext, count: int = MINUTES
) -> RuleResult:
    booked = replace(minutes(tier, replicas), starts=tuple(starts))
    found = rule_evaluation.evaluate_tier_rules(booked, tier, START + 60 * count)
    return next(one for one in found if one.rule == "ReplicaFlapping")


def short(count: int, ran: int = 3) -> tuple[list[ReplicaStart], dict[str, list[Window]]]:
    """So many replicas that were started one after the other, each gone `ran` minutes after it was ready."""
    begins = {f"r{number}": 5 + 8 * number for number in range(count)}
    lives = {name: lived(at, at + ran) for name, at in begins.items()}
    return [start(name, at) for name, at in begins.items()], lives


BRIEF_STARTS, GONE = short(3)
LONG_STARTS, LONG_LIVES = short(3, ran=6)
UNSEEN_STARTS = [ReplicaStart(replica=one.replica, seen_at=one.seen_at) for one in BRIEF_STARTS]
OLD = [start(one.replica, (one.t - START) / 60 - 120) for one in BRIEF_STARTS]
AGAIN = [start("r", at, alive_at=START + 60 * (at - 8)) for at in (5.0, 15.0, 25.0, 35.0)]
CRASHES = [start("r", at, took=60.0, alive_at=START + 60 * (at - 1)) for at in (5.0, 15.0, 25.0, 35.0)]
PARTIAL = [
    replace(one, asked_at=None, pod_ready_at=None, started_at=one.t - 60, ready_at=one.t) for one in BRIEF_STARTS
]
UNPRICED, QUICK = context(cold_start_seconds=240), context(cold_start_seconds=60)
STEADY = {"steady": lived(0, MINUTES)}

LIVES = [
    (BRIEF_STARTS, GONE, PRICED, WARNED),
    (*short(2), PRICED, FINE),
    (LONG_STARTS, LONG_LIVES, PRICED, FINE),
    (*([start(f"r{n}", 47) for n in range(3)], {f"r{n}": lived(47, MINUTES - n) for n in range(3)}), PRICED, FINE),
    (AGAIN, {"r": [*lived(5, 7), *lived(15, 17), *lived(25, 27), *lived(35, MINUTES)]}, PRICED, WARNED),
    ([start("r", -3000), *CRASHES], {"r": lived(5, MINUTES)}, PRICED, WARNED),
    (CRASHES[1:], {"r": lived(15, MINUTES)}, PRICED, FINE),
    (UNSEEN_STARTS, GONE, PRICED, FINE),
    (OLD, {}, PRICED, FINE),
    (PARTIAL, GONE, PRICED, WARNED),
    (PARTIAL, GONE, QUICK, FINE),
    (BRIEF_STARTS, GONE, UNPRICED, WARNED),
]


@pytest.mark.parametrize(("starts", "replicas", "tier", "wanted"), LIVES)
def test_lives_shorter_than_their_starts(
    starts: list[ReplicaStart], replicas: dict[str, list[Window]], tier: TierContext, wanted: Wanted
) -> None:
    check_result(said(starts, STEADY | replicas, tier), wanted)


def test_common_silence_is_no_stop() -> None:
    starts = [start(f"r{n}", 5) for n in range(3)]
    result = said(starts, {f"r{n}": lived(5, 8) for n in range(3)}, PRICED, 20)
    assert isinstance(result, Unknown) or result.status is Status.OK
    assert outcome(said((), {"": lived(0, MINUTES)}, PRICED)) is HIDDEN, "sums of a tier have no starts"


EXAMPLE = ROOT / "examples" / "batch" / "plan.yaml"
TOKENS = {"output_tokens_per_second": 400.0}


def batch(*points: dict[str, Any], slo: dict[str, Any] | None = None, **job: Any) -> Any:
    """A batch tier whose job is `job`; START is 08:00 UTC."""
    return context(*points, slo=slo or {}, workload={"archetype": "batch"}, batch=job)


def work(waiting: float, rps: float = 3.0, tokens: float = 0.0, count: int = 20) -> list[Window]:
    made = {"generation_tokens": tokens * 60.0} if tokens else {}
    return each(count, lambda n: minute(n, rps=rps, waiting=waiting, in_system=waiting + 8, counters=made))


def judged(view: TierContext, windows: list[Window]) -> RuleResult:
    binned = minutes(view, {"a": windows}).binned
    return evaluate_rule(BATCH_WORK, view, binned, binned[-1].window.end)


DUE, TIMED = batch(deadline="12:00"), batch(TOKENS, TOKENS, TOKENS)

ROWS = [
    (DUE, work(72_000.0), WARNED),
    (DUE, work(30_000.0), FINE),
    (DUE, work(40_000.0), GUESSED),
    (batch(hours=8, requests=200_000), work(100.0, tokens=300.0), WARNED),
    (batch(hours=8, requests=80_000), work(100.0, tokens=300.0), FINE),
    (batch(hours=8, tokens=20_000_000), work(100.0, tokens=300.0), GUESSED),
    (batch(hours=8, tokens=8_000_000), work(100.0, tokens=300.0), FINE),
    (TIMED, work(100.0, tokens=200.0), WARNED),
    (TIMED, work(100.0, tokens=320.0), FINE),
    (TIMED, work(0.0, tokens=200.0), UNPLANNED),
    (batch(deadline="12:00", hours=1, requests=10**6), each(20, lambda n: minute(n, in_system=0.0)), UNSEEN),
    (batch(), work(100.0), UNPLANNED),
    (DUE, work(100.0, rps=0.01), EARLY),
    (context(), work(100.0), UNPLANNED),
]


@pytest.mark.parametrize(("view", "windows", "wanted"), ROWS)
def test_batch_work_against_its_plan(view: TierContext, windows: list[Window], wanted: Wanted) -> None:
    check_result(judged(view, windows), wanted)


def test_words_read_as_the_golden() -> None:
    lives = [(f"life {n}", said(starts, STEADY | lives, tier)) for n, (starts, lives, tier, _) in enumerate(LIVES)]
    work = [(f"work {n}", judged(view, windows)) for n, (view, windows, _) in enumerate(ROWS)]
    check_words(__file__, (*judge_cases(list_cases(TABLES)), *lives, *work))


def test_batch_tier_skips_online_rules() -> None:
    for name in ("TtftDivergence", "QueueGrowing", "NoHeadroom", "LoadBeyondBenchmark"):
        found = answered(name, batch(deadline="12:00"), work(72_000.0))
        assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "not asked: batch tier"), name
        online = answered(name, context(), work(72_000.0))
        assert not isinstance(online, Unknown) or "batch" not in online.text


def test_batch_step_13_asks_for_work() -> None:
    view = batch(deadline="12:00")
    binned = minutes(view, {"a": work(72_000.0)}).binned
    now = binned[-1].window.end
    found = check_benchmark(view, binned, now, 60.0)
    assert found.status is Status.WARNING
    text = check_text([found], "1h", 1200.0)
    assert "BatchWork, certain: The 72,008 requests in the system end at 15:00" in text
    assert "runbook: docs/special-tiers.md" in text
    asked = check_benchmark(context(), binned, now, 60.0).results
    assert BATCH_WORK.name not in {one.rule for one in asked}


def test_batch_promises_no_first_token() -> None:
    plan = tier(slo={}, workload={"archetype": "batch"})
    assert plan.slo.ttft_p99_seconds is None
    # The highest load of the curve is usable where nothing limits it.
    assert context(slo={}, workload={"archetype": "batch"}).capacity.rps == 6.0  # type: ignore[union-attr]
    assert plan_version(plan) != plan_version(tier())
    with pytest.raises(Exception, match=r"slo\.ttft_p99_seconds: is missing"):
        tier(slo={})
    with pytest.raises(Exception, match=r"batch: is for workload\.archetype: batch"):
        tier(batch={"hours": 8})


def test_example_plan_is_valid_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "check", str(EXAMPLE)]) == 0
    assert main.main(["plan", "show", str(EXAMPLE)]) == 0
    assert "no latency: batch work" in capsys.readouterr().out
    main.main(["replay", str(recorded.folder("steady")), "--plan", str(EXAMPLE)])
    assert "not asked: batch tier" in " ".join(capsys.readouterr().out.split())
