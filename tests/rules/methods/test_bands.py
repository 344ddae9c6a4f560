"""Readings against the guide's fixed bands: each rule fires, nearly fires, and does not fire before its hold."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import answered, context, each, gauge, minute, seen
from outcomes import EARLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED
from rule_cases import Case, check_case, check_words, explain, judge, judge_cases, list_cases, outcome, words

from rules.catalogue.registry import BY_NAME, RULES
from rules.confidence import Certainty
from rules.methods.bands import judge_band
from rules.plan.load_bins import TierContext
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Verdict

BANDS = [rule.name for rule in RULES if rule.method is judge_band]
EDGES = (0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 60.0, float("inf"))

SIGNALS: dict[str, Callable[[float], dict[str, Any]]] = {
    "GpuMemoryLow": lambda used: {"gauges": gpu_memory(used)},
    "GpuMemoryHigh": lambda used: {"gauges": gpu_memory(used)},
    "GpuComputeLow": lambda busy: {"counters": {"gpu_busy_seconds": 60 * busy, "gpu_busy_covered_seconds": 60.0}},
    "GpuThrottling": lambda held: {"counters": {**THROTTLED, "gpu_throttled_thermal_seconds": 60 * held}},
    "KvCacheNearCeiling": lambda level: {"gauges": {"kv_utilization": gauge(level)}},
    "KvResidencyShort": lambda seconds: {"histograms": {"kv_residency_seconds": seen({seconds: 20}, EDGES)}},
    "KvTransferSlow": lambda seconds: {"histograms": {"kv_transfer_seconds": seen({seconds: 60}, EDGES)}},
    "PrefixHitLow": lambda hits: {"counters": {"prefix_queried_tokens": 10_000.0, "prefix_hit_tokens": 1e4 * hits}},
    # One position a round: acceptance is accepted / drafted.
    "SpeculationAcceptanceLow": lambda share: {"counters": {**DRAFTED, "spec_accepted_tokens": 100.0 * share}},
}
"""Fields of a minute in which the signal of a rule has this value."""

THROTTLED = {"gpu_throttled_hardware_seconds": 0.0, "gpu_throttled_covered_seconds": 60.0}
DRAFTED = {"spec_drafts": 100.0, "spec_draft_tokens": 100.0}


def gpu_memory(used: float) -> dict[str, GaugeSum]:
    return {"gpu_memory_used_bytes": gauge(80e9 * used), "gpu_memory_total_bytes": gauge(80e9)}


WITH_HITS = context(workload={"prefix_hit_ratio": 0.6, "prefix_reuse_seconds": 8.0})

CASES = {
    "GpuMemoryLow": (0.69, 0.71),
    "GpuMemoryHigh": (0.96, 0.94),
    "GpuComputeLow": (0.59, 0.61),
    "GpuThrottling": (0.06, 0.04),
    "KvCacheNearCeiling": (0.91, 0.89),
    "KvResidencyShort": (3.0, 30.0),
    "KvTransferSlow": (0.8, 0.4),
    "PrefixHitLow": (0.29, 0.31),
    "SpeculationAcceptanceLow": (0.58, 0.61),
}
"""By rule: a value that fires and one just within its band."""

WORST = ("GpuThrottling", "GpuMemoryHigh")
IDLE = ("GpuMemoryLow", "GpuComputeLow")
UNMEASURED = {name: HIDDEN for name in CASES if name != "PrefixHitLow"}


def test_every_band_is_tried() -> None:
    assert sorted(CASES) == sorted([*BANDS, *WORST, "SpeculationAcceptanceLow"])


def levels(name: str, *values: float, **more: Any) -> list[Window]:
    return each(len(values), lambda n: minute(n, **SIGNALS[name](values[n]), **more))


def rows() -> Iterator[tuple[str, Case]]:
    """What every band does."""
    for name, (bad, good) in CASES.items():
        extreme = 0.9999 if BY_NAME[name].unit != "seconds" else bad * 40
        if "below" in BY_NAME[name].thresholds:
            extreme = bad / 50
        yield name, Case("outside", WITH_HITS, levels(name, *[bad] * 5), WARNED)
        yield name, Case("just within", WITH_HITS, levels(name, *[good] * 5), FINE)
        yield name, Case("too early", WITH_HITS, levels(name, bad, bad), EARLY)
        yield name, Case("over", WITH_HITS, levels(name, *[bad] * 6, good, good), FINE)
        yield name, Case("one bad minute", WITH_HITS, levels(name, *[good] * 4, extreme), FINE)


KV, HITS, DRAFTS = "KvCacheNearCeiling", "PrefixHitLow", "SpeculationAcceptanceLow"
RESIDENCY, TRANSFER, HEAT, FULL = "KvResidencyShort", "KvTransferSlow", "GpuThrottling", "GpuMemoryHigh"
POLLED = frozenset({"gpu_utilization_sampled"})
POLLS = each(5, lambda n: minute(n, gauges={"gpu_utilization_sampled": gauge(0.3)}, sampled=POLLED))
FEW_LOOKUPS = each(5, lambda n: minute(n, counters={"prefix_queried_tokens": 100.0, "prefix_hit_tokens": 0.0}))
# Between 5 and 10 s, and prefixes come back after 8 s: shorter by the best estimate only.
WITHIN_REUSE = each(5, lambda n: minute(n, histograms={"kv_residency_seconds": seen({6.0: 15, 0.7: 5}, EDGES)}))

POOLED = replace(WITH_HITS, pools={"prefill": "prefill", "decode": "decode"})
DECODE_TOLD = replace(WITH_HITS, pools={"p": "mixed", "decode": "decode"})


def held_by_board(share: float) -> list[Window]:
    return each(5, lambda n: minute(n, counters={**THROTTLED, "gpu_throttled_hardware_seconds": 60 * share}))


COOL = dict.fromkeys("abcdefghi", levels("GpuThrottling", *[0.0] * 5))
ROOMY = dict.fromkeys("abcdefghi", levels("GpuMemoryHigh", *[0.85] * 5))
NONE, HALF = (levels(HITS, *[share] * 5) for share in (0.0, 0.5))

ROWS = [
    *rows(),
    *((name, Case("idle", WITH_HITS, levels(name, *[0.1] * 5, rps=0.0), UNSEEN)) for name in IDLE),
    *((name, Case("not measured", WITH_HITS, each(5, minute), gap)) for name, gap in UNMEASURED.items()),
    (HITS, Case("no plan", context(), levels(HITS, *[0.1] * 5), UNPLANNED)),
    (HITS, Case("few lookups", WITH_HITS, FEW_LOOKUPS, EARLY)),
    (HITS, Case("prefill alone has hits", POOLED, {"prefill": HALF, "decode": NONE}, FINE)),
    (HITS, Case("pool of prefill untold", DECODE_TOLD, {"p": HALF, "decode": NONE}, FINE)),
    (HITS, Case("decode alone has hits", POOLED, {"prefill": NONE, "decode": HALF}, WARNED)),
    (DRAFTS, Case("below a half", context(), levels(DRAFTS, *[0.49] * 5), (Status.CRITICAL, Certainty.CERTAIN))),
    (DRAFTS, Case("above a half", context(), levels(DRAFTS, *[0.51] * 5), WARNED)),
    (KV, Case("one minute", context(), levels(KV, *[0.89] * 4, 0.99), FINE)),
    (KV, Case("two minutes", context(), levels(KV, *[0.89] * 3, 0.99, 0.99), GUESSED)),
    (KV, Case("three minutes", context(), levels(KV, 0.89, 0.89, *[0.99] * 3), WARNED)),
    (KV, Case("back within", context(), levels(KV, *[0.99] * 6, 0.8, 0.8), FINE)),
    (KV, Case("a full minute", context(), levels(KV, *[0.89] * 4, 1.0), FINE)),
    (KV, Case("another limit", context(limits={KV: {"above": 0.5}}), levels(KV, *[0.6] * 5), WARNED)),
    # What a reading is called in a sentence ("Half of the KV blocks are evicted within") makes none of its own.
    (RESIDENCY, Case("unread", WITH_HITS, each(5, minute), HIDDEN)),
    (RESIDENCY, Case("no reuse planned", context(), each(5, minute), UNPLANNED)),
    (RESIDENCY, Case("within the bucket", WITH_HITS, WITHIN_REUSE, GUESSED)),
    # A P99 in the bucket from 0.25 to 0.5 s lies above 0.4 s by the best estimate only.
    (
        TRANSFER,
        Case("into the band", context(limits={TRANSFER: {"above": 0.4}}), levels(TRANSFER, *[0.49] * 5), GUESSED),
    ),
    ("GpuComputeLow", Case("polled", context(), POLLS, GUESSED)),
    (HEAT, Case("one hot replica", context(), COOL | {"hot": levels(HEAT, *[0.4] * 5)}, WARNED)),
    (HEAT, Case("held by board, heat unmeasured", context(), held_by_board(0.4), WARNED)),
    (HEAT, Case("free by board, heat unmeasured", context(), held_by_board(0.0), HIDDEN)),
    (FULL, Case("one full replica", context(), ROOMY | {"full": levels(FULL, *[0.99] * 5)}, WARNED)),
]


@pytest.mark.parametrize(("rule", "case"), ROWS, ids=str)
def test_level_against_its_band(rule: str, case: Case) -> None:
    result = judge(rule, case)
    if case.wanted == FINE:
        assert isinstance(result, Verdict)
        assert (result.status, result.actions) == (Status.OK, ())
    else:
        assert outcome(result) == case.wanted, result


def faults(number: int, count: float, family: str = "gpu_fault_events", **more: float) -> Window:
    return minute(number, counters={family: count, **more})


@pytest.mark.parametrize("family", ["gpu_fault_events", "gpu_ecc_uncorrectable_errors"])
def test_one_fault_is_one_too_many(family: str) -> None:
    name = "GpuXid" if family == "gpu_fault_events" else "GpuEccErrors"
    found = answered(name, context(), each(5, lambda n: faults(n, 1.0 if n == 1 else 0.0, family)))
    assert outcome(found) == WARNED
    assert ": 1 in 5 min" in found.sentence
    assert outcome(answered(name, context(), each(5, lambda n: faults(n, 0.0, family)))) == FINE
    assert outcome(answered(name, context(), each(5, minute))) is HIDDEN


def test_fault_tells_code_and_replica() -> None:
    codes = {"gpu_fault_events_by_code/xid-79": 2.0, "gpu_fault_events_by_code/xid-31": 0.0}
    found = answered("GpuXid", context(), {"a": each(3, lambda n: faults(n, 0.0)), "b": [faults(2, 2.0, **codes)]})
    assert explain(found) == "GPU faults (XID, AFID): 2 in 3 min on b; xid-79 x 2"
    assert [action[:9] for action in found.actions] == ["Find the ", "Drain the"], "not the reset of xid-48"
    assert words(answered("GpuXid", context(), each(5, minute))) == "GPU faults (XID, AFID): not measured here"


RULE = "SpeculationAcceptanceLow"


def planned(draft: float | None = 0.003, verify: float | None = 0.012, **parts: Any) -> TierContext:
    """Four drafts at a quarter of a step each: a round takes as long as two plain steps."""
    steps = {"draft_step_seconds": draft, "verify_step_seconds": verify}
    given = {key: value for key, value in steps.items() if value is not None}
    return context(speculation={"draft_tokens": 4, **given}, **parts)


def rounds(accepted: float, drafts: float = 4.0) -> list[Window]:
    """Minutes of 200 rounds, of which each accepted so many of its drafts on average."""
    counted = {"spec_drafts": 1.0, "spec_draft_tokens": drafts, "spec_accepted_tokens": accepted}
    return each(5, lambda n: minute(n, counters={family: 200 * count for family, count in counted.items()}))


AVERAGES = {
    name: replace(gauge(level), samples=60) for name, level in (("spec_accept_length", 2.1), ("spec_steps", 4.0))
}
# 0.8 a token over 5 drafts at a tenth of a step: 3.69 tokens for 1.5 steps (Leviathan et al. 2023).
PUBLISHED = context(speculation={"draft_tokens": 5, "draft_step_seconds": 0.001, "verify_step_seconds": 0.01})

ROUND_CASES = [
    Case("losing", planned(), rounds(0.98), WARNED),
    Case("drafts as slow as steps", planned(draft=0.012), rounds(3.0), FINE),
    Case("published", PUBLISHED, rounds(sum(0.8**i for i in range(1, 6)), 5.0), FINE),
    # Of n-gram drafts there are often fewer: two drafts cost half as much.
    Case("two drafts", planned(), rounds(0.6, 2.0), (Status.CRITICAL, Certainty.CERTAIN)),
    Case("averages", planned(), each(15, lambda n: minute(n, gauges=AVERAGES)), WARNED),
    Case("not measured", planned(), each(5, minute), HIDDEN),
]


@pytest.mark.parametrize("case", ROUND_CASES, ids=str)
def test_rounds_against_plain_steps(case: Case) -> None:
    check_case(RULE, case)


def test_words_read_as_the_golden() -> None:
    check_words(__file__, judge_cases([*ROWS, *list_cases({RULE: ROUND_CASES})]))


@pytest.mark.parametrize("tier", [context(), planned(draft=None), planned(verify=None)])
def test_missing_step_times_tell_acceptance(tier: TierContext) -> None:
    found = answered(RULE, tier, rounds(3.0))
    assert (found.status, found.details) == (Status.OK, ())
