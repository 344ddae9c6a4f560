"""PrefixRoutingBroken: three replicas that hold their prefixes (hits 0.9, 54:84:72 requests a minute), then lose them.

Dealt out in turn each gets 70 requests a minute. One replica's rate divided by three is 0.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from judging_samples import context, minute, seen
from recorded import replayed
from rule_cases import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED, Case, judge, outcome, words

from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
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


def spread(hits: float, length: float = 500.0, preemptions: float = 0.0, after: int = 3) -> dict[str, list[Window]]:
    """Dealt out in turn, at such a hit rate."""
    return fleet(lambda n, name: asked(n, 70, hits, length, preemptions), after=after)


def recovered() -> dict[str, list[Window]]:
    return fleet(lambda n, name: asked(n, 70, 0.9 if n == 13 else 0.1), after=5)


def restarted(number: int, name: str) -> Window:
    one = broken(number, name)
    return replace(one, counters={**one.counters, "restarts": 1.0 if number == 1 else 0.0})


def repeated(number: int, name: str) -> Window:
    once = broken(number, name)
    return replace(once, counters={**once.counters, "prompt_tokens": once.counters["prefix_queried_tokens"] / 9})


def beside_a_new_one(warm_minutes: int) -> dict[str, list[Window]]:
    """Two replicas, of which the second answers first in minute 10 and is cold for four minutes."""
    old = [asked(n, 54, 0.9) for n in range(10)]
    unseen = [gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in old]
    hot, cold = ([asked(n, 35, hits) for n in range(10, 14)] for hits in (0.9, 0.05))
    warm = [asked(n, 35, 0.3) for n in range(14, 14 + warm_minutes)]
    return {"a": old + hot + warm, "b": unseen + cold + warm}


def looked_up(tokens: float, rps: float = 3.0) -> list[Window]:
    return [minute(n, rps=rps, counters={"prefix_queried_tokens": tokens, "prefix_hit_tokens": 0.0}) for n in range(5)]


def planned(hits: float) -> TierContext:
    return context(workload={"prefix_hit_ratio": hits})


HEALTHY = fleet(lambda n, name: asked(n, BEFORE[name], 0.9))
SHARES_STAY = fleet(lambda n, name: asked(n, BEFORE[name], 0.35))
ONE_KEEPS = fleet(lambda n, name: asked(n, 70, 0.85 if name == "b" else 0.1))
UNEVEN = fleet(lambda n, name: asked(n, {"a": 30, "b": 110, "c": 70}[name], 0.35))
ALWAYS_LOW = {name: [asked(n, 70, 0.3) for n in range(10)] for name in BEFORE}
BENCHMARKED = context(*({"prefix_hit_ratio": 0.9} for _ in range(3)))
STRICT = context(limits={RULE: {"points": 0.5}})
LOST = (
    "Prefix hits are 35% over 3 replicas, 90% before; every replica lost hits; "
    "30% are left when any replica gets any prompt; each replica gets 33% to 33% of the requests"
)
AS_BEFORE = "prefix hits are 30% over 3 replicas, as before; the plan has no hit rate of one replica"
CHANGED, OTHER_LENGTH = "so prompts or caches changed", "prompts changed, their mean length"

CASES = [
    Case("dealt out in turn", PLAIN, fleet(broken), WARNED, LOST),
    Case("the shares stay", PLAIN, SHARES_STAY, GUESSED),
    Case("always dealt out in turn", PLAIN, fleet(broken, names=IN_TURN), GUESSED),
    Case("no past, a plan", planned(0.9), fleet(broken, before=0), GUESSED, "90% in the plan"),
    Case("no past, a benchmark", BENCHMARKED, fleet(broken, before=0), GUESSED, "90% in the benchmark"),
    Case("the past is better", planned(0.7), fleet(broken), WARNED, "90% before"),
    Case("the plan is better", planned(0.98), fleet(broken), GUESSED, "98% in the plan"),
    Case("within half above a third", PLAIN, spread(0.44), WARNED),
    Case("above it", PLAIN, spread(0.46), FINE, CHANGED),
    Case("within a third below it", PLAIN, spread(0.21), WARNED),
    Case("below it", PLAIN, spread(0.19), FINE, CHANGED),
    Case("51 points lost", STRICT, spread(0.39), WARNED),
    Case("49 points lost", STRICT, spread(0.41), FINE),
    Case("two minutes", PLAIN, spread(0.1, after=2), FINE, "not lost in each"),
    Case("a good minute", PLAIN, recovered(), FINE, "not lost in each"),
    Case("less than routing leaves", PLAIN, spread(0.0), FINE, "routing alone would leave about 30%"),
    Case("a little longer", PLAIN, spread(0.35, 590.0), WARNED),
    Case("longer prompts", PLAIN, spread(0.35, 610.0), FINE, OTHER_LENGTH),
    Case("shorter prompts", PLAIN, spread(0.35, 410.0), FINE, OTHER_LENGTH),
    Case("one keeps its hits", PLAIN, ONE_KEEPS, FINE, "; not lost on b"),
    Case("evictions", PLAIN, spread(0.35, preemptions=0.06), FINE, "the KV cache has no room"),
    Case("few evictions", PLAIN, spread(0.35, preemptions=0.04), WARNED),
    Case("an uneven spread", PLAIN, UNEVEN, FINE, "not spread evenly"),
    Case("one replica", PLAIN, fleet(broken, names={"a": 54}), FINE, "One replica"),
    Case("a new replica is cold", PLAIN, beside_a_new_one(0), FINE, "One replica"),
    Case("and warm later", PLAIN, beside_a_new_one(11), WARNED),
    Case("restarted replicas", PLAIN, fleet(restarted, before=1, after=4), EARLY),
    Case("healthy", PLAIN, HEALTHY, FINE, "Prefix hits are 90% over 3 replicas, 90% before; not lost"),
    Case("healthy by the plan", planned(0.95), HEALTHY, FINE, "in the plan; not lost"),
    Case("always low", bare("t", None), ALWAYS_LOW, UNPLANNED, AS_BEFORE),
    Case("lookups again", PLAIN, fleet(repeated), Gap.CONTRADICTORY, "more prefix cache lookups than prompt tokens"),
    Case("few requests", PLAIN, fleet(lambda n, name: asked(n, 5, 0.35)), EARLY, "45 requests of warm replicas"),
    Case("not measured", PLAIN, [minute(n) for n in range(5)], HIDDEN),
    Case("off", PLAIN, looked_up(0.0), HIDDEN, "it is off"),
    Case("idle", PLAIN, looked_up(0.0, rps=0.0), UNSEEN),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prefix_hits_by_routing(case: Case) -> None:
    found = judge(RULE, case)
    if case.wanted == FINE:
        assert found.status is Status.OK, found
    else:
        assert outcome(found) == case.wanted, found
    assert case.text in words(found)


@pytest.mark.parametrize(("rule", "text"), [(RULE, "97% before"), ("TtftDivergence", "First suspect: ")])
def test_round_robin_is_found(rule: str, text: str) -> None:
    """Hit rate 0.974, then 0.408, by the clients. Late first tokens are the routing's too."""
    found = next(s.result for s in replayed("routing", "cpu-small-open").rule_states if s.result.rule == rule)
    assert isinstance(found, Verdict)
    assert outcome(found) == WARNED
    assert text in found.sentence_with_suspect()
    assert rule == RULE or found.causes[0].cause == "routing"
