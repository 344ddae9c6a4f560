"""ReplicaImbalance by hand and over recordings: three replicas at 3 rps, three requests in the system and 20 ms a token."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from judging_samples import answered, context, gauge, minute, seen
from outcomes import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED, Wanted
from recorded import findings, replayed
from rule_cases import Case, check_result, check_words, judge, judge_cases, list_cases, outcome

from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.methods.evidence import OUTPUTS, PROMPTS
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import RuleResult, Status

RULE = "ReplicaImbalance"
FINE_EDGES = (0.01, 0.02, 0.025, 0.03, 0.05, 100.0, 200.0, 1000.0)


def served(number: float, rps: float = 3.0, token: float = 0.02, in_system: float = 3.0, **more: float) -> Window:
    """A minute of a replica; `prompt` and `output` tokens, `waiting` and levels of gauges by keyword."""
    parts = {"prompt": 100.0, "output": 100.0, **more}
    values = {"tpot_seconds": token, PROMPTS: parts.pop("prompt"), OUTPUTS: parts.pop("output")}
    histograms = {family: seen({value: rps * 60}, FINE_EDGES) for family, value in values.items()}
    load = {"rps": rps, "in_system": in_system, **{name: parts.pop(name, 0.0) for name in ("waiting", "change")}}
    counters = {"generation_tokens": parts.pop("made", 18_000.0)}
    gauges = {name: gauge(value) for name, value in parts.items()}
    return minute(number, **load, histograms=histograms, counters=counters, gauges=gauges)


Odd = Callable[[int], Window]


def judged(
    odd: Odd, minutes: int = 15, since: int = 0, others: Odd = served, pools: Mapping[str, str] | None = None
) -> RuleResult:
    """What the rule says of a replica `odd` (from the minute `since` on) beside two usual ones."""
    fleet = {name: [others(n) for n in range(minutes)] for name in ("b", "c")}
    fleet["a"] = [odd(n) for n in range(since, minutes)]
    return answered(RULE, replace(context(), pools=pools or {}), fleet)


hot, slow = partial(served, rps=6.0, in_system=12.0, waiting=5.0), partial(served, token=0.03, in_system=4.5)
idle, held = partial(served, rps=1.0, in_system=1.0), partial(served, rps=2.0, in_system=12.0, waiting=5.0)
LONE = "a holds 8 requests, its neighbours 1; the router gives them hardly any"
HOT = "a holds 12 requests, its neighbours 3; some wait there while others have room"
FULL = "a has a rank with its KV cache 95.0% full, 50.0% on average; the other ranks have room"
BALANCED = "None of 3 replicas queues, is slow or takes nearly all work alone"
APART, SAME = ({"a": "decode", "b": pool, "c": "prefill"} for pool in ("prefill", "decode"))


@pytest.mark.parametrize(
    ("odd", "more", "wanted", "text"),
    [
        (hot, {}, WARNED, HOT),
        (slow, {}, WARNED, "a takes 30 ms a token, its neighbours 20 ms; with no more and no longer requests"),
        (lambda n: served(n, kv_utilization_max=0.95, kv_utilization=0.5), {}, WARNED, FULL),
        # Fewer requests of more tokens each are more work too.
        (lambda n: served(n, rps=2.0, in_system=12.0, waiting=5.0, prompt=900.0, token=0.03), {}, WARNED, HOT),
        (served, {}, FINE, BALANCED),
        # More requests, and none of them waits.
        (lambda n: served(n, rps=6.0, in_system=12.0), {}, FINE, BALANCED),
        # They wait, and it holds hardly more than the others.
        (lambda n: served(n, rps=4.0, in_system=4.0, waiting=2.0), {}, FINE, BALANCED),
        # It holds more and finishes less: no more work came to it, so something holds it up.
        (held, {}, WARNED, "a holds 12 requests, its neighbours 3; some wait there, with no more and no longer ones"),
        # It finishes less, and more came to it, or longer ones that run still.
        *((partial(held, **more), {}, WARNED, HOT) for more in ({"change": 120.0}, {"made": 22_000.0})),
        # Slower by less than 30 %, or because of more, or of longer requests.
        (lambda n: served(n, token=0.025), {}, FINE, BALANCED),
        (lambda n: served(n, token=0.03, rps=4.0), {}, FINE, BALANCED),
        (lambda n: served(n, token=0.03, output=150.0), {}, FINE, BALANCED),
        (lambda n: served(n, token=0.03, prompt=150.0), {}, FINE, BALANCED),
        # More work in every minute may be why it is slow, or has a queue; less than 10 % more, or in every second, is none.
        *((partial(odd, output=115.0), {}, GUESSED, "hardly more or longer") for odd in (slow, held)),
        (lambda n: slow(n, output=109.0 + 8 * (n % 2)), {}, WARNED, "with no more and no longer"),
        # Every rank is full.
        (lambda n: served(n, kv_utilization_max=0.95, kv_utilization=0.9), {}, FINE, BALANCED),
        # Over by now, and in too few minutes.
        (lambda n: hot(n) if n < 9 else served(n), {}, FINE, BALANCED),
        (lambda n: hot(n) if n > 12 else served(n), {}, FINE, BALANCED),
        (lambda n: hot(n) if n > 8 else served(n), {}, FINE, BALANCED),
        # The load of all: 80 % of it, 79 %, all of it because its requests are longer, and too little to spread.
        (lambda n: served(n, rps=8.0, in_system=8.0), {"others": idle}, WARNED, LONE),
        (lambda n: served(n, rps=8.0, in_system=7.5), {"others": idle}, FINE, BALANCED),
        (lambda n: served(n, rps=1.0, in_system=9.0, output=900.0), {"others": idle}, FINE, BALANCED),
        (lambda n: served(n, in_system=1.9), {"others": lambda n: served(n, 0.0, in_system=0.0)}, FINE, BALANCED),
        # All others have a queue.
        (hot, {"others": lambda n: served(n, in_system=5.0, waiting=2.0)}, FINE, ""),
        # Heads in each of nine throws has a probability of 0.2 %, of ten 0.1 %.
        *((odd, {"minutes": 9}, GUESSED, "") for odd in (hot, slow)),
        *((odd, {"minutes": 10}, WARNED, "") for odd in (hot, slow)),
        # Five minutes after its first: of four minutes none is left, of eight there are three.
        (slow, {"since": 11}, FINE, ""),
        (slow, {"since": 7}, GUESSED, ""),
        # Pools are not compared with each other.
        (slow, {"pools": APART}, FINE, ""),
        (slow, {"pools": SAME}, WARNED, ""),
    ],
)
def test_odd_replica_is_named(odd: Odd, more: dict[str, Any], wanted: Wanted, text: str) -> None:
    check_result(judged(odd, **more), wanted, text)


@pytest.mark.parametrize(("odd", "first"), [(hot, "Hot spot"), (slow, "Straggler"), (held, "Straggler")])
def test_first_action_fits_the_replica(odd: Odd, first: str) -> None:
    assert judged(odd).actions[0].startswith(first)  # type: ignore[union-attr]


def test_single_replica_has_no_comparison() -> None:
    alone = answered(RULE, context(), {"a": [hot(n) for n in range(15)]})
    check_result(alone, FINE, "Fewer than two warm replicas: nothing to compare")
    bare = [replace(served(n), gauges={}, histograms={}) for n in range(15)]
    check_result(answered(RULE, context(), {"a": bare, "b": bare}), HIDDEN)
    full = [served(n, kv_utilization_max=0.95, kv_utilization=0.5) for n in range(15)]
    assert answered(RULE, context(), {"a": full}).sentence == FULL, "its ranks are compared"


def composed(folder: Path, parts: Mapping[str, Path], tier: str) -> Replay:
    """Real pages of several recordings as replicas of one tier, begun at the same time."""
    begin, targets = None, []
    for name, source in parts.items():
        with gzip.open(source, "rt") as pages:
            lines = [json.loads(line) for line in pages]
        begin = lines[0]["t"] if begin is None else begin
        shifted = [{**line, "t": line["t"] + begin - lines[0]["t"]} for line in lines]
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as target:
            target.writelines(f"{json.dumps(line)}\n" for line in shifted)
        targets.append({"file": f"{name}.jsonl.gz", "tier": tier, "replica": name, "engine": "vllm"})
    (folder / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": "composed", "targets": targets}))
    recording, _ = load(folder)
    return replay(recording, None)


def test_slow_replica_is_a_straggler(tmp_path: Path) -> None:
    """The replicas of two tiers as one: six minutes, too few to be certain."""
    source = recorded.folder("mixed_tier")
    done = composed(tmp_path, {name: source / f"{name}.jsonl.gz" for name in ("cpu-fast-0", "cpu-slow-0")}, "one")
    worst = findings(done)[RULE].worst
    assert worst.sentence.startswith("cpu-slow-0 takes 80.1 ms a token, its neighbours 10.1 ms; ")
    assert worst.certainty is Certainty.LIKELY


def test_overloaded_replica_is_a_hot_spot(tmp_path: Path) -> None:
    names = {"hot": "kv_cascade", "calm-0": "diurnal_quiet", "calm-1": "steady"}
    done = composed(tmp_path, {name: recorded.folder(of) / "metrics.jsonl.gz" for name, of in names.items()}, "one")
    assert findings(done)[RULE].worst.sentence.startswith("hot holds 28.1 requests, its neighbours 1.94; ")


def test_cold_cache_is_first_cause() -> None:
    """By its page 66 % prefix hits in the new replica's first minutes; 97 % on the old one, which does not move."""
    worst = findings(replayed("scale_up_cold_cache", "cpu-small-open"))["TtftDivergence"].worst
    first = worst.causes[0]
    assert (first.cause, first.certainty) == ("cold cache", Certainty.CERTAIN)
    assert first.evidence[0].startswith("cold cache: cpu-small-1 is new, 66% prefix hits there, 97% on warm replicas; ")


