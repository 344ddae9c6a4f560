"""Findings of rule files: wrong names, and input that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.lint.names import check_names
from agent.lint.queries import QueryNames, read_query
from agent.lint.rule_files import PANEL, RECORD, LintInputError, LintRule, read_rules
from exporters.render.text import quote_external_text

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
        expressions=len(rules),
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
