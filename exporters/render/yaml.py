"""YAML text in key order, with literal blocks and comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml


class Block(str):
    """Text printed as a literal block."""

    __slots__ = ()


class Dumper(yaml.SafeDumper):
    """PyYAML dumper with literal blocks, with lists indented below their key and without anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


Dumper.add_representer(Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def dump_object(data: Any, *, allow_unicode: bool = False) -> str:
    """Return YAML in key order without folded lines. By default, escape characters other than ASCII."""
    text: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=allow_unicode, default_flow_style=False
    )
    return text


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML as `dump_object` does, with an empty line between rules and groups for readability."""
    apart = re.sub(r"\n(?= *- (?:name|alert|record): )", "\n\n", dump_object(data, allow_unicode=True))
    return re.sub(r"((?:groups|rules|receivers|time_intervals):\n)\n", r"\1", apart)


def comment_lines(text: str) -> str:
    """Return the lines of text as YAML comments."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.strip().splitlines())
