from __future__ import annotations

from dataclasses import replace
from typing import Any

from judging_samples import context, each, gauge, minute, unknown, verdict
from prose import explain

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Unknown, Verdict

RULE = "AdapterCachePressure"
TWO_FIT = context(lora={"max_adapters": 2})
UNCOUNTED = "how often adapters are loaded is not exposed"


def serving(number: int, held: float | None = 0.0, running: float = 1.0, waiting: float = 0.0, **more: Any) -> Window:
    """A minute with so many requests held back on average; 3 requests a second finish, so 0.6 held are 0.2 s each."""
    gauges = {"adapters_running": gauge(running), "adapters_waiting": gauge(waiting)}
    if held is not None:
        gauges["requests_waiting_deferred"] = gauge(held)
    return minute(number, gauges=gauges, **more)


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def test_requests_held_back_for_a_tenth_of_the_objective_are_pressure() -> None:
    found = verdict(RULE, TWO_FIT, each(6, lambda n: serving(n, held=0.61, running=2.0)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Requests wait 203 ms for adapter slots on average; up to 200 ms is healthy; "
        "at most 2 adapters ran at once, 2 fit; "
        "how often adapters are loaded is not exposed"
    )
    assert found.actions[0].startswith("Give adapters more places")


def test_less_than_that_is_not_known_to_be_healthy_for_nobody_counts_loads() -> None:
    found = unknown(RULE, TWO_FIT, each(6, lambda n: serving(n, held=0.6)))
    assert found.reason is Gap.NOT_EXPOSED
    assert found.text == f"requests waited 200 ms each, up to 200 ms is healthy; {UNCOUNTED}"


def test_the_limit_follows_the_objective_and_stands_without_a_plan() -> None:
    slow = context(slo={"ttft_p99_seconds": 4.0})
    assert isinstance(unknown(RULE, slow, each(6, lambda n: serving(n, held=1.1))), Unknown)
    assert verdict(RULE, slow, each(6, lambda n: serving(n, held=1.3))).status is Status.WARNING
    assert verdict(RULE, bare("t", None), each(6, lambda n: serving(n, held=0.61))).status is Status.WARNING


def test_a_jam_of_two_minutes_and_one_that_is_over_are_no_finding() -> None:
    jam = verdict(RULE, TWO_FIT, each(6, lambda n: serving(n, held=9.0 if n >= 4 else 0.0)))
    assert said(jam) == (Status.OK, Certainty.LIKELY)
    lasting = verdict(RULE, TWO_FIT, each(6, lambda n: serving(n, held=9.0 if n >= 3 else 0.0)))
    assert lasting.status is Status.WARNING


def test_pressure_that_is_over_ends_its_finding() -> None:
    """Unknown, as it is where nothing was ever held back, would leave an alert firing for good."""
    over = verdict(RULE, TWO_FIT, each(8, lambda n: serving(n, held=1.0 if n < 6 else 0.0)))
    assert said(over) == (Status.OK, Certainty.LIKELY)
    assert explain(over) == (
        "Requests waited 250 ms each, up to 200 ms is healthy; "
        "not lastingly, or no longer; "
        "how often adapters are loaded is not exposed"
    )
    listed = each(8, lambda n: serving(n, held=None, running=2.0, waiting=0.9 if n < 6 else 0.0))
    assert said(verdict(RULE, TWO_FIT, listed)) == (Status.OK, Certainty.LIKELY)


def test_with_a_kv_connector_requests_may_be_held_back_for_blocks_too() -> None:
    loading = each(6, lambda n: serving(n, held=0.61, counters={"external_prefix_queried_tokens": 5.0}))
    found = verdict(RULE, TWO_FIT, loading)
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "Requests wait 203 ms for adapter slots or KV loads on average; up to 200 ms is healthy; "
        "at most 1 adapter ran at once, 2 fit; "
        "how often adapters are loaded is not exposed"
    )
    silent = each(6, lambda n: serving(n, held=0.61, counters={"external_prefix_queried_tokens": 0.0}))
    assert verdict(RULE, TWO_FIT, silent).certainty is Certainty.CERTAIN


def test_without_held_back_requests_as_many_adapters_as_fit_and_others_waiting_are_likely_pressure() -> None:
    full = each(6, lambda n: serving(n, held=None, running=2.0, waiting=0.6))
    found = verdict(RULE, TWO_FIT, full)
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "2 adapters ran at once where 2 fit; requests of 0.6 adapters wait on average; "
        "how often adapters are loaded is not exposed"
    )
    for tier, made in (
        (context(lora={"max_adapters": 3}), full),
        (context(), full),
        (TWO_FIT, each(6, lambda n: serving(n, held=None, running=2.0, waiting=0.5))),
    ):
        told = unknown(RULE, tier, made)
        assert told.reason is Gap.NOT_EXPOSED
        assert told.text == f"no more adapters ran than fit; {UNCOUNTED}"


def test_an_engine_that_does_not_tell_its_adapters_is_not_judged() -> None:
    found = unknown(RULE, TWO_FIT, each(6, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, f"no LoRA adapters are exposed: {UNCOUNTED}")


def test_adapters_that_nobody_uses_are_no_traffic() -> None:
    found = unknown(RULE, TWO_FIT, each(6, lambda n: serving(n, running=0.0)))
    assert (found.reason, found.text) == (Gap.NO_TRAFFIC, "no request with a LoRA adapter was seen")


def test_the_rule_waits_for_its_minimum_of_time_and_requests() -> None:
    assert unknown(RULE, TWO_FIT, each(2, lambda n: serving(n, held=5.0))).text == "120 s seen, 180 s are needed"
    few = unknown(RULE, TWO_FIT, each(4, lambda n: serving(n, held=5.0, rps=0.4)))
    assert few.text == "96 requests, 100 are needed"
    never = evaluate_rule(BY_NAME[RULE], TWO_FIT, (), now=0.0)
    assert isinstance(never, Unknown)
    assert never.reason is Gap.SCRAPE_FAILED


def test_the_tier_is_judged_over_all_its_replicas() -> None:
    jammed = each(6, lambda n: serving(n, held=0.9))
    free = [replace(w, gauges={**w.gauges, "requests_waiting_deferred": gauge(0.0)}) for w in jammed]
    assert isinstance(unknown(RULE, TWO_FIT, {"a": jammed, "b": free}), Unknown)
    assert verdict(RULE, TWO_FIT, {"a": jammed, "b": jammed}).status is Status.WARNING
