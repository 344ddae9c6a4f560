"""PrefixRoutingBroken: three replicas that hold their prefixes (hits 0.9, 54:84:72 requests a minute), then lose them.

Dealt out in turn each gets 70 requests a minute. One replica's rate divided by three is 0.3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import recorded
import yaml
from judging_samples import context, minute, seen, unknown, verdict
from prose import explain

from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.plan.schema import parse_plan
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import Status, Verdict

RULE = "PrefixRoutingBroken"
BEFORE = {"a": 54, "b": 84, "c": 72}
IN_TURN = dict.fromkeys(BEFORE, 70)
PLAIN = context()


def asked(number: int, requests: float, hits: float, length: float = 500.0, preemptions: float = 0.0) -> Window:
    tokens = requests * length
    return minute(
        number,
        rps=requests / 60,
        counters={
            "prefix_queried_tokens": tokens,
            "prefix_hit_tokens": hits * tokens,
            "preemptions": preemptions * requests,
        },
        histograms={"prompt_tokens_per_request": seen({length: requests}, (100.0, 1000.0, 10000.0))},
    )


def fleet(
    now: Callable[[int, str], Window], before: int = 10, after: int = 3, names: Mapping[str, int] = BEFORE
) -> dict[str, list[Window]]:
    """`before` healthy minutes, then `after` that are made by number and replica."""
    return {
        name: [asked(n, requests, 0.9) for n in range(before)] + [now(n, name) for n in range(before, before + after)]
        for name, requests in names.items()
    }


def broken(number: int, name: str) -> Window:
    return asked(number, IN_TURN[name], 0.35)


def ok_text(replicas: Mapping[str, list[Window]], plan: TierContext = PLAIN) -> str:
    found = verdict(RULE, plan, replicas)
    assert found.status is Status.OK, found
    return found.sentence


# --- it fires


def test_common_fall_is_the_routing() -> None:
    found = verdict(RULE, PLAIN, fleet(broken))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Prefix hits are 35% over 3 replicas, 90% before; every replica lost hits; "
        "30% are left when any replica gets any prompt; "
        "each replica gets 33% to 33% of the requests"
    )
    assert found.actions


def test_moved_shares_make_it_certain() -> None:
    found = verdict(RULE, PLAIN, fleet(lambda n, name: asked(n, BEFORE[name], 0.35)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_old_round_robin_is_no_evidence() -> None:
    found = verdict(RULE, PLAIN, fleet(broken, names=IN_TURN))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (context(workload={"prefix_hit_ratio": 0.9}), "90% in the plan"),
        (context(*({"prefix_hit_ratio": 0.9} for _ in range(3))), "90% in the benchmark"),
    ],
)
def test_plan_stands_for_the_past(plan: TierContext, words: str) -> None:
    found = verdict(RULE, plan, fleet(broken, before=0))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert words in found.sentence


def test_better_expectation_is_compared() -> None:
    assert "90% before" in verdict(RULE, context(workload={"prefix_hit_ratio": 0.7}), fleet(broken)).sentence
    assert "98% in the plan" in verdict(RULE, context(workload={"prefix_hit_ratio": 0.98}), fleet(broken)).sentence


# --- just below, and too early


@pytest.mark.parametrize(
    ("hits", "status"), [(0.44, Status.WARNING), (0.46, Status.OK), (0.21, Status.WARNING), (0.19, Status.OK)]
)
def test_rate_must_match_even_split(hits: float, status: Status) -> None:
    found = verdict(RULE, PLAIN, fleet(lambda n, name: asked(n, 70, hits)))
    assert found.status is status
    assert status is Status.WARNING or "so prompts or caches changed" in found.sentence


@pytest.mark.parametrize(("hits", "status"), [(0.39, Status.WARNING), (0.41, Status.OK)])
def test_so_many_points_must_be_lost(hits: float, status: Status) -> None:
    strict = context(limits={RULE: {"points": 0.5}})
    assert verdict(RULE, strict, fleet(lambda n, name: asked(n, 70, hits))).status is status


def test_two_minutes_are_not_enough() -> None:
    assert "not lost in each" in ok_text(fleet(lambda n, name: asked(n, 70, 0.1), after=2))


def test_good_minute_ends_it() -> None:
    assert "not lost in each" in ok_text(fleet(lambda n, name: asked(n, 70, 0.9 if n == 13 else 0.1), after=5))


# --- what is not the routing


def test_changed_prompts_leave_less_than_routing_would() -> None:
    assert "routing alone would leave about 30%" in ok_text(fleet(lambda n, name: asked(n, 70, 0.0)))


@pytest.mark.parametrize(("length", "status"), [(590.0, Status.WARNING), (610.0, Status.OK), (410.0, Status.OK)])
def test_prompts_of_another_length_changed(length: float, status: Status) -> None:
    found = verdict(RULE, PLAIN, fleet(lambda n, name: asked(n, 70, 0.35, length)))
    assert found.status is status
    assert status is Status.WARNING or "prompts changed, their mean length" in found.sentence


def test_partial_loss_is_no_routing() -> None:
    text = ok_text(fleet(lambda n, name: asked(n, 70, 0.85 if name == "b" else 0.1)))
    assert text.endswith("; not lost on b")


def test_evictions_explain_lost_hits() -> None:
    assert "the KV cache has no room" in ok_text(fleet(lambda n, name: asked(n, 70, 0.35, preemptions=0.06)))
    kept = fleet(lambda n, name: asked(n, 70, 0.35, preemptions=0.04))
    assert verdict(RULE, PLAIN, kept).status is Status.WARNING


def test_uneven_spread_is_a_choice() -> None:
    uneven = {"a": 30, "b": 110, "c": 70}
    assert "not spread evenly" in ok_text(fleet(lambda n, name: asked(n, uneven[name], 0.35)))


def test_one_replica_has_no_routing_to_break() -> None:
    assert "One replica" in ok_text(fleet(broken, names={"a": 54}))


def test_cold_replica_waits_to_count() -> None:
    old = fleet(lambda n, name: asked(n, 70, 0.9), after=0, names={"a": 54})["a"]
    later = [asked(n, 35, 0.9) for n in range(10, 14)]
    cold = [gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in old] + [asked(n, 35, 0.05) for n in range(10, 14)]
    assert "One replica" in ok_text({"a": old + later, "b": cold})
    warm = [asked(n, 35, 0.3) for n in range(14, 25)]
    assert verdict(RULE, PLAIN, {"a": old + later + warm, "b": cold + warm}).status is Status.WARNING


def test_restarted_replicas_are_cold_too() -> None:
    def restarted(number: int, name: str) -> Window:
        one = broken(number, name)
        return replace(one, counters={**one.counters, "restarts": 1.0 if number == 1 else 0.0})

    assert unknown(RULE, PLAIN, fleet(restarted, before=1, after=4)).reason is Gap.TOO_FEW_REQUESTS


def test_healthy_routing_is_fine() -> None:
    healthy = fleet(lambda n, name: asked(n, BEFORE[name], 0.9))
    assert ok_text(healthy) == "Prefix hits are 90% over 3 replicas, 90% before; not lost"
    assert "in the plan; not lost" in ok_text(healthy, context(workload={"prefix_hit_ratio": 0.95}))


# --- what cannot be known


def test_always_low_rate_is_unknown() -> None:
    found = unknown(RULE, bare("t", None), {n: [asked(m, 70, 0.3) for m in range(10)] for n in BEFORE})
    assert found.reason is Gap.NOT_IN_PLAN
    assert found.text == "prefix hits are 30% over 3 replicas, as before; the plan has no hit rate of one replica"


def test_repeated_lookups_blame_no_routing() -> None:
    def repeated(number: int, name: str) -> Window:
        once = broken(number, name)
        return replace(once, counters={**once.counters, "prompt_tokens": once.counters["prefix_queried_tokens"] / 9})

    found = unknown(RULE, PLAIN, fleet(repeated))
    assert found.reason is Gap.CONTRADICTORY
    assert found.text.startswith("the engine counts more prefix cache lookups than prompt tokens")


def test_few_requests_are_named() -> None:
    found = unknown(RULE, PLAIN, fleet(lambda n, name: asked(n, 5, 0.35)))
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "45 requests of warm replicas lately, 50 are needed")


def test_unseen_hits_are_not_exposed() -> None:
    assert unknown(RULE, PLAIN, [minute(n) for n in range(5)]).reason is Gap.NOT_EXPOSED
    off = [minute(n, counters={"prefix_queried_tokens": 0.0, "prefix_hit_tokens": 0.0}) for n in range(5)]
    assert "it is off" in unknown(RULE, PLAIN, off).text


def test_no_traffic_is_no_traffic() -> None:
    idle = [minute(n, rps=0.0, counters={"prefix_queried_tokens": 0.0, "prefix_hit_tokens": 0.0}) for n in range(5)]
    assert unknown(RULE, PLAIN, idle).reason is Gap.NO_TRAFFIC


# --- recordings


@functools.cache
def replayed(name: str, plan: str = "cpu-small-open") -> Replay:
    recording, _ = load(recorded.folder(name))
    text = (recorded.PLANS / f"{plan}.yaml").read_text(encoding="utf-8")
    return replay(recording, parse_plan(yaml.safe_load(text)))


def result(name: str) -> Verdict:
    found = next(s.result for s in replayed(name).rule_states if s.result.rule == RULE)
    assert isinstance(found, Verdict)
    return found


def test_round_robin_is_found() -> None:
    """Hit rate 0.974, then 0.408, by the clients."""
    found = result("routing")
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert "97% before" in found.sentence


def test_late_token_blames_routing() -> None:
    found = next(s.result for s in replayed("routing").rule_states if s.result.rule == "TtftDivergence")
    assert isinstance(found, Verdict)
    assert found.causes[0].cause == "routing"


@pytest.mark.parametrize("name", ["prefix", "scale_up_cold_cache", "steady"])
def test_changed_or_cold_is_not_routing(name: str) -> None:
    assert result(name).status is Status.OK
    assert not [e for e in replayed(name).ended if e.rule == RULE and hasattr(e, "worst")]
