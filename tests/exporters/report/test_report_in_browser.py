"""report.html in a real browser: nothing sticks out at phone and desktop width, and it prints."""

from __future__ import annotations

import re
import subprocess
from html import escape
from pathlib import Path

import pytest
from report_samples import hours, plan, reported
from tools import tool
from waiting import CEILING_SECONDS

from exporters.report.formats import report_html

pytestmark = pytest.mark.slow

# Root needs --no-sandbox; the only page that is loaded is our own.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
MEASURE = "<script>parent.document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script>"


def browser(folder: Path, *arguments: str) -> str:
    command = [tool("chromium"), *FLAGS, f"--user-data-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CEILING_SECONDS, check=True).stdout


def page(folder: Path, extra: str = "") -> Path:
    path = folder / "report.html"
    path.write_text(report_html(reported(plan(), hours())[0]).replace("</body>", f"{extra}</body>"), encoding="utf-8")
    return path


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


def test_a_tier_prints_on_two_pages(tmp_path: Path) -> None:
    assert count_pages(tmp_path, page(tmp_path).read_text(encoding="utf-8")) <= 2
