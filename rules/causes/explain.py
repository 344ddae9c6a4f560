"""Causes of a finding, with evidence and counter-evidence.

Proven causes come first, then suspicions, each in the order of SUSPECTS. A slow tier without any cause has a slow machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME
from rules.causes import checks, error_checks
from rules.causes.context import (
    EITHER,
    FAILING,
    FROM_ARRIVAL,
    HITS,
    LATENCY,
    OF_ONE_FAMILY,
    PREFIX_HITS,
    PRESSURE,
    READ,
    SLOW,
    TURNED_AWAY,
    UNSERVED,
    USERS,
    CauseCheck,
    CauseContext,
    prove_when_slow,
)
from rules.confidence import Certainty
from rules.methods.divergence import judge_tail
from rules.methods.evidence import certain_if
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, Cause, Verdict

MACHINE = "the machine is slower than the benchmarked one (neighbours, clocks): load, queue, lengths and cache do not explain it"

UNMEASURED = (
    "the machine is slow (neighbours, clocks, throttling), or the objective is too strict: "
    "without a benchmark both are possible"
)


PROMPTS = checks.check_longer("prompt_tokens_per_request", "prompt_tokens")
OUTPUTS = checks.check_longer("generation_tokens_per_request", "generation_tokens")
ROUTED = (*PREFIX_HITS, *FROM_ARRIVAL)
CACHED = (*PREFIX_HITS, "ttft_seconds", "tpot_seconds")

SUSPECTS: tuple[CauseCheck, ...] = (
    CauseCheck("engine stopped", error_checks.check_engine_steps, FAILING | USERS, FROM_ARRIVAL),
    CauseCheck("one replica", error_checks.check_one_replica, UNSERVED),
    CauseCheck("hardware faults", error_checks.check_hardware_faults, FAILING),
    CauseCheck("restarts", error_checks.check_restarts, FAILING),
    CauseCheck("client requests", error_checks.check_client_errors, TURNED_AWAY),
    CauseCheck("evictions", checks.check_evictions, HITS, PREFIX_HITS),
    CauseCheck("cold cache", checks.check_cold_cache, OF_ONE_FAMILY, ROUTED),
    CauseCheck("routing", checks.check_routing, OF_ONE_FAMILY, ROUTED),
    CauseCheck("prefix hits", checks.check_prefix_hits, EITHER, claim="fewer prefix hits"),
    CauseCheck("benchmark", checks.check_repeated_prompts, OF_ONE_FAMILY, CACHED),
    CauseCheck("adapters held back", prove_when_slow(checks.check_held_back), SLOW, FROM_ARRIVAL),
    CauseCheck("prompt lengths", PROMPTS, EITHER, claim="prompts are longer than planned"),
    CauseCheck("output lengths", OUTPUTS, EITHER, claim="outputs are longer than planned"),
    CauseCheck("adapters", checks.check_adapters, SLOW),
    CauseCheck("speculation", checks.check_speculation, SLOW),
    CauseCheck("throttling", prove_when_slow(checks.check_throttling_cause), LATENCY),
    CauseCheck("more load", checks.check_load, PRESSURE | USERS | TURNED_AWAY, claim="more load than planned"),
    CauseCheck("evictions", prove_when_slow(checks.check_evictions), SLOW),
    CauseCheck("queueing", checks.check_queueing_cause, SLOW, FROM_ARRIVAL),
    CauseCheck("prefill", checks.check_prefill_cause, USERS, FROM_ARRIVAL),
    CauseCheck("failed transfers", error_checks.check_transfers, LATENCY | FAILING, FROM_ARRIVAL),
    CauseCheck("benchmark", checks.check_benchmark, SLOW),
)
"""Causes in the order of a sentence. A new cause is a check and a row."""


def add_causes(verdict: Verdict, view: TierContext, binned: Sequence[BinnedWindow]) -> Verdict:
    """Add the causes to a verdict, the first suspect first. A verdict that does not fire stays as it is.

    A comparison with the benchmark is explained by the binned windows on the curve, any other finding by all `binned`.
    """
    if verdict.status not in FIRING:
        return verdict
    rule = BY_NAME[verdict.rule]
    suspects = [row for row in SUSPECTS if row.explains(rule)]
    if not suspects:
        return verdict
    used = hold(binned).on_curve if rule.method is judge_tail else hold(binned)
    if not used:
        return verdict
    # Only the families that checks read are added.
    context = CauseContext(rule=rule, context=view, binned=used, total=used.sum_families(READ))
    facts = [(row.cause, row.claim or row.cause, row.examine(context)) for row in suspects]
    supported = [(cause, claim, fact) for cause, claim, fact in facts if fact is not None and fact.supported]
    causes = [
        Cause(cause=cause, certainty=certain_if(fact.proven), evidence=(f"{claim}: {fact.text}",))
        for cause, claim, fact in sorted(supported, key=lambda row: not row[2].proven)
    ]
    if not causes and rule.method in LATENCY:
        excluded = (f"not {cause}: {fact.text}" for cause, _, fact in facts if fact is not None and fact.text)
        text = MACHINE if view.curve is not None else UNMEASURED
        causes = [Cause(cause="slower machine", certainty=Certainty.LIKELY, evidence=(text, *excluded))]
    if not causes:
        return verdict
    unknown = [cause for cause, _, fact in facts if fact is None]
    against = (f"cannot be excluded: {', '.join(unknown)}",) if unknown else ()
    causes[0] = replace(causes[0], against=against)
    return replace(verdict, causes=tuple(causes))
