"""report.html in a real browser: nothing sticks out at phone and desktop width, and it prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from report_samples import hours, plan, reported
from tools import tool

from exporters.report.html import report_html

# Root needs --no-sandbox; the only page that is loaded is our own.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
MEASURE = "<script>document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script>"


def browser(folder: Path, *arguments: str) -> str:
    command = [tool("chromium"), *FLAGS, f"--user-data-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def page(folder: Path, extra: str = "") -> Path:
    path = folder / "report.html"
    path.write_text(report_html(reported(plan(), hours())[0]).replace("</body>", f"{extra}</body>"), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_sticks_out_at_phone_and_desktop_width(tmp_path: Path, width: int) -> None:
    drawn = browser(tmp_path, f"--window-size={width},1600", "--dump-dom", page(tmp_path, MEASURE).as_uri())
    widest, window = drawn.partition("<title>")[2].partition("</title>")[0].split(" of ")
    assert int(widest) <= int(window)


def test_it_prints(tmp_path: Path) -> None:
    target = tmp_path / "report.pdf"
    browser(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={target}", page(tmp_path).as_uri())
    assert target.read_bytes().startswith(b"%PDF")
