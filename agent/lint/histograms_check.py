"""Quantiles of histograms: what histogram_quantile must be given.

Owns that call alone. It knows no metric but by the pages.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.lint.expressions import Aggregate, Call, Number, Selector, walk
from agent.lint.findings import Fault, Judged
from agent.lint.units import unwrapped

NO_LE, NO_BUCKETS, QUANTILE, SINCE_START = "no-le", "no-buckets", "quantile", "since-start"


def check_histograms(judged: Judged) -> Iterator[Fault]:
    """Every call of histogram_quantile that cannot give what it says."""
    for node, _ in walk(judged.node):
        if isinstance(node, Call) and node.name == "histogram_quantile" and len(node.arguments) == 2:
            yield from _call(node, judged)


def _call(node: Call, judged: Judged) -> Iterator[Fault]:
    rank, of = node.arguments
    if isinstance(rank, Number) and not 0 <= rank.value <= 1:
        fix = f"histogram_quantile({rank.value / 100:g}, {of.text})" if 1 < rank.value < 100 else ""
        yield Fault(
            kind=QUANTILE, text=f"a quantile is from 0 to 1, not {rank.value:g}", fix=fix, token="histogram_quantile"
        )
    chain = unwrapped(of)
    last = chain[-1]
    if not isinstance(last, Selector):
        return
    printed = judged.catalogue.printed.get(last.name)
    if printed is not None and "le" not in printed.labels:
        family = last.name.removesuffix("_sum").removesuffix("_count")
        fix = (
            last.text.replace(last.name, f"{family}_bucket", 1)
            if f"{family}_bucket" in judged.catalogue.printed
            else ""
        )
        text = f"{last.name} has no buckets, of which a quantile could be told"
        yield Fault(kind=NO_BUCKETS, text=text, fix=fix, token=last.name)
        return
    loses = next((a for a in chain if isinstance(a, Aggregate) and not a.keeps("le")), None)
    if loses is not None and (printed is not None or last.name.endswith("_bucket")):
        text = f"{loses.op} takes the label le away, so there are no buckets left and no quantile"
        yield Fault(kind=NO_LE, text=text, fix=_with_le(loses), token=loses.op)
    if printed is not None and not last.ranged and not any(isinstance(found, Call) for found in chain):
        text = f"the quantile is over the whole life of the process: {last.name} is not in a rate()"
        fix = node.text.replace(last.text, f"rate({last.text}[5m])", 1)
        yield Fault(kind=SINCE_START, text=text, fix=fix, token=last.name)


def _with_le(node: Aggregate) -> str:
    if node.without:
        kept = tuple(label for label in node.labels or () if label != "le")
        clause = f" without ({', '.join(kept)})" if kept else " by (le)"
    else:
        clause = f" by ({', '.join(('le', *(node.labels or ())))})"
    return f"{node.op}{clause} ({node.inner.text})"
