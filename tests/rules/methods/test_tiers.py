"""MixedTierLoadBalancing: a fast tier of usable 6 rps a replica and a slow one of 2, by their plans, of one model.

Requests follow the tiers where the fast one gets three times as many a replica; half way, by logarithm, is 1.73 times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import recorded
import yaml
from judging_samples import START, each, minute, minutes, seen, tier
from prose import explain

from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.evaluator import tier_rules
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import parse_plan
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.finding import Finding
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

RULE = "MixedTierLoadBalancing"


def context(name: str, usable: float | None, model: str = "m", **limits: float) -> TierContext:
    parts = {"model": model, "gpu": {"product": "A", "per_replica": 1}, "engine": "vllm"}
    whole: dict[str, Any] = {**parts, "slo": {"ttft_p99_seconds": 2.0}}
    if usable is not None:
        whole["operating_point"] = {"usable_rps": usable, "c_max": 8}
    plan = parse_plan({"schema": 1, "tiers": {name: whole}}).tiers[name]
    return view_of(name, plan, limits={RULE: limits} if limits else None)


FAST, SLOW = context("fast", 6.0), context("slow", 2.0)


def served(number: int, rps: float, seconds: float = 0.08, prompt: float = 100.0, out: float = 100.0) -> Window:
    lengths = {"prompt_tokens_per_request": prompt, "generation_tokens_per_request": out}
    histograms = dict.fromkeys(("ttft_seconds", "tpot_seconds"), seen({seconds: rps * 60}))
    histograms |= {family: seen({value: rps * 60}, (1000.0, 10000.0)) for family, value in lengths.items()}
    return minute(number, rps=rps, histograms=histograms)


def judged(
    fast: Callable[[int], Window],
    slow: Callable[[int], Window],
    *,
    contexts: tuple[TierContext, ...] = (FAST, SLOW),
    replicas: int = 1,
    count: int = 5,
    about: int = 1,
) -> RuleResult:
    """What the rule says of one of the two tiers; the fast one has so many replicas alike."""
    booked = {
        contexts[0].name: minutes(contexts[0], {f"f{n}": each(count, fast) for n in range(replicas)}),
        contexts[1].name: minutes(contexts[1], {"s": each(count, slow)}),
    }
    fleet = {each_view.name: (each_view, booked[each_view.name].binned) for each_view in contexts}
    own = contexts[about]
    results = tier_rules.evaluate_tier_rules(booked[own.name], own, START + 60 * count, fleet)
    return next(a for a in results if a.rule == RULE)


def told(*args: Any, **more: Any) -> Verdict:
    found = judged(*args, **more)
    assert isinstance(found, Verdict), found
    return found


def unknown(*args: Any, **more: Any) -> Unknown:
    found = judged(*args, **more)
    assert isinstance(found, Unknown), found
    return found


# --- it fires


def test_equal_share_names_slower_tier() -> None:
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0, seconds=0.4))
    assert (found.status, found.certainty, found.subject.tier) == (Status.WARNING, Certainty.CERTAIN, "slow")
    assert explain(found) == ("Each replica of slow gets 2 rps, of fast 2 rps; usable are 2 and 6 by the plan")
    assert found.observed.value == pytest.approx(0.5)  # type: ignore[union-attr]
    assert found.expected.value == pytest.approx(0.25)  # type: ignore[union-attr]


def test_the_faster_tier_is_fine_meanwhile() -> None:
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0), about=0)
    assert (found.status, found.sentence) == (
        Status.OK,
        "No tier of m is much faster than fast; usable are 6 and 2 by the plan (slow)",
    )


def test_shares_count_by_replica() -> None:
    """A round robin over seven fast replicas and a slow one (guide 9.5) gives the slow tier an eighth."""
    assert told(lambda n: served(n, 2.0), lambda n: served(n, 2.0), replicas=7).status is Status.WARNING
    assert told(lambda n: served(n, 2.0), lambda n: served(n, 0.67), replicas=7).status is Status.OK


@pytest.mark.parametrize(("rps", "status"), [(1.7, Status.WARNING), (1.76, Status.OK), (0.5, Status.WARNING)])
def test_share_must_be_near_equal(rps: float, status: Status) -> None:
    assert told(lambda n: served(n, rps), lambda n: served(n, 1.0)).status is status


@pytest.mark.parametrize(("usable", "status"), [(2.61, Status.WARNING), (2.59, Status.OK)])
def test_the_tiers_must_be_unequal(usable: float, status: Status) -> None:
    contexts = (context("fast", usable), SLOW)
    assert told(lambda n: served(n, 2.0), lambda n: served(n, 2.0), contexts=contexts).status is status


@pytest.mark.parametrize("good", [2, 3, 4])
def test_each_last_minute_must_show_it(good: int) -> None:
    assert told(lambda n: served(n, 3.0 if n == good else 1.0), lambda n: served(n, 1.0)).status is Status.OK


def test_earlier_minutes_are_over() -> None:
    assert told(lambda n: served(n, 3.0 if n < 2 else 1.0), lambda n: served(n, 1.0)).status is Status.WARNING


def test_tier_limits_can_be_set() -> None:
    contexts = (FAST, context("slow", 2.0, unequal=3.1))
    assert told(lambda n: served(n, 2.0), lambda n: served(n, 2.0), contexts=contexts).status is Status.OK


# --- how sure


def test_given_points_count_as_measured() -> None:
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert "P99" not in explain(found)


def swept(name: str, top: float) -> TierContext:
    """A tier whose benchmark never broke the objective: its usable rps is a lower bound."""
    changes = [{"completed_rps": top * part} for part in (0.3, 0.6, 1.0)]
    return view_of(name, tier(*changes))


def test_bounded_points_need_latency() -> None:
    contexts = (swept("fast", 6.0), swept("slow", 2.0))
    found = told(lambda n: served(n, 1.0), lambda n: served(n, 1.0), contexts=contexts)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    found = told(lambda n: served(n, 1.0), lambda n: served(n, 1.0, seconds=0.4), contexts=contexts)
    assert found.certainty is Certainty.CERTAIN


def test_latency_tells_slower_tier() -> None:
    contexts = (context("fast", None), context("slow", None))
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0, seconds=0.4), contexts=contexts)
    assert found.status is Status.WARNING
    assert "output tokens take 0.4 and 0.08 s on average" in found.sentence


def test_overfed_tier_may_be_slow() -> None:
    contexts = (context("fast", None), context("slow", None))
    assert told(lambda n: served(n, 1.0), lambda n: served(n, 4.0, seconds=0.4), contexts=contexts).status is Status.OK


# --- what is no mistake


@pytest.mark.parametrize(("prompt", "status"), [(140.0, Status.WARNING), (160.0, Status.OK), (60.0, Status.OK)])
def test_length_routing_is_asked_for(prompt: float, status: Status) -> None:
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0, prompt=prompt))
    assert found.status is status
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0, out=prompt))
    assert found.status is status
    assert status is Status.WARNING or found.sentence == "Requests are given to fast and slow by their lengths"


def test_tiers_of_other_models_are_nobodys_business() -> None:
    found = told(lambda n: served(n, 2.0), lambda n: served(n, 2.0), contexts=(context("fast", 6.0, model="x"), SLOW))
    assert (found.status, found.sentence) == (Status.OK, "No other tier of m is watched")


# --- what cannot be known


def test_without_a_plan_nobody_knows_the_model() -> None:
    found = unknown(lambda n: served(n, 2.0), lambda n: served(n, 2.0), contexts=(FAST, view_of("slow", None)))
    assert found.reason is Gap.NOT_IN_PLAN


def test_few_requests_share_by_chance() -> None:
    few = unknown(lambda n: served(n, 0.16), lambda n: served(n, 0.16))
    assert few.reason is Gap.TOO_FEW_REQUESTS
    assert told(lambda n: served(n, 0.17), lambda n: served(n, 0.17)).status is Status.WARNING


def test_lonely_minutes_do_not_count() -> None:
    def seldom(number: int) -> Window:
        at = START + 60 * number
        return gap_window(at, at + 60, Gap.SCRAPE_FAILED) if number < 3 else served(number, 2.0)

    assert unknown(seldom, lambda n: served(n, 2.0)).reason is Gap.TOO_FEW_REQUESTS


def test_undecided_speed_is_said() -> None:
    def bare(number: int) -> Window:
        return minute(number, rps=2.0, histograms={"ttft_seconds": (), "tpot_seconds": ()})

    found = unknown(bare, bare, contexts=(context("fast", None), context("slow", None)))
    assert found.text == "no 3 minutes with traffic on both, or no speeds to compare; others of the model: fast"


def test_unseen_tier_failed_scrape() -> None:
    def down(number: int) -> Window:
        return gap_window(START + 60 * number, START + 60 * (number + 1), Gap.SCRAPE_FAILED)

    assert unknown(lambda n: served(n, 2.0), down).reason is Gap.SCRAPE_FAILED


# --- the recording: 80 and 20 of a hundred, then half and half


@functools.cache
def replayed() -> Replay:
    recording, problems = load(recorded.folder("mixed_tier"))
    assert problems == ()
    text = (recorded.PLANS / "mixed-tier.yaml").read_text(encoding="utf-8")
    return replay(recording, parse_plan(yaml.safe_load(text)))


SECOND_HALF = 1795204028.963


def test_recording_names_slow_tier() -> None:
    found = {s.result.subject.tier: s for s in replayed().rule_states if s.result.rule == RULE}
    slow = found["cpu-slow"]
    assert isinstance(slow.result, Verdict)
    assert (slow.result.status, slow.result.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert slow.finding is not None
    assert slow.finding.started_at > SECOND_HALF
    assert explain(slow.result) == (
        "Each replica of cpu-slow gets 1.39 rps, of cpu-fast 1.55 rps; usable are 0.62 and 2.49 by the plan"
    )
    assert not [e for e in replayed().ended if e.rule == RULE and isinstance(e, Finding)]
    assert found["cpu-fast"].finding is None
