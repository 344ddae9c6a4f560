"""The doctor beside a running daemon: version, configuration and plan in use against those on disk."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trustme
from daemon_runs import PLAN, configuration, running, write
from engine_server import engines
from test_run import about, loaded, serving
from waiting import free_port, wait_for

from agent.config.load import load, plan_versions
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.run import run_checks
from agent.version import VERSION


def findings(folder: Path, status: object, **keys: Any) -> list[CheckResult]:
    """Results about a daemon that answers with this status."""
    body = json.dumps(status).encode()
    with serving(body, content_type="application/json", server="sizewatch") as port:
        found = run_checks(loaded(folder, web={"listen": f"127.0.0.1:{port}", **keys}))
    (web,) = about(found, "web")
    return [one for one in found if one.check == "daemon" or (one is web and web.level is CheckLevel.FAIL)]


def test_daemon_with_another_plan_is_named(tmp_path: Path) -> None:
    on_disk = plan_versions(loaded(tmp_path))["cpu-small"]

    def status(version: str | None) -> dict[str, Any]:
        return {"version": VERSION, "tiers": [{"tier": "cpu-small", "plan_version": version, "more": []}]}

    (line,) = findings(tmp_path, status("0123456789ab"))
    assert line.level is CheckLevel.WARN
    assert line.text == f"cpu-small: plan version in use 0123456789ab, on disk {on_disk}"
    assert "in use none" in findings(tmp_path, status(None))[0].text
    assert findings(tmp_path, status(on_disk))[0].level is CheckLevel.OK


def test_older_daemon_is_named(tmp_path: Path) -> None:
    status = {"version": "0.0.1", "agent": {"config_trouble": "line 3: \x1b[2Jnot a key"}}
    version, trouble = findings(tmp_path, status)
    assert (version.level, version.text) == (CheckLevel.WARN, f"is sizewatch 0.0.1, {VERSION} is installed here")
    assert trouble.level is CheckLevel.FAIL
    assert "runs with an older configuration: line 3: " in trouble.text
    assert "\x1b" not in trouble.text


@pytest.mark.parametrize("status", [[], 5, {"tiers": 5}, {"agent": "x"}, {"version": {}}])
def test_odd_status_is_of_no_sizewatch(tmp_path: Path, status: object) -> None:
    (web,) = findings(tmp_path, status)
    assert web.text.endswith("and no sizewatch answers there")


def test_real_daemon_is_known(tmp_path: Path) -> None:
    shutil.copy(PLAN, tmp_path / "plan.yaml")
    with engines() as served:
        web = {"listen": f"127.0.0.1:{free_port()}"}
        path = write(tmp_path, {**configuration(served), "plan": "plan.yaml", "data_dir": "data", "web": web})
        with running(path, web=lambda loaded: loaded.config.web) as daemon:
            assert wait_for(lambda: daemon.status() is not None)
            found = run_checks(load(path))
            assert [one.level for one in about(found, "daemon")] == [CheckLevel.OK]
            assert "a sizewatch answers there already" in about(found, "web")[0].text
            text = (tmp_path / "plan.yaml").read_text().replace("ttft_p99_seconds: 2.0", "ttft_p99_seconds: 3.0")
            (tmp_path / "other.yaml").write_text(text)
            other = write(tmp_path, {**configuration(served), "plan": "other.yaml", "data_dir": "data", "web": web})
            (line,) = about(run_checks(load(other)), "daemon")
    assert (line.level, "cpu-small: plan version in use " in line.text) == (CheckLevel.WARN, True)


def test_token_is_never_sent_to_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("canary-of-sixteen-letters\n")
    (tmp_path / "token").chmod(0o600)
    leaf = trustme.CA().issue_cert("watch.example")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "web.pem"))
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: web.pem, key_file: web.pem}\n")
    for certificate, more in ((leaf, {"config_file": "web.yml"}), (None, {})):
        with serving(b"", status=401, certificate=certificate, heard=(heard := []), server="sizewatch") as port:
            keys = {"listen": f"127.0.0.1:{port}", "bearer_token_file": "token", **more}
            found = run_checks(loaded(tmp_path, web=keys))
        assert [one.text for one in about(found, "web")] == [f"127.0.0.1:{port}: a sizewatch answers there already"]
        assert about(found, "daemon") == []
        assert len(heard) == 1
        assert "canary" not in heard[0]
