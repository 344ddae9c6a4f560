"""What the doctor says of alerts: each Alertmanager by its answer, the webhook by its token."""

from pathlib import Path
from typing import Any

import pytest
from alert_path_servers import hooked_alertmanager
from daemon_runs import configuration, write
from engine_server import engines, give
from waiting import free_port

from agent.config.load import load
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.run import run_checks


def found(folder: Path, **alerting: Any) -> list[CheckResult]:
    data = configuration([], web={"listen": f"127.0.0.1:{free_port()}"}, alerting=alerting)
    return [one for one in run_checks(load(write(folder, data))) if one.check == "alerting"]


def posts(url: str) -> dict[str, Any]:
    return {"path": "posts", "alertmanagers": [{"url": url, "timeout": "60s"}]}


@pytest.mark.server
def test_alertmanager_is_named_with_its_version(tmp_path: Path) -> None:
    with hooked_alertmanager(tmp_path / "am") as real:
        (one,) = found(tmp_path, **posts(real.url))
    assert one.level is CheckLevel.OK
    assert one.text.startswith(f"{real.url}: Alertmanager 0.")


def test_missing_or_other_alertmanager_fails(tmp_path: Path) -> None:
    (away,) = found(tmp_path, **posts(f"http://127.0.0.1:{free_port()}"))
    assert (away.level, "refused" in away.text) == (CheckLevel.FAIL, True)
    with engines() as served:
        for result in (b"{}", b"[1]", b'{"versionInfo": 5}', b"not json"):
            served[0].act = lambda handler, said=result: give(handler, said, kind="application/json")  # type: ignore[misc]
            (other,) = found(tmp_path, **posts(f"http://127.0.0.1:{served[0].port}"))
            assert other.level is CheckLevel.FAIL
            assert "does not answer as Alertmanager's API v2 does" in other.text
            assert "alerting.alertmanagers" in other.advice


def test_webhook_token_is_looked_at(tmp_path: Path) -> None:
    keys = {"receiver": {"bearer_token_file": "token"}}
    (missing,) = found(tmp_path, **keys)
    assert missing.level is CheckLevel.FAIL
    assert "alerting.receiver.bearer_token_file" in missing.text
    (tmp_path / "token").write_text("a-token-of-the-webhook")
    (fine,) = found(tmp_path, **keys)
    assert (fine.level, fine.text) == (CheckLevel.OK, "alerts of others are taken at /webhook/alertmanager")


def test_nothing_is_said_of_prometheus_alerts(tmp_path: Path) -> None:
    assert found(tmp_path) == []
