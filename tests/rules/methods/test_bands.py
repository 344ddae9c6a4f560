"""Readings against the guide's fixed bands: each rule fires, nearly fires, and does not fire before its hold."""

from __future__ import annotations

from typing import Any

import pytest
from judging_samples import answered, context, each, gauge, minute, seen, unknown, verdict
from prose import explain

from rules.catalogue.registry import BY_NAME, RULES
from rules.confidence import Certainty
from rules.methods.bands import judge_band
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Unknown, Verdict

BANDS = [rule.name for rule in RULES if rule.method is judge_band]
EDGES = (0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 60.0, float("inf"))


def of(name: str, value: float, number: int, rps: float = 3.0) -> Window:
    """A minute in which the rule's signal has this value."""
    counters: dict[str, float] = {}
    gauges: dict[str, Any] = {}
    histograms: dict[str, Any] = {}
    if name in ("GpuMemoryLow", "GpuMemoryHigh"):
        gauges = {"gpu_memory_used_bytes": gauge(80e9 * value), "gpu_memory_total_bytes": gauge(80e9)}
    elif name == "GpuComputeLow":
        counters = {"gpu_busy_seconds": 60 * value, "gpu_busy_covered_seconds": 60.0}
    elif name == "GpuThrottling":
        counters = {
            "gpu_throttled_thermal_seconds": 60 * value,
            "gpu_throttled_hardware_seconds": 0.0,
            "gpu_throttled_covered_seconds": 60.0,
        }
    elif name == "KvCacheNearCeiling":
        gauges = {"kv_utilization": gauge(value)}
    elif name == "KvResidencyShort":
        histograms = {"kv_residency_seconds": seen({value: 20}, EDGES)}
    elif name == "KvTransferSlow":
        histograms = {"kv_transfer_seconds": seen({value: 60}, EDGES)}
    elif name == "PrefixHitLow":
        counters = {"prefix_queried_tokens": 10_000.0, "prefix_hit_tokens": 10_000.0 * value}
    else:
        assert name == "SpeculationAcceptanceLow", f"{name} needs a window of its own"
        # One position a round: acceptance is accepted / drafted.
        counters = {"spec_drafts": 100.0, "spec_draft_tokens": 100.0, "spec_accepted_tokens": 100.0 * value}
    return minute(number, rps=rps, counters=counters, gauges=gauges, histograms=histograms)


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


def test_every_band_is_tried() -> None:
    assert sorted(CASES) == sorted([*BANDS, "SpeculationAcceptanceLow"])


