"""Numbers that a value is compared with and cannot be meant in its unit.

Owns the comparison of a threshold with what is possible or plausible; units and limits are `agent.lint.facts_units`'s. A
threshold that somebody could mean is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agent.lint.catalogue import Catalogue, namespace_of
from agent.lint.expressions import COMPARISONS, Binary, Node, Number, names, walk
from agent.lint.facts_names import memory_share
from agent.lint.facts_units import LIMITS, Limit, Unit
from agent.lint.findings import Fault, Judged
from agent.lint.units import Quantity, quantity

RANGE, UNIT, NOT_A_SHARE = "range", "unit", "not-a-share"
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "==", "!=": "!="}
_ABOVE, _BELOW = (">", ">="), ("<", "<=")
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
_PERCENT_OF_MEMORY = (50.0, 99.0)
"""MiB that nobody alerts above: any server uses more."""
_EARLIEST = 1e9
"""Seconds since the epoch: a number below is no time of an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A value with its quantity, and the number on the right of the operator."""

    value: Node
    quantity: Quantity
    op: str
    number: float
    pages: Catalogue

    @property
    def says(self) -> str:
        name = self.quantity.name or "the value"
        return f"{name} is {self.quantity.unit}, and is compared with {self.op} {self.number:g}"

    def with_number(self, number: float) -> str:
        """The comparison as it is meant."""
        return f"{self.value.text} {self.op} {number:.6g}"


def check_units(judged: Judged) -> Iterator[Fault]:
    """Every comparison with a number in the wrong unit, and used by free memory."""
    for node, _ in walk(judged.node):
        if not isinstance(node, Binary):
            continue
        if node.op == "/" and names(node.left) == {USED} and names(node.right) == {FREE}:
            yield _used_by_free(node, judged.catalogue)
        compared = _compared(node, judged)
        fault = _fault(compared) if compared is not None else None
        if fault is not None:
            yield fault


def _compared(node: Binary, judged: Judged) -> _Compared | None:
    """A comparison with a number, which is turned to the right; None for anything else, and for sums, which have no end."""
    if node.op not in COMPARISONS:
        return None
    value, op, number = node.left, node.op, node.right
    if isinstance(value, Number):
        value, op, number = node.right, _TURNED[node.op], node.left
    found = quantity(value, judged) if isinstance(number, Number) else None
    if found is None or found.summed or not isinstance(number, Number):
        return None
    return _Compared(value=value, quantity=found, op=op, number=number.value, pages=judged.catalogue)


def _used_by_free(node: Binary, pages: Catalogue) -> Fault:
    text = f"{node.text} is used by free memory, not a share of all"
    return Fault(kind=NOT_A_SHARE, text=text, fix=memory_share(pages.printed), token=USED)


def _fault(it: _Compared) -> Fault | None:
    of_unit = _OF_UNITS.get(it.quantity.unit)
    return (of_unit(it) if of_unit else None) or _beyond(it) or _above_last_edge(it)


def _of_ratio(it: _Compared) -> Fault | None:
    if not (it.number > 1 or (it.number == 1 and it.op == ">")):
        return None
    fix = it.with_number(it.number / 100) if 1 < it.number <= 100 else ""
    return Fault(kind=RANGE, text=it.says, fix=fix, token=it.quantity.name)


def _of_percent(it: _Compared) -> Fault | None:
    if 0.1 <= it.number < 1:
        return Fault(kind=RANGE, text=it.says, fix=it.with_number(it.number * 100), token=it.quantity.name)
    never = it.number > 100 or (it.number == 100 and it.op == ">")
    return Fault(kind=RANGE, text=it.says, token=it.quantity.name) if never else None


def _of_mib(it: _Compared) -> Fault | None:
    if it.quantity.name != USED or it.op not in _ABOVE:
        return None
    low, high = _PERCENT_OF_MEMORY
    share = it.number / 100 if low <= it.number <= high else it.number
    if not 0 < share < 1:
        return None
    fix = f"{memory_share(it.pages.printed)} {it.op} {share:g}"
    return Fault(kind=RANGE, text=it.says, fix=fix, token=USED)


def _of_timestamp(it: _Compared) -> Fault | None:
    if not 0 < it.number < _EARLIEST:
        return None
    text = f"the value of {it.quantity.name} is {it.quantity.unit}, not a number of anything"
    return Fault(kind=UNIT, text=text, token=it.quantity.name)


_OF_UNITS: Mapping[Unit, Callable[[_Compared], Fault | None]] = {
    Unit.RATIO: _of_ratio,
    Unit.PERCENT: _of_percent,
    Unit.MIB: _of_mib,
    Unit.TIMESTAMP: _of_timestamp,
}


def _beyond(it: _Compared) -> Fault | None:
    limit = next((one for one in LIMITS if _fits(one, it.quantity)), None)
    if limit is None or not _is_known(it.quantity, it.pages):
        return None
    over = limit.above is not None and it.number >= limit.above
    under = limit.below is not None and 0 < it.number < limit.below
    if not (over or under):
        return None
    text = f"{it.says}: {limit.meant} are meant"
    return Fault(kind=UNIT, text=text, fix=it.with_number(it.number * limit.factor), token=it.quantity.name)


def _is_known(found: Quantity, pages: Catalogue) -> bool:
    """Whether it is a metric that the limits are about: a queue of somebody else may well last an hour."""
    return bool(namespace_of(found.name)) or found.name in pages.printed or found.buckets in pages.printed


def _fits(limit: Limit, found: Quantity) -> bool:
    return limit.unit is found.unit and (not limit.names or any(name in found.name for name in limit.names))


def _above_last_edge(it: _Compared) -> Fault | None:
    """A quantile is never above the last finite bucket edge: histogram_quantile() then returns that edge."""
    buckets = it.quantity.buckets
    printed = it.pages.printed.get(buckets) if buckets else None
    last = printed.last_edge if printed else None
    if last is None or not (it.number > last or (it.number == last and it.op == ">")):
        return None
    says = "always" if it.op in _BELOW else "never"
    name = it.quantity.name
    text = f"the last bucket edge of {name} is {last:g}, so its quantile is {says} {it.op} {it.number:g}"
    fix = f'1 - sum(rate({buckets}{{le="{last!r}"}}[5m])) / sum(rate({name}_count[5m])) > 0.01'
    return Fault(kind=RANGE, text=text, fix=fix, token=buckets)
