"""Counters taken for levels, levels taken for counters, and averages since the start of a process.

Owns what may be done with which type. The type is the page's, and only names of known exporters are judged: others print
counters as gauges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.lint.catalogue import PARTS, key_of, namespace_of
from agent.lint.expressions import (
    COMPARISONS,
    SET_OPERATIONS,
    Aggregate,
    Binary,
    Call,
    Node,
    Number,
    Selector,
    walk,
)
from agent.lint.facts_units import SHARES
from agent.lint.findings import Fault, Judged
from agent.lint.units import mean_of, unwrapped

RATE_OF_GAUGE, DELTA_OF_COUNTER, RAW_COUNTER, SINCE_START = (
    "rate-of-gauge",
    "delta-of-counter",
    "raw-counter",
    "since-start",
)

_OF_COUNTERS: Mapping[str, str] = {"rate": "deriv", "irate": "idelta", "increase": "delta"}
_OF_GAUGES: Mapping[str, str] = {
    "delta": "increase",
    "idelta": "irate",
    "deriv": "rate",
    "predict_linear": "rate",
    "avg_over_time": "rate",
}
"""What to write instead where the type is the other one."""

_NOT_JUDGED = ("nvidia_smi_", "nv_trt_llm_", "lmdeploy_")
"""Exporters that print counters as gauges."""
_LIFETIME = ("_ECC_", "_RETIRED_", "_REMAP", "_XID_", "_COUNTER", "_REPLAY_")
"""Parts of names of DCGM's fault counters: that there ever was a fault is what is asked."""


def check_types(judged: Judged) -> Iterator[Fault]:
    """Every function and comparison that does not fit the type of what it is about."""
    for node, above in walk(judged.node):
        if isinstance(node, Call) and node.arguments:
            yield from _call(node, judged)
        elif isinstance(node, Binary) and node.op in COMPARISONS:
            yield from _comparison(node, above, judged)
        elif isinstance(node, Binary) and node.op == "/":
            yield from _quotient(node, judged)


def _type(node: Node, judged: Judged) -> str:
    """counter, gauge or "" where it is not certain; parts of histograms and summaries count."""
    if not isinstance(node, Selector) or node.name in judged.recorded:
        return ""
    printed = judged.catalogue.printed.get(node.name)
    namespace = namespace_of(node.name)
    if printed is None or not namespace or namespace in _NOT_JUDGED:
        return ""
    if printed.type in ("histogram", "summary"):
        return "counter" if node.name.endswith(PARTS) else ""
    return printed.type if printed.type in ("counter", "gauge") else ""


def _call(node: Call, judged: Judged) -> Iterator[Fault]:
    about = node.arguments[0]
    if not isinstance(about, Selector):
        return
    type_ = _type(about, judged)
    if type_ == "gauge" and node.name in _OF_COUNTERS and not about.name.endswith("_total"):
        instead = "changes" if "XID" in about.name else _OF_COUNTERS[node.name]
        text = f"{about.name} is a gauge: {node.name}() takes every fall of it for a restart"
        yield Fault(kind=RATE_OF_GAUGE, text=text, fix=f"{instead}({about.text})", token=about.name)
    if type_ == "counter" and node.name in _OF_GAUGES:
        text = f"{about.name} is a counter, which begins at 0 again after a restart: {node.name}() is for gauges"
        yield Fault(kind=DELTA_OF_COUNTER, text=text, fix=f"{_OF_GAUGES[node.name]}({about.text})", token=about.name)


def _comparison(node: Binary, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault]:
    value, number = (node.left, node.right) if isinstance(node.right, Number) else (node.right, node.left)
    about = _bare(value)
    if about is None or not isinstance(number, Number) or _type(about, judged) != "counter":
        return
    if node.op in ("==", "!=") and number.value == 0:
        return
    guard = any(isinstance(around, Binary) and around.op in SET_OPERATIONS for around in above)
    if (guard and number.value <= 1) or any(part in key_of(about.name) for part in _LIFETIME):
        return
    text = f"{about.name} is a counter since the start of its process: it only grows until the next restart"
    fix = node.text.replace(about.text, f"increase({about.text}[5m])")
    yield Fault(kind=RAW_COUNTER, text=text, fix=fix, token=about.name)


def _bare(node: Node) -> Selector | None:
    """The selector that is aggregated and nothing more; None where anything is done with it."""
    chain = unwrapped(node)
    counting = any(isinstance(found, Aggregate) and found.op in ("count", "group", "count_values") for found in chain)
    plain = all(isinstance(found, Aggregate) for found in chain[:-1]) and not counting
    last = chain[-1]
    return last if plain and isinstance(last, Selector) and not last.ranged else None


def _quotient(node: Binary, judged: Judged) -> Iterator[Fault]:
    left, right = _bare(node.left), _bare(node.right)
    if left is None or right is None or {_type(left, judged), _type(right, judged)} != {"counter"}:
        return
    pair = any(key_of(left.name).endswith(p) and key_of(right.name).endswith(w) for p, w in SHARES)
    if not (pair or mean_of(node)):
        return
    text = f"{node.text} is over the whole life of the process: what happens now hardly moves it"
    fix = node.text
    for selector in {left.text, right.text}:
        fix = _replaced(fix, selector, f"rate({selector}[5m])")
    yield Fault(kind=SINCE_START, text=text, fix=fix, token=left.name)


def _replaced(text: str, what: str, by: str) -> str:
    """Every whole occurrence of a selector, not those that are the beginning of a longer one."""
    parts = text.split(what)
    out = parts[0]
    for rest in parts[1:]:
        longer = rest[:1].isalnum() or rest[:1] in ("_", ":", "{", "[") or out.endswith("rate(")
        out += (what if longer else by) + rest
    return out
