"""Causes of a finding, with evidence and counter-evidence.

Proven causes come first, then suspicions, each in the order of SUSPECTS. Else prefill or the machine is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rules.catalogue.registry import BY_NAME, REMEDIES
from rules.causes import checks
from rules.causes.context import FROM_ARRIVAL, READ, USERS, CauseContext, Examine, prove_when_slow
from rules.confidence import Certainty
from rules.methods.availability import judge_cascade
from rules.methods.bands import judge_band, judge_event_ratio, judge_excess
from rules.methods.burn_rate import judge_availability, judge_refused
from rules.methods.demand import judge_demand
from rules.methods.divergence import judge_mean, judge_tail
from rules.methods.drift import judge_representative
from rules.methods.load import judge_beyond, judge_queue, judge_saturated
from rules.plan.load_bins import BinnedWindow, TierContext, pool_of
from rules.telemetry.gauges import IN_SYSTEM, SIGMA
from rules.verdicts.error_budget import OBJECTIVES
from rules.verdicts.held_windows import hold
from rules.verdicts.rule import Method, Rule
from rules.verdicts.verdict import FIRING, Cause, Status, Verdict

MACHINE = "the machine is slower than the benchmarked one (neighbours, clocks): no other cause was found"
PREFILL = "prefill is slower than benchmarked (clocks, bursts), tokens are not: no other cause was found"
UNMEASURED = "the machine is slow (neighbours, clocks, throttling), or the objective is too strict: no benchmark tells"
LAST = {"prefill": FROM_ARRIVAL, "slower machine": OBJECTIVES}
"""Causes if no check finds one, and their families."""

LATENCY = frozenset({judge_tail}) | USERS
SLOW = LATENCY | frozenset({judge_representative})
"""Methods for latencies above the benchmark or the objective."""

PRESSURE = frozenset({judge_cascade, judge_event_ratio, judge_excess, judge_beyond, judge_queue, judge_saturated})
EITHER = SLOW | PRESSURE | {judge_demand}
FAILING, TURNED_AWAY = frozenset({judge_availability}), frozenset({judge_refused})
HITS = frozenset({judge_mean, judge_band})
OF_ONE_FAMILY = LATENCY | HITS
"""Methods whose rules are about one family. A check lists the families that it explains."""


@dataclass(frozen=True, slots=True)
class CauseCheck:
    """Check of a cause, and the methods and families of the rules that it explains. `claim`: a template in other words."""

    cause: str
    examine: Examine
    methods: frozenset[Method]
    families: tuple[str, ...] = OBJECTIVES
    claim: str = ""

    def explains(self, rule: Rule) -> bool:
        return rule.method in self.methods and (rule.method not in OF_ONE_FAMILY or rule.family in self.families)


ROUTED = ("prefix_hit_ratio", *FROM_ARRIVAL)
check_prompts, check_outputs = (partial(checks.check_longer, key) for key in ("prompt_tokens", "generation_tokens"))

SUSPECTS: tuple[CauseCheck, ...] = (
    CauseCheck("engine stopped", checks.check_engine_steps, FAILING | USERS, FROM_ARRIVAL),
    CauseCheck("one replica", checks.check_one_replica, FAILING | TURNED_AWAY),
    CauseCheck("hardware faults", checks.check_hardware_faults, FAILING),
    CauseCheck("restarts", checks.check_restarts, FAILING),
    CauseCheck("client requests", checks.check_client_errors, TURNED_AWAY),
    CauseCheck("evictions", checks.check_evictions, HITS, ("prefix_hit_ratio",)),
    CauseCheck("cold cache", checks.check_cold_cache, OF_ONE_FAMILY, ROUTED),
    CauseCheck("routing", checks.check_routing, OF_ONE_FAMILY, ROUTED),
    CauseCheck("prefix hits", checks.check_prefix_hits, EITHER, claim="fewer prefix hits"),
    CauseCheck("benchmark", checks.check_repeated_prompts, OF_ONE_FAMILY, ("prefix_hit_ratio", *OBJECTIVES[:2])),
    CauseCheck("adapters held back", prove_when_slow(checks.check_held_back), SLOW, FROM_ARRIVAL),
    CauseCheck("prompt lengths", check_prompts, EITHER, claim="prompts are longer than {than}"),
    CauseCheck("output lengths", check_outputs, EITHER, claim="outputs are longer than {than}"),
    CauseCheck("adapters", checks.check_adapters, SLOW),
    CauseCheck("speculation", checks.check_speculation, SLOW),
    CauseCheck("throttling", prove_when_slow(checks.check_throttling_cause), LATENCY),
    CauseCheck("more load", checks.check_load, PRESSURE | USERS | TURNED_AWAY, claim="more load than planned"),
    CauseCheck("evictions", prove_when_slow(checks.check_evictions), SLOW),
    CauseCheck("queueing", checks.check_queueing_cause, SLOW, FROM_ARRIVAL),
    CauseCheck("prefill", partial(checks.measure_part, "prefill_seconds", "in prefill"), USERS, FROM_ARRIVAL),
    CauseCheck("failed transfers", checks.check_transfers, LATENCY | FAILING, FROM_ARRIVAL),
    CauseCheck("benchmark", checks.check_benchmark, SLOW),
)
"""Causes in the order of a sentence. A new cause is a check and a row."""


def add_causes(verdict: Verdict, view: TierContext, binned: Sequence[BinnedWindow]) -> Verdict:
    """Add the causes to a firing verdict, first suspect first: by `binned`, or those on the curve if it compares it."""
    if verdict.status not in FIRING:
        return verdict
    rule = BY_NAME[verdict.rule]
    used = hold(binned).on_curve if rule.method is judge_tail else hold(binned)
    if not used:
        return verdict
    total = used.sum_families(READ)
    if not view.serves_whole_requests:
        # Decode replicas look up prompts whose blocks they are handed.
        prefill = [binned for binned in used if pool_of(view, binned.replica) == "prefill"] or used
        total = replace(total, counters={**total.counters, **hold(prefill).sum_families(checks.HIT_RATE).counters})
    context = CauseContext(rule=rule, context=view, binned=used, total=total)
    facts = [(row.cause, row.claim or row.cause, row.examine(context)) for row in SUSPECTS if row.explains(rule)]
    supported = [(cause, claim, fact) for cause, claim, fact in facts if fact and fact.supported]
    causes = []
    for cause, claim, fact in sorted(supported, key=lambda row: not row[2].proven):
        evidence = f"{claim.format(than=fact.than)}: {fact.text}"
        causes.append(Cause(cause=cause, certainty=Certainty.of(fact.proven), evidence=(evidence,)))
    if not causes and rule.method in LATENCY:
        excluded = (f"not {cause}: {fact.text}" for cause, _, fact in facts if fact and fact.text)
        name, text = "slower machine", MACHINE if view.curve else UNMEASURED
        tokens = getattr(checks.judge_beside(context, "TpotDivergence"), "status", None)
        known = [cause for cause, _, fact in facts if fact]
        if tokens is Status.OK and rule.family in FROM_ARRIVAL and "prefill" not in known:
            name, text = "prefill", PREFILL
        causes = [Cause(cause=name, certainty=Certainty.LIKELY, evidence=(text, *excluded))]
    if not causes:
        return verdict
    unknown = [cause for cause, _, fact in facts if fact is None and cause != causes[0].cause]
    levels = [gauge for name in IN_SYSTEM if (gauge := total.gauge(name))]
    peak, mean = (sum(getattr(level, name) for level in levels) for name in ("maximum", "mean"))
    if rule.method in LATENCY and peak > 2 + 2 * mean + SIGMA * mean**0.5:
        unknown.append(f"bursts (up to {peak:.0f} requests at a replica, {mean:.1f} on average)")
    against = (f"cannot be excluded: {', '.join(unknown)}",) if unknown else ()
    causes[0] = replace(causes[0], against=against)
    actions = verdict.actions
    if rule.method in OF_ONE_FAMILY | TURNED_AWAY:
        actions = tuple(dict.fromkeys((REMEDIES[causes[0].cause], *actions)))
    return replace(verdict, causes=tuple(causes), actions=actions)
