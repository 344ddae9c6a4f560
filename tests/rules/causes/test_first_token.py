"""What late first tokens waited for: 180 requests a minute, 0.26 s promised, 20 of them late."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, verdict

from rules.confidence import Certainty
from rules.plan.load_bins import TierContext
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Cause, Verdict

BURN = "TtftSloBurn"


def tier(**more: Any) -> TierContext:
    return context(slo={"ttft_p99_seconds": 0.26, "tpot_p99_seconds": 0.26}, **more)


def late(number: int, queue: float | None = None, prefill: float | None = None, **more: Any) -> Window:
    """A minute with 40 late first tokens; `queue` and `prefill` of all requests took longer than the promise alone."""
    made = minute(number, slow=40, **more)
    parts = {"queue_seconds": queue, "prefill_seconds": prefill}
    known: Mapping[str, Any] = {name: seen({0.4: n, 0.01: 180 - n}) for name, n in parts.items() if n is not None}
    return replace(made, histograms={**made.histograms, **known})


def found(by: TierContext | None = None, **parts: Any) -> Verdict:
    return verdict(BURN, by or tier(), each(20, lambda n: late(n, **parts)))


def cause(made: Verdict, name: str) -> Cause | None:
    return next((one for one in made.causes if one.cause == name), None)


CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def deferred(level: float) -> dict[str, Any]:
    return {"queue": 0.0, "prefill": 0.0, "gauges": {"requests_waiting_deferred": gauge(level)}}


@pytest.mark.parametrize(
    ("parts", "name", "certainty"),
    [
        ({"queue": 38.0, "prefill": 0.0, "waiting": 2.0, "in_system": 5.0}, "queueing", CERTAIN),
        ({"queue": 38.0, "prefill": 0.0, "waiting": 2.0, "in_system": 5.0}, "prefill", None),
        ({"queue": 0.0, "prefill": 30.0}, "prefill", CERTAIN),
        ({"queue": 0.0, "prefill": 30.0}, "queueing", None),
        *(({"queue": 10.0, "prefill": 10.0}, name, LIKELY) for name in ("queueing", "prefill")),
        # Nobody notices a hundredth.
        *(({"queue": 1.9, "prefill": 1.9}, name, None) for name in ("queueing", "prefill")),
        ({"queue": 2.1, "prefill": 0.0}, "queueing", LIKELY),
        # Requests that are held back are compared with the promise.
        (deferred(0.06), "adapters held back", CERTAIN),
        (deferred(0.03), "adapters held back", None),
    ],
)
def test_what_late_first_tokens_waited_for(parts: dict[str, Any], name: str, certainty: Certainty | None) -> None:
    suspect = cause(found(**parts), name)
    assert (suspect and suspect.certainty) == certainty


def test_queue_time_is_the_evidence() -> None:
    queueing = cause(found(queue=38.0, prefill=0.0), "queueing")
    assert "requests spent more than 260 ms in the queue alone" in queueing.evidence[0]


def test_exclusions_point_to_machine() -> None:
    made = found(queue=0.0, prefill=0.0)
    machine = cause(made, "slower machine")
    assert any(
        "not queueing: 0 requests spent more than 260 ms in the queue alone; 600 were late" in text
        for text in machine.evidence
    )
    assert any(text.startswith("not prefill: ") for text in machine.evidence)


def test_one_request_is_not_several() -> None:
    made = each(20, lambda n: late(n, queue=1.0 if n == 19 else 0.0, prefill=0.0))
    told = [text for one in verdict(BURN, tier(), made).causes for text in (*one.evidence, *one.against)]
    assert "not queueing: 1 request spent more than 260 ms in the queue alone; 600 were late" in " ".join(told)


def test_queue_gauge_stands_for_histograms() -> None:
    made = found(waiting=2.0, in_system=5.0)
    queueing = cause(made, "queueing")
    assert queueing.certainty is Certainty.LIKELY
    assert queueing.evidence == ("queueing: 2 requests waiting a replica on average",)
    assert made.causes[0].against[0].endswith("throttling, prefill")


def test_stepless_engine_is_first_suspect() -> None:
    held = {"requests_held": gauge(7.0)}
    made = verdict(BURN, tier(), each(20, lambda n: late(n, gauges=held if n > 10 else {})))
    assert made.causes[0].cause == "engine stopped"
    assert made.causes[0].certainty is Certainty.CERTAIN
    assert "(it holds 7 requests)" in made.causes[0].evidence[0]
    assert cause(found(), "engine stopped") is None


THROTTLED = {
    "gpu_throttled_power_seconds": 0.0,
    "gpu_throttled_thermal_seconds": 0.0,
    "gpu_throttled_hardware_seconds": 0.0,
    "gpu_throttled_covered_seconds": 60.0,
}


def throttled(**seconds: float) -> Verdict:
    counters = {**THROTTLED, **{f"gpu_throttled_{what}_seconds": value for what, value in seconds.items()}}
    return verdict(BURN, tier(), each(20, lambda n: late(n, queue=0.0, prefill=0.0, counters=counters)))


@pytest.mark.parametrize(
    ("what", "word", "certainty"),
    [
        ("thermal", "heat", Certainty.CERTAIN),
        ("hardware", "the board", Certainty.CERTAIN),
        ("power", "the power limit", Certainty.LIKELY),
    ],
)
def test_held_clocks_are_a_cause(what: str, word: str, certainty: Certainty) -> None:
    one = cause(throttled(**{what: 12.0}), "throttling")
    assert one.certainty is certainty
    assert one.evidence == (f"throttling: clocks were held down by {word} 20% of the time",)
    assert cause(throttled(**{what: 2.9}), "throttling") is None


def test_throttling_precedes_power_limit() -> None:
    one = cause(throttled(power=50.0, thermal=6.0), "throttling")
    assert "by heat 10%" in one.evidence[0]


def test_free_clocks_are_excluded() -> None:
    machine = cause(throttled(power=1.2), "slower machine")
    assert "not throttling: clocks were held down by the power limit 2% of the time" in machine.evidence
    assert "throttling" in found(queue=0.0).causes[0].against[0]


def test_overload_breaks_the_promise() -> None:
    usable = tier().capacity.rps
    assert usable is not None
    made = verdict(BURN, tier(), each(20, lambda n: minute(n, rps=usable * 1.2, slow=200)))
    one = cause(made, "more load")
    assert one.certainty is Certainty.CERTAIN
    less = verdict(BURN, tier(), each(20, lambda n: minute(n, rps=usable * 0.9, slow=200)))
    assert cause(less, "more load") is None
