"""First look at engines: what a few pages show without a benchmark, a configuration or a history.

The daemon's own methods judge the span between the pages. A span shorter than a rule's hold counts as one period of it:
its result is likely at most. A full KV cache and an engine that stopped are certain at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

from agent.replay.replay import Replay
from exporters.documents.diagnosis import LABELS, REPLICA_SIGNALS, ShownSignal, TierLook
from rules.catalogue.registry import BURNS, BY_NAME, REMEDIES
from rules.causes import explain
from rules.confidence import Certainty, binomial_tail
from rules.evaluator.rule_evaluation import ask
from rules.evaluator.tier_minutes import LIVE
from rules.methods.evidence import OUTPUTS, PROMPTS, exact_reading, is_significant_share, range_reading
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window
from rules.telemetry import histograms, readings
from rules.telemetry.derived import PlanFacts
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.outcomes import HTTP_REFUSED, NO_ROOM, count_gone, outcomes
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Missing, Reading, SignalKind, SignalValue
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window, sum_windows
from rules.telemetry.wording import format_count, number, quantity
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, read_plan_value
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, Cause, RuleResult, Status, Unknown, Verdict

LEVELS = frozenset({SignalKind.LEVEL, SignalKind.TOTAL_LEVEL})

FEWER_HITS, LONGER, ENOUGH_REQUESTS = 0.2, 1.5, 10
"""Traffic is unlike the engine's life: so much fewer prefix hits, texts so many times longer."""

GRAVE_WAIT, MOST_LEFT = 5.0, 0.5
"""Multiple of the objective of a critical queue, share (0-1) of clients that left above which none is ok: ours."""

SHARES = {"left_share": "requests_aborted", "no_room_share": NO_ROOM, "bad_share": HTTP_REFUSED}
"""Shares of the table with their counters: clients that left, and refusals by kind, as in `RequestsRefused`."""

REFUSED = "RequestsRefused"

FULL_CACHE, STALLED = "KvCacheNearCeiling", "EngineStalled"
"""Rules that are certain in any span: a level, and that nothing moves."""

WORK = ("requests_finished", "prompt_tokens", "generation_tokens")
"""Counters that only grow while an engine lives."""

FELT = frozenset({*BURNS, STALLED, "TierDown", "AvailabilityBurn", REFUSED})
"""Rules of what users feel."""

