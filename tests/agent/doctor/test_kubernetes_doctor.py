"""The doctor in a cluster: which pods it finds, which it does not, and what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from daemon_runs import PLAN
from engine_server import engines
from kube_standin import Kube, pod, serving
from waiting import CEILING_SECONDS

from agent.config.load import load
from agent.doctor.check_result import CheckResult
from agent.doctor.run import run_checks
from agent.kubernetes import node_pods

ON = {"sizewatch.io/scrape": "true", "sizewatch.io/tier": "cpu-small"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pods, "LIST_SECONDS", CEILING_SECONDS)


@pytest.fixture
def kube() -> Iterator[Kube]:
    with serving(Kube()) as served:
        served.node("gpu-1")
        yield served


def findings(tmp_path: Path, kube: Kube, **more: Any) -> list[CheckResult]:
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
        told = findings(tmp_path, kube)
    texts = [f"{one.level} {one.check} {one.text}" for one in told]
    assert texts[0] == "ok pods node gpu-1: 1 engine pod, 0 starting"
    assert texts[1].startswith("warn pods left out: llm/b: its sizewatch.io/pool must be one of mixed")
    assert texts[2] == "warn pods no namespaces are named for cpu-small: a pod with a GPU may join from any"
    assert "there is no socket" in texts[3]
    assert [one.check for one in told[4:]] == ["target cpu-small/llm/a", "engine cpu-small/llm/a"]
    assert all(one.advice for one in told if one.level != "ok")


def test_empty_node_and_refusing_api_have_advice(tmp_path: Path, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no pod of this node is taken for an engine" in findings(tmp_path, kube)[1].text
    kube.refuse = 403
    (only,) = findings(tmp_path, kube)
    assert only.level == "fail"
    assert "403" in only.text
    kube.refuse = 0
    kube.put(pod("c", address=None))
    texts = [one.text for one in findings(tmp_path, kube)]
    assert "0 engine pods, 1 starting" in texts[0]
    assert "left out: llm/c: has no address yet" in texts[1]


def test_open_tiers_are_warned_of(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        for namespace in ("dev", "prod"):
            kube.put(pod("vllm-0", namespace=namespace, annotations={**ON, "sizewatch.io/port": str(engine.port)}))
        told = findings(tmp_path, kube, tiers=[{"tier": "cpu-small", "namespaces": ["dev", "prod"]}])
        texts = [one.text for one in told if one.level == "warn"]
        assert not any("no namespaces" in text for text in texts)
        told = findings(tmp_path, kube, tiers=[{"tier": "cpu-small", "namespaces": ["prod"]}])
        texts = [one.text for one in told if one.level == "warn"]
        reason = "its namespace is none of those that discovery.kubernetes.tiers allows for cpu-small"
        assert texts[0] == f"left out: dev/vllm-0: {reason}"
