"""Forecast, backtest and pre-warming as text and JSON. Demands are requests per second, times unix seconds.

A forecast has median, 95 % and 99 % by time, of the whole tier. A backtest has scores by method and horizon, compared
with the naive method: WAPE (sum of absolute errors by sum of actual values), and pinball loss of the 95 % quantile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import copy_fields, format_local, format_reading, json_fields, lower_first
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import DecisionBasis, ScheduleStep
from rules.plan.money import figure
from rules.plan.replica_count import ReplicaCount
from rules.telemetry.signals import Reading
from rules.telemetry.wording import format_count, format_duration, number
from rules.verdicts.context import Projection

if TYPE_CHECKING:
    from forecast.backtest.scores import Scored

MOST_ROWS = 48
"""Maximum table rows: a day in half hours. The JSON has all bins."""

OURS = "sizewatch"
"""Method that pre-warming uses."""

HEAD = ("method", "WAPE", "P95 pinball", "WAPE by naive", "pinball by naive", "coverage of 95%", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult:
    """Projection with the shares of combined methods, highest first, and `notes` for the reader."""

    projection: Projection
    zone: str
    bin_seconds: float
    weights: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


def forecast_text(forecast: ForecastResult) -> str:
    """Return head, table and recent accuracy. With many bins, show the highest of every block."""
    projection, points, zone = forecast.projection, forecast.projection.points, forecast.zone
    made = format_local(projection.made_at, zone, "%a %d %b %H:%M")
    parts: list[RenderableType] = [
        f"{projection.tier}: expected requests per second, made {made} ({zone}) by {projection.method}",
        *(f"  {note}" for note in forecast.notes),
        "",
    ]
    block, rows = -(-len(points) // MOST_ROWS), []
    for first in range(0, len(points), block or 1):
        bins, row = points[first : first + block], [format_local(points[first].t, zone, "%a %d %b %H:%M")]
        for name in ("q50", "q95", "q99"):
            row.append(number(max(getattr(point, name) for point in bins), "per_second"))
        rows.append(row)
    if rows:
        parts.append(text_grid(rows, ("from", "median", "95%", "99%"), words=1))
    else:
        parts.append("  nothing is expected: no forecast yet")
    if block > 1:
        parts.append(f"  each row is the highest of {block} bins of {format_duration(forecast.bin_seconds)}")
    return terminal_text(*parts, "", text_grid(describe_accuracy(forecast)))


def describe_accuracy(forecast: ForecastResult) -> Iterator[tuple[str, str]]:
    record = forecast.projection
    coverage = error = "not known yet: no target has passed"
    if record.forecasts:
        coverage = f"{record.covered / record.forecasts:.1%} of {record.forecasts} past targets"
        coverage += " at or below their 95% quantile"
    if record.compared:
        error = (
            f"not known: {record.compared} targets are too few, or {record.naive or 'the naive method'} has no error"
        )
    if record.error_ratio is not None:
        error = f"{record.error_ratio:.2f} of {record.naive or 'the naive method'} over {record.compared} targets"
        error += "" if record.error_ratio < 1 else "; the naive method was as good"
    yield "lead", format_duration(record.horizon_seconds)
    yield "coverage", coverage
    yield "error", error
    if forecast.weights:
        yield "methods", ", ".join(f"{name} {share:.0%}" for name, share in forecast.weights if share >= 0.005)


def forecast_json(forecast: ForecastResult) -> dict[str, Any]:
    """Return the projection with every bin as JSON. Times are unix seconds."""
    more = copy_fields(forecast, "zone", "bin_seconds", "notes")
    return {"schema": 2, **json_fields(forecast.projection), **more, "weights": dict(forecast.weights)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Scores of a series, tested over [start, end) in unix seconds, horizon by horizon."""

    name: str
    zone: str
    bin_seconds: float
    start: float
    end: float
    scores: tuple[Scored, ...]
    notes: tuple[str, ...] = ()


def backtest_text(backtest: Backtest) -> str:
    start, end = (format_local(t, backtest.zone, "%Y-%m-%d %H:%M") for t in (backtest.start, backtest.end))
    head = f"{backtest.name}: rolling origin, {start} to {end}, bins of {format_duration(backtest.bin_seconds)}"
    parts: list[RenderableType] = [head, *(f"  {note}" for note in backtest.notes)]
    by_horizon = sorted(backtest.scores, key=lambda score: score.horizon_seconds)
    for (seconds, naive), scores in groupby(by_horizon, lambda score: (score.horizon_seconds, score.naive)):
        table = text_grid(list(map(_score_row, scores)), HEAD, words=1)
        parts += ["", f"{format_duration(seconds)} ahead (naive: {naive})", table]
    return terminal_text(*parts, width=WIDEST)


