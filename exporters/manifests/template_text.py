"""The tree of an object as the text of a chart's template: each slot becomes an expression of Go's text/template.

Owns the spelling of expressions and the layout. Templates use what Helm and plain Go agree on: if, with, toYaml, nindent,
quote and `.Release`; no helper templates, so that every line of a template reads like the object it makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import yaml

from exporters.manifests.slots import MERGED, Content, Joined, Only, Release, Slot, Tree

STEP = 2


def template(objects: Iterable[tuple[tuple[Slot, ...], Tree]]) -> str:
    """Documents, each only where all of its slots are true."""
    return "".join(guarded(slots, _document(tree)) for slots, tree in objects)


def escaped(text: str) -> str:
    """Text that a template prints as it is: what opens an action in it is printed by one."""
    return text.replace("{{", '{{ "{{" }}')


def value_of(slot: Slot) -> str:
    """Where the slot's value is found."""
    return f".Values.{slot.path}"


def guarded(slots: Iterable[Slot], text: str) -> str:
    """Text that is there only where all of the slots are true."""
    for slot in slots:
        text = f"{{{{- if {value_of(slot)} }}}}\n{text}{{{{- end }}}}\n"
    return text


def _document(tree: Tree) -> str:
    return "".join(f"{line}\n" for line in ("---", *_mapping(tree, 0)))


def _mapping(tree: Mapping[str, Tree], column: int) -> Iterator[str]:
    for key, value in tree.items():
        if key == MERGED:
            yield f"{{{{- with {value_of(value)} }}}}"
            yield _printed("toYaml .", column - STEP)
            yield "{{- end }}"
        elif isinstance(value, Only):
            yield f"{{{{- if {value_of(value.slot)} }}}}"
            yield from _entry(key, value.tree, column)
            yield "{{- end }}"
        else:
            yield from _entry(key, value, column)


def _entry(key: str, value: Tree, column: int) -> Iterator[str]:
    head = f"{' ' * column}{_scalar(key)}:"
    if isinstance(value, Slot) and value.may_be_left_out:
        yield f"{{{{- with {value_of(value)} }}}}"
        yield from (f"{head} {{{{ . | quote }}}}",) if value.scalar else (head, _printed("toYaml .", column))
        yield "{{- end }}"
    elif isinstance(value, Slot) and not value.scalar:
        yield from (head, _printed(f"toYaml {value_of(value)}", column))
    elif isinstance(value, Content):
        way = value_of(value.slot) if value.slot.scalar else f"toYaml {value_of(value.slot)}"
        yield from (f"{head} |", _printed(way, column))
    elif isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, column + STEP)
    elif isinstance(value, list) and value:
        yield head
        yield from _items(value, column + STEP)
    else:
        yield f"{head} {_inline(value)}"


def _printed(value: str, column: int) -> str:
    """A value of several lines, below a key in that column."""
    inner = column + STEP
    return f"{' ' * inner}{{{{- {value} | nindent {inner} }}}}"


def _items(items: Iterable[Tree], column: int) -> Iterator[str]:
    for item in items:
        if isinstance(item, Only):
            yield f"{{{{- if {value_of(item.slot)} }}}}"
            yield from _item(item.tree, column)
            yield "{{- end }}"
        else:
            yield from _item(item, column)


def _item(item: Tree, column: int) -> Iterator[str]:
    if not (isinstance(item, Mapping) and item):
        yield f"{' ' * column}- {_inline(item)}"
        return
    lines = list(_mapping(item, column + STEP))
    first = next(place for place, line in enumerate(lines) if not line.startswith("{{"))
    if first:
        raise TypeError("the first key of a list's item must not depend on a value: the dash stands before it")
    yield f"{' ' * column}- {lines[0][column + STEP :]}"
    yield from lines[1:]


def _inline(value: Tree) -> str:
    if isinstance(value, Slot):
        filters = (value.filter, "quote" if isinstance(value.default, str) else "")
        return f"{{{{ {' | '.join((value_of(value), *(one for one in filters if one)))} }}}}"
    if isinstance(value, Release):
        return f"{{{{ {value.expression} }}}}"
    if isinstance(value, Joined):
        return f'"{"".join(_part(part) for part in value.parts)}"'
    if isinstance(value, str | int | bool) or value in ({}, []):
        return _scalar(value)
    raise TypeError(f"{type(value).__name__} cannot stand in a manifest")


def _part(part: str | Slot | Release) -> str:
    if isinstance(part, str):
        return part
    return f"{{{{ {value_of(part) if isinstance(part, Slot) else part.expression} }}}}"


def _scalar(value: object) -> str:
    """As YAML has it on one line; text with braces is quoted, and an action in it would be printed, not run."""
    if isinstance(value, str) and ("{" in value or "\n" in value):
        return escaped(json.dumps(value))
    text: str = yaml.safe_dump(value, width=10**6, default_flow_style=True)
    return text.removesuffix("\n").removesuffix("\n...")
