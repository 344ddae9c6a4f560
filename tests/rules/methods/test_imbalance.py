"""ReplicaImbalance by hand and over recordings: three replicas at 3 rps, three requests in the system and 20 ms a token."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from judging_samples import answered, context, gauge, minute, seen
from recorded import findings, replayed

from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.methods.evidence import OUTPUTS, PROMPTS
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status

RULE = "ReplicaImbalance"
FINE = (0.01, 0.02, 0.025, 0.03, 0.05, 100.0, 200.0, 1000.0)


def served(
    number: float,
    *,
    rps: float = 3.0,
    token: float = 0.02,
    prompt: float = 100.0,
    output: float = 100.0,
    in_system: float = 3.0,
    waiting: float = 0.0,
    **gauges: float,
) -> Window:
    lengths = {PROMPTS: seen({prompt: rps * 60}, FINE), OUTPUTS: seen({output: rps * 60}, FINE)}
    return minute(
        number,
        rps=rps,
        in_system=in_system,
        waiting=waiting,
        histograms={"tpot_seconds": seen({token: rps * 60}, FINE), **lengths},
        gauges={name: gauge(value) for name, value in gauges.items()},
    )


Odd = Callable[[int], Window]


def judged(
    odd: Odd, minutes: int = 15, since: int = 0, others: Odd = served, pools: Mapping[str, str] | None = None
) -> RuleResult:
    """What the rule says of a replica `odd` (from the minute `since` on) beside two usual ones."""
    fleet = {name: [others(n) for n in range(minutes)] for name in ("b", "c")}
    fleet["a"] = [odd(n) for n in range(since, minutes)]
    return answered(RULE, replace(context(), pools=pools or {}), fleet)


def told(odd: Odd, **more: Any) -> tuple[Status, Certainty, str]:
    result = judged(odd, **more)
    return result.status, result.certainty, result.sentence


def hot(number: int) -> Window:
    return served(number, rps=6.0, in_system=12.0, waiting=5.0)


def slow(number: int) -> Window:
    return served(number, token=0.03, in_system=4.5)


FOUND = (Status.WARNING, Certainty.CERTAIN)
HOT = "a holds 12 requests, its neighbours 3; some wait there while others have room"
SLOW = "a takes 30 ms a token, its neighbours 20 ms; with no more and no longer requests"
FULL = "a has a rank with its KV cache 95.0% full, 50.0% on average; the other ranks have room"


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        (hot, HOT),
        (slow, SLOW),
        (lambda n: served(n, kv_utilization_max=0.95, kv_utilization=0.5), FULL),
        # Fewer requests of more tokens each are more work too.
        (lambda n: served(n, rps=2.0, in_system=12.0, waiting=5.0, prompt=900.0, token=0.03), HOT),
    ],
    ids=["hot spot", "straggler", "full rank", "longer requests"],
)
def test_odd_replica_is_named(odd: Odd, sentence: str) -> None:
    assert told(odd) == (*FOUND, sentence)


@pytest.mark.parametrize(
    "odd",
    [
        served,
        # More requests, and none of them waits.
        lambda n: served(n, rps=6.0, in_system=12.0),
        # They wait, and it holds hardly more than the others.
        lambda n: served(n, rps=4.0, in_system=4.0, waiting=2.0),
        # It holds more and finishes less: no more work came to it, and nothing says that it is slower.
        lambda n: served(n, rps=2.0, in_system=12.0, waiting=5.0),
        # Slower by less than 30 %.
        lambda n: served(n, token=0.025),
        # Slow because of more, or of longer requests.
        lambda n: served(n, token=0.03, rps=4.0),
        lambda n: served(n, token=0.03, output=150.0),
        lambda n: served(n, token=0.03, prompt=150.0),
        # Every rank is full.
        lambda n: served(n, kv_utilization_max=0.95, kv_utilization=0.9),
        # Over by now, and in too few minutes.
        lambda n: hot(n) if n < 9 else served(n),
        lambda n: hot(n) if n > 12 else served(n),
        lambda n: hot(n) if n > 8 else served(n),
    ],
)
def test_explained_or_brief_imbalance_passes(odd: Odd) -> None:
    assert told(odd) == (Status.OK, Certainty.CERTAIN, "No replica stands out among 3")


def test_common_queue_is_no_hot_spot() -> None:
    assert told(hot, others=lambda n: served(n, in_system=5.0, waiting=2.0))[0] is Status.OK


@pytest.mark.parametrize(("minutes", "certainty"), [(9, Certainty.LIKELY), (10, Certainty.CERTAIN)])
@pytest.mark.parametrize("odd", [hot, slow])
def test_enough_minutes_make_it_certain(odd: Odd, minutes: int, certainty: Certainty) -> None:
    """Heads in each of nine throws has a probability of 0.2 %, of ten 0.1 %."""
    assert told(odd, minutes=minutes)[:2] == (Status.WARNING, certainty)


@pytest.mark.parametrize(("since", "status"), [(11, Status.OK), (7, Status.WARNING)])
def test_cold_replica_is_left_out(since: int, status: Status) -> None:
    """Five minutes after its first: of four minutes none is left, of eight there are three."""
    assert told(slow, since=since)[0] is status


def test_pools_are_not_compared_with_each_other() -> None:
    assert told(slow, pools={"a": "decode", "b": "prefill", "c": "prefill"})[0] is Status.OK
    assert told(slow, pools={"a": "decode", "b": "decode", "c": "prefill"})[0] is Status.WARNING


def test_single_replica_has_no_comparison() -> None:
    alone = answered(RULE, context(), {"a": [hot(n) for n in range(15)]})
    assert (alone.status, alone.sentence) == (Status.OK, "Fewer than two warm replicas: nothing to compare")
    bare = [replace(served(n), gauges={}, histograms={}) for n in range(15)]
    result = answered(RULE, context(), {"a": bare, "b": bare})
    assert result.reason is Gap.NOT_EXPOSED


def test_full_rank_of_one_replica_shows() -> None:
    full = [served(n, kv_utilization_max=0.95, kv_utilization=0.5) for n in range(15)]
    result = answered(RULE, context(), {"a": full})
    assert result.sentence == FULL


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
