"""Labels that the series of a page do not have, and label values that never occur.

Owns the comparison of matchers and groupings with the labels of the pages. Prometheus adds labels to a target, so only a label
that is known to be another's name, or nearly so spelt, is a fault. Names and closed sets of values: `agent.lint.facts_labels`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator

from agent.lint.catalogue import Printed, key_of, namespace_of
from agent.lint.expressions import Aggregate, Binary, Call, Matcher, Node, Selector, Text, selectors, walk
from agent.lint.facts_labels import ALIASES, CLOSED
from agent.lint.findings import Fault, Judged

LABEL, VALUE, EDGE = "label", "label-value", "bucket-edge"
_CLOSE = 0.85
_PLAIN = re.compile(r"[\w.-]+(\|[\w.-]+)*")


def check_labels(judged: Judged) -> Iterator[Fault]:
    """Every matcher and grouping that fits no series of the pages."""
    for node, _ in walk(judged.node):
        if isinstance(node, Selector) and _is_known(node, judged):
            printed = judged.catalogue.printed[node.name]
            for matcher in node.matchers:
                yield from _matcher(node, matcher, printed, judged)
        elif isinstance(node, Aggregate) and node.labels and not node.without:
            yield from _grouping(node, judged)


def _is_known(node: Selector, judged: Judged) -> bool:
    """Whether its labels are those of the page: http_requests_total is printed by others too, with other labels."""
    name = node.name
    return name in judged.catalogue.printed and name not in judged.recorded and bool(namespace_of(name))


def _matcher(node: Selector, matcher: Matcher, printed: Printed, judged: Judged) -> Iterator[Fault]:
    if matcher.label not in printed.labels:
        instead = _instead(matcher.label, printed.labels, judged)
        if instead:
            text = f"no series of {node.name} has the label {matcher.label}"
            fix = node.text.replace(f"{matcher.label}{matcher.op}", f"{instead}{matcher.op}")
            yield Fault(kind=LABEL, text=text, fix=fix, token=matcher.label)
            printed_label = instead
        else:
            return
    else:
        printed_label = matcher.label
    if "$" in matcher.value or "[[" in matcher.value:
        return
    if printed_label == "le":
        yield from _edge(node, matcher, printed)
    else:
        yield from _value(node, matcher, printed_label, printed)


def _instead(label: str, printed: frozenset[str], judged: Judged) -> str:
    """The label that is meant; "" for one that Prometheus may have added."""
    if label in judged.target_labels or label.startswith("exported_"):
        return ""
    known = next((one for one in ALIASES.get(label, ()) if one in printed), "")
    near = difflib.get_close_matches(label, sorted(printed - {"le"}), n=1, cutoff=_CLOSE)
    return known or (near[0] if near else "")


def _edge(node: Selector, matcher: Matcher, printed: Printed) -> Iterator[Fault]:
    edges = printed.values["le"]
    if _fits(matcher, edges) or matcher.op in ("!=", "!~"):
        return
    text = f"{node.name} has no bucket with le{matcher.op}{matcher.value!r}"
    fix = ""
    if matcher.op == "=":
        numbers = sorted(
            (abs(float(edge) - _number(matcher.value)), edge) for edge in edges if math.isfinite(float(edge))
        )
        fix = node.text.replace(f'le="{matcher.value}"', f'le="{numbers[0][1]}"') if numbers else ""
    yield Fault(kind=EDGE, text=text, fix=fix, token="le")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _value(node: Selector, matcher: Matcher, label: str, printed: Printed) -> Iterator[Fault]:
    closed = CLOSED.get((key_of(node.name), label))
    if closed is None:
        return
    known = closed | printed.values.get(label, frozenset())
    for value in _literals(matcher, known):
        near = difflib.get_close_matches(value, sorted(known), n=2, cutoff=0.6)
        # Of two that are meant as well as the other neither is better than the list.
        fix = re.sub(rf"\b{re.escape(value)}\b", near[0], node.text) if len(near) == 1 else ""
        text = f"{label} of {node.name} is never {value!r}: it is one of {', '.join(sorted(known))}"
        yield Fault(kind=VALUE, text=text, fix=fix, token=value)


def _literals(matcher: Matcher, known: frozenset[str]) -> tuple[str, ...]:
    """The values asked for that never occur. Of a pattern that is more than a choice of words: itself if nothing fits."""
    if not matcher.value:
        return ()
    if matcher.op in ("=", "!="):
        return () if matcher.value in known else (matcher.value,)
    if _PLAIN.fullmatch(matcher.value) and "." not in matcher.value:
        return tuple(part for part in matcher.value.split("|") if part not in known)
    return () if _fits(matcher, known) else (matcher.value,)


def _fits(matcher: Matcher, values: frozenset[str]) -> bool:
    """Whether a matcher's value, or what is not to be told of it, is among values."""
    if matcher.op in ("=", "!="):
        return matcher.value in values
    try:
        pattern = re.compile(matcher.value)
    except re.error:
        return True
    return any(pattern.fullmatch(value) for value in values)


def _grouping(node: Aggregate, judged: Judged) -> Iterator[Fault]:
    inner = selectors(node.inner)
    pages = judged.catalogue.printed
    if not inner or not all(_is_known(s, judged) for s in inner):
        return
    labels = frozenset(label for s in inner for label in pages[s.name].labels)
    for label in node.labels or ():
        if label in labels or label == "le" or label in _made(node.inner):
            continue
        instead = _instead(label, labels, judged)
        if instead:
            text = (
                f"no series of {inner[0].name} has the label {label}, so {node.op} by ({label}) makes one group of all"
            )
            yield Fault(kind=LABEL, text=text, fix=_with_label(node, label, instead), token=label)


def _made(node: Node) -> frozenset[str]:
    """Labels that an expression itself puts on its series."""
    made: set[str] = set()
    for found, _ in walk(node):
        if isinstance(found, Binary):
            made.update(found.brought)
        if isinstance(found, Call) and found.name in ("label_replace", "label_join") and len(found.arguments) > 1:
            target = found.arguments[1]
            made.update((target.value,) if isinstance(target, Text) else ())
    return frozenset(made)


def _with_label(node: Aggregate, label: str, instead: str) -> str:
    labels = ", ".join(instead if one == label else one for one in node.labels or ())
    return f"{node.op} by ({labels}) ({node.inner.text})"
