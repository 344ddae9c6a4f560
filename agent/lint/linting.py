"""Lint of Prometheus rule files, PrometheusRule objects and Grafana dashboards: wrong names, unreadable input."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent.lint.names import LintInputError, QueryNames, check_names, read_query
from exporters.render.text import quote_external_text

MAX_BYTES = 4 * 1024 * 1024
ALERT, RECORD, PANEL = "alert", "record", "panel"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    """Expression of a file; empty for an alert or recording rule without one."""

    file: str
    line: int
    kind: str
    name: str
    expression: str


def read_rules(path: Path) -> tuple[LintRule, ...]:
    """Return every rule and query of a file in its order. Raise LintInputError for a file without expressions."""
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
        # No size check by stat: a pipe and a device have no size.
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise LintInputError(f"is larger than {MAX_BYTES} bytes")
        text = body.decode("utf-8-sig")
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
    if expression or kind != PANEL:
        yield LintRule(file=file, line=line, kind=kind, name=name, expression=expression)
    for value in fields.values():
        yield from _find_rules(value, file, name, seen)


def _scalar(node: Any) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


_IN_RANGE = re.compile(r"\[[^\]\"']*\$[^\]\"']*\]")
_VARIABLE = re.compile(r"\$\{\w+(?::[^}]*)?\}|\$\w+|\[\[\w+\]\]")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')')


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A wrong name, or input that cannot be read. `fix` is what to write instead, or empty."""

    file: str
    line: int
    rule: str
    kind: str
    text: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        rule = f" {self.rule}:" if self.rule else ""
        return f"{where}:{rule} {self.text}" + (f"; write: {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LintResult:
    """Findings of some files. `broken` is input that cannot be read."""

    files: int
    expressions: int
    findings: tuple[LintFinding, ...]
    broken: tuple[LintFinding, ...]


def lint_files(paths: Sequence[Path], target_labels: Collection[str] = ()) -> LintResult:
    """Return every wrong name in these files, by file and line."""
    rules: list[LintRule] = []
    parsed: list[tuple[LintRule, QueryNames]] = []
    broken: list[LintFinding] = []
    for path in paths:
        try:
            rules += read_rules(path)
        except LintInputError as error:
            broken.append(_finding(str(path), error.line, "", "file", str(error)))
    for rule in rules:
        if not rule.expression:
            broken.append(_finding(rule.file, rule.line, "", "file", f"{rule.name}: has no expr"))
            continue
        try:
            parsed.append((rule, _read_expression(rule)))
        except LintInputError as error:
            if rule.kind != PANEL or not _VARIABLE.search(rule.expression):
                broken.append(_finding(rule.file, rule.line, rule.name, "expression", str(error)))
    recorded = {rule.name for rule, _ in parsed if rule.kind == RECORD}
    findings = [
        _finding(rule.file, rule.line, rule.name, wrong.kind, wrong.text, wrong.fix)
        for rule, query in parsed
        for wrong in check_names(query, recorded, target_labels)
    ]
    return LintResult(
        files=len(paths),
        expressions=sum(bool(rule.expression) for rule in rules),
        findings=tuple(sorted(findings, key=lambda one: (one.file, one.line))),
        broken=tuple(broken),
    )


def _read_expression(rule: LintRule) -> QueryNames:
    """Return the names of an expression, with a dashboard's variables outside quotes replaced."""
    if rule.kind != PANEL:
        return read_query(rule.expression)
    ranged = _IN_RANGE.sub(lambda found: "[5m:1m]" if ":" in found[0] else "[5m]", rule.expression)
    parts = _QUOTED.split(ranged)
    return read_query("".join(part if n % 2 else _VARIABLE.sub("variable", part) for n, part in enumerate(parts)))


def _finding(file: str, line: int, rule: str, kind: str, text: str, fix: str = "") -> LintFinding:
    rule, text, fix = (quote_external_text(one, 1000) for one in (rule, text, fix))
    return LintFinding(file=file, line=line, rule=rule, kind=kind, text=text, fix=fix)
