"""Snapshots, histograms and windows for tests: whole ones by default, what a test is about by keyword."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from paths import TESTS

from agent.scrape.scrapers import PageReader
from rules.confidence import Certainty
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Cumulative, Histogram
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, Status, Subject, Transition, Verdict

PAGES = TESTS / "pages"
START = 1_800_000_000.0
EDGES = (0.1, 0.5, 1.0, 5.0, math.inf)


def histogram(observed: Iterable[float], edges: tuple[float, ...] = EDGES) -> Histogram:
    """A histogram of values, whose sum is theirs."""
    values = list(observed)
    counts = [0.0] * len(edges)
    for value in values:
        counts[next(place for place, edge in enumerate(edges) if value <= edge)] += 1
    return Histogram(edges=edges, counts=tuple(counts), total=math.fsum(values))


def cumulative(observed: Iterable[float], edges: tuple[float, ...] = EDGES) -> Cumulative:
    """The same as a page prints it."""
    values = list(observed)
    return Cumulative(edges, tuple(float(sum(value <= edge for value in values)) for edge in edges), math.fsum(values))


def snapshot(t: float = START, **overrides: Any) -> Snapshot:
    """A page of an engine that has served 100 requests; mappings are merged into it, other fields replaced."""
    whole = Snapshot(
        t=t,
        engine="vllm",
        generation="v1",
        started_at=START - 1000,
        ready_at=START - 950,
        counters={"requests_finished": 100.0, "generation_tokens": 5000.0, "preemptions": 0.0, "engine_steps": 3000.0},
        histograms={"ttft_seconds": cumulative([0.2] * 100)},
        gauges={"requests_running": 4.0, "requests_waiting": 0.0, "kv_utilization": 0.3, "kv_utilization_max": 0.3},
        facts={"model": "m"},
    )
    merged = {
        name: {**getattr(whole, name), **value} if name in ("counters", "histograms", "gauges", "facts") else value
        for name, value in overrides.items()
    }
    return replace(whole, **merged)


def bare_page(t: float = START, **parts: Any) -> Snapshot:
    """A page of vLLM that tells these parts only."""
    usual = {"t": t, "engine": "vllm", "generation": "v1", "started_at": None, "ready_at": None}
    nothing: dict[str, Any] = {"counters": {}, "histograms": {}, "gauges": {}, "facts": {}}
    return Snapshot(**{**usual, **nothing, **parts})


def plan_document(name: str = "t", **parts: Any) -> dict[str, Any]:
    """The least plan of one tier, with these parts of the tier."""
    least = {"model": "m", "engine": "vllm", "gpu": {"product": "A", "per_replica": 1}, "slo": {"ttft_p99_seconds": 2}}
    return {"schema": 1, "tiers": {name: {**least, **parts}}}


def without(page: Snapshot, *families: str) -> Snapshot:
    """A page that lacks these families."""
    kinds: dict[str, Any] = {}
    for name in ("counters", "histograms", "gauges"):
        mapping: Mapping[str, Any] = getattr(page, name)
        kinds[name] = {family: value for family, value in mapping.items() if family not in families}
    return replace(page, **kinds)


def gauge(value: float, seconds: float = 60.0, low: float | None = None, high: float | None = None) -> GaugeSum:
    """A gauge at `value` for so many seconds."""
    return GaugeSum(
        integral=value * seconds,
        seconds=seconds,
        minimum=value if low is None else low,
        maximum=value if high is None else high,
        samples=4,
    )


def reading(value: float | None, low: float | None = None, high: float | None = None, n: float = 1.0) -> Reading:
    """A reading; without bounds none is known."""
    return Reading(value=value, low=low, high=high, n=n)


def window(start: float = START, seconds: float = 60.0, **overrides: Any) -> Window:
    """A fully covered window of one replica."""
    whole = Window(start=start, end=start + seconds, expected_seconds=seconds, covered_seconds=seconds)
    return replace(whole, **overrides)


def verdict(rule: str = "TargetDown", replica: str | None = "r", t: float = START, **parts: Any) -> Verdict:
    """A certain warning about a replica, without numbers."""
    usual: dict[str, Any] = {
        "subject": Subject(tier="t", replica=replica),
        "status": Status.WARNING,
        "certainty": Certainty.CERTAIN,
        "observed": Missing(gap=Gap.NOT_IN_PLAN),
        "expected": Missing(gap=Gap.NOT_IN_PLAN),
        "unit": "count",
        "sentence": "down",
    }
    return Verdict(rule=rule, t=t, **{**usual, **parts})


def finding(worst: Verdict, **parts: Any) -> Finding:
    """An open finding that began with this verdict."""
    change = Transition(t=worst.t, status=worst.status, stage=worst.stage, certainty=worst.certainty)
    usual = {"started_at": worst.t, "ended_at": None, "transitions": (change,)}
    return Finding(rule=worst.rule, subject=worst.subject, worst=worst, **{**usual, **parts})


def page_text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def read(text: str, t: float = START, engine: str | None = None) -> Snapshot:
    """A page through the reader that the daemon uses."""
    return PageReader(engine).read(text.encode(), t)