ABOUT_BENCHMARK = frozenset({"BenchmarkStale", "UnknownTooLong", "TelemetryStale", "ForecastDegraded"})
"""Rules about the plan or about the agent itself. A first look has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLookContext(RuleContext):
    """Context of a span that is one period: it stands for the separate periods that a rule wants."""

    def periods(self, binned: Iterable[BinnedWindow]) -> tuple[Any, ...]:
        known = RuleContext.periods(self, binned)
        if len(known) == 1:
            return known * 3
        return known


def look_at_tier(
    replay: Replay,
    name: str,
    last: Mapping[str, Snapshot],
    titles: Mapping[str, str],
    gpus: str = "",
    is_dated: bool = True,
    troubles: tuple[str, ...] = (),
) -> TierLook:
    """Return what the evaluated pages of a tier show. `last` is the last page of each replica.

    A replica without two pages of one process has no span, and only what counts since its start. `is_dated`: the times of
    the pages are those of their clock. `troubles` say which engine gave no page or restarted.
    """
    tier = replay.contexts[name]
    windows = {shown.replica: shown.window for shown in replay.windows if shown.tier == name and shown.replica}
    results = [state.result for (_, subject), state in replay.state.rules.items() if subject.tier == name]
    judged = {result.rule for result in results if isinstance(result, Verdict)}
    spans = {name: windows[name] for name in last if name in windows and windows[name].covered_seconds > 0}
    # The age of a page that was saved at an unknown time is not known either.
    pages = last
    if not is_dated:
        pages = {replica: replace(page, started_at=None, ready_at=None) for replica, page in last.items()}
    lives = {replica: readings.window_since_start(page) for replica, page in pages.items()}
    changes = _compare_with_life(tuple(lives.values()), tuple(spans.values()))
    quick = [result for result in _judge_span(tier, spans, replay.end) if result.rule not in judged]
    lately = [*filter(_is_firing, (*results, *quick)), *_judge_failures(tier, spans, replay.end)]
    few = {result.rule: result for result in _judge_span(_ease_minimums(tier), spans, replay.end)}
    # Chance is excluded by the rule's own test: few refusals need not wait for its minimum of requests.
    lately += [r for r in few.values() if r.rule == REFUSED and REFUSED not in judged and _is_firing(r)]
    # A page has the present level only, which is no mean of a life.
    counted = {replica: replace(window, gauges={}) for replica, window in lives.items()}
    known = {verdict.rule for verdict in lately}
    loads = read_replicas(spans, tier.basis)
    since_start = [v for v in _judge_span(tier, counted, replay.end) if _is_firing(v) and v.rule not in known]
    ongoing = {v.rule: text for v in since_start if (text := _describe_ongoing(few.get(v.rule)))}
    # Objectives that too few requests seem to miss, or that cannot be judged.
    doubts = [r.text for r in quick if isinstance(r, Unknown) and r.rule in {*BURNS} - known - ongoing.keys()]
    age = _find_age(pages.values())
    return TierLook(
        tier=name,
        pages=last,
        titles=titles,
        loads=loads,
        odd=tuple(find_odd_replicas(loads, last)),
        spread=describe_load(spans),
        gpus=gpus,
        span_seconds=max((window.span for window in spans.values()), default=0.0),
        age_seconds=age,
        verdicts=_order(_add_changes(verdict, changes) for verdict in _grade(lately)),
        since_start=_order(since_start),
        ongoing=ongoing,
        doubts=(*_doubt_left(spans, tier.basis), *_doubt_still(spans, last), *doubts),
        changes=changes,
        waiting=_waiting(results, quick),
        with_plan=_without_plan((*results, *quick)),
        contradictions=tuple(dict.fromkeys(problem for page in last.values() for problem in page.problems)),
        troubles=troubles,
        signals=tuple(_show_signals(tuple(lives.values()), tuple(spans.values()), tier.basis, age is not None)),
    )


def _find_age(pages: Collection[Snapshot]) -> float | None:
    """Return the seconds since the youngest engine was ready, None if unknown."""
    ages = [page.t - (page.ready_at or page.started_at) for page in pages if page.started_at is not None]
    if len(ages) == len(pages):
        return min(ages)
    return None


def _compare_with_life(lives: tuple[Window, ...], spans: tuple[Window, ...]) -> tuple[str, ...]:
    """Return what of the traffic is unlike the engines' life: prefix hits and lengths."""
    if not spans:
        return ()
    whole, lately, texts = sum_windows(lives), sum_windows(spans), []
    hits = [readings.read(SIGNALS["prefix_hit_ratio"], window) for window in (whole, lately)]
    known = [value.value for value in hits if isinstance(value, Reading) and value.value is not None]
    if len(known) == 2 and known[0] - known[1] > FEWER_HITS:
        texts.append(f"prefix cache hits are {number(known[1], 'ratio')}; since its start {number(known[0], 'ratio')}")
    for word, family in (("prompts", PROMPTS), ("outputs", OUTPUTS)):
        parts = lately.histograms.get(family, ())
        before, now = histograms.mean(whole.histograms.get(family, ())), histograms.mean(parts)
        if before and now and histograms.count_requests(parts) >= ENOUGH_REQUESTS and now > LONGER * before:
            means = f"mean {number(now, 'tokens')}; since its start {number(before, 'tokens')}"
            texts.append(f"{word} are {now / before:.1f} x longer: {means}")
    return tuple(texts)


def _add_changes(verdict: Verdict, changes: tuple[str, ...]) -> Verdict:
    """Return a finding about latency with changed traffic as its cause, unless another explains it."""
    unexplained = {cause.cause for cause in verdict.causes} <= explain.LAST.keys()
    if verdict.rule not in BURNS or not changes or not unexplained:
        return verdict
    changed = Cause(cause="changed traffic", certainty=Certainty.LIKELY, evidence=changes)
    return replace(verdict, causes=(changed,), actions=(REMEDIES[changed.cause], *verdict.actions))


