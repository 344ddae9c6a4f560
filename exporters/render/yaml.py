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
    """PyYAML dumper with literal blocks and with lists indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML in key order without folded lines."""
    text: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True, default_flow_style=False
    )
    # Rules and groups get an empty line between them for readability.
    apart = re.sub(r"\n(?= *- (?:name|alert|record): )", "\n\n", text)
    return re.sub(r"((?:groups|rules|receivers|time_intervals):\n)\n", r"\1", apart)


def comment_lines(text: str) -> str:
    """Return the lines of text as YAML comments."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.strip().splitlines())
