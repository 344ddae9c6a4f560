"""Minutes of a small tier for the tests of judgements: healthy by default, what a test is about by keyword.

The tier's benchmark has three points of 600 requests: 2, 4 and 6 rps with 2, 4 and 8 requests in the system, TTFT P99
0.1, 0.2 and 0.4 s. At the usual 3 rps a request is slow above 1.3 x 0.1414 = 0.184 s, surely above 1.3 x 0.2 = 0.26 s.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rules.catalogue.registry import BY_NAME
from rules.evaluator import rule_evaluation, tier_minutes
from rules.methods.evidence import OUTPUTS, PROMPTS
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import TierPlan, parse_plan
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import RuleResult

START = 1_800_000_000.0
"""A full hour."""

EDGES = (0.05, 0.1, 0.15, 0.26, 0.52, 1.0, math.inf)
SLOW, FAST = 0.4, 0.08
POINTS = (
    {"concurrency": 2, "completed_rps": 2.0, "ttft_p99_seconds": 0.1, "tpot_p99_seconds": 0.1, "itl_p99_seconds": 0.1},
    {"concurrency": 4, "completed_rps": 4.0, "ttft_p99_seconds": 0.2, "tpot_p99_seconds": 0.2, "itl_p99_seconds": 0.2},
    {"concurrency": 8, "completed_rps": 6.0, "ttft_p99_seconds": 0.4, "tpot_p99_seconds": 0.4, "itl_p99_seconds": 0.4},
)


def tier(
    *changes: Mapping[str, Any], requests: int = 600, curve: Mapping[str, Any] | None = None, **parts: Any
) -> TierPlan:
    """The plan; `changes` are merged into the points one by one, `curve` into the curve, `parts` into the tier."""
    points = [
        {**point, "requests": requests, **change} for point, change in zip(POINTS, [*changes, {}, {}, {}], strict=False)
    ]
    whole = {
        "model": "m",
        "engine": "vllm",
        "gpu": {"product": "A", "per_replica": 1},
        "slo": {"ttft_p99_seconds": 2.0},
        "curve": {"loop": "open", "points": points, **(curve or {})},
        **parts,
    }
    return parse_plan({"schema": 1, "tiers": {"t": whole}}).tiers["t"]


def context(
    *changes: Mapping[str, Any], limits: Mapping[str, Mapping[str, float]] | None = None, **parts: Any
) -> TierContext:
    """The view of that plan."""
    return view_of("t", tier(*changes, **parts), limits=limits)


def seen(values: Mapping[float, float], edges: tuple[float, ...] = EDGES) -> tuple[Histogram, ...]:
    """A histogram of so many observations at each value."""
    counts = [0.0] * len(edges)
    for value, count in values.items():
        counts[next(place for place, edge in enumerate(edges) if value <= edge)] += count
    return (Histogram(edges=edges, counts=tuple(counts), total=math.fsum(v * c for v, c in values.items())),)


def gauge(mean: float, low: float | None = None, high: float | None = None, seconds: float = 60.0) -> GaugeSum:
    """A gauge with this mean over so many seconds."""
    least, most = mean if low is None else low, mean if high is None else high
    return GaugeSum(integral=mean * seconds, seconds=seconds, minimum=least, maximum=most, samples=4)


def minute(
    number: float,
    rps: float = 3.0,
    slow: float = 0.0,
    waiting: float = 0.0,
    in_system: float | None = None,
    change: float = 0.0,
    seconds: float = 60.0,
    **more: Any,
) -> Window:
    """A minute of one replica, `number` minutes after START: `slow` of its requests took 0.4 s, the others 0.08 s.

    `counters`, `gauges` and `histograms` in `more` are merged into its own, other fields replace.
    """
    finished = rps * seconds
    running = (rps if in_system is None else in_system) - waiting
    latencies = seen({SLOW: slow, FAST: finished - slow})
    whole = {
        "counters": {"requests_finished": finished, "in_system_change": change, "preemptions": 0.0},
        "gauges": {
            "requests_running": gauge(running, seconds=seconds),
            "requests_waiting": gauge(waiting, seconds=seconds),
        },
        "histograms": dict.fromkeys(("ttft_seconds", "tpot_seconds"), latencies),
    }
    whole |= {kind: {**whole[kind], **more.pop(kind)} for kind in tuple(whole) if kind in more}
    start = START + 60.0 * number
    span = {"start": start, "end": start + seconds, "expected_seconds": seconds, "covered_seconds": seconds}
    return Window(**{**span, **whole, **more})


def unseen(number: float, reason: Gap = Gap.SCRAPE_FAILED) -> Window:
    """A minute of a replica that was not seen."""
    return gap_window(START + 60.0 * number, START + 60.0 * (number + 1), reason)


def add_minute(
    kept: tier_minutes.TierMinutes, minute: Window, replica: str, context: TierContext
) -> tier_minutes.TierMinutes:
    return tier_minutes.add_minutes(kept, (tier_minutes.bin_minute(kept, minute, replica, context),), context)


def minutes(context: TierContext, replicas: Mapping[str, Iterable[Window]]) -> tier_minutes.TierMinutes:
    """The minutes of several replicas, booked in the order of time."""
    booked = tier_minutes.TierMinutes()
    every = [(window, name) for name, windows in replicas.items() for window in windows]
    for window, name in sorted(every, key=lambda pair: pair[0].end):
        booked = add_minute(booked, window, name, context)
    return booked


def answered(rule: str, context: TierContext, replicas: Mapping[str, Iterable[Window]] | list[Window]) -> RuleResult:
    """What a rule says at the end of these minutes, by the way of the daemon; a list is one replica's."""
    booked = minutes(context, {"a": replicas} if isinstance(replicas, list) else replicas)
    now = max(s.window.end for s in booked.binned)
    return next(a for a in rule_evaluation.evaluate_tier_rules(booked, context, now) if a.rule == BY_NAME[rule].name)


def each(count: int, make: Callable[[int], Window]) -> list[Window]:
    """So many minutes, made by their number."""
    return [make(number) for number in range(count)]


TOKEN_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, math.inf)
"""The engines' usual grid, 1-2-5."""


def sized(number: float, prompts: Mapping[float, float], outputs: Mapping[float, float], **more: Any) -> Window:
    """A minute with so many requests of each prompt and each output length, in tokens."""
    histograms = {PROMPTS: seen(prompts, TOKEN_EDGES), OUTPUTS: seen(outputs, TOKEN_EDGES)}
    return minute(number, histograms={**histograms, **more.pop("histograms", {})}, **more)


def usual(long: float = 0.0, length: float = 400.0, n: float = 180.0) -> dict[float, float]:
    """The lengths of `n` requests: half about 80 tokens, the others 150, `long` of them of another length."""
    return {80.0: n / 2, 150.0: n / 2 - long, length: long}
