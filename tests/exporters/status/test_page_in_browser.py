"""The status page in a real browser, from the real server under its own content security policy."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from status_samples import agent_status
from tools import tool
from waiting import CEILING_SECONDS

from agent.http_server.options import WebOptions
from agent.http_server.server import WebServer

# Root needs --no-sandbox; the only page that is loaded is our own.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
MEASURE = "<script>document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script>"


@pytest.fixture(name="url")
def running_page() -> Iterator[str]:
    server = WebServer(WebOptions(port=0), agent_status)
    server.start()
    yield server.url
    server.stop()


def browser(folder: Path, *arguments: str) -> str:
    command = [tool("chromium"), *FLAGS, f"--user-data-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CEILING_SECONDS, check=True).stdout


def test_the_page_shows_every_tier_and_its_charts(url: str, tmp_path: Path) -> None:
    page = browser(tmp_path, "--window-size=1280,1600", "--dump-dom", url)
    for tier in agent_status().tiers:
        assert f"{tier.name}</h2>" in page
    assert page.count("<svg") >= 4


@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_sticks_out_at_phone_and_desktop_width(url: str, tmp_path: Path, width: int) -> None:
    """The page itself runs no script (its policy forbids it), so a copy of it measures itself."""
    page = browser(tmp_path, f"--window-size={width},1600", "--dump-dom", url)
    copy = tmp_path / "copy.html"
    copy.write_text(page.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    measured = browser(tmp_path, f"--window-size={width},1600", "--dump-dom", copy.as_uri())
    widest, window = measured.partition("<title>")[2].partition("</title>")[0].split(" of ")
    assert int(widest) <= int(window)
