"""The status page in a real browser, from the real server under its own content security policy."""

from pathlib import Path

import pytest
from page_reader import browse, measure_page
from status_samples import agent_status, fleet_status

from agent.config.web import Web
from agent.http_server.server import WebServer
from exporters.status.page import render_page

pytestmark = pytest.mark.slow


def test_browser_shows_tiers_and_charts(tmp_path: Path) -> None:
    server = WebServer(Web.model_construct(listen="127.0.0.1:0"), agent_status, lambda: None)
    server.start()
    page = browse(tmp_path, "--window-size=1280,1600", "--dump-dom", server.url)
    server.stop()
    for tier in agent_status().tiers:
        assert f"{tier.name}</h2>" in page
    assert page.count("<svg") >= 4


@pytest.mark.parametrize("tiers", [0, 8])
@pytest.mark.parametrize("width", [390, 760, 1000, 1280])
def test_nothing_sticks_out_at_any_width(tmp_path: Path, width: int, tiers: int) -> None:
    page = render_page(fleet_status(tiers) if tiers else agent_status(), paused=tiers > 0).decode()
    widest, window, _ = measure_page(page, tmp_path, width)
    assert window == width
    assert widest <= width


def test_forty_folded_tiers_fit_one_screen(tmp_path: Path) -> None:
    widest, _, height = measure_page(render_page(fleet_status()).decode(), tmp_path, 1280, 900)
    assert widest == 1280
    assert height <= 900