@pytest.mark.parametrize("name", CASES)
def test_what_stays_outside_its_band_is_certain(name: str) -> None:
    found = verdict(name, WITH_HITS, each(5, lambda n: of(name, CASES[name][0], n)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.endswith("is healthy")
    assert found.actions


@pytest.mark.parametrize("name", CASES)
def test_what_is_just_within_is_fine(name: str) -> None:
    found = verdict(name, WITH_HITS, each(5, lambda n: of(name, CASES[name][1], n)))
    assert (found.status, found.actions) == (Status.OK, ())


@pytest.mark.parametrize("name", CASES)
def test_before_the_hold_nothing_is_said(name: str) -> None:
    found = unknown(name, WITH_HITS, each(2, lambda n: of(name, CASES[name][0], n)))
    assert found.reason is Gap.TOO_FEW_REQUESTS


@pytest.mark.parametrize("name", CASES)
def test_recovered_band_does_not_fire(name: str) -> None:
    bad, good = CASES[name]
    found = answered(name, WITH_HITS, each(8, lambda n: of(name, bad if n < 6 else good, n)))
    assert found.status is Status.OK


@pytest.mark.parametrize("name", CASES)
def test_one_bad_minute_is_no_finding(name: str) -> None:
    bad = CASES[name][0]
    is_ratio = BY_NAME[name].unit != "seconds"
    extreme = bad / 50 if "below" in BY_NAME[name].thresholds else 0.9999 if is_ratio else bad * 40
    found = answered(name, WITH_HITS, each(5, lambda n: of(name, extreme if n == 4 else CASES[name][1], n)))
    assert not (isinstance(found, Verdict) and found.status in (Status.WARNING, Status.CRITICAL))


@pytest.mark.parametrize("name", [name for name in CASES if name != "PrefixHitLow"])
def test_what_is_not_measured_is_unknown(name: str) -> None:
    found = unknown(name, WITH_HITS, each(5, minute))
    assert found.reason in (Gap.NOT_EXPOSED, Gap.NO_TRAFFIC)


def test_unplanned_hit_rate_is_not_judged() -> None:
    found = unknown("PrefixHitLow", context(), each(5, lambda n: of("PrefixHitLow", 0.1, n)))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the plan has no workload.prefix_hit_ratio")


@pytest.mark.parametrize("name", ["GpuMemoryLow", "GpuComputeLow"])
def test_idle_tier_needs_no_serving(name: str) -> None:
    idle = each(5, lambda n: of(name, CASES[name][0], n, rps=0.0))
    assert unknown(name, WITH_HITS, idle).reason is Gap.NO_TRAFFIC


def test_low_acceptance_becomes_critical() -> None:
    def drafts(value: float) -> Verdict:
        return verdict(
            "SpeculationAcceptanceLow", context(), each(5, lambda n: of("SpeculationAcceptanceLow", value, n))
        )

    assert drafts(0.49).status is Status.CRITICAL
    assert drafts(0.51).status is Status.WARNING


def test_three_minutes_make_it_certain() -> None:
    def filled(minutes: int) -> Verdict:
        full = each(5, lambda n: of("KvCacheNearCeiling", 0.99 if n >= 5 - minutes else 0.89, n))
        return verdict("KvCacheNearCeiling", context(), full)

    assert filled(1).status is Status.OK
    assert (filled(2).status, filled(2).certainty) == (Status.WARNING, Certainty.LIKELY)
    assert (filled(3).status, filled(3).certainty) == (Status.WARNING, Certainty.CERTAIN)


def test_changed_band_is_said() -> None:
    over = each(8, lambda n: of("KvCacheNearCeiling", 0.99 if n < 6 else 0.8, n))
    found = verdict("KvCacheNearCeiling", context(), over)
    assert found.sentence == "KV cache use is 94.2%; up to 90.0% is healthy; back within that at the end of the time"
    full = each(5, lambda n: of("KvCacheNearCeiling", 1.0 if n == 4 else 0.89, n))
    found = verdict("KvCacheNearCeiling", context(), full)
    assert found.sentence == "KV cache use is 91.2%; up to 90.0% is healthy; outside in at most one of its minutes"


def test_unread_is_called_by_its_signal() -> None:
    """What a reading is called in a sentence ("Half of the KV blocks are evicted within") makes none of its own."""
    found = unknown("KvResidencyShort", WITH_HITS, each(5, minute))
    assert found.text == "kv_residency_by_reuse is not known"
    assert unknown("KvResidencyShort", context(), each(5, minute)).reason is Gap.NOT_IN_PLAN


def test_life_within_reuse_bucket_is_likely() -> None:
    """Between 5 and 10 s, and prefixes come back after 8 s: shorter by the best estimate only."""
    close = each(5, lambda n: minute(n, histograms={"kv_residency_seconds": seen({6.0: 15, 0.7: 5}, EDGES)}))
    found = verdict("KvResidencyShort", WITH_HITS, close)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_quantile_reaching_into_band_is_likely() -> None:
    """A P99 in the bucket from 0.25 to 0.5 s lies above 0.4 s by the best estimate only."""
    limit: dict[str, Any] = {"limits": {"KvTransferSlow": {"above": 0.4}}}
    found = verdict("KvTransferSlow", context(**limit), each(5, lambda n: of("KvTransferSlow", 0.49, n)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_polled_utilisation_is_likely() -> None:
    def polled(number: int) -> Window:
        gauges = {"gpu_utilization_sampled": gauge(0.3)}
        return minute(number, gauges=gauges, sampled=frozenset({"gpu_utilization_sampled"}))

    found = verdict("GpuComputeLow", context(), each(5, polled))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_sentence_has_seen_and_healthy() -> None:
    found = verdict("KvCacheNearCeiling", context(), each(5, lambda n: of("KvCacheNearCeiling", 0.93, n)))
    assert found.sentence == "KV cache use is 93.0%; up to 90.0% is healthy"
    found = verdict("PrefixHitLow", WITH_HITS, each(5, lambda n: of("PrefixHitLow", 0.1, n)))
    assert found.sentence == "Prefix cache hit rate is 10.0%; 30.0% or more is healthy"


def test_tier_threshold_replaces_catalogue() -> None:
    strict: TierContext = context(limits={"KvCacheNearCeiling": {"above": 0.5}})
    found = verdict("KvCacheNearCeiling", strict, each(5, lambda n: of("KvCacheNearCeiling", 0.6, n)))
    assert found.status is Status.WARNING


def test_too_few_events_say_nothing() -> None:
    def few(number: int) -> Window:
        return minute(number, counters={"prefix_queried_tokens": 100.0, "prefix_hit_tokens": 0.0})

    found = unknown("PrefixHitLow", WITH_HITS, each(5, few))
    assert (found.reason, found.text.endswith(" tokens, 10000 are needed")) == (Gap.TOO_FEW_REQUESTS, True)


# --- faults


def faults(number: int, count: float, family: str = "gpu_fault_events", **more: float) -> Window:
    return minute(number, counters={family: count, **more})


@pytest.mark.parametrize(
    ("name", "family"), [("GpuXid", "gpu_fault_events"), ("GpuEccErrors", "gpu_ecc_uncorrectable_errors")]
)
def test_one_fault_is_one_too_many(name: str, family: str) -> None:
    found = verdict(name, context(), each(5, lambda n: faults(n, 1.0 if n == 1 else 0.0, family)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert ": 1 in 5 min" in found.sentence
    fine = verdict(name, context(), each(5, lambda n: faults(n, 0.0, family)))
    assert (fine.status, fine.actions) == (Status.OK, ())


def test_fault_tells_code_and_replica() -> None:
    codes = {"gpu_fault_events_by_code/xid-79": 2.0, "gpu_fault_events_by_code/xid-31": 0.0}
    found = verdict("GpuXid", context(), {"a": each(3, lambda n: faults(n, 0.0)), "b": [faults(2, 2.0, **codes)]})
    assert explain(found) == ("GPU faults (XID, AFID): 2 in 3 min on b; xid-79 x 2")


def test_faults_that_nobody_counts_are_unknown() -> None:
    found = unknown("GpuXid", context(), each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "GPU faults (XID, AFID): not measured here")
    assert isinstance(answered("GpuEccErrors", context(), each(5, minute)), Unknown)
