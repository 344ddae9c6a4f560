"""Metric names that no page prints, and what they are called there.

Owns the search for the right name. A name is judged only if the pages print others of its exporter; a name that was
renamed is found by the engine tables, what they do not know is a row of `agent.lint.facts_names`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from agent.lint.catalogue import PARTS, Catalogue, key_of, namespace_of, stem_of
from agent.lint.expressions import Binary, Call, Node, Selector, matched_names, selectors, walk
from agent.lint.facts_names import APPEARING, DEPRECATED, ELSEWHERE, FORMER, NEGOTIATED, OFF, Former
from agent.lint.findings import Fault, Judged, Remark
from agent.lint.lifetimes import NOT_YET, Life, life_of, same_family
from exporters.metrics.names import ALL as OWN
from rules.gpu_sources.dcgm import FIELDS
from rules.gpu_sources.dcgm import IGNORED as DCGM_IGNORED
from rules.telemetry.families import FamilyKind

DEAD, SPELLING, SUFFIX, RENAMED, AVOID = "dead-name", "spelling", "suffix", "renamed", "avoid"
_CLOSE = 0.8
_TOKEN = re.compile(r"[A-Za-z_][\w:]*")
_BEGINNING = re.compile(r"^(DCGM_(FI|EXP)_(DEV_|PROF_)?|[a-z]+_)")


def check_names(judged: Judged) -> Iterator[Fault | Remark]:
    """Every name that is dead, deprecated, or not to be judged by these pages."""
    told: set[str] = set()
    for node, above in walk(judged.node):
        if not isinstance(node, Selector) or node.name in told:
            continue
        told.add(node.name)
        if node.name:
            yield from _of_selector(node, above, judged)
    for matcher in matched_names(judged.node):
        found = _pattern(matcher.op, matcher.value, judged.catalogue)
        if found:
            yield Fault(kind=DEAD, text=found)


def _of_selector(node: Selector, above: tuple[Node, ...], judged: Judged) -> Iterator[Fault | Remark]:
    pages, name = judged.catalogue, node.name
    if name in judged.recorded:
        return
    if name in pages.printed:
        if not _stands_in(node, above, judged):
            yield from _deprecated(node, pages)
        return
    found = _absent(node, above, pages)
    if isinstance(found, Fault) and _is_fallback(node, above, judged):
        return
    if found is not None:
        yield found


def _deprecated(node: Selector, pages: Catalogue) -> Iterator[Fault]:
    key = key_of(node.name)
    former = DEPRECATED.get(key) or DEPRECATED.get(stem_of(key))
    printing = [Catalogue(pages=(page,)) for page in pages.pages if any(s.name == node.name for s in page.series)]
    # A page that prints nothing else needs the old name.
    if former and all(_fix(former, key, page) for page in printing):
        fix = _fix(former, key, pages)
        yield Fault(kind=AVOID, text=f"{node.name} {former.why}", fix=_placed(node, fix), token=node.name)


def _absent(node: Selector, above: tuple[Node, ...], pages: Catalogue) -> Fault | Remark | None:
    name, key, namespace = node.name, key_of(node.name), namespace_of(node.name)
    if namespace == "sizewatch_":
        return _own(node)
    if not namespace:
        return None
    if name.count(":") > 1:
        return Remark(name=name, text="looks recorded, and no file given records it: give the file that does")
    if namespace not in pages.namespaces:
        return Remark(name=name, text=f"no page given prints names beginning with {namespace}: give its page")
    if key in ELSEWHERE:
        return Remark(name=name, text=f"{ELSEWHERE[key]}: give its page")
    return _respelt(node, pages) or _suffixed(node, above, pages) or _renamed(node, pages) or _unknown(node, pages)


def _respelt(node: Selector, pages: Catalogue) -> Fault | Remark | None:
    printed = pages.by_key.get(key_of(node.name))
    if printed is None:
        return None
    if namespace_of(printed) in NEGOTIATED and printed.replace(":", "_") == node.name.replace(":", "_"):
        text = (
            f"the page prints {printed}, but this server spells names by what it is asked for: lint its address (--url)"
        )
        return Remark(name=node.name, text=text)
    text = f"no page prints {node.name}; there it is {printed}"
    return Fault(kind=SPELLING, text=text, fix=_placed(node, printed), token=node.name)


def _suffixed(node: Selector, above: tuple[Node, ...], pages: Catalogue) -> Fault | None:
    """A counter without `_total`, a histogram without its part, or the other way round."""
    key = key_of(node.name)
    title = pages.title_of(namespace_of(node.name))
    counter = f"{key}_total"
    if pages.is_printed(counter) or (same_family(counter, pages).source and life_of(counter, pages) is Life.OPTIONAL):
        now = pages.by_key.get(counter, f"{node.name}_total")
        text = f"no page prints {node.name}: counters of {title} end in _total"
        return Fault(kind=SUFFIX, text=text, fix=_placed(node, now), token=node.name)
    if pages.is_histogram(key):
        part = _wanted_part(above)
        now = pages.by_key[key + part]
        text = f"no page prints {node.name}: it is a histogram, of which there are _bucket, _sum and _count"
        return Fault(kind=SUFFIX, text=text, fix=_placed(node, now), token=node.name)
    bare = next((key.removesuffix(end) for end in ("_total", *PARTS) if key.endswith(end)), "")
    if bare and pages.is_printed(bare):
        now = pages.by_key[bare]
        text = f"no page prints {node.name}: {now} is a {pages.printed[now].type} here"
        return Fault(kind=SUFFIX, text=text, fix=_placed(node, now), token=node.name)
    return None


def _wanted_part(above: tuple[Node, ...]) -> str:
    calls = {node.name for node in above if isinstance(node, Call)}
    if calls & {"histogram_quantile", "histogram_fraction"}:
        return "_bucket"
    return "_sum" if calls & {"rate", "increase", "irate"} else "_count"


def _renamed(node: Selector, pages: Catalogue) -> Fault | None:
    key, namespace = key_of(node.name), namespace_of(node.name)
    former = FORMER.get(key) or FORMER.get(stem_of(key)) or FORMER.get(f"{key}_total")
    if former is not None:
        life = life_of(key, pages)
        why = f"{pages.title_of(namespace)} has it not, {life}" if str(life).startswith(NOT_YET) else former.why
        text = f"no page prints {node.name}: {why}"
        return Fault(kind=RENAMED, text=text, fix=_placed(node, _fix(former, key, pages)), token=node.name)
    for wanted in (key, f"{key}_total"):
        now = same_family(wanted, pages).printed
        if now:
            since = same_family(wanted, pages).since
            text = f"no page prints {node.name}: {pages.title_of(namespace)} has {now}" + (
                f", seen from {since} on" if since else ""
            )
            return Fault(kind=RENAMED, text=text, fix=_placed(node, now), token=node.name)
    return None


def _fix(former: Former, key: str, pages: Catalogue) -> str:
    """The first fix all of whose names are printed or can be, as the pages spell them; "" without one."""
    part = key.removeprefix(stem_of(key)) if former.family else ""
    for fix in former.fixes:
        whole = fix + part
        tokens = [token for token in _TOKEN.findall(whole) if namespace_of(token)]
        if all(pages.is_printed(key_of(token)) or life_of(key_of(token), pages) is Life.OPTIONAL for token in tokens):
            return _TOKEN.sub(lambda m: pages.by_key.get(key_of(m[0]), m[0]) if namespace_of(m[0]) else m[0], whole)
    return ""


def _placed(node: Selector, fix: str) -> str:
    """The fix with the selector's labels and range, where it is a plain name; an expression stands for itself."""
    if not fix or not _TOKEN.fullmatch(fix):
        return fix
    rest = node.text.removeprefix(node.name)
    return fix + rest if rest.startswith(("{", "[", " ")) or not rest else fix


