import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from paths import ROOT

from agent.cli import main
from agent.cli.render import list_stale_files
from exporters.docs import runbooks
from exporters.docs.reference_pages import ARTEFACTS
from exporters.docs.runbooks import (
    HAND_WRITTEN,
    SELF_ALERTS,
    SEVERITIES,
    RunbookError,
    fill_runbooks,
    markdown_html,
    rules_text,
    runbook_page,
    runbook_text,
    runbooks_page,
    self_alert_text,
)
from rules.catalogue.registry import BY_NAME, RULES
from rules.causes.explain import LAST, LATENCY, SUSPECTS
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule

PAGE = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
NAMES = [rule.name for rule in RULES]
_, *PARTS = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[::2], PARTS[1::2], strict=True))
TEXTS = dict(HAND_WRITTEN.findall(PAGE))
INTERNAL = re.compile(r"\b(DESIGN|PEERS|METRICS|ARCHITECTURE|INFRA)\b")

each_rule = pytest.mark.parametrize("rule", RULES, ids=NAMES)


def test_page_has_a_section_for_each_rule() -> None:
    assert list(SECTIONS) == NAMES
    assert not INTERNAL.search(PAGE)


@each_rule
def test_section_has_meaning_actions_and_sourced_thresholds(rule: Rule) -> None:
    section = SECTIONS[rule.name]
    places = [section.find(part) for part in (rule.meaning, "**Look at first:**", "**Do:**", "| threshold |")]
    assert -1 not in places
    assert places == sorted(places)
    assert all(f"- {action}." in section for action in rule.actions)
    for name, threshold in rule.thresholds.items():
        assert f"| `{name}` | {threshold.value:g} | {threshold.unit} | {threshold.source} |" in section


@each_rule
def test_hand_text_names_no_threshold(rule: Rule) -> None:
    text = TEXTS[rule.name]
    steps = re.findall(r"^(\d)\. (.+(?:\n   .+)*)", text.partition("**Look at first:**")[2], flags=re.MULTILINE)
    assert [number for number, _ in steps] == ["1", "2", "3"]
    assert any("`" in step for _, step in steps)
    prose = re.sub(r"`[^`]*`", "", text)
    assert "%" not in prose
    values = {f"{t.value:g}" for t in rule.thresholds.values() if t.value >= 5 or t.value != int(t.value)}
    assert not values & set(re.findall(r"\d+(?:\.\d+)?", prose))


@each_rule
def test_section_names_suspects_or_causes_by_hand(rule: Rule) -> None:
    possible = {suspect.cause for suspect in SUSPECTS if suspect.explains(rule)}
    possible |= {name for name, families in LAST.items() if rule.method in LATENCY and rule.family in families}
    listed = re.findall(r"then in this order: (.+)\.$", SECTIONS[rule.name], flags=re.MULTILINE)
    assert {cause for line in listed for cause in line.split(", ")} == possible
    assert ("**Causes, likeliest first:**" in TEXTS[rule.name]) == (not possible)


@each_rule
def test_no_action_shrinks_a_full_cache(rule: Rule) -> None:
    actions = "\n".join([*rule.actions, *(action for group in rule.levers.values() for action in group)])
    assert not re.search(r"(?m)^(?!Never).*\blower --gpu-memory-utilization", actions)


def test_changed_threshold_changes_its_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = BY_NAME["TtftDivergence"]
    changed = replace(rule, thresholds={**rule.thresholds, "factor": Threshold(1.75, "ratio", "here")})
    monkeypatch.setattr(runbooks, "RULES", (changed, *(r for r in RULES if r is not rule)))
    lines, before = fill_runbooks(PAGE).splitlines(), PAGE.splitlines()
    assert [new for new, old in zip(lines, before, strict=True) if new != old] == ["| `factor` | 1.75 | ratio | here |"]


START = "<!-- by hand: TargetDown -->"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (PAGE.replace(START, ""), "TargetDown has 0 texts by hand"),
        (PAGE.replace(START, START.replace("TargetDown", "TargetDwon")), "TargetDwon has 1 texts by hand"),
        (PAGE + PAGE, "TargetDown has 2 texts by hand"),
    ],
    ids=["missing", "unknown", "twice"],
)
def test_page_with_wrong_text_is_refused(page: str, words: str) -> None:
    with pytest.raises(RunbookError, match=words):
        fill_runbooks(page)


@each_rule
def test_served_page_has_the_section_as_html(rule: Rule) -> None:
    page = (runbook_page(rule.name) or b"").decode()
    shown = unescape(re.sub(r"<[^>]+>", "", page.partition("<main")[2]))
    for words in (rule.title, "Look at first:", "Do:"):
        assert words in shown
    for row in rule.thresholds.values():
        assert row.source.replace("`", "") in shown
    outside_code = re.sub(r"<(code|style|pre)>.*?</\1>", "", page, flags=re.DOTALL)
    for mark in ("**", "](", "<!--", "`", "\n|"):
        assert mark not in outside_code