@pytest.mark.parametrize("name", ["prefix", "routing", "steady"])
def test_warm_replicas_have_no_cold_cache(name: str) -> None:
    found = findings(replayed(name, "cpu-small-open"))
    assert not [one for one in found.values() for cause in one.worst.causes if cause.cause == "cold cache"]


ROUTING_RULE = "PrefixRoutingBroken"
BEFORE = {"a": 54, "b": 84, "c": 72}
IN_TURN = dict.fromkeys(BEFORE, 70)
PLAIN = context()


def asked(
    number: int, requests: float, hits: float, length: float = 500.0, preemptions: float = 0.0, **more: float
) -> Window:
    tokens = requests * length
    counters = {"prefix_queried_tokens": tokens, "prefix_hit_tokens": hits * tokens, **more}
    counters["preemptions"] = preemptions * requests
    lengths = {"prompt_tokens_per_request": seen({length: requests}, (100.0, 1000.0, 10000.0))}
    return minute(number, rps=requests / 60, counters=counters, histograms=lengths)


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
RECOVERED = fleet(lambda n, name: asked(n, 70, 0.9 if n == 13 else 0.1), after=5)
ONE_KEEPS = fleet(lambda n, name: asked(n, 70, 0.85 if name == "b" else 0.1))
UNEVEN = fleet(lambda n, name: asked(n, {"a": 30, "b": 110, "c": 70}[name], 0.35))
RESTARTED = fleet(lambda n, name: asked(n, 70, 0.35, restarts=float(n == 1)), before=1, after=4)
REPEATED = fleet(lambda n, name: asked(n, 70, 0.35, prompt_tokens=70 * 500.0 / 9))
ALWAYS_LOW = {name: [asked(n, 70, 0.3) for n in range(10)] for name in BEFORE}
BENCHMARKED = context(*({"prefix_hit_ratio": 0.9} for _ in range(3)))
STRICT = context(limits={ROUTING_RULE: {"points": 0.5}})

