"""report.html for those who do not see it as it was drawn: contrast, headings, tables, charts, a phone, a print."""

from __future__ import annotations

import re
import subprocess
from html import escape
from itertools import pairwise
from pathlib import Path

import pytest
from report_samples import hours, plan, reported
from test_report import page_of
from tools import tool
from waiting import CEILING_SECONDS

from exporters.report.formats import report_html

PAGE = reported(plan(), hours())[0]

TEXT = ("ink", "soft", "ok", "warning", "critical", "limit")
READABLE = 4.5
"""WCAG 2.2, 1.4.3: contrast of text, as a ratio."""

THEMES: tuple[dict[str, str], ...] = ({}, {})
"""Colours of the style by name, light and dark. The report's own stand last."""
for name, *pair in re.findall(r"--([\w-]+):light-dark\((#\w+),(#\w+)\)", report_html(PAGE)):
    for theme, colour in zip(THEMES, pair, strict=True):
        theme[name] = colour


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(one * 2 for one in colour[1:])
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_reckoned_as_its_authors_do() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES, ids=["light", "dark"])
@pytest.mark.parametrize("text", TEXT)
def test_text_can_be_read_on_every_ground(theme: dict[str, str], text: str) -> None:
    grounds = {"page", *(f"{name}-fill" for name in ("note", "warning", "critical") if text in ("ink", "soft", name))}
    contrasts = {ground: contrast(theme[text], theme[ground]) for ground in grounds}
    assert min(contrasts.values()) >= READABLE, contrasts


def test_headings_go_down_by_one_step() -> None:
    levels = [int(tag[1]) for tag, _ in page_of(PAGE).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_header_cells_say_of_what() -> None:
    page = report_html(PAGE)
    assert re.findall(r"<th(?! scope=)[ >]", page) == []
    assert re.findall(r"<th[^>]*>\s*</th>", page) == []
    for table in re.findall(r"<table.*?</table>", page, flags=re.DOTALL):
        assert table.count('<th scope="col">') >= 2
        assert '<th scope="row">' in table


def test_sideways_scrolling_needs_no_mouse() -> None:
    tags = page_of(PAGE).tags
    wide = [attributes for tag, attributes in tags if tag == "div" and attributes.get("class") == "wide"]
    assert wide
    assert all(attributes.get("tabindex") == "0" for attributes in wide)


def test_next_step_stands_before_tables() -> None:
    head = report_html(PAGE).partition("<table")[0]
    assert "Shrink t: 480 USD a day less." in head
    assert "shrink from 10 to 6 replicas (likely)" in head
    assert "What to do: read plan.next.yaml, then <code>sizewatch plan check plan.next.yaml</code>" in head


# Root needs --no-sandbox; the only page that is loaded is our own.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
MEASURE = "<script>parent.document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script>"


def browser(folder: Path, *arguments: str) -> str:
    command = [tool("chromium"), *FLAGS, f"--user-data-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CEILING_SECONDS, check=True).stdout


def page(folder: Path, extra: str = "") -> Path:
    path = folder / "report.html"
    path.write_text(report_html(PAGE).replace("</body>", f"{extra}</body>"), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 760, 1000, 1280])
def test_nothing_sticks_out_at_any_width(tmp_path: Path, width: int) -> None:
    # A window of headless Chromium is never narrower than 500 pixels; a frame is.
    inside = escape(page(tmp_path, MEASURE).read_text(encoding="utf-8"), quote=True)
    frame = tmp_path / "frame.html"
    frame.write_text(f'<iframe style="width: {width}px; height: 1600px; border: 0" srcdoc="{inside}"></iframe>')
    drawn = browser(tmp_path, "--window-size=1400,1700", "--dump-dom", frame.as_uri())
    widest, window = drawn.partition("<title>")[2].partition("</title>")[0].split(" of ")
    assert int(window) == width
    assert int(widest) <= width


def count_pages(folder: Path, text: str) -> int:
    """Pages of a printed report."""
    source, target = folder / "printed.html", folder / "report.pdf"
    source.write_text(text, encoding="utf-8")
    browser(folder, "--no-pdf-header-footer", f"--print-to-pdf={target}", source.as_uri())
    assert target.read_bytes().startswith(b"%PDF")
    return len(re.findall(rb"/Type\s*/Page\b", target.read_bytes()))


@pytest.mark.slow
def test_a_tier_prints_on_two_pages(tmp_path: Path) -> None:
    assert count_pages(tmp_path, page(tmp_path).read_text(encoding="utf-8")) <= 2