def test_links_of_served_pages_exist() -> None:
    pages = [runbooks_page(), *(runbook_page(rule.name) or b"" for rule in RULES)]
    links = {link for page in pages for link in re.findall(r'href="([^"]+)"', page.decode())}
    assert links <= {*NAMES, "./", "../"}
    assert set(NAMES) <= set(re.findall(r'href="(\w+)"', pages[0].decode()))


def test_unknown_names_have_no_page() -> None:
    assert runbook_page("") is runbook_page("None") is runbook_page("../secret") is None


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & `<i>` <script>", "<p>a &lt; b &amp; <code>&lt;i&gt;</code> &lt;script&gt;</p>"),
        ("see TierDown", '<p>see <a href="TierDown">TierDown</a></p>'),
        ("`TierDown` SizewatchTierDown", "<p><code>TierDown</code> SizewatchTierDown</p>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
    ],
)
def test_markdown_becomes_escaped_html_with_rule_links(text: str, html: str) -> None:
    assert markdown_html(text).strip() == html


@each_rule
def test_runbook_is_readable_on_a_terminal(rule: Rule) -> None:
    text = runbook_text(rule.name, 80)
    assert text.startswith(f"{rule.name}\n\n{rule.title}. ")
    assert not re.search(r"\*\*|\]\(|<!--|\|---", text)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(part in text for part in ("\nLook at first:\n", "\nDo:\n"))
    assert all(f"{threshold.value:g}" in text for threshold in rule.thresholds.values())


@pytest.mark.parametrize("name", SELF_ALERTS)
def test_alert_about_sizewatch_itself_is_explained(name: str) -> None:
    text = self_alert_text(name, 80)
    assert text.startswith(f"{name}\n\nAlert about sizewatch itself")
    assert "{{" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_rules_are_listed_by_severity() -> None:
    parts = re.split(r"^ (?=\w+ +(?:pages|a) )", rules_text(80), flags=re.MULTILINE)[1:]
    for severity, part in zip(SEVERITIES, parts, strict=True):
        assert part.startswith(f"{severity.value} ")
        rows = re.findall(r"^ ([A-Z]\w+)  ", part, flags=re.MULTILINE)
        assert rows == [rule.name for rule in RULES if rule.severity is severity]


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        (["kveviction"], 0, "KvEviction\n"),
        (["KvEvicton"], 2, "there is no rule 'KvEvicton'; did you mean KvEviction?"),
        (["cascade"], 2, "there is no rule 'cascade'; did you mean KvCacheCascade?"),
        (["zzz"], 2, "there is no rule 'zzz'; without a name all are listed"),
        ([], 0, "KvEviction "),
    ],
)
def test_explain_takes_any_case_and_suggests(
    names: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["explain", *names]) == code
    assert words in "".join(capsys.readouterr())


def checkout(tmp_path: Path) -> Path:
    for path in sorted({str(Path(path).parent) for path in ARTEFACTS}):
        shutil.copytree(ROOT / path, tmp_path / path, dirs_exist_ok=True)
    return tmp_path


def test_generated_files_are_as_rendered() -> None:
    assert sorted(list_stale_files(ROOT)) == [], "`sizewatch render` writes these files anew"


def test_rendering_writes_only_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = checkout(tmp_path)
    page = root / "docs" / "signals.md"
    page.write_text("old", encoding="utf-8")
    assert main.main(["render", "--check", "--root", str(root)]) == 1
    expected = "docs/signals.md differs from what the program renders; write it anew: sizewatch render\n"
    assert (capsys.readouterr().out, page.read_text(encoding="utf-8")) == (expected, "old")
    (root / "docs" / "plan.schema.json").unlink()
    shutil.rmtree(root / "rules")
    assert main.main(["render", "--root", str(root)]) == 0
    written = {line.removesuffix(": written") for line in capsys.readouterr().out.splitlines()}
    assert written == {"docs/signals.md", "docs/plan.schema.json", *(p for p in ARTEFACTS if p.startswith("rules/"))}
    for path in ARTEFACTS:
        assert (root / path).read_text(encoding="utf-8") == (ROOT / path).read_text(encoding="utf-8")
    assert main.main(["render", "--check", "--root", str(root)]) == 0
    assert capsys.readouterr().out == f"{len(ARTEFACTS)} files are as rendered\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: shutil.rmtree(root / "docs"), "holds no docs/; run it in a checkout, or name one with --root"),
        (lambda root: (root / "docs/runbooks.md").write_text(""), "AdapterCachePressure has 0 texts by hand"),
        (lambda root: (root / "docs/signals.md").write_bytes(b"\xff"), "signals.md: 'utf-8' codec"),
    ],
)
def test_unrenderable_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], words: str
) -> None:
    root = checkout(tmp_path)
    spoil(root)
    assert main.main(["render", "--root", str(root)]) == 2
    assert words in capsys.readouterr().err
