"""Why a tier is slower than its benchmark, or short of KV cache: suspects in order, with evidence and counter-evidence.

Owns what is done with the suspects of `rules.causes.checks`: those that counters or bucket edges prove come first, then mere
suspicions, each group in the order of the table. What remains when every suspect of a slow tier is excluded is the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME
from rules.causes.checks import SUSPECTS
from rules.causes.context import LATENCY, CauseContext, CauseResult
from rules.confidence import Certainty
from rules.methods.tails import judge_tail
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.verdicts.verdict import FIRING, Cause, Verdict

MACHINE = (
    "nothing in load, queue, lengths or cache explains it: the machine is slower than the one that was measured "
    "(neighbours, clocks, throttling)"
)

UNMEASURED = (
    "nothing that is known explains it: the machine is slow (neighbours, clocks, throttling), or more was promised than it "
    "can do; without a benchmark nothing tells"
)


def add_causes(verdict: Verdict, view: TierContext, slices: Sequence[BinnedWindow]) -> Verdict:
    """The verdict with its causes, and the first suspect in its sentence; a verdict that does not fire as it is.

    `slices` are those of the hold; of them a comparison is explained by what lies on the curve, anything else by all.
    """
    rule = BY_NAME[verdict.rule]
    suspects = [row for row in SUSPECTS if row.explains(rule)]
    if verdict.status not in FIRING or not suspects:
        return verdict
    used = tuple(s for s in slices if s.bin is not None) if rule.method is judge_tail else tuple(slices)
    if not used:
        return verdict
    scene = CauseContext.from_windows(rule, view, used)
    findings = [(row.cause, row.examine(scene)) for row in suspects]
    causes = _supported(findings)
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
    return replace(
        verdict, causes=tuple(causes), sentence=f"{verdict.sentence}. First suspect: {causes[0].evidence[0]}"
    )


def _supported(findings: Sequence[tuple[str, CauseResult]]) -> list[Cause]:
    supported = [(cause, found) for cause, found in findings if found.supported]
    return [
        Cause(
            cause=cause,
            certainty=Certainty.CERTAIN if found.proven else Certainty.LIKELY,
            evidence=(found.text,),
        )
        for cause, found in sorted(supported, key=lambda pair: not pair[1].proven)
    ]
