"""Queries about the forecast, asked of a real Prometheus that scraped the simulated fleet with its weeks behind it: they answer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from alert_path_servers import scraping
from daemon_runs import running
from simulation_truth import PastFleet
from test_dashboard_data import EMPTY, FORECASTS, has_answer
from test_dashboard_queries import QUERIES, base, named
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.demo.simulation.weeks import continue_simulation
from exporters.metrics import names

pytestmark = pytest.mark.server

SPEED = 60.0

OURS = frozenset(one.name for one in FORECASTS) | {names.PLAN_C_MAX.name}
"""What the fleet of recordings cannot give (`test_dashboard_data.EMPTY`) and this one can."""


def of_the_forecast() -> list[tuple[str, str, str]]:
    """Dashboard, panel and expression of every query that reads one of OURS, and nothing that no fleet here gives."""
    reading = [(one, {base(name) for name in named(one[2])}) for one in QUERIES]
    return [one for one, read in reading if read & OURS and not read & (set(EMPTY) - OURS)]


def test_every_query_about_the_forecast_answers(tmp_path: Path, past_fleet: PastFleet) -> None:
    past = past_fleet.into(tmp_path / "fleet")
    port, waiting = free_port(), of_the_forecast()
    assert len(waiting) > 15
    with ExitStack() as ends:
        show = continue_simulation(past, tmp_path / "fleet", SPEED)
        daemon = running(
            show.loaded.path,
            assemble=show.assemble,
            clock=show.clock,
            speed=SPEED,
            web=lambda loaded: loaded.config.web.model_copy(update={"listen": f"127.0.0.1:{port}"}),
        )
        ends.enter_context(daemon)
        prometheus = ends.enter_context(scraping(tmp_path, f"127.0.0.1:{port}", "http://127.0.0.1:9"))

        def all_answer() -> bool:
            waiting[:] = [one for one in waiting if not has_answer(prometheus, one[2])]
            return not waiting

        wait_for(all_answer, 2 * CEILING_SECONDS, every=1.0)
    assert waiting == []
