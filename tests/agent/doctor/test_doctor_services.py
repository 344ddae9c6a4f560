"""Doctor's lines about services: Alertmanager, forecasts, reports, a store, a cluster and a running daemon."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from alert_path_servers import hooked_alertmanager
from daemon_runs import PLAN, configuration, running, write
from engine_server import engines
from hostile_store import Handler, give, serving, vector
from kube_standin import Kube, kube_of_node, pod  # noqa: F401 (fixture)
from prometheus_server import victoria_metrics
from report_runs import CANARY
from report_runs import configured as report_configuration
from test_run import about, loaded
from test_run import serving as answering
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.config.load import LoadedConfig, load, parse_config, plan_versions
from agent.doctor.check_result import CheckLevel, CheckResult, format_text
from agent.doctor.configuration import check_forecast, check_report
from agent.doctor.endpoints import check_store
from agent.doctor.run import run_checks
from agent.kubernetes import node_pods
from agent.version import VERSION


def unplanned(**keys: Any) -> LoadedConfig:
    config = parse_config(keys, environment={})
    return LoadedConfig(path=Path("sizewatch.yaml"), config=config, plan=None, warnings=())


def store_lines(url: str, tiers: dict[str, Any] | None = None) -> list[CheckResult]:
    loaded = unplanned(role="fleet", store={"url": url, "timeout": "60s"}, tiers=tiers or {})
    return list(check_store(loaded, time.time()))


@pytest.mark.server
def test_every_tier_is_counted_in_the_store(tmp_path: Path) -> None:
    tiers = {name: {"from": "engines", "selector": f'job="{name}"'} for name in ("mine", "lost", "large")}
    tiers |= {"told": {}, "untold": {}}
    now = time.time()
    with victoria_metrics(tmp_path) as there:
        there.write(
            [
                *(("up", {"job": "mine", "instance": f"i{n}"}, now - 31, 1.0) for n in range(3)),
                *(("up", {"job": "large", "instance": f"i{n}"}, now - 31, 1.0) for n in range(101)),
                ("sizewatch_target_up", {"tier": "told", "replica": "r"}, now - 31, 1.0),
            ]
        )
        answered, *found = store_lines(there.url, tiers=tiers)
        (alone,) = store_lines(there.url)
    assert (answered.level, alone.level) == (CheckLevel.OK, CheckLevel.OK)
    assert alone.text.startswith(f"{there.url}: answered in ")
    assert list(check_store(unplanned(), time.time())) == []
    texts = {one.text: one for one in found}
    assert texts["mine: 3 replicas in it"].level is CheckLevel.OK
    assert texts["told: 1 replica in it"].level is CheckLevel.OK
    large = texts["large: 101 replicas from engines, more than the measured 100"]
    assert (large.level, "node agents" in large.advice) == (CheckLevel.WARN, True)
    for tier in ("lost", "untold"):
        line = texts[f"{tier}: nothing is told of it"]
        assert (line.level, "docs/fleet.md" in line.advice) == (CheckLevel.FAIL, True)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda handler: give(handler, b"", 401), "wants credentials"),
        (lambda handler: give(handler, b"", 404), "answered 404"),
        (lambda handler: give(handler, b"", 502, "text/html"), "answered 502"),
        (lambda handler: give(handler, vector(warnings=["no store"])), "with a warning"),
    ],
)
def test_failing_store_has_advice(act: Callable[[Handler], None], words: str) -> None:
    with serving() as server:
        server.act = act
        (found,) = store_lines(server.url)
    assert found.level is CheckLevel.FAIL
    assert found.text.startswith(f"{server.url}: ")
    assert words in found.text
    assert found.advice


def alerting_lines(folder: Path, **alerting: Any) -> list[CheckResult]:
    data = configuration([], web={"listen": f"127.0.0.1:{free_port()}"}, alerting=alerting)
    return [one for one in run_checks(load(write(folder, data))) if one.check == "alerting"]


def posts(url: str) -> dict[str, Any]:
    return {"path": "posts", "alertmanagers": [{"url": url, "timeout": "60s"}]}


@pytest.mark.server
def test_alertmanager_is_named_with_its_version(tmp_path: Path) -> None:
    with hooked_alertmanager(tmp_path / "am") as real:
        (one,) = alerting_lines(tmp_path, **posts(real.url))
    assert one.level is CheckLevel.OK
    assert one.text.startswith(f"{real.url}: Alertmanager 0.")


def test_missing_or_other_alertmanager_fails(tmp_path: Path) -> None:
    (away,) = alerting_lines(tmp_path, **posts(f"http://127.0.0.1:{free_port()}"))
    assert (away.level, "refused" in away.text) == (CheckLevel.FAIL, True)
    with serving() as server:
        for answer in (b"{}", b"[1]", b'{"versionInfo": 5}', b"not json"):
            server.act = lambda handler, said=answer: give(handler, said)  # type: ignore[misc]
            (other,) = alerting_lines(tmp_path, **posts(server.url))
            assert other.level is CheckLevel.FAIL
            assert "does not answer as Alertmanager's API v2 does" in other.text
            assert "alerting.alertmanagers" in other.advice


def test_webhook_token_is_looked_at(tmp_path: Path) -> None:
    keys = {"receiver": {"bearer_token_file": "token"}}
    (missing,) = alerting_lines(tmp_path, **keys)
    assert missing.level is CheckLevel.FAIL
    assert "alerting.receiver.bearer_token_file" in missing.text
    (tmp_path / "token").write_text("a-token-of-the-webhook")
    (fine,) = alerting_lines(tmp_path, **keys)
    assert (fine.level, fine.text) == (CheckLevel.OK, "alerts of others are taken at /webhook/alertmanager")
    assert alerting_lines(tmp_path) == [], "Prometheus alerts"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "on, its libraries are installed"),
        ({"forecast": {"enabled": False}}, "off (forecast.enabled: false)"),
        ({"role": "node"}, "none: this agent keeps no history"),
    ],
)
def test_forecasts_are_on_off_or_none(keys: dict[str, Any], text: str) -> None:
    (line,) = check_forecast(unplanned(**keys))
    assert (line.level, line.text) == (CheckLevel.OK, text)


def test_report_line_has_no_address(tmp_path: Path) -> None:
    addresses = {"chat": f"json://u:{CANARY}@127.0.0.1:1/{CANARY}"}
    (line,) = check_report(report_configuration(tmp_path, addresses))
    assert line.level is CheckLevel.OK
    assert line.text.startswith("every Monday 07:00 UTC, of the last 7d, into ")
    assert line.text.endswith("; delivered to chat")
    assert CANARY not in format_text([line])
    (line,) = check_report(report_configuration(tmp_path, report={"enabled": False}))
    assert (line.level, line.text) == (CheckLevel.OK, "off (report.enabled: false)")


ON = {"sizewatch.io/scrape": "true", "sizewatch.io/tier": "cpu-small"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pods, "LIST_SECONDS", CEILING_SECONDS)


def pod_lines(tmp_path: Path, kube: Kube, **more: Any) -> list[CheckResult]:
    (tmp_path / "token").write_text("good")
    keys = {
        "node": "gpu-1",
        "api": {"url": kube.url, "bearer_token_file": "token"},
        "pod_resources": "none.sock",
        **more,
    }
    path = tmp_path / "sizewatch.yaml"
    config = {"role": "node", "plan": str(PLAN), "gpus": {"source": "none"}, "discovery": {"kubernetes": keys}}
    path.write_text(yaml.safe_dump(config))
    return [
        one
        for one in run_checks(load(path))
        if one.check in ("pods", "target cpu-small/llm/a", "engine cpu-small/llm/a")
    ]


def test_pods_are_checked_as_targets(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        kube.put(pod("a", annotations={**ON, "sizewatch.io/port": str(engine.port)}))
        kube.put(pod("b", annotations={**ON, "sizewatch.io/pool": "left"}))
        told = pod_lines(tmp_path, kube)
    texts = [f"{one.level} {one.check} {one.text}" for one in told]
    assert texts[0] == "ok pods node gpu-1: 1 engine pod, 0 starting"
    assert texts[1].startswith("warn pods left out: llm/b: its sizewatch.io/pool must be one of mixed")
    assert texts[2] == "warn pods no namespaces are named for cpu-small: a pod with a GPU may join from any"
    assert "there is no socket" in texts[3]
    assert [one.check for one in told[4:]] == ["target cpu-small/llm/a", "engine cpu-small/llm/a"]
    assert all(one.advice for one in told if one.level != "ok")


def test_empty_node_and_refusing_api_have_advice(tmp_path: Path, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no pod of this node is taken for an engine" in pod_lines(tmp_path, kube)[1].text
    kube.refuse = 403
    (only,) = pod_lines(tmp_path, kube)
    assert only.level == "fail"
    assert "403" in only.text
    kube.refuse = 0
    kube.put(pod("c", address=None))
    texts = [one.text for one in pod_lines(tmp_path, kube)]
    assert "0 engine pods, 1 starting" in texts[0]
    assert "left out: llm/c: has no address yet" in texts[1]


def test_open_tiers_are_warned_of(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        for namespace in ("dev", "prod"):
            kube.put(pod("vllm-0", namespace=namespace, annotations={**ON, "sizewatch.io/port": str(engine.port)}))
        told = pod_lines(tmp_path, kube, tiers=[{"tier": "cpu-small", "namespaces": ["dev", "prod"]}])
        texts = [one.text for one in told if one.level == "warn"]
        assert not any("no namespaces" in text for text in texts)
        told = pod_lines(tmp_path, kube, tiers=[{"tier": "cpu-small", "namespaces": ["prod"]}])
        texts = [one.text for one in told if one.level == "warn"]
        reason = "its namespace is none of those that discovery.kubernetes.tiers allows for cpu-small"
        assert texts[0] == f"left out: dev/vllm-0: {reason}"


def daemon_lines(folder: Path, status: object, **keys: Any) -> list[CheckResult]:
    """Results about a daemon that answers with this status."""
    body = json.dumps(status).encode()
    with answering(body, content_type="application/json", server="sizewatch") as port:
        found = run_checks(loaded(folder, web={"listen": f"127.0.0.1:{port}", **keys}))
    (web,) = about(found, "web")
    return [one for one in found if one.check == "daemon" or (one is web and web.level is CheckLevel.FAIL)]


def test_daemon_with_another_plan_is_named(tmp_path: Path) -> None:
    on_disk = plan_versions(loaded(tmp_path))["cpu-small"]

    def status(version: str | None) -> dict[str, Any]:
        return {"version": VERSION, "tiers": [{"tier": "cpu-small", "plan_version": version, "more": []}]}

    (line,) = daemon_lines(tmp_path, status("0123456789ab"))
    assert line.level is CheckLevel.WARN
    assert line.text == f"cpu-small: plan version in use 0123456789ab, on disk {on_disk}"
    assert "in use none" in daemon_lines(tmp_path, status(None))[0].text
    assert daemon_lines(tmp_path, status(on_disk))[0].level is CheckLevel.OK


def test_older_daemon_is_named(tmp_path: Path) -> None:
    status = {"version": "0.0.1", "agent": {"config_trouble": "line 3: \x1b[2Jnot a key"}}
    version, trouble = daemon_lines(tmp_path, status)
    assert (version.level, version.text) == (CheckLevel.WARN, f"is sizewatch 0.0.1, {VERSION} is installed here")
    assert trouble.level is CheckLevel.FAIL
    assert "runs with an older configuration: line 3: " in trouble.text
    assert "\x1b" not in trouble.text


@pytest.mark.parametrize("status", [[], 5, {"tiers": 5}, {"agent": "x"}, {"version": {}}])
def test_odd_status_is_of_no_sizewatch(tmp_path: Path, status: object) -> None:
    (web,) = daemon_lines(tmp_path, status)
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
        with answering(b"", status=401, certificate=certificate, heard=(heard := []), server="sizewatch") as port:
            keys = {"listen": f"127.0.0.1:{port}", "bearer_token_file": "token", **more}
            found = run_checks(loaded(tmp_path, web=keys))
        assert [one.text for one in about(found, "web")] == [f"127.0.0.1:{port}: a sizewatch answers there already"]
        assert about(found, "daemon") == []
        assert len(heard) == 1
        assert "canary" not in heard[0]