def _judge_span(tier: TierContext, spans: Mapping[str, Window], now: float) -> Iterator[RuleResult]:
    """Yield the results of all rules over minutes in one span, findings with their causes."""
    if not spans:
        return
    binned = hold(tuple(bin_window(window, tier.curve, replica) for replica, window in spans.items()))
    seconds = max(window.span for window in spans.values())
    context = FirstLookContext(
        rule=LIVE[0], catalogue=BY_NAME, tier=tier, now=now, binned=binned, period_seconds=max(seconds, 60.0)
    )
    results: list[RuleResult] = []
    for rule in LIVE:
        if rule.needs and not read_plan_value(tier, rule.needs):
            continue
        eased = replace(context, rule=replace(rule, minimum_seconds=0.0))
        results += _judge_latency(eased) if rule.name in BURNS else [ask(eased)]
    for result in results:
        if not _is_firing(result):
            yield result
            continue
        is_certain = result.rule == FULL_CACHE and result.certainty is Certainty.CERTAIN
        certainty = Certainty.CERTAIN if is_certain else Certainty.LIKELY
        yield explain.add_causes(replace(result, certainty=certainty), tier, binned)


def _ease_minimums(tier: TierContext) -> TierContext:
    """Return the context in which rules judge a single request, for words only."""
    eased = {}
    for rule in LIVE:
        if "minimum_requests" in rule.thresholds:
            eased[rule.name] = {"minimum_requests": 1.0}
    return replace(tier, limits={**tier.limits, **eased})


def _doubt_left(spans: Mapping[str, Window], basis: PlanFacts) -> Iterator[str]:
    """Yield that clients left most requests, beyond chance. No page tells why."""
    left = _read_shown("left_share", sum_windows(spans.values()), basis) if spans else None
    if not isinstance(left, Reading) or left.value is None:
        return
    if is_significant_share(left.value * left.n, left.n, left.n, MOST_LEFT, LIKELY_CONFIDENCE):
        share, requests = number(left.value, "ratio"), format_count(round(left.n), "request")
        yield f"{share} of {requests} were left by their clients: were the answers too slow?"


def _doubt_still(spans: Mapping[str, Window], last: Mapping[str, Snapshot]) -> Iterator[str]:
    """Yield an engine with requests that made no token, in a span too short to judge."""
    for replica, window in spans.items():
        is_still = {window.counters.get(name) for name in WORK} == {0.0}
        held = max(last[replica].gauges.get(name, 0.0) for name in IN_SYSTEM)
        if is_still and held >= 1 and window.span < BY_NAME[STALLED].limit("likely_seconds", {}):
            yield f"{replica} holds requests and made no token in {number(window.span, 'seconds')}: look longer"


def _describe_ongoing(result: RuleResult | None) -> str:
    """Return the present value of what fired over the engines' life, "" within its limits."""
    if isinstance(result, Unknown):
        if result.rule in BURNS and result.reason is Gap.TOO_FEW_REQUESTS:
            return result.text
        return ""
    if result is None or not isinstance(result.observed, Reading) or not isinstance(result.expected, Reading):
        return ""
    value, expected = result.observed.value, result.expected
    if value is None or (expected.low or 0.0) <= value <= (math.inf if expected.high is None else expected.high):
        return ""
    n = format_count(round(result.observed.n), "request")
    return f"now {quantity(result.observed, result.unit)} of {n}, too few to be sure"


def _is_firing(result: RuleResult) -> TypeGuard[Verdict]:
    return isinstance(result, Verdict) and result.status in FIRING


