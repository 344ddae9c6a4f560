"""The weekly report of a whole daemon: made, served and told, without one heavy library or secret in the daemon itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_runs import ask, health, metric, reload_daemon, running
from paths import ROOT
from report_runs import CANARY, DUE, NAME, configured, remembered, state_of, webhook, with_history, written
from report_samples import WEEK
from waiting import CEILING_SECONDS, wait_for

from agent.reporting import storage
from agent.reporting.storage import STATE_FILE, ReportState

HEAVY = {"pandas", "numpy", "scipy", "statsmodels", "apprise"}

DAEMON = """
import json, sys, time, urllib.request, warnings
# Not by -W: the report's process would have the option too, and its libraries warn.
warnings.simplefilter("error")
from pathlib import Path
from agent.config.load import load
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.config.web import Web

def page(daemon, path):
    return urllib.request.urlopen(daemon.web.url + path, timeout=120).read().decode()

def on_cycle(daemon):
    if daemon.status() is None:
        return
    status = json.loads(page(daemon, "api/status"))
    found = status["agent"]["reporting"]
    # A try is counted before what came of it is kept; only then is it on every page.
    if not found["newest"] or any(one["pending"] and not one["trouble"] for one in found["deliveries"]):
        return
    told = {path: page(daemon, path) for path in ("", "metrics", "api/status", "reports/", "reports/latest/report.html")}
    if not Path(sys.argv[3]).exists():
        Path(sys.argv[3]).write_text(json.dumps({"pages": told, "modules": sorted(sys.modules)}))
    daemon.stop()

loaded = load(Path(sys.argv[1]))
start, began = float(sys.argv[2]), time.time()
surroundings = DaemonOptions(
    web=lambda _: Web.model_construct(listen="127.0.0.1:0"), on_cycle=on_cycle, speed=10.0,
    clock=lambda: start + time.time() - began,
)
Daemon(loaded, surroundings).run()
"""


def test_daemon_makes_and_sends_missed_report(tmp_path: Path) -> None:
    with_history(tmp_path)
    with webhook() as hook:
        addresses = {"chat": f"json://u:{CANARY}@{hook.place}/", "gone": f"json://u:{CANARY}@127.0.0.1:1/{CANARY}"}
        configured(tmp_path, addresses, scrape_interval="500ms", logging={"level": "debug"})
        storage.write_state(tmp_path / "data" / STATE_FILE, ReportState(begun_at=DUE - WEEK))
        out = tmp_path / "told.json"
        words = [sys.executable, "-c", DAEMON, str(tmp_path / "sizewatch.yaml"), str(DUE + 60), str(out)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        assert len(hook.taken) == 1
    told = json.loads(out.read_text())
    pages = told["pages"]
    assert not HEAVY & {name.partition(".")[0] for name in told["modules"]}
    assert CANARY not in json.dumps(pages) + done.stdout + done.stderr
    assert "sizewatch_report_up 1.0" in pages["metrics"]
    assert 'sizewatch_report_deliveries_total{destination="chat",result="sent"} 1.0' in pages["metrics"]
    assert 'sizewatch_report_delivery_pending{destination="gone"} 1.0' in pages["metrics"]
    assert 'sizewatch_report_delivery_up{destination="gone"} 0.0' in pages["metrics"]
    assert "The weekly report does not reach gone: the connection was refused." in pages[""]
    assert f'href="reports/{NAME}/report.html"' in pages[""]
    assert NAME in pages["reports/"]
    assert "<svg" in pages["reports/latest/report.html"]


def test_reload_moves_reports_without_losing_one(tmp_path: Path) -> None:
    with webhook() as hook:
        configured(tmp_path, {"chat": "json://127.0.0.1:1/"})
        written(tmp_path)
        remembered(tmp_path, "chat")
        now = [DUE + 10]
        with running(tmp_path / "sizewatch.yaml", cycles=1, clock=lambda: now[0], speed=200.0) as daemon:
            assert wait_for(lambda: health(daemon)["reporting"]["deliveries"][0]["failed"] == 1)
            configured(tmp_path, {"chat": f"json://{hook.place}/"}, report={"keep": 3})
            reload_daemon(daemon)
            now[0] += 120
            assert wait_for(lambda: hook.taken)
            assert wait_for(lambda: health(daemon)["reporting"]["deliveries"][0]["pending"] == 0)
            configured(tmp_path, report={"enabled": False})
            reload_daemon(daemon)
            assert health(daemon)["reporting"] is None
            with pytest.raises(OSError, match="404"):
                ask(daemon, "reports/")
    assert not any(delivery.is_pending for delivery in state_of(tmp_path).deliveries.values())


def test_failed_report_is_metric_and_notice(tmp_path: Path) -> None:
    with_history(tmp_path)
    configured(tmp_path)
    (tmp_path / "data" / "reports").write_text("a file in its place")
    storage.write_state(tmp_path / "data" / STATE_FILE, ReportState(begun_at=DUE - WEEK))
    with running(tmp_path / "sizewatch.yaml", cycles=1, clock=lambda: DUE + 10) as daemon:
        assert wait_for(lambda: health(daemon)["reporting"]["failures"])
        assert metric(daemon, "sizewatch_report_up") == 0
        assert health(daemon)["reporting"]["failures"] == 1
        assert b"The weekly report cannot be written: " in ask(daemon)
        assert daemon.counts.cycle_errors == 0
    assert not os.path.islink(tmp_path / "data" / "reports")
