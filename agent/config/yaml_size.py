"""How much a YAML document says once every alias in it is written out: a few hundred bytes can say billions of values.

Owns the count and the limit, before anything is built from the nodes. What a document means, its readers know.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_BRACKETS = re.compile(r"[\[\]{}]")

MOST_VALUES = 1_000_000
"""With aliases written out; a plan of a hundred tiers with curves is some 20,000."""

TOO_MUCH = f"says more than {MOST_VALUES} values once its aliases (*name) are written out"


class YamlSizeError(yaml.YAMLError):
    """A document of more than MOST_VALUES values."""


MOST_DEEP = 200
"""Brackets within brackets: PyYAML's time grows with the square of them, and a plan has three."""


def check_text(text: str) -> None:
    """Raises RecursionError, which the parser would after a long time."""
    deep = 0
    for found in _BRACKETS.finditer(text):
        deep = deep + 1 if found[0] in "[{" else max(0, deep - 1)
        if deep > MOST_DEEP:
            raise RecursionError(f"more than {MOST_DEEP} brackets are open at once")


def check(root: yaml.Node | None) -> None:
    """Raises TooMuch; a part that refers to itself counts once where it does."""
    if root is not None and _values(root, {}) > MOST_VALUES:
        raise YamlSizeError(TOO_MUCH)


def loaded(text: str) -> Any:
    """One document as `yaml.safe_load` reads it. Raises YAMLError, for dates and numbers that cannot be as well, and
    RecursionError.
    """
    check_text(text)
    # Not the parser in C: a file of brackets overflows its stack and ends the process.
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        check(root)
        return loader.construct_document(root) if root is not None else None
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(f"holds a value that YAML reads as a date or number it cannot be ({error})") from error
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    found = known.get(id(node))
    if found is not None:
        return found
    known[id(node)] = count = 1
    if isinstance(node, yaml.SequenceNode):
        count += sum(_values(entry, known) for entry in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_values(key, known) + _values(value, known) for key, value in node.value)
    known[id(node)] = count
    return count
