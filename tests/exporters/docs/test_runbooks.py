from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from paths import ROOT

from agent.cli import main
from exporters.docs import runbooks
from exporters.docs.runbooks import (
    BLOCK,
    CAUSES,
    METHOD_TEXTS,
    OVERVIEW,
    SEVERITIES,
    RunbookError,
    block,
    fill_runbooks,
    markdown_html,
    rules_text,
    runbook_page,
    runbook_text,
    runbooks_page,
)
from rules.catalogue.registry import BY_NAME, RULES
from rules.causes.explain import LATENCY, SUSPECTS
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Severity

PAGE = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
PARTS = (
    "What it means.",
    "Why it matters.",
    "How it is judged.",
    "Look at first",
    "Causes, likeliest first",
    "Safe to do",
    "Do not",
    "To silence.",
)
WRITE_ANEW = "`sizewatch render` writes the blocks of docs/runbooks.md anew"
NAMES = [rule.name for rule in RULES]


def sections() -> dict[str, str]:
    """What stands below each heading of the second level."""
    heads = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(heads[1::2], heads[2::2], strict=True))


def test_every_rule_is_in_the_overview_once_under_its_severity() -> None:
    found = OVERVIEW.search(PAGE)
    assert found is not None
    rows = [line for line in found[1].splitlines() if line.startswith("| `")]
    named = {row.split("`")[1]: re.findall(r"\[(\w+)\]", row) for row in rows}
    assert named == {each.value: [rule.name for rule in RULES if rule.severity is each] for each in Severity}


def test_the_table_of_stages_has_every_rule_that_explains_or_is_explained_in_order() -> None:
    found = CAUSES.search(PAGE)
    assert found is not None
    listed = [BY_NAME[name].stage for name in re.findall(r"\[(\w+)\]", found[1])]
    assert listed == sorted(rule.stage for rule in RULES if rule.stage)


def by_hand(section: str) -> str:
    """A section without its generated block, and without what is quoted as code."""
    return re.sub(r"`[^`]*`", "", BLOCK.sub("", section))


