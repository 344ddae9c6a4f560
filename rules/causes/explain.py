"""Causes of a finding, with evidence and counter-evidence.

Proven causes come first, then suspicions, each in the order of SUSPECTS. A slow tier without any cause has a slow machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME
from rules.causes import checks, error_checks, first_token
from rules.causes.context import (
    EITHER,
    FAILING,
    FROM_ARRIVAL,
    HITS,
    LATENCY,
    OF_ONE_FAMILY,
    PREFIX_HITS,
    PRESSURE,
    SLOW,
    TURNED_AWAY,
    UNSERVED,
    USERS,
    CauseCheck,
    CauseContext,
    prove_when_slow,
)
from rules.confidence import Certainty
from rules.methods.evidence import certain_if
from rules.methods.tails import judge_tail
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, Cause, Verdict

MACHINE = "the machine is slower than the benchmarked one (neighbours, clocks): load, queue, lengths and cache do not explain it"

UNMEASURED = (
    "the machine is slow (neighbours, clocks, throttling), or the objective is too strict: "
    "without a benchmark both are possible"
)


SUSPECTS: tuple[CauseCheck, ...] = (
    CauseCheck(
        cause="engine stopped",
        methods=FAILING | USERS,
        families=FROM_ARRIVAL,
        examine=error_checks.check_engine_steps,
    ),
    CauseCheck(cause="one replica", methods=UNSERVED, examine=error_checks.check_one_replica),
    CauseCheck(cause="hardware faults", methods=FAILING, examine=error_checks.check_hardware_faults),
    CauseCheck(cause="restarts", methods=FAILING, examine=error_checks.check_restarts),
    CauseCheck(cause="client requests", methods=TURNED_AWAY, examine=error_checks.check_client_errors),
    CauseCheck(cause="evictions", methods=HITS, families=PREFIX_HITS, examine=checks.check_evictions),
    CauseCheck(
        cause="cold cache",
        methods=OF_ONE_FAMILY,
        families=(*PREFIX_HITS, *FROM_ARRIVAL),
        examine=checks.check_cold_cache,
    ),
    CauseCheck(
        cause="routing",
        methods=OF_ONE_FAMILY,
        families=(*PREFIX_HITS, *FROM_ARRIVAL),
        examine=checks.check_routing,
    ),
    CauseCheck(cause="prefix hits", methods=EITHER, examine=checks.check_prefix_hits),
    CauseCheck(
        cause="benchmark",
        methods=OF_ONE_FAMILY,
        families=(*PREFIX_HITS, "ttft_seconds", "tpot_seconds"),
        examine=checks.check_repeated_prompts,
    ),
    CauseCheck(
        cause="adapters held back",
        methods=SLOW,
        families=FROM_ARRIVAL,
        examine=prove_when_slow(checks.check_held_back),
    ),
    CauseCheck(
        cause="prompt lengths",
        methods=EITHER,
        examine=checks.check_longer("prompt_tokens_per_request", "prompt", "prompt_tokens"),
    ),
    CauseCheck(
        cause="output lengths",
        methods=EITHER,
        examine=checks.check_longer("generation_tokens_per_request", "output", "generation_tokens"),
    ),
    CauseCheck(cause="adapters", methods=SLOW, examine=checks.check_adapters),
    CauseCheck(cause="speculation", methods=SLOW, examine=checks.check_speculation),
    CauseCheck(cause="throttling", methods=LATENCY, examine=prove_when_slow(first_token.check_throttling_cause)),
    CauseCheck(cause="more load", methods=PRESSURE | USERS | TURNED_AWAY, examine=checks.check_load),
    CauseCheck(cause="evictions", methods=SLOW, examine=prove_when_slow(checks.check_evictions)),
    CauseCheck(cause="queueing", methods=SLOW, families=FROM_ARRIVAL, examine=first_token.check_queueing_cause),
    CauseCheck(cause="prefill", methods=USERS, families=FROM_ARRIVAL, examine=first_token.check_prefill_cause),
    CauseCheck(
        cause="failed transfers",
        methods=LATENCY | FAILING,
        families=FROM_ARRIVAL,
        examine=error_checks.check_transfers,
    ),
    CauseCheck(cause="benchmark", methods=SLOW, examine=checks.check_benchmark),
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
    context = CauseContext.from_windows(rule, view, used)
    findings = [(row.cause, row.examine(context)) for row in suspects]
    supported = sorted(
        ((cause, found) for cause, found in findings if found.supported), key=lambda row: not row[1].proven
    )
    causes = [
        Cause(cause=cause, certainty=certain_if(found.proven), evidence=(found.text,)) for cause, found in supported
    ]
    unknown = tuple(
        f"cannot be excluded: {found.text}" for _, found in findings if found.supported is None and found.text
    )
    if not causes and rule.method in LATENCY:
        excluded = tuple(found.text for _, found in findings if found.supported is False and found.text)
        text = MACHINE if view.curve is not None else UNMEASURED
        causes = [Cause(cause="slower machine", certainty=Certainty.LIKELY, evidence=(text, *excluded))]
    if not causes:
        return verdict
    causes[0] = replace(causes[0], against=unknown)
    return replace(verdict, causes=tuple(causes))
