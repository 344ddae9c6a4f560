"""A tier's cold start: measured, told by the engine, or planned; the lead is its P95 and never too short for want of starts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from making import START

from forecast.cold_start import ColdStart, Source, cold_start
from rules.starts import ENOUGH, Start


def timed(*seconds: float) -> tuple[Start, ...]:
    """Starts whose pages tell that they took so long."""
    return tuple(
        Start(replica=f"r{n}", seen_at=START + n * 60, started_at=START + n * 60 - s, ready_at=START + n * 60)
        for n, s in enumerate(seconds)
    )


def bounded(*seconds: float) -> tuple[Start, ...]:
    """Starts of which only the silence around them is known."""
    return tuple(
        Start(replica=f"q{n}", seen_at=START + s, alive_at=START, silent_since=START + 1) for n, s in enumerate(seconds)
    )


def by_engine(*seconds: float) -> tuple[Start, ...]:
    return tuple(Start(replica=f"e{n}", seen_at=START, engine_seconds=s) for n, s in enumerate(seconds))


def of(starts: Iterable[Start], planned: float | None = None) -> ColdStart:
    found = cold_start(starts, planned)
    assert found is not None
    return found


def numbers(found: ColdStart) -> tuple[float, float, int, str]:
    return found.p50_seconds, found.p95_seconds, found.count, found.source


TWENTY = timed(*(float(n) for n in range(1, ENOUGH + 1)))


def test_from_twenty_starts_on_the_measured_p95_is_the_lead_whatever_the_plan_says() -> None:
    for planned in (5.0, 600.0):
        assert numbers(of(TWENTY, planned)) == (10.0, 19.0, 20, "measured")
    assert of(TWENTY, 600.0).sentence == "20 starts, measured: P50 10 s, P95 19 s; the plan has 600 s"
    assert of(TWENTY).sentence == "20 starts, measured: P50 10 s, P95 19 s; the plan has no cold_start_seconds"


def test_with_fewer_the_p95_is_the_slowest_and_the_larger_of_it_and_the_plan_leads() -> None:
    few = timed(50.6, 26.8, 35.3)
    found = of(few, 40.0)
    assert numbers(found) == (pytest.approx(35.3), pytest.approx(50.6), 3, "measured")
    assert found.sentence == "3 starts, measured: P50 35.3 s, the slowest 50.6 s; the plan has 40 s"
    found = of(few, 60.0)
    assert numbers(found) == (pytest.approx(35.3), 60.0, 3, "plan")
    assert found.measured_p95_seconds == pytest.approx(50.6)
    assert found.sentence == (
        "3 starts, measured: P50 35.3 s, the slowest 50.6 s; the plan's 60 s are the lead until 20 starts are known"
    )
    assert of(TWENTY[1:], 600.0).source is Source.PLAN


def test_one_start_is_said_to_be_one() -> None:
    assert of(timed(50.6)).sentence == "one start, measured: 50.6 s; the plan has no cold_start_seconds"


def test_without_any_start_the_plan_is_the_lead_and_without_a_plan_nothing_is() -> None:
    found = of((), 120.0)
    assert numbers(found) == (120.0, 120.0, 0, "plan")
    assert (found.measured_p95_seconds, found.sentence) == (
        None,
        "no start was seen yet: the plan's 120 s are the lead",
    )
    assert cold_start((), None) is None


def test_upper_bounds_count_as_such() -> None:
    found = of((*timed(30.0), *bounded(95.0)))
    assert numbers(found) == (30.0, 95.0, 2, "measured")
    assert "2 starts, measured: P50 30 s, the slowest 95 s (1 of them at most, by the scrapes around)" in found.sentence
    assert "(all of them at most" in of(bounded(95.0, 80.0)).sentence


def test_what_engines_say_of_themselves_never_undercuts_the_plan_and_gives_way_to_what_was_measured() -> None:
    assert numbers(of(by_engine(31.0, 12.0))) == (12.0, 31.0, 2, "engine")
    many = by_engine(*(31.0 + n for n in range(ENOUGH + 5)))
    found = of(many, 600.0)
    assert (found.p95_seconds, found.source) == (600.0, Source.PLAN)
    assert found.sentence.endswith("; the plan's 600 s are the lead for that leaves out what came before")
    assert of(many, 40.0).source is Source.ENGINE
    assert numbers(of((*by_engine(300.0), *timed(50.0)))) == (50.0, 50.0, 1, "measured")