def test_every_rule_has_its_section_and_every_section_its_rule_in_the_catalogues_order() -> None:
    assert list(sections()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_section_answers_every_question_of_whoever_is_on_call(name: str) -> None:
    places = [sections()[name].find(f"**{part}**") for part in PARTS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("name", NAMES)
def test_a_section_names_three_things_to_look_at_first(name: str) -> None:
    look = sections()[name].split("**Look at first**")[1].split("**Causes")[0]
    steps = re.findall(r"^(\d)\. (.+(?:\n   .+)*)", look, flags=re.MULTILINE)
    assert [number for number, _ in steps] == ["1", "2", "3"]
    assert any("`" in text for _, text in steps)


def test_the_generated_blocks_are_what_the_catalogue_says() -> None:
    assert fill_runbooks(PAGE) == PAGE, WRITE_ANEW


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_block_tells_every_threshold_with_its_value_and_origin(rule: Rule) -> None:
    text = block(rule)
    for name, threshold in rule.thresholds.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert float(row.split("|")[2].split()[0]) == threshold.value
        assert threshold.source in row
    assert rule.signal in text


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_text_by_hand_repeats_no_threshold(rule: Rule) -> None:
    text = by_hand(sections()[rule.name])
    assert "%" not in text
    values = {f"{t.value:g}" for t in rule.thresholds.values() if t.value >= 5 or t.value != int(t.value)}
    assert not values & set(re.findall(r"\d+(?:\.\d+)?", text))


@pytest.mark.parametrize("rule", [r for r in RULES if any(s.explains(r) for s in SUSPECTS)], ids=lambda rule: rule.name)
def test_a_runbook_speaks_of_every_suspect_that_its_rule_can_name(rule: Rule) -> None:
    causes = sections()[rule.name].split("**Causes, likeliest first**")[1].split("**Safe to do**")[0]
    possible = [suspect.cause for suspect in SUSPECTS if suspect.explains(rule)]
    possible += ["slower machine"] if rule.method in LATENCY else []
    assert set(re.findall(r"\*([a-z ]+)\*", causes)) == set(possible)


def test_no_runbook_takes_cache_away_from_an_engine_that_lacks_it() -> None:
    """Lowering GPU memory utilisation shrinks the KV cache: it may only stand among what not to do."""
    for name, section in sections().items():
        safe = section.split("**Safe to do**")[1].split("**Do not**")[0]
        assert not re.search(r"(?i)\blower `--gpu-memory-utilization`", safe), name
        assert not re.search(r"(?i)\braise `--max-num-seqs`", safe), name


def test_a_changed_threshold_changes_its_block_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = BY_NAME["TtftDivergence"]
    changed = replace(rule, thresholds={**rule.thresholds, "factor": Threshold(1.75, "ratio", "here")})
    monkeypatch.setattr(runbooks, "RULES", (changed, *(r for r in RULES if r is not rule)))
    lines, before = fill_runbooks(PAGE).splitlines(), PAGE.splitlines()
    assert [new for new, old in zip(lines, before, strict=True) if new != old] == ["| `factor` | 1.75 | ratio | here |"]


def test_a_page_that_lacks_a_block_or_has_a_strange_one_is_refused_by_name() -> None:
    start = "<!-- generated: thresholds TargetDown -->"
    for page, words in (
        (PAGE.replace(start, ""), "no block for TargetDown"),
        (PAGE.replace(start, start.replace("TargetDown", "TargetDwon")), "TargetDwon is no rule"),
        (PAGE + PAGE, "TargetDown has 2 blocks"),
    ):
        with pytest.raises(RunbookError, match=words):
            fill_runbooks(page)


def test_a_rule_with_a_method_without_a_text_gets_a_general_one() -> None:
    rule = replace(BY_NAME["KvEviction"], method=lambda case: case.unknown, about="preemptions")
    assert ": preemptions against the thresholds below. Signal" in block(rule)


def test_every_method_text_and_severity_is_used() -> None:
    assert set(METHOD_TEXTS) <= {rule.method.__name__ for rule in RULES}
    assert set(SEVERITIES) == set(Severity)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_served_page_of_a_rule_has_all_of_its_section_as_html(rule: Rule) -> None:
    page = (runbook_page(rule.name) or b"").decode()
    shown = unescape(re.sub(r"<[^>]+>", "", page.partition("<main")[2]))
    for heading in ("What it means", "Look at first", "Safe to do", "To silence"):
        assert heading in shown
    for row in rule.thresholds.values():
        assert row.source.replace("`", "") in shown
    outside_code = re.sub(r"<(code|style|pre)>.*?</\1>", "", page, flags=re.DOTALL)
    for mark in ("**", "](", "<!--", "`", "\n|"):
        assert mark not in outside_code


def test_a_link_of_a_served_page_leads_to_a_rule_a_page_or_the_documentation() -> None:
    pages = [runbooks_page(), *(runbook_page(rule.name) or b"" for rule in RULES)]
    links = {link for page in pages for link in re.findall(r'href="([^"]+)"', page.decode())}
    known = {rule.name for rule in RULES} | {"./", "../"}
    assert links <= known
    assert {rule.name for rule in RULES} <= set(re.findall(r'href="(\w+)"', pages[0].decode()))


def test_what_is_no_rule_has_no_page() -> None:
    assert runbook_page("") is runbook_page("None") is runbook_page("../secret") is None


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & `<i>` <script>", "<p>a &lt; b &amp; <code>&lt;i&gt;</code> &lt;script&gt;</p>"),
        ("[x](install.md#prometheus)", "<p>x (docs/install.md)</p>"),
        ("[TierDown](#tierdown)", '<p><a href="TierDown">TierDown</a></p>'),
        ("see TierDown", '<p>see <a href="TierDown">TierDown</a></p>'),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    ],
)
def test_markdown_becomes_escaped_html_with_links_to_rules_and_pages(text: str, html: str) -> None:
    assert markdown_html(text).strip() == html


def test_a_cell_says_its_column_for_narrow_screens() -> None:
    assert '<td data-column="a">1 | <code>x</code></td>' in markdown_html("| a |\n|---|\n| 1 \\| `x` |")


def test_a_runbook_is_readable_on_a_terminal() -> None:
    for rule in RULES:
        text = runbook_text(rule.name, 80)
        assert text.startswith(f"{rule.name}\n{rule.title}. Severity ")
        assert all(part in text for part in PARTS)
        assert not re.search(r"\*\*|\]\(|<!--|\|---", text)
        assert all(len(line) <= 80 for line in text.splitlines())
        assert all(f"{threshold.value:g}" in text for threshold in rule.thresholds.values())


def test_the_list_of_runbooks_has_every_rule_under_its_severity() -> None:
    parts = rules_text(80).split("\n\n")[1:]
    for severity, part in zip(SEVERITIES, parts, strict=True):
        assert part.startswith(f"{severity.value}: ")
        assert [line.split()[0] for line in part.splitlines() if line.startswith("  ")] == [
            rule.name for rule in RULES if rule.severity is severity
        ]


def test_explain_takes_any_case_and_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain", "kveviction"]) == 0
    assert capsys.readouterr().out.startswith("KvEviction\n")
    assert main.main(["explain", "KvEvicton"]) == 2
    assert "there is no rule 'KvEvicton'; did you mean KvEviction?" in capsys.readouterr().err
    assert main.main(["explain"]) == 0
    assert "KvEviction " in capsys.readouterr().out
