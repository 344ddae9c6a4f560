"""Queries about the forecast, asked of a real Prometheus that scraped the simulated fleet with its weeks behind it: they answer."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from alert_path_servers import query, scraping
from daemon_runs import running
from test_dashboard_data import EMPTY
from test_dashboard_queries import QUERIES, VALUES, base, named
from waiting import free_port

from agent.assembly import assemble
from agent.demo.past.demand import DAY, HOUR
from agent.demo.past.folder import fill
from agent.demo.past.going_on import going_on
from agent.web_config import options_of
from exporters import names

pytestmark = pytest.mark.server

END = 1_795_248_000.0
"""Saturday, 21 November 2026, 08:00 UTC."""

SPEED, AT_MOST_SECONDS = 60.0, 90.0

OURS = frozenset(one.name for one in names.FORECASTS) | {names.PLAN_C_MAX.name}
"""What the fleet of recordings cannot give (`test_dashboard_data.EMPTY`) and this one can."""


def of_the_forecast() -> list[tuple[str, str, str]]:
    """Dashboard, panel and expression of every query that reads one of OURS, and nothing that no fleet here gives."""
    reading = [(one, {base(name) for name in named(one[2])}) for one in QUERIES]
    return [one for one, read in reading if read & OURS and not read & (set(EMPTY) - OURS)]


def test_every_query_about_the_forecast_answers(tmp_path: Path) -> None:
    past = fill(tmp_path / "fleet", seconds=14 * DAY, end=END + 61.0, fine_seconds=HOUR)
    port, waiting = free_port(), of_the_forecast()
    assert len(waiting) > 15
    with ExitStack() as ends:
        show = going_on(past, tmp_path / "fleet", SPEED, False, ends)
        daemon = running(
            show.loaded.path,
            assemble=partial(assemble, clock=show.clock, gpu_source=show.gpus),
            clock=show.clock,
            speed=SPEED,
            web=lambda loaded: replace(options_of(loaded.config.web), port=port),
        )
        ends.enter_context(daemon)
        prometheus = ends.enter_context(scraping(tmp_path, f"127.0.0.1:{port}", "http://127.0.0.1:9"))
        deadline = time.monotonic() + AT_MOST_SECONDS
        while waiting and time.monotonic() < deadline:
            time.sleep(2.0)
            waiting = [one for one in waiting if not _answers(prometheus, one[2])]
    assert waiting == []


def _answers(prometheus: str, expr: str) -> bool:
    """For one of the tiers at least."""
    values = {**VALUES, "tier": ".*", "__rate_interval": "15s"}
    text = re.sub(r"\$(\w+)", lambda name: values[name[1]], expr.replace('tier="$tier"', 'tier=~"$tier"'))
    return bool(query(prometheus, text))
