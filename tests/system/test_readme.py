"""The front page against the program: its links, its commands and its length."""

from __future__ import annotations

import re
import shlex

from paths import ROOT
from test_docs import parsers

from agent.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_link_leads_to_a_file_and_every_page_of_the_documentation_is_linked() -> None:
    linked = re.findall(r"\]\(([^)#\s]+)", README)
    assert [name for name in linked if not (ROOT / name).is_file()] == []
    listed = re.findall(r"\]\(([^)#\s]+)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} == set(listed)


def test_every_command_exists_with_its_options() -> None:
    known = {parser.prog: set(parser._option_string_actions) for parser in parsers(main.parser())}
    lines = re.findall(r"^(sizewatch [^#\n]+)", README, flags=re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line)
        name = next(" ".join(words[:n]) for n in (3, 2) if " ".join(words[:n]) in known)
        assert {word for word in words if word.startswith("-")} <= known[name], line


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 80
