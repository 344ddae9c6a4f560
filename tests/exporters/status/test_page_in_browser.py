"""The status page in a real browser, from the real server under its own content security policy."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from status_samples import agent_status, fleet_status
from tools import tool
from waiting import CEILING_SECONDS

from agent.config.web import Web
from agent.http_server.server import WebServer
from exporters.status.page import render_page

pytestmark = pytest.mark.slow

# Root needs --no-sandbox; the only page that is loaded is our own.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
MEASURE = (
    "<script>const page = document.documentElement; document.title = "
    "[page.scrollWidth, window.innerWidth, page.scrollHeight, window.innerHeight].join(' ')</script>"
)


@pytest.fixture(name="url")
def running_page() -> Iterator[str]:
    server = WebServer(Web.model_construct(listen="127.0.0.1:0"), agent_status, lambda: None)
    server.start()
    yield server.url
    server.stop()


def browser(folder: Path, *arguments: str) -> str:
    command = [tool("chromium"), *FLAGS, f"--user-data-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CEILING_SECONDS, check=True).stdout


def test_browser_shows_tiers_and_charts(url: str, tmp_path: Path) -> None:
    page = browser(tmp_path, "--window-size=1280,1600", "--dump-dom", url)
    for tier in agent_status().tiers:
        assert f"{tier.name}</h2>" in page
    assert page.count("<svg") >= 4


def measured(page: str, folder: Path, width: int, height: int) -> list[int]:
    """Width of the page and of the window, then their heights. The page's policy forbids scripts, so a copy measures."""
    copy = folder / "copy.html"
    copy.write_text(page.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    found = browser(folder, f"--window-size={width},{height}", "--dump-dom", copy.as_uri())
    return [int(number) for number in found.partition("<title>")[2].partition("</title>")[0].split()]


@pytest.mark.parametrize("width", [390, 760, 1000, 1280])
def test_nothing_sticks_out_at_any_width(url: str, tmp_path: Path, width: int) -> None:
    page = browser(tmp_path, f"--window-size={width},1600", "--dump-dom", url)
    widest, window, _, _ = measured(page, tmp_path, width, 1600)
    assert widest <= window


def test_forty_folded_tiers_fit_one_screen(tmp_path: Path) -> None:
    widest, window, height, _ = measured(render_page(fleet_status()).decode(), tmp_path, 1280, 900)
    assert (window, widest) == (1280, 1280)
    assert height <= 900


def test_opened_fleet_does_not_stick_out(tmp_path: Path) -> None:
    page = render_page(fleet_status(8), paused=True).decode()
    for width in (390, 1280):
        widest, window, _, _ = measured(page, tmp_path, width, 900)
        assert widest <= window