def _score_row(score: Scored) -> list[str]:
    mark = {OURS: " *", score.naive: " (naive)"}.get(score.method, "")
    row = [f"{score.method}{mark}"]
    for name in ("wape", "pinball", "wape_ratio", "pinball_ratio"):
        value = score.values[name]
        row.append("-" if value is None else f"{value:,.3f}")
    coverage, bounds = score.values["coverage"], score.interval("coverage")
    text = "-" if coverage is None else f"{coverage:.1%}"
    if bounds is not None:
        text += f" ({bounds[0]:.1%} to {bounds[1]:.1%})"
    return [*row, text, str(score.targets)]


def backtest_json(backtest: Backtest) -> dict[str, Any]:
    """Return the backtest as JSON. Times are unix seconds, uncounted values are null."""
    scores = []
    for score in backtest.scores:
        known = copy_fields(score, "method", "horizon_seconds", "naive", "targets")
        scores.append({**known, **score.values, "coverage_bounds": score.interval("coverage")})
    return {
        "schema": 2,
        **copy_fields(backtest, "name", "zone", "bin_seconds", "start", "end", "notes"),
        "scores": scores,
    }


OLD_SECONDS = 3600.0
"""Maximum age in seconds of the demand behind a schedule. An older schedule may follow a day that went otherwise."""

