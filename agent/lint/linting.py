"""From rule files and pages to what is wrong: every check on every expression.

Owns the order of things: files, expressions, recorded names, checks. A check more is a module beside this and a row of
`CHECKS`. It fetches nothing and prints nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from agent.lint.catalogue import Catalogue
from agent.lint.expressions import Node
from agent.lint.facts_labels import TARGET_LABELS
from agent.lint.findings import Check, Fault, Finding, Judged, Linted, Remark
from agent.lint.histograms_check import check_histograms
from agent.lint.labels_check import check_labels
from agent.lint.meaning_check import check_meaning
from agent.lint.names_check import check_names
from agent.lint.promql import BadExpression, parse
from agent.lint.rule_files import PANEL, RECORD, BadRuleFile, Rule, read_rules
from agent.lint.types_check import check_types
from agent.lint.units_check import check_units
from exporters.render.text import quote_external_text

CHECKS: tuple[Check, ...] = (check_names, check_types, check_histograms, check_units, check_labels, check_meaning)

BAD_FILE, BAD_EXPRESSION = "file", "expression"
MOST_TEXT = 1000
"""Signs of what is said of an expression, which may itself have twenty thousand."""

_IN_RANGE = re.compile(r"\[[^\]\"']*\$[^\]\"']*\]")
_VARIABLE = re.compile(r"\$\{\w+(?::[^}]*)?\}|\$\w+|\[\[\w+\]\]")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')')


def lint(paths: Iterable[Path], catalogue: Catalogue, target_labels: Iterable[str] = ()) -> Linted:
    """Everything that is wrong in these files, by these pages. Never raises for what a file holds."""
    rules, broken, files = _read(paths)
    parsed: list[tuple[Rule, Node]] = []
    remarks: list[Remark] = []
    for rule in rules:
        found = _parsed(rule)
        if isinstance(found, Finding):
            broken.append(found)
        elif isinstance(found, Remark):
            remarks.append(found)
        else:
            parsed.append((rule, found))
    labels = TARGET_LABELS | frozenset(target_labels)
    recorded = {rule.name: node for rule, node in parsed if rule.kind == RECORD}
    findings: list[Finding] = []
    for rule, node in parsed:
        judged = Judged(rule=rule, node=node, catalogue=catalogue, recorded=recorded, target_labels=labels)
        for said in dict.fromkeys(_checked(judged)):
            if isinstance(said, Remark):
                remarks.append(said)
            else:
                findings.append(_finding(rule, said))
    return Linted(
        expressions=len(rules),
        files=files,
        findings=tuple(findings),
        broken=tuple(broken),
        remarks=tuple(dict.fromkeys(replace(one, text=quote_external_text(one.text, MOST_TEXT)) for one in remarks)),
    )


def _read(paths: Iterable[Path]) -> tuple[list[Rule], list[Finding], int]:
    rules: list[Rule] = []
    broken: list[Finding] = []
    files = 0
    for path in paths:
        files += 1
        try:
            rules += read_rules(path)
        except BadRuleFile as error:
            file, line, text = _located(path, str(error))
            broken.append(
                Finding(file=file, line=line, rule="", kind=BAD_FILE, text=quote_external_text(text, MOST_TEXT), fix="")
            )
    return rules, broken, files


def _located(path: Path, text: str) -> tuple[str, int, str]:
    found = re.fullmatch(r"(?:(\d+): | )?(.*)", text.removeprefix(f"{path}:"), re.DOTALL)
    line, said = (found[1], found[2]) if found else (None, text)
    return str(path), int(line) if line else 0, said


def _parsed(rule: Rule) -> Node | Finding | Remark:
    if rule.kind == PANEL and _VARIABLE.search(rule.expression):
        return _parsed_panel(rule)
    try:
        return parse(rule.expression)
    except BadExpression as error:
        text = quote_external_text(f"is no PromQL: {error}", MOST_TEXT)
        return Finding(file=rule.file, line=rule.line, rule=rule.name, kind=BAD_EXPRESSION, text=text, fix="")


def _parsed_panel(rule: Rule) -> Node | Remark:
    """With the dashboard's variables replaced by what could stand there: those in quotes stay."""
    for stands_for in ("variable", "1"):
        try:
            return parse(_without_variables(rule.expression, stands_for))
        except BadExpression as error:
            why = str(error)
    return Remark(name=f"{rule.file}:{rule.line}: {rule.name}", text=f"cannot be read with its variables: {why}")


def _without_variables(text: str, stands_for: str) -> str:
    ranged = _IN_RANGE.sub(lambda found: "[5m:1m]" if ":" in re.sub(r"\$\{[^}]*\}", "", found[0]) else "[5m]", text)
    parts = _QUOTED.split(ranged)
    return "".join(part if n % 2 else _VARIABLE.sub(stands_for, part) for n, part in enumerate(parts))


def _checked(judged: Judged) -> Iterator[Fault | Remark]:
    for check in CHECKS:
        yield from check(judged)


def _finding(rule: Rule, fault: Fault) -> Finding:
    line = rule.line_of(fault.token)
    text, fix = quote_external_text(fault.text, MOST_TEXT), quote_external_text(fault.fix, MOST_TEXT)
    return Finding(file=rule.file, line=line, rule=rule.name, kind=fault.kind, text=text, fix=fix)
