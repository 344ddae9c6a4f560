"""Alerts both ways in a daemon, without an Alertmanager: what goes on over a reload, and what a defect costs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from daemon_runs import ask, configuration, further, running, write
from engine_server import answers_500, engines
from test_delivery import Manager, manager, names
from waiting import wait_for

from agent.alerting.service import AlertingService
from agent.config.load import parse_config
from agent.daemon.daemon import Daemon
from agent.history.store import HistoryStore

pytestmark = pytest.mark.usefixtures("without_waits")


def alerting(there: Manager, **keys: Any) -> dict[str, Any]:
    return {"path": "posts", "alertmanagers": [{"url": f"http://127.0.0.1:{there.server_address[1]}"}], **keys}


def posted(there: Manager) -> set[str]:
    return {name for body in list(there.bodies) for name in names(body)}


def reload(daemon: Daemon) -> None:
    before = daemon.counts.reloads
    daemon.ask_reload()
    assert wait_for(lambda: daemon.counts.reloads > before), daemon.counts


def test_a_reload_that_posts_the_same_goes_on_and_one_that_posts_elsewhere_begins_there(tmp_path: Path) -> None:
    with manager() as first, manager() as second, engines() as served:
        path = write(tmp_path, configuration(served, alerting=alerting(first)))
        with running(path) as daemon:
            served[0].act = answers_500
            assert wait_for(lambda: "TierDown" in posted(first))
            (thread,) = (one._thread for one in daemon.assembly.alerting.deliveries)  # type: ignore[union-attr]
            write(tmp_path, configuration(served, alerting=alerting(first), logging={"level": "warning"}))
            reload(daemon)
            further(daemon)
            assert [one._thread for one in daemon.assembly.alerting.deliveries] == [thread]  # type: ignore[union-attr]
            write(tmp_path, configuration(served, alerting=alerting(second)))
            reload(daemon)
            assert wait_for(lambda: "TierDown" in posted(second))
            assert wait_for(lambda: not thread.is_alive())  # type: ignore[union-attr]
            write(tmp_path, configuration(served))
            reload(daemon)
            assert daemon.assembly.alerting is None
            further(daemon)
            assert daemon.counts.errors == 0


def test_a_defect_while_alerts_are_handed_over_costs_no_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with manager() as there, engines() as served:
        path = write(tmp_path, configuration(served, alerting=alerting(there)))
        with running(path) as daemon, monkeypatch.context() as patched:
            patched.setattr(AlertingService, "receive", broken)
            further(daemon, 2)
            assert daemon.loop.defects >= 2
    assert "sink failed sink=AlertingSink" in caplog.text
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        assert reader.minutes("cpu-small", 0.0, 1e11)


def test_turns_are_on_time_while_an_alertmanager_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with manager() as there, engines() as served:
        there.hold.clear()
        path = write(tmp_path, configuration(served, alerting=alerting(there)))
        with running(path) as daemon:
            served[0].act = answers_500
            assert wait_for(lambda: there.bodies)
            turns = daemon.counts.turns
            assert wait_for(lambda: daemon.counts.turns >= turns + 10)
            assert ask(daemon, "healthz") == b"ok\n"
            there.hold.set()


def test_a_node_posts_as_well_and_keeps_no_history(tmp_path: Path) -> None:
    with manager() as there, engines() as served:
        path = write(tmp_path, configuration(served, role="node", alerting=alerting(there)))
        with running(path):
            served[0].act = answers_500
            assert wait_for(lambda: "TierDown" in posted(there))
    assert not (tmp_path / "sizewatch-data").exists()


def test_only_the_path_posts_posts() -> None:
    keys = parse_config({"alerting": {"path": "rules"}}).alerting
    assert AlertingService(keys).deliveries == ()
    assert AlertingService(keys).receiver is None