def _judge_latency(context: RuleContext) -> Iterator[RuleResult]:
    """Yield that requests missed an objective beyond chance, or wait longer; unknown where it may be chance."""
    rule, family = context.rule, context.rule.family
    objective = read_plan_value(context.tier, rule.needs)
    allowed, word = context.limit("allowed_share"), family.partition("_")[0].upper()
    promise = f"the {number(objective, 'seconds')} {word} objective"
    parts = tuple(part for sample in context.binned for part in sample.window.histograms.get(family, ()))
    n = requests = histograms.count_requests(parts)
    if not rule.per_request:
        requests = math.fsum(sample.window.counters.get("requests_finished", 0.0) for sample in context.binned)
    share = histograms.share_above(parts, objective)
    if n > 0:
        low, best, high = (count / n for count in (share.low, share.best, share.high))
        if is_significant_share(share.best, n, requests, allowed, LIKELY_CONFIDENCE):
            page = context.limit("page_fast_burn") * allowed
            is_grave = is_significant_share(share.best, n, requests, page, LIKELY_CONFIDENCE)
            what = "output events"
            if rule.per_request:
                what = format_count(round(n), "request")
            yield context.verdict(
                Status.CRITICAL if is_grave else Status.WARNING,
                Certainty.LIKELY,
                Reading(value=best, low=low, high=high, n=n),
                range_reading(0.0, allowed, n),
                f"{number(best, 'ratio')} of {what} missed {promise}",
            )
            return
    queues = tuple(_judge_queues(context, objective, promise)) if rule.name == "TtftSloBurn" else ()
    yield from queues
    whole = sum_windows(sample.window for sample in context.binned)
    p99 = readings.read(SIGNALS[f"{word.lower()}_p99_seconds"], whole)
    is_met = isinstance(p99, Reading) and p99.high is not None and p99.high <= objective
    if not parts and not queues and not is_met and whole.counters.get("requests_finished", 1.0):
        text = f"{word} is {quantity(p99, 'seconds')}: {promise} is not judged"
        yield context.unknown(whole.explain_missing(family), text)
    if not queues and share.best >= 1 and share.best > allowed * n:
        verb, of_n = "lies" if share.low > allowed * n else "may lie", format_count(round(n), "request")
        text = f"{word} P99 {verb} above the objective of {number(objective, 'seconds')} ({share.best:.0f} of {of_n})"
        yield context.unknown(Gap.TOO_FEW_REQUESTS, f"{text}; {of_n} are too few to be sure")


def _judge_queues(context: RuleContext, objective: float, promise: str) -> Iterator[Verdict]:
    """Yield the longest queue, if its last request waits longer than the objective (Little's law)."""
    queues = []
    for sample in context.binned:
        window = sample.window
        waiting = window.gauges.get("requests_waiting")
        if waiting is None or waiting.seconds <= 0 or waiting.minimum < 1:
            continue
        length = waiting.integral / waiting.seconds
        gone, pace = window.counters.get("requests_finished"), "none finished meanwhile"
        if gone is None and (waits := window.histograms.get("queue_seconds")):
            gone, pace = histograms.count_requests(waits), "none left it meanwhile"
        rate, seconds = (gone or 0.0) / window.covered_seconds, math.inf
        if gone is None:
            # The engine does not count them: the queue is seen, not how long it takes.
            seconds, pace = window.span, "how long they wait is not exposed; they wait all the time"
        elif rate > 0:
            seconds = length / rate
            pace = f"at {number(rate, 'per_second')} the last one waits about {number(seconds, 'seconds')}"
        queues.append((seconds, length, rate, f"in the queue of {sample.replica}; {pace}, beyond {promise}"))
    seconds, length, rate, text = max(queues, default=(0.0, 0.0, 0.0, ""))
    if seconds > objective:
        status = Status.CRITICAL if seconds > GRAVE_WAIT * objective else Status.WARNING
        text = f"{format_count(round(length), 'request')} {text}"
        observed, expected = exact_reading(length, 1), range_reading(0.0, rate * objective, 1)
        yield replace(context.verdict(status, Certainty.LIKELY, observed, expected, text), unit="requests")


def _judge_failures(tier: TierContext, spans: Mapping[str, Window], now: float) -> Iterator[Verdict]:
    """Yield the finding of requests that failed beyond chance."""
    if not spans:
        return
    binned = hold(tuple(bin_window(window, tier.curve, replica) for replica, window in spans.items()))
    value = readings.read(SIGNALS["failed_share"], sum_windows(tuple(spans.values())), tier.basis)
    context = RuleContext(rule=BY_NAME["AvailabilityBurn"], catalogue=BY_NAME, tier=tier, now=now)
    if not isinstance(value, Reading) or value.value is None:
        return
    allowed = context.limit("allowed_share")
    if is_significant_share(value.value * value.n, value.n, value.n, allowed, LIKELY_CONFIDENCE):
        text = f"{number(value.value, 'ratio')} of {format_count(round(value.n), 'request')} failed"
        if not any(window.counters.get("requests_finished") for window in spans.values()):
            text += "; none finished: is the engine's process dead?"
        verdict = context.verdict(Status.CRITICAL, Certainty.LIKELY, value, range_reading(0.0, allowed, value.n), text)
        yield explain.add_causes(verdict, tier, binned)