BECAUSE: Mapping[DecisionBasis, str] = {
    DecisionBasis.FORECAST: "the demand expected then",
    DecisionBasis.NOW: "what arrives now",
    DecisionBasis.MINIMUM: "the minimum warm count",
    DecisionBasis.INCIDENT: "an open incident of the SLO: no replica goes while it lasts",
    DecisionBasis.HOLD: "the hold before scaling down",
}
"""Basis of a count, in the words of its sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Scaling strategy over a period: minutes short of ready replicas, late requests, paid replica-hours, money."""

    name: str
    violation_minutes: float
    late_requests: float
    replica_hours: float
    money: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmValue:
    """Strategies simulated over [start, end), for a tier with so many requests.

    `ours` and `perfect` name two of them. `reacting` is the best without a forecast, chosen on the time before `start`.
    `recommended` is the cheaper of both, or the one without a forecast if it was as good. `with_margin` is ours with the
    margin of the recommended counts. `covered_ratio` (0-1) is the share of minutes with demand within the prepared capacity.
    """

    start: float
    end: float
    zone: str
    requests: float
    strategies: tuple[Strategy, ...]
    ours: str
    perfect: str
    reacting: str
    recommended: str
    short_reason: str
    reason: str
    covered_ratio: float | None
    currency: str = ""
    with_margin: str = ""

    @property
    def sentence(self) -> str:
        days = format_count(round((self.end - self.start) / 86_400.0), "day")
        return f"The last {days}: {lower_first(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """Next count of the schedule, from `start` on, enough with `certainty` (0-1).

    `is_soon`: it is higher than the recommended count, and starts at most a lead and a bin from now.
    """

    start: float
    replicas: int
    certainty: float
    is_soon: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Replicas that must be warm `lead_seconds` after `made_at`, and their basis.

    `quantile_rps` is the demand (work, in requests of the capacity's lengths) not exceeded with `certainty` (0-1),
    `expected_rps` the one without margin. Both include the `event_factor`. `now_requests` and `expected_requests` are
    requests, `weighing` says what makes them work. `count` has the capacity of a replica and the margin. `for_forecast`,
    `needed_now`, `minimum_warm` and `held` are the replicas by each reason. `ready` are up. None is unknown.
    """

    made_at: float
    zone: str
    replicas: int
    decided_by: DecisionBasis
    lead_seconds: float
    lead_source: str
    certainty: float
    quantile_rps: float | None
    now_rps: float
    needed_now: int
    minimum_warm: int
    count: ReplicaCount
    expected_rps: float | None = None
    event_factor: float = 1.0
    for_forecast: int | None = None
    held: int = 0
    ready: int | None = None
    next_step: NextStep | None = None
    now_requests: float | None = None
    expected_requests: float | None = None
    weighing: str = ""

    @property
    def target_time(self) -> float:
        """Return the time at which the replicas must be warm."""
        return self.made_at + self.lead_seconds

    def with_present(self, ready: int | None, *, is_burning: bool) -> Recommendation:
        """Return the decision for the replicas that are up (None: unknown). While the SLO is broken none of them may go."""
        if not is_burning or ready is None or ready <= self.replicas:
            return replace(self, ready=ready)
        count = replace(self.count, replicas=ready)
        return replace(self, ready=ready, replicas=ready, decided_by=DecisionBasis.INCIDENT, count=count)

    @property
    def action(self) -> str:
        if self.ready is None:
            return "how many are ready is not known"
        if self.ready < self.replicas:
            return f"start {self.replicas - self.ready} now"
        wanted = self.replicas
        if self.next_step is not None and self.next_step.is_soon:
            wanted = max(wanted, self.next_step.replicas)
        if self.ready > wanted:
            return f"{self.ready - wanted} may go"
        if self.ready > self.replicas:
            return "keep them"
        return "enough for that"

    @property
    def sentence(self) -> str:
        """Return the decision: replica count, time, reason, what to do, and the next change of the schedule."""
        demand = f"demand now {_rps(self.now_rps)}"
        if self.quantile_rps is None:
            demand = f"no forecast: {demand}"
        elif self.decided_by is not DecisionBasis.NOW:
            demand = f"{_level(self.certainty)} of demand {_rps(self.quantile_rps)}"
        text = f"{format_count(self.replicas, 'replica')} wanted at {_clock(self.target_time, self.zone)} because of "
        text += f"{BECAUSE[self.decided_by]} (lead {self.lead_seconds:.0f} s, {demand} at "
        text += f"{_rps(self.count.capacity.rps)} usable a replica); "
        if self.ready is not None:
            text += f"{self.ready} {'is' if self.ready == 1 else 'are'} ready: "
        text += self.action
        if self.next_step is None:
            return text
        when = f"from {_clock(self.next_step.start, self.zone)}"
        if self.next_step.start <= self.made_at:
            when = "now"
        return f"{text}; {self.next_step.replicas} {when} by the schedule, of {self.next_step.certainty:.0%} certainty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """Pre-warming report of a tier.

    `schedule` runs from its first step to `until` and suffices in each bin with `schedule_certainty` (0-1). Demand is
    known up to `seen_until`. `as_of` is the end of a trace used as now. `reason` explains a missing part.
    """

    tier: str
    zone: str
    recommendation: Recommendation | None
    schedule: tuple[ScheduleStep, ...] = ()
    schedule_certainty: float | None = None
    until: float | None = None
    seen_until: float | None = None
    as_of: float | None = None
    worth: PrewarmValue | None = None
    reason: str = ""
    drain: DrainTime | str = "a trace has no durations of requests"


def without_old_schedule(report: Prewarm, now: float) -> Prewarm:
    """Return the report without its schedule if its demand is over OLD_SECONDS old at `now`."""
    seen = report.seen_until
    if not report.schedule or (seen is not None and now - seen <= OLD_SECONDS):
        return report
    age = "not known" if seen is None else f"{format_duration(now - seen)} old"
    why = f"the newest demand of the tier is {age}; no schedule is made of it"
    decided = None if report.recommendation is None else replace(report.recommendation, next_step=None)
    return replace(report, recommendation=decided, schedule=(), schedule_certainty=None, until=None, reason=why)


def with_next_step(report: Prewarm, bin_seconds: float) -> Prewarm:
    """Return the report with the next change of its schedule in its recommendation.

    The highest of the steps that ask for more soon comes first, else the next change after the target.
    """
    decided, steps = report.recommendation, report.schedule
    if decided is None or report.schedule_certainty is None:
        return report
    soon, later = [], []
    for step, end in zip(steps, [*(step.start for step in steps[1:]), math.inf], strict=True):
        if end <= decided.made_at:
            continue
        if step.replicas > decided.replicas and step.start <= decided.target_time + bin_seconds:
            soon.append(step)
        elif step.replicas != decided.replicas and step.start > decided.target_time:
            later.append(step)
    if not soon and not later:
        return report
    step = max(soon, key=lambda step: step.replicas) if soon else later[0]
    certainty = report.schedule_certainty
    named = NextStep(start=step.start, replicas=step.replicas, certainty=certainty, is_soon=bool(soon))
    return replace(report, recommendation=replace(decided, next_step=named))


def prewarm_text(report: Prewarm, *, explain: bool = False) -> str:
    """Return the recommendation with its reasons and the schedule. Add the past worth with `explain`."""
    decided, reason = report.recommendation, report.reason or "the forecast has not run yet"
    parts: list[RenderableType] = []
    if report.as_of is not None and decided is not None:
        end = format_local(report.as_of, report.zone, "%Y-%m-%d %H:%M")
        parts += [f"As of the end of the trace, {end} ({report.zone}): this is not live.", ""]
    if decided is None:
        parts.append(f"{report.tier}: no recommendation: {reason}")
    else:
        parts += [f"{report.tier}: {decided.sentence}", text_grid(_list_reasons(report, decided))]
    if report.schedule:
        parts += ["", *_schedule_parts(report)]
    if explain and report.worth is not None:
        parts += ["", *_worth_parts(report.worth)]
    elif explain:
        parts += ["", f"What it was worth cannot be told: {reason}"]
    return terminal_text(*parts)


def _list_reasons(report: Prewarm, decided: Recommendation) -> Iterator[tuple[str, str]]:
    capacity = decided.count.capacity
    usable = Reading(value=capacity.rps, low=capacity.low, high=capacity.high, n=0.0)
    if decided.quantile_rps is not None and decided.expected_rps is not None:
        margin = f"{decided.quantile_rps - decided.expected_rps:+.3g} rps margin to {_level(decided.certainty)}"
        event = ""
        if decided.event_factor != 1.0:
            event = f" (x {decided.event_factor:g} for a known event)"
        yield "demand", f"{_rps(decided.quantile_rps)} = {_rps(decided.expected_rps)} expected{event} {margin}"
    if decided.weighing:
        yield "work", decided.weighing
    yield "lead", f"{decided.lead_seconds:.0f} s: {decided.lead_source}"
    yield "usable", f"{format_reading(usable, 'per_second')} a replica: {capacity.reason}"
    yield "count", f"{describe_count(decided.count)}; no safety factor: the demand is a quantile"
    now = f"{decided.needed_now} for {_rps(decided.now_rps)} now"
    yield "never below", f"{now}, {decided.minimum_warm} minimum warm, {decided.held} held"
    if isinstance(report.drain, DrainTime):
        seconds, grace = report.drain.seconds, report.drain.grace_seconds
        yield "scale down", f"99% of requests end within {seconds} s; terminationGracePeriodSeconds {grace}"
    if report.worth is not None:
        yield "worth", f"{report.worth.short_reason} (--explain shows the numbers)"


def describe_count(count: ReplicaCount) -> str:
    text = f"{count.arithmetic_text}; {count.utilization:.0%} used"
    if count.utilization_one_lost is not None:
        text += f", {count.utilization_one_lost:.0%} with one lost"
    if count.bounds_text:
        return f"{text}; {count.bounds_text} by the bounds of what one takes"
    return text


def _schedule_parts(report: Prewarm) -> tuple[RenderableType, ...]:
    """Return the schedule as a table. A step lasts until the next one, the last one until `until`."""
    rows = []
    for step in report.schedule:
        expected = "-" if step.expected_rps is None else _rps(step.expected_rps)
        rows.append((_clock(step.start, report.zone), str(step.replicas), _rps(step.demand_rps), expected))
    until = "" if report.until is None else f" until {format_local(report.until, report.zone, '%a %H:%M')}"
    head = f"Schedule{until} ({report.zone}), enough with {report.schedule_certainty or 0.0:.0%} certainty"
    return head, text_grid(rows, ("warm from", "replicas", "for up to", "expected"), words=1)


def _worth_parts(worth: PrewarmValue) -> tuple[RenderableType, ...]:
    head = ("strategy", "violation min", "late requests", "replica-hours", worth.currency or "money")
    rows = []
    for strategy in worth.strategies:
        mark = ""
        if strategy.name == worth.recommended:
            mark = " *"
        numbers = (strategy.violation_minutes, strategy.late_requests, strategy.replica_hours, strategy.money)
        cells = ["-" if value is None else figure(value) for value in numbers]
        rows.append([f"{strategy.name}{mark}", *cells])
    start, end = (format_local(t, worth.zone, "%Y-%m-%d %H:%M") for t in (worth.start, worth.end))
    title = f"What it was worth, {start} to {end} ({worth.requests:,.0f} requests)"
    advice = f"* cheaper, or as good without a forecast. {worth.sentence}"
    return title, text_grid(rows, head, words=1), text_grid([(advice,)])


def _level(certainty: float) -> str:
    """Return a certainty as the name of a quantile: "P99", "P99.67"."""
    return f"P{round(certainty * 100, 2):g}"


def _rps(value: float) -> str:
    return number(value, "per_second")


def _clock(t: float, zone: str) -> str:
    return format_local(t, zone, "%H:%M")


def prewarm_json(report: Prewarm) -> dict[str, Any]:
    """Return the report as JSON, with the sentences and computed numbers of its text. Unknown values are null."""
    data = {"schema": 3, **json_fields(report), "worth": json_fields(report.worth, "sentence")}
    if report.recommendation is not None:
        count = json_fields(report.recommendation.count, "utilization", "utilization_one_lost")
        data["recommendation"] = {**json_fields(report.recommendation, "target_time", "sentence"), "count": count}
    if isinstance(report.drain, DrainTime):
        data["drain"] = json_fields(report.drain, "seconds", "grace_seconds")
    return data
