"""Expressions of Prometheus rule files, PrometheusRule objects and Grafana dashboards, with their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 4 * 1024 * 1024
ALERT, RECORD, PANEL = "alert", "record", "panel"


class LintInputError(Exception):
    """A file or expression that cannot be read; `line` is 0 where it is unknown."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    """One expression of a file."""

    file: str
    line: int
    kind: str
    name: str
    expression: str


def read_rules(path: Path) -> tuple[LintRule, ...]:
    """Return every expression of a file in its order. Raise LintInputError for a file without expressions."""
    text = _read_text(path)
    rules: list[LintRule] = []
    try:
        # Not the parser in C: a file of brackets overflows its stack and ends the process.
        for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
            rules += _find_rules(root, str(path), "", set())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        hint = "; render the template first (helm template)" if "{{-" in text or "{{ ." in text else ""
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or error
        raise LintInputError(f"is not YAML or JSON: {problem}{hint}", mark.line + 1 if mark else 0) from error
    except RecursionError as error:
        raise LintInputError("is nested too deeply") from error
    if not rules:
        raise LintInputError("holds no rules (alert or record with expr) and no panels (targets with expr)")
    return tuple(rules)


def _read_text(path: Path) -> str:
    """Return the text of a file, JSON as YAML reads it: without tabs."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LintInputError(f"is larger than {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise LintInputError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return text.replace("\t", " ") if path.suffix.lower() == ".json" else text


def _find_rules(node: Any, file: str, title: str, seen: set[int]) -> Iterator[LintRule]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _find_rules(entry, file, title, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    fields = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    kind = next((kind for kind in (ALERT, RECORD) if kind in fields), PANEL)
    name = _scalar(fields.get(kind)) or _scalar(fields.get("title")) or title
    expression = _scalar(fields.get("expr"))
    line = fields.get("expr", node).start_mark.line + 1
    if expression:
        yield LintRule(file=file, line=line, kind=kind, name=name, expression=expression)
    elif kind != PANEL:
        raise LintInputError(f"{name}: has no expr", line)
    for value in fields.values():
        yield from _find_rules(value, file, name, seen)


def _scalar(node: Any) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