def _grade(verdicts: list[Verdict]) -> Iterator[Verdict]:
    """Yield the findings: a stopped engine is certain, and what no user feels is no more than a warning."""
    is_felt = any(verdict.rule in FELT for verdict in verdicts)
    for verdict in verdicts:
        if verdict.rule == STALLED:
            # What the rule expects, and its first detail, are the minute after which a daemon is certain.
            graded = replace(verdict, certainty=Certainty.CERTAIN, status=Status.CRITICAL)
            yield replace(graded, expected=Missing(gap=Gap.NOT_IN_PLAN), details=verdict.details[1:])
        elif verdict.status is Status.CRITICAL and not is_felt:
            yield replace(verdict, status=Status.WARNING)
        else:
            yield verdict


def _order(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the first finding of each rule and subject: critical first, late tokens and notes last."""
    unique = {(v.rule, v.subject): v for v in reversed(tuple(verdicts)) if v.rule not in ABOUT_BENCHMARK}

    def rank(verdict: Verdict) -> tuple[Any, ...]:
        rule, is_late = BY_NAME[verdict.rule], verdict.rule in BURNS
        is_open = is_late and Certainty.CERTAIN not in [cause.certainty for cause in verdict.causes]
        return rule.stage == 0, verdict.status is not Status.CRITICAL, is_late, is_open, rule.stage, rule.name

    return tuple(sorted(unique.values(), key=rank))


def _waiting(results: Iterable[RuleResult], quick: Iterable[RuleResult]) -> dict[str, float]:
    """Return the rules that time alone settles, with the seconds until then."""
    waits = {result.rule: result.wait_seconds for result in results if isinstance(result, Unknown)}
    waiting = {}
    for result in quick:
        is_open = _is_firing(result) or (isinstance(result, Unknown) and result.reason is Gap.TOO_FEW_REQUESTS)
        seconds = waits.get(result.rule)
        if is_open and seconds is not None and result.rule not in ABOUT_BENCHMARK:
            waiting[result.rule] = seconds
    return waiting


def _without_plan(results: Iterable[RuleResult]) -> tuple[str, ...]:
    unknown = (result for result in results if isinstance(result, Unknown) and result.reason is Gap.NOT_IN_PLAN)
    return tuple(dict.fromkeys(result.rule for result in unknown))


def _show_signals(
    lives: tuple[Window, ...], spans: tuple[Window, ...], basis: PlanFacts, is_dated: bool
) -> Iterator[ShownSignal]:
    """Yield the signals of the table that an engine exposes. Undated pages have no rate since the start."""
    whole = sum_windows(lives)
    for name in LABELS:
        since_start: SignalValue | None = _read_shown(name, whole, basis)
        lately = None
        if spans:
            lately = _read_shown(name, sum_windows(spans), basis)
        unit = "ratio" if name in SHARES else SIGNALS[name].unit
        # A page has the present level only.
        if name not in SHARES and SIGNALS[name].how in LEVELS:
            since_start, lately = None, since_start if lately is None else lately
        elif name.startswith("gpu_") or (unit.endswith("per_second") and not is_dated):
            since_start = None
        if isinstance(since_start, Reading) or isinstance(lately, Reading):
            yield ShownSignal(name=name, unit=unit, since_start=since_start, lately=lately)


def _read_shown(name: str, window: Window, basis: PlanFacts) -> SignalValue:
    """Return a signal of the table, or one of SHARES of all requests that ended."""
    if name not in SHARES:
        return readings.read(SIGNALS[name], window, basis)
    ends = outcomes(window)
    if isinstance(ends, Missing):
        return ends
    if SHARES[name] not in window.counters:
        return Missing(gap=window.explain_missing(SHARES[name]))
    if not ends.all_requests:
        return Missing(gap=Gap.NO_TRAFFIC)
    counts = {"no_room_share": ends.no_room, "bad_share": ends.bad}
    counts["left_share"] = min(ends.served, count_gone(window) + window.counters.get("requests_aborted", 0.0))
    return exact_reading(counts[name] / ends.all_requests, ends.all_requests)


IMBALANCE = BY_NAME["ReplicaImbalance"]

BUSIER, WARM_SECONDS, FEWEST = (IMBALANCE.limit(name, {}) for name in ("busier", "warm_up_seconds", "minimum_requests"))
"""Times the requests of another replica, seconds until a replica is warm, requests that a comparison needs."""


class Difference(NamedTuple):
    """Distance at which a replica is unlike all others: so many times as much, and so many points more (or less)."""

    times: float = 1.0
    points: float = 0.0
    least: float = 0.0


DIFFERENCES: Mapping[str, Difference] = {
    "ttft_p50_seconds": Difference(times=2.0),
    # Guide 9.1, step 13: 30 % apart is not the machine that was measured.
    "tpot_p50_seconds": Difference(times=IMBALANCE.limit("slower", {})),
    "kv_utilization": Difference(points=0.3),
    "requests_waiting": Difference(times=3.0, least=5.0),
    "prefix_hit_ratio": Difference(points=-0.2),
}
"""Signals that are compared; distances without a source are ours."""


def read_replicas(spans: Mapping[str, Window], basis: PlanFacts) -> dict[str, dict[str, SignalValue]]:
    """Return the compared signals of each replica in the span of the look."""
    return {
        replica: {name: readings.read(SIGNALS[name], window, basis) for name in REPLICA_SIGNALS}
        for replica, window in spans.items()
    }


def find_odd_replicas(values: Mapping[str, Mapping[str, SignalValue]], last: Mapping[str, Snapshot]) -> Iterator[str]:
    """Yield each replica that is far from all others, with those signals."""
    texts: dict[str, list[str]] = {}
    for name, difference in DIFFERENCES.items():
        known = {
            replica: bounds for replica, signals in values.items() if (bounds := _read_bounds(name, signals[name]))
        }
        if len(known) < 2:
            continue
        is_low = difference.points < 0
        odd = max(known, key=lambda replica: known[replica][0])
        if is_low:
            odd = min(known, key=lambda replica: known[replica][1])
        low, high = known.pop(odd)
        lowest, highest = min(low for low, _ in known.values()), max(high for _, high in known.values())
        is_far = low >= difference.least and low > highest * difference.times + difference.points
        if is_low:
            # A cold cache has few hits rightly.
            is_warm = last[odd].t - (last[odd].started_at or 0.0) >= WARM_SECONDS
            is_far = high < lowest + difference.points and is_warm
        if is_far:
            unit = SIGNALS[name].unit
            rest = quantity(Reading(value=None, low=lowest, high=highest, n=len(known)), unit)
            text = f"{LABELS[name]} {quantity(values[odd][name], unit)} ({'the other' if len(known) == 1 else 'the others'} {rest})"
            texts.setdefault(odd, []).append(text)
    for odd, parts in texts.items():
        yield f"{odd}: {', '.join(parts)}"


def _read_bounds(name: str, value: SignalValue) -> tuple[float, float] | None:
    """Return the bounds of a latency of enough requests, or a level or ratio twice; None if unknown."""
    is_latency = name.endswith("_seconds")
    if not isinstance(value, Reading) or (is_latency and value.n < FEWEST):
        return None
    low, high = value.value, value.value
    if is_latency:
        low, high = value.low, value.high
    return None if low is None or high is None else (low, high)


def describe_load(spans: Mapping[str, Window]) -> str:
    """Return whether finished requests are spread over the replicas, "" for one or none counted."""
    counts = {name: window.counters.get("requests_finished") for name, window in spans.items()}
    known = {name: count for name, count in counts.items() if count is not None}
    total = math.fsum(known.values())
    if len(known) < 2:
        return ""
    if total < FEWEST * len(known):
        return f"{format_count(round(total), 'request')} of {len(known)} replicas are too few to see how it is spread"
    busiest, idlest = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    shares = {name: number(count / total, "ratio") for name, count in known.items()}
    # Shares of a replica with so many times the requests of each other one, and of one with so many times fewer.
    most, fewest = BUSIER / (BUSIER + len(known) - 1), 1 / (1 + BUSIER * (len(known) - 1))
    requests = round(total)
    is_busy = is_significant_share(known[busiest], total, total, most, LIKELY_CONFIDENCE)
    is_idle = 1 - binomial_tail(math.floor(known[idlest]) + 1, requests, fewest) < 1 - LIKELY_CONFIDENCE
    finished = format_count(requests, "finished request")
    if is_busy or is_idle:
        return f"uneven: {busiest} has {shares[busiest]} of {finished}, {idlest} has {shares[idlest]}"
    return f"evenly spread: {shares[idlest]} to {shares[busiest]} of {finished} each"