CASES = [
    Case("dealt out in turn", PLAIN, fleet(broken), WARNED),
    Case("the shares stay", PLAIN, fleet(lambda n, name: asked(n, BEFORE[name], 0.35)), GUESSED),
    Case("always dealt out in turn", PLAIN, fleet(broken, names=IN_TURN), GUESSED),
    Case("no past, a plan", planned(0.9), fleet(broken, before=0), GUESSED),
    Case("no past, a benchmark", BENCHMARKED, fleet(broken, before=0), GUESSED),
    Case("the past is better", planned(0.7), fleet(broken), WARNED),
    Case("the plan is better", planned(0.98), fleet(broken), GUESSED),
    Case("within half above a third", PLAIN, spread(0.44), WARNED),
    Case("above it", PLAIN, spread(0.46), FINE),
    Case("within a third below it", PLAIN, spread(0.21), WARNED),
    Case("below it", PLAIN, spread(0.19), FINE),
    Case("51 points lost", STRICT, spread(0.39), WARNED),
    Case("49 points lost", STRICT, spread(0.41), FINE),
    Case("two minutes", PLAIN, spread(0.1, after=2), FINE),
    Case("a good minute", PLAIN, RECOVERED, FINE),
    Case("less than routing leaves", PLAIN, spread(0.0), FINE),
    Case("a little longer", PLAIN, spread(0.35, 590.0), WARNED),
    Case("longer prompts", PLAIN, spread(0.35, 610.0), FINE),
    Case("shorter prompts", PLAIN, spread(0.35, 410.0), FINE),
    Case("one keeps its hits", PLAIN, ONE_KEEPS, FINE),
    Case("evictions", PLAIN, spread(0.35, preemptions=0.06), FINE),
    Case("few evictions", PLAIN, spread(0.35, preemptions=0.04), WARNED),
    Case("an uneven spread", PLAIN, UNEVEN, FINE),
    Case("one replica", PLAIN, fleet(broken, names={"a": 54}), FINE),
    Case("a new replica is cold", PLAIN, beside_a_new_one(0), FINE),
    Case("and warm later", PLAIN, beside_a_new_one(11), WARNED),
    Case("restarted replicas", PLAIN, RESTARTED, EARLY),
    Case("healthy", PLAIN, HEALTHY, FINE),
    Case("healthy by the plan", planned(0.95), HEALTHY, FINE),
    Case("always low", bare("t", None), ALWAYS_LOW, UNPLANNED),
    Case("lookups again", PLAIN, REPEATED, Gap.CONTRADICTORY),
    Case("few requests", PLAIN, fleet(lambda n, name: asked(n, 5, 0.35)), EARLY),
    Case("not measured", PLAIN, [minute(n) for n in range(5)], HIDDEN),
    Case("off", PLAIN, looked_up(0.0), HIDDEN),
    Case("idle", PLAIN, looked_up(0.0, rps=0.0), UNSEEN),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prefix_hits_by_routing(case: Case) -> None:
    found = judge(ROUTING_RULE, case)
    if case.wanted == FINE:
        assert found.status is Status.OK, found
    else:
        assert outcome(found) == case.wanted, found


def test_words_read_as_the_golden() -> None:
    check_words(__file__, judge_cases(list_cases({ROUTING_RULE: CASES})))


@pytest.mark.parametrize(("rule", "text"), [(ROUTING_RULE, "97% before"), ("TtftDivergence", "First suspect: ")])
def test_round_robin_is_found(rule: str, text: str) -> None:
    """Hit rate 0.974, then 0.408, by the clients. Late first tokens are the routing's too."""
    found = next(s.result for s in replayed("routing", "cpu-small-open").rule_states if s.result.rule == rule)
    assert outcome(found) == WARNED
    assert text in found.sentence_with_suspect()
    assert rule == ROUTING_RULE or found.causes[0].cause == "routing"
