"""Expressions that parse, find series, and mean something else than their rule says.

Owns these readings of metrics: what ends a request, error codes, busy memory, averages of quantiles and of shares, sums of
what does not add up. A reading more is a function here and a row of `_READINGS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agent.lint.catalogue import key_of
from agent.lint.expressions import COMPARISONS, Aggregate, Binary, Call, Matcher, Node, Number, Selector, walk
from agent.lint.facts_names import memory_share
from agent.lint.facts_units import Unit
from agent.lint.findings import Fault, Judged
from agent.lint.units import is_share, mean_of, quantity, unwrapped

LENGTH, CODE, BUSY, AVERAGED, SUMMED = "length-as-error", "error-code", "memory-busy", "averaged", "summed"

_FINISHED, _XID, _COPY = "request_success_total", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_MEM_COPY_UTIL"
_WORDS_OF_ERRORS = re.compile(r"error|fail|unsuccessful|success|availab|burn|\bslo\b", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_-]")
_MEMORY_IN_USE = re.compile(
    r"\b(memory|vram|framebuffer|fb)\b( \w+)? (usage|used|use|full|high|pressure|exhaust\w*)\b|out of memory|\boom\b"
)
_OF_THE_BUS = re.compile(r"bandwidth|copy|controller|interface|\bbus\b|traffic|throughput|dram")
_IDENTITIES = frozenset({"instance", "pod", "UUID", "uuid", "gpu", "gpu_uuid", "gpu_id", "exported_pod", "pod_name"})
_INTENSIVE = frozenset({Unit.RATIO, Unit.PERCENT, Unit.CELSIUS})


def check_meaning(judged: Judged) -> Iterator[Fault]:
    """Every reading of a metric that is a known mistake."""
    for node, above in walk(judged.node):
        for reading in _READINGS:
            yield from reading(node, above, judged)


def _length_as_error(node: Node, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault]:
    """Requests that reached their token limit were answered: finished_reason="length" is no error."""
    if not (isinstance(node, Selector) and key_of(node.name).endswith(_FINISHED)):
        return
    reasons = [m for m in node.matchers if m.label in ("finished_reason", "finish_reason")]
    if not reasons or not _WORDS_OF_ERRORS.search(_spoken(judged)):
        return
    if all(_takes(m, "length") for m in reasons) and not all(_takes(m, "stop") for m in reasons):
        if all(m.op in ("=", "=~") and not _takes(m, "abort") and not _takes(m, "error") for m in reasons):
            return
        text = f"{node.text} counts requests that ended at their token limit (length) as errors"
        fix = _with_reasons(node, reasons, '=~"abort|error"')
        yield Fault(kind=LENGTH, text=text, fix=fix, token=node.name)
    elif _only_stop(reasons) and any(isinstance(a, Binary) and a.op == "/" for a in above):
        text = f"{node.text} leaves out requests that ended at their token limit (length): they were answered too"
        yield Fault(kind=LENGTH, text=text, fix=_with_reasons(node, reasons, '=~"stop|length"'), token=node.name)


def _spoken(judged: Judged) -> str:
    return " ".join(_CAMEL.sub(" ", word) for word in judged.rule.words.split())


def _takes(matcher: Matcher, value: str) -> bool:
    if matcher.op in ("=", "!="):
        return (matcher.value == value) == (matcher.op == "=")
    try:
        return bool(re.fullmatch(matcher.value, value)) == (matcher.op == "=~")
    except re.error:
        return False


def _only_stop(reasons: list[Matcher]) -> bool:
    return [reason for reason in ("stop", "length", "abort", "error") if all(_takes(m, reason) for m in reasons)] == [
        "stop"
    ]


def _with_reasons(node: Selector, reasons: list[Matcher], instead: str) -> str:
    first = reasons[0]
    return node.text.replace(f'{first.label}{first.op}"{first.value}"', f"finished_reason{instead}")


def _error_code(node: Node, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault]:
    """An XID is the code of the last error (METRICS trap 16): a mean or an order of codes says nothing."""
    if isinstance(node, Aggregate) and node.op in ("avg", "sum", "stddev", "quantile"):
        about: Node = node.inner
    elif isinstance(node, Call) and node.name in (
        "avg_over_time",
        "sum_over_time",
        "quantile_over_time",
        "rate",
        "increase",
    ):
        about = node.arguments[-1]
    elif isinstance(node, Binary) and node.op in COMPARISONS and isinstance(node.right, Number):
        if node.op in ("==", "!=") or (node.op, node.right.value) in ((">", 0), (">=", 1), ("<", 1), ("<=", 0)):
            return
        about = node.left
    else:
        return
    if isinstance(about, Selector) and about.name == _XID and not _is_rate_of_gauge(node):
        text = f"{_XID} is the code of the last error, not a number of errors: {node.text} says nothing"
        bare = about.text.partition("[")[0]
        yield Fault(kind=CODE, text=text, fix=f"changes({bare}[5m]) > 0", token=_XID)


def _is_rate_of_gauge(node: Node) -> bool:
    """Told by the types already."""
    return isinstance(node, Call) and node.name in ("rate", "increase")


def _memory_busy(node: Node, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault]:
    """MEM_COPY_UTIL is the share of time in which memory was touched; it does not say how much is in use."""
    if not (isinstance(node, Selector) and node.name == _COPY):
        return
    spoken = _spoken(judged).lower()
    if _MEMORY_IN_USE.search(spoken) and not _OF_THE_BUS.search(spoken):
        text = f"{_COPY} is how long memory was busy, not how much of it is in use"
        yield Fault(kind=BUSY, text=text, fix=f"100 * {memory_share(judged.catalogue.printed)}", token=_COPY)


def _averaged(node: Node, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault]:
    """A mean of quantiles is no quantile, and a mean of shares weighs an idle replica like a busy one."""
    if not (isinstance(node, Aggregate) and node.op in ("avg", "sum")):
        return
    inner = node.inner
    if isinstance(inner, Call) and inner.name == "histogram_quantile" and len(inner.arguments) == 2:
        if _is_one_series(inner.arguments[1]):
            return
        text = f"{node.op} of quantiles is no quantile: add up the buckets first"
        yield Fault(kind=AVERAGED, text=text, fix=_quantile_of_sum(node, inner), token="histogram_quantile")
    elif isinstance(inner, Binary) and inner.op == "/" and node.op == "avg":
        if not (mean_of(inner) or is_share(inner, lambda _: None)) or _is_one_series(inner.left):
            return
        clause = _clause(node)
        left, right = (_below_sum(side) for side in (inner.left, inner.right))
        text = "avg of a quotient of every series weighs an idle one like a busy one: divide the sums"
        yield Fault(kind=AVERAGED, text=text, fix=f"sum{clause}({left}) / sum{clause}({right})", token=node.op)


def _is_one_series(node: Node) -> bool:
    """Whether an aggregation leaves no label but le."""
    return isinstance(node, Aggregate) and not node.without and set(node.labels or ()) <= {"le"}


def _clause(node: Aggregate) -> str:
    return f" {'without' if node.without else 'by'} ({', '.join(node.labels)}) " if node.labels else ""


def _below_sum(node: Node) -> str:
    return node.inner.text if isinstance(node, Aggregate) and node.op == "sum" else node.text


def _quantile_of_sum(node: Aggregate, call: Call) -> str:
    rank, buckets = call.arguments
    kept = () if node.without else node.labels or ()
    return f"histogram_quantile({rank.text}, sum by ({', '.join(('le', *kept))}) ({_below_sum(buckets)}))"


def _summed(node: Node, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault]:
    """Shares and temperatures of several do not add up."""
    if not (isinstance(node, Aggregate) and node.op == "sum"):
        return
    found = quantity(node.inner, judged)
    last = unwrapped(node.inner)[-1]
    if found is None or found.unit not in _INTENSIVE or not isinstance(last, Selector):
        return
    if _divided_by_count(node, above) or _one_a_group(node, last, judged):
        return
    text = f"sum adds {found.name}, {found.unit}, over its series"
    yield Fault(kind=SUMMED, text=text, fix=f"avg{_clause(node)}({node.inner.text})", token=last.name)


def _divided_by_count(node: Aggregate, above: tuple[Node, ...]) -> bool:
    around = above[-1] if above else None
    return isinstance(around, Binary) and around.op == "/" and around.left is node


def _one_a_group(node: Aggregate, about: Selector, judged: Judged) -> bool:
    """Whether the groups are targets or GPUs with one series each: such a sum only drops labels."""
    if node.without or (node.labels and set(node.labels) & _IDENTITIES):
        printed = judged.catalogue.printed.get(about.name)
        by_gpu = bool(printed and printed.labels & _IDENTITIES & set(node.labels or ()))
        return by_gpu or node.without or printed is None or printed.most == 1
    return False


Reading = Callable[[Node, tuple[Node, ...], Judged], Iterator[Fault]]
_READINGS: tuple[Reading, ...] = (_length_as_error, _error_code, _memory_busy, _averaged, _summed)