def _unknown(node: Selector, pages: Catalogue) -> Fault | Remark | None:
    name, key, namespace = node.name, key_of(node.name), namespace_of(node.name)
    title = pages.title_of(namespace)
    life = life_of(key, pages) or life_of(f"{key}_total", pages)
    if life is Life.OPTIONAL or key in APPEARING:
        text = f"{title} does not print it now; it appears with its first event, or with an option of the server"
        return Remark(name=name, text=text)
    if isinstance(life, str) and life:
        return Fault(kind=DEAD, text=f"no page prints {name}: {title} has it not, {life}", token=name)
    if namespace == "DCGM_" and _is_dcgm(key):
        text = f"no page prints {name}: {OFF}; add it to the exporter's file of counters"
        return Fault(kind=DEAD, text=text, token=name)
    near = _nearest(key, [printed for printed in pages.of(namespace) if not printed.endswith("_created")])
    text = f"no page prints {name} and no file given records it" + ("; the closest name follows" if near else "")
    return Fault(kind=DEAD, text=text, fix=_placed(node, near), token=name)


def _nearest(key: str, printed: Iterable[str]) -> str:
    """The printed name most like a key, told by what comes after the beginning that all names of its kind share."""
    names = {_BEGINNING.sub("", key_of(name)): name for name in printed}
    near = difflib.get_close_matches(_BEGINNING.sub("", key), names, n=1, cutoff=_CLOSE)
    return names[near[0]] if near else ""


