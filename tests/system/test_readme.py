"""The front page against the program: its rules under their loudness, its links and its commands."""

from __future__ import annotations

import re
import shlex

import pytest
from paths import ROOT
from test_docs import parsers

from agent.cli import main
from exporters.prometheus_rules.self_monitoring import ROWS as ITSELF
from rules.catalogue.registry import RULES
from rules.verdicts.rule import Severity

README = (ROOT / "README.md").read_text(encoding="utf-8")

COLUMNS = {Severity.PAGE: 1, Severity.TICKET: 2, Severity.REPORT: 3}


def told(column: int) -> list[str]:
    """The rules that one column of the table of rules names."""
    section = README.split("## What it says\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")][1:]
    return [name for row in cells for name in re.findall(r"`(\w+)`", row[column])]


@pytest.mark.parametrize("loudness", Severity)
def test_every_rule_is_named_once_under_its_loudness(loudness: Severity) -> None:
    named = told(COLUMNS[loudness])
    catalogued = {rule.name for rule in RULES}
    others = {row.name for row in ITSELF if row.loudness is loudness} - catalogued - {"SizewatchWatchdog"}
    assert sorted(named) == sorted({rule.name for rule in RULES if rule.loudness is loudness} | others)


def test_every_link_leads_to_a_file_and_every_page_of_the_documentation_is_linked() -> None:
    linked = re.findall(r"\]\(([^)#\s]+)", README)
    assert [name for name in linked if not (ROOT / name).is_file()] == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(linked)


def test_every_command_exists_with_its_options() -> None:
    known = {parser.prog: set(parser._option_string_actions) for parser in parsers(main.parser())}
    lines = re.findall(r"^(sizewatch [^#\n]+)", README, flags=re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line)
        name = next(" ".join(words[:n]) for n in (3, 2) if " ".join(words[:n]) in known)
        assert {word for word in words if word.startswith("-")} <= known[name], line
