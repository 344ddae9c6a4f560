"""What may be set in a manifest, and the tree of an object with such places in it.

Owns the kinds of place (Slot, Joined, Only, Content), the namespace, and the tree with the defaults put in, which is what
kustomize gets. The same tree as text of a chart's template is `exporters.manifests.template_text`'s. It knows no object of
Kubernetes. A new kind of place is a class here and a case there.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from exporters.render.yaml import Block, Dumper

Tree = Any
"""Mappings, lists, text, numbers, truth values, and the places below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A value that the chart's user may set: where it stands in values.yaml, what it is without, and what it must be."""

    path: str
    default: Any
    text: str
    schema: Mapping[str, Any]
    filter: str = ""
    """A function of the template that the value goes through."""

    @property
    def scalar(self) -> bool:
        """Whether it is printed on its key's own line."""
        return not isinstance(self.default, dict | list)

    @property
    def may_be_left_out(self) -> bool:
        """Whether an empty value, as it is by default, leaves its key out of the object."""
        return self.default in ("", {}, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Text that is made of fixed parts and slots."""

    parts: tuple[str | Slot | Release, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What the installer of a chart knows, as its template says it, and what it is without a chart."""

    expression: str
    default: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """A part of a mapping or list that is there only where the slot is true or not empty."""

    slot: Slot
    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A whole YAML document as the text of a ConfigMap's key: a mapping's, or a slot's own text."""

    slot: Slot


MERGED = "<merged>"
"""The key of a mapping that stands for the entries of a slot's mapping, beside those that are always there."""

NAMESPACE = Release(expression=".Release.Namespace", default="sizewatch")
"""Where everything is installed that belongs to a namespace."""


def plain(tree: Tree) -> Any:
    """The tree with every default in its place. Raises TypeError for what no manifest can hold."""
    if isinstance(tree, Mapping):
        own = {key: plain(value) for key, value in tree.items() if key != MERGED and not _absent(value)}
        return {**own, **plain(tree[MERGED])} if MERGED in tree else own
    if isinstance(tree, list):
        return [plain(value) for value in tree if not _absent(value)]
    if isinstance(tree, Slot):
        # A copy: what stands twice in a document would be printed as a reference to itself.
        return deepcopy(tree.default)
    if isinstance(tree, Release):
        return tree.default
    if isinstance(tree, Only):
        return plain(tree.tree)
    if isinstance(tree, Joined):
        return "".join(part if isinstance(part, str) else str(part.default) for part in tree.parts)
    if isinstance(tree, Content):
        return Block(tree.slot.default if tree.slot.scalar else printed(tree.slot.default))
    if isinstance(tree, str | int | bool):
        return tree
    raise TypeError(f"{type(tree).__name__} cannot stand in a manifest")


def printed(data: Mapping[str, Any]) -> str:
    """YAML in the order of the keys, nothing folded."""
    text: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True, default_flow_style=False
    )
    return text


def _absent(value: Tree) -> bool:
    if isinstance(value, Only):
        return not value.slot.default
    return isinstance(value, Slot) and value.may_be_left_out