def _is_dcgm(key: str) -> bool:
    known = {name for field in FIELDS for name in field.names}
    return key in known or any(key.startswith(row.prefix) for row in DCGM_IGNORED if not row.prefix.endswith("_"))


def _own(node: Selector) -> Fault | None:
    """sizewatch's own names are known without a page."""
    names = [part for metric in OWN for part in _own_parts(metric.name, metric.kind)]
    if node.name in names:
        return None
    text = f"sizewatch exports no {node.name}"
    return Fault(kind=DEAD, text=text, fix=_placed(node, _nearest(node.name, names)), token=node.name)


def _own_parts(name: str, kind: FamilyKind) -> tuple[str, ...]:
    return tuple(name + part for part in PARTS) if kind is FamilyKind.HISTOGRAM else (name,)


def _is_fallback(node: Selector, above: tuple[Node, ...], judged: Judged) -> bool:
    """Whether a name stands beside a living one in an `or`, and existed once: the rule is for releases of both kinds."""
    key = key_of(node.name)
    former = FORMER.get(key) or FORMER.get(stem_of(key))
    once = (
        former.real
        if former
        else bool(same_family(key, judged.catalogue).source) or bool(life_of(key, judged.catalogue))
    )
    if not once:
        return False
    return _stands_in(node, above, judged)


def _stands_in(node: Selector, above: tuple[Node, ...], judged: Judged) -> bool:
    """Whether an `or` around it has another side that lives."""
    sides = [side for n in above if isinstance(n, Binary) and n.op == "or" for side in (n.left, n.right)]
    return any(_lives(side, judged) for side in sides if node not in selectors(side))


def _lives(node: Node, judged: Judged) -> bool:
    found = selectors(node)
    return bool(found) and all(s.name in judged.catalogue.printed or s.name in judged.recorded for s in found)


def _pattern(op: str, value: str, pages: Catalogue) -> str:
    """What is wrong with a matcher on names, where it is meant for names of these pages."""
    if op != "=~" or "$" in value:
        return ""
    start = re.match(r"[A-Za-z_][\w:]*", value)
    if start is None or namespace_of(start[0]) not in pages.namespaces:
        return ""
    try:
        pattern = re.compile(value)
    except re.error:
        return ""
    return "" if any(pattern.fullmatch(name) for name in pages.printed) else f"no page prints a name like {value}"
