"""A node agent in a cluster: a real daemon, engines on loopback, an API that speaks the true shapes."""

import json
import re
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from daemon_runs import PLAN, ask, further, health, looks_around, made, metric, reload_daemon, running, write
from engine_server import Engine, answers_500, born, engines
from gpu_pages import readout
from kube_standin import Kube, Object, kube_of_node, pod  # noqa: F401 (fixture)
from kubelet_server import ANSWER, kubelet
from waiting import CEILING_SECONDS, wait_for

from agent.config.load import load
from agent.daemon import assembly
from agent.daemon import daemon as daemon_module
from agent.daemon.assembly import assemble
from agent.daemon.daemon import Daemon
from agent.kubernetes import node_pods
from agent.kubernetes.api import KubernetesApiError
from rules.telemetry.snapshots import GpuReadout

ON = {"sizewatch.io/scrape": "true", "sizewatch.io/tier": "cpu-small"}
LWS = "leaderworkerset.sigs.k8s.io/"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "CLOCK_SECONDS", 0.05)
    monkeypatch.setattr(node_pods, "LIST_SECONDS", CEILING_SECONDS)


def cluster(tmp_path: Path, kube: Kube, **more: Any) -> dict[str, Any]:
    (tmp_path / "token").write_text("good")
    found = {"node": "gpu-1", "api": {"url": kube.url, "bearer_token_file": "token"}, "keep": "30s"}
    return {
        "role": "node",
        "plan": str(PLAN),
        "scrape_interval": "500ms",
        "gpus": {"source": "none"},
        "discovery": {"kubernetes": {**found, **more.pop("kubernetes", {})}},
        **more,
    }


def serves(name: str, engine: Engine, **more: Any) -> Object:
    notes = {**ON, "sizewatch.io/port": str(engine.port), **more.pop("annotations", {})}
    return pod(name, annotations=notes, **more)


def status(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(daemon, "api/status"))
    return found


def replicas(daemon: Daemon) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for tier in status(daemon)["tiers"] for one in tier["replicas"]}


def up(daemon: Daemon) -> set[str]:
    return {name for name, one in replicas(daemon).items() if one["up"]}


def series(daemon: Daemon, name: str) -> list[str]:
    return [line for line in ask(daemon, "metrics").decode().splitlines() if line.startswith(name + "{")]


@pytest.mark.parametrize("role", ["node", "standalone"])
def test_pods_come_and_go(role: str, tmp_path: Path, kube: Kube) -> None:
    with engines(2) as (first, second):
        kube.put(serves("a", first))
        kube.put(pod("proxy", gpus=0))
        keys = cluster(tmp_path, kube, role=role, forecast={"enabled": False})
        with running(write(tmp_path, keys)) as daemon:
            assert wait_for(lambda: up(daemon) == {"llm/a"})
            assert wait_for(lambda: series(daemon, "sizewatch_prompt_tokens_total"))
            before = daemon.assembly.runtime.replicas["cpu-small", "llm/a"]
            kube.put(serves("b", second))
            assert wait_for(lambda: up(daemon) == {"llm/a", "llm/b"})
            assert daemon.assembly.runtime.replicas["cpu-small", "llm/a"] is before
            assert daemon.counts.config_reloads == 0
            assert metric(daemon, "sizewatch_config_reloads_total") == 0
            kube.delete("b")
            assert wait_for(lambda: "llm/b" not in replicas(daemon))
            assert not any(
                'replica="llm/b"' in line
                for line in ask(daemon, "metrics").decode().splitlines()
                if "failures" not in line
            )
            assert wait_for(lambda: up(daemon) == {"llm/a"})
            assert daemon.assembly.runtime.replicas["cpu-small", "llm/a"] is before
            texts = [one["text"] for one in status(daemon)["timeline"]]
            assert "other engine pods were found: 2 targets" in texts


def test_pods_stay_while_api_is_away(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        kube.put(serves("a", engine))
        with running(write(tmp_path, cluster(tmp_path, kube))) as daemon:
            assert wait_for(lambda: up(daemon) == {"llm/a"})
            assert metric(daemon, "sizewatch_discovery_up") == 1
            kube.refuse = 503
            kube.forget()
            assert wait_for(lambda: metric(daemon, "sizewatch_discovery_up") == 0)
            assert "503" in health(daemon)["discovery"]["trouble"]
            assert "Pod discovery has failed for" in ask(daemon).decode()
            assert wait_for(lambda: up(daemon) == {"llm/a"})
            kube.refuse = 0
            assert wait_for(lambda: metric(daemon, "sizewatch_discovery_up") == 1)


def test_excluded_pod_is_shown_without_markup(tmp_path: Path, kube: Kube) -> None:
    kube.put(pod("a", annotations={**ON, "sizewatch.io/tier": "<script>alert(1)</script>\n" + "x" * 10_000}))
    kube.put(pod("b", annotations={**ON, "sizewatch.io/tier": "cpu-smal"}))
    with running(write(tmp_path, cluster(tmp_path, kube))) as daemon:
        assert health(daemon)["discovery"]["left_out"] == [
            "llm/a: its sizewatch.io/tier is no name of a tier (at most 63 letters, digits, dots, _ and -)",
            "llm/b: its sizewatch.io/tier: is not a tier of the plan; did you mean cpu-small?",
        ]
        page = ask(daemon).decode()
        assert "Pod llm/b: its sizewatch.io/tier" in page
        assert "<script>alert" not in page
        assert 'sizewatch_discovery_pods{state="left_out"} 2.0' in ask(daemon, "metrics").decode()


def test_pods_of_one_name_stay_apart(tmp_path: Path, kube: Kube) -> None:
    with engines(2) as (real, copy):
        kube.put(serves("vllm-0", real, namespace="prod"))
        with running(write(tmp_path, cluster(tmp_path, kube))) as daemon:
            assert wait_for(lambda: up(daemon) == {"prod/vllm-0"})
            real.act = answers_500

            def down() -> list[str]:
                lines = [x for x in series(daemon, "sizewatch_verdict") if "TargetDown" in x]
                return [x.partition('replica="')[2].partition('"')[0] for x in lines if not x.endswith(" 0.0")]

            assert wait_for(lambda: down() == ["prod/vllm-0"])
            kube.put(serves("vllm-0", copy, namespace="dev", made=1_600_000_000.0))
            assert wait_for(lambda: up(daemon) == {"dev/vllm-0"})
            further(daemon, 3)
            assert replicas(daemon)["prod/vllm-0"]["misses"] > 3, "what is known of it stays"
            assert down() == ["prod/vllm-0"]
            kube.delete("vllm-0", "dev")
            copy.act = answers_500
            assert wait_for(lambda: set(replicas(daemon)) == {"prod/vllm-0"})


def test_starting_pod_is_timed_and_not_down(tmp_path: Path, kube: Kube) -> None:
    asked = float(int(time.time()) - 60)
    with engines(1) as (engine,):
        # By its own word it started with its container: a start is told at the time at which it was ready.
        engine.pages = tuple(born(page, asked + 21, ready_after=20) for page in engine.pages)
        engine.act = answers_500
        kube.put(serves("a", engine, ready=False, made=asked, started=asked + 20))
        with running(write(tmp_path, cluster(tmp_path, kube)), cycles=8) as daemon:
            assert set(replicas(daemon)) == {"llm/a"}
            assert up(daemon) == set()
            assert not [x for x in series(daemon, "sizewatch_verdict") if "TargetDown" in x], "it is starting"
            assert 'state="starting"} 1.0' in ask(daemon, "metrics").decode()
            engine.act = None
            assert wait_for(lambda: up(daemon) == {"llm/a"})
            assert daemon.loop.state.of_tier("cpu-small").starts == (), "its pod is not Ready yet"
            kube.put(serves("a", engine, made=asked, started=asked + 20, became_ready=asked + 45))
            assert wait_for(lambda: daemon.loop.state.of_tier("cpu-small").starts)
            (start,) = daemon.loop.state.of_tier("cpu-small").starts
            assert (start.timing, start.lead_seconds) == ("pod", 45.0)
            (text,) = wait_for(
                lambda: [one["text"] for one in status(daemon)["timeline"] if "asked for" in one["text"]]
            )
            assert "pod Ready 45 s after it was asked for" in text
            engine.act = answers_500
            assert wait_for(lambda: any("TargetDown" in x for x in series(daemon, "sizewatch_verdict")))


def test_recreated_pod_starts_and_is_not_down(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        kube.put(serves("vllm-0", engine, uid="first"))
        with running(write(tmp_path, cluster(tmp_path, kube))) as daemon:
            assert wait_for(lambda: up(daemon) == {"llm/vllm-0"})
            engine.act = answers_500
            kube.delete("vllm-0")
            asked = float(int(time.time()) + 1)
            again = {"uid": "second", "made": asked, "started": asked}
            kube.put(serves("vllm-0", engine, ready=False, **again))
            assert wait_for(lambda: ("cpu-small", "llm/vllm-0") not in daemon.loop.state.replicas)
            cycles = daemon.counts.cycles
            assert wait_for(lambda: daemon.counts.cycles > cycles + 6)
            assert not [x for x in series(daemon, "sizewatch_verdict") if 'TargetDown"} 1' in x]
            # Another process, by its own word.
            other = (
                re.sub(rb"(?m)^(process_start_time_seconds) .*$", rb"\1 1700000000", page) for page in engine.pages
            )
            engine.pages, engine.act = tuple(other), None
            kube.put(serves("vllm-0", engine, became_ready=asked + 9, **again))
            timed = wait_for(lambda: [x for x in daemon.loop.state.of_tier("cpu-small").starts if x.timing == "pod"])
            assert [x.seconds.value for x in timed] == [9.0]


def test_crash_looping_pod_is_down(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        engine.act = answers_500
        kube.put(serves("a", engine, ready=False, made=time.time() - 60, restarts=3))
        with running(write(tmp_path, cluster(tmp_path, kube)), cycles=8) as daemon:
            assert wait_for(lambda: any("TargetDown" in x for x in series(daemon, "sizewatch_verdict")))


class Gpus:
    """Two GPUs, which get warmer and use energy."""

    def __init__(self) -> None:
        self.joules = 0.0

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        self.joules += 100.0
        energy = {"gpu_energy_joules": self.joules}
        owners = {"GPU-a": "llm/deep-3-1", "GPU-b": "llm/other"}
        return tuple(
            replace(readout(name, t=now), counters=energy, pods=(owner,)) for name, owner in owners.items()
        ), ()

    def close(self) -> None:
        """Nothing is open."""


def test_worker_gpus_belong_to_leader(tmp_path: Path, kube: Kube) -> None:
    labels = {f"{LWS}name": "deep", f"{LWS}group-index": "3", f"{LWS}worker-index": "1"}
    kube.put(pod("deep-3-1", labels=labels, annotations={**ON, f"{LWS}leader-name": "deep-3"}))
    with running(
        write(tmp_path, cluster(tmp_path, kube)), cycles=4, assemble=partial(assemble, gpu_source=Gpus())
    ) as daemon:
        (line,) = wait_for(lambda: series(daemon, "sizewatch_gpu_energy_joules_total"))
        assert 'tier="cpu-small"' in line
        assert 'replica="llm/deep-3"' in line
        assert 'gpu="GPU-a"' in line
        assert float(line.rpartition(" ")[2]) >= 100
        assert series(daemon, "sizewatch_gpu_info")[0].count('replica="llm/deep-3"') == 1
        assert series(daemon, "sizewatch_target_up") == []
        assert replicas(daemon) == {}
        assert status(daemon)["tiers"][0]["parts"][0]["name"] == "llm/deep-3"


def test_claimed_gpu_makes_pod_a_target(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        claims = serves("vllm-0", engine, gpus=0)
        claims["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        kube.put(claims)
        keys = cluster(tmp_path, kube, kubernetes={"pod_resources": str(tmp_path / "k.sock")})
        with running(write(tmp_path, keys)) as daemon:
            assert replicas(daemon) == {}
            assert "devices by a claim" in health(daemon)["discovery"]["left_out"][0]
            with kubelet(tmp_path / "k.sock", lambda *_: ANSWER):
                assert wait_for(lambda: up(daemon) == {"llm/vllm-0"})
            looks_around(daemon)
            assert wait_for(lambda: up(daemon) == {"llm/vllm-0"}), "its devices stay known while the kubelet is away"


def test_sidecar_takes_name_and_gpus_of_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "other")
    monkeypatch.setenv("POD_NAMESPACE", "llm")
    with engines(1) as (engine,):
        keys = {
            "role": "node",
            "plan": str(PLAN),
            "scrape_interval": "500ms",
            "targets": [{"url": engine.url, "tier": "cpu-small"}],
            "discovery": {"kubernetes": {"scope": "pod"}},
        }
        with running(write(tmp_path, keys), cycles=3, assemble=partial(assemble, gpu_source=Gpus())) as daemon:
            assert wait_for(lambda: up(daemon) == {"llm/other"})
            assert [gpu["gpu"] for gpu in replicas(daemon)["llm/other"]["gpus"]] == ["GPU-b"]
            assert health(daemon)["discovery"] is None
        monkeypatch.setenv("POD_NAME", "third")
        with running(write(tmp_path, keys), cycles=3, assemble=partial(assemble, gpu_source=Gpus())) as daemon:
            assert replicas(daemon)["llm/third"]["gpus"] == []
            assert "not exposed" in daemon.assembly.runtime.replicas["cpu-small", "llm/third"].gpus.missing


def test_unmounted_file_waits_for_signal(tmp_path: Path, kube: Kube) -> None:
    with engines(1) as (engine,):
        kube.put(serves("a", engine))
        path = write(tmp_path, cluster(tmp_path, kube))
        with running(path) as daemon:
            path.write_text("half a fil")
            looks_around(daemon)
            assert daemon.counts.config_trouble is None


def test_reload_replaces_or_ends_discovery(tmp_path: Path, kube: Kube) -> None:
    with engines(2) as (first, second):
        kube.put(serves("a", first))
        kube.put(serves("b", second, namespace="other"))
        with running(write(tmp_path, cluster(tmp_path, kube))) as daemon:
            assert wait_for(lambda: up(daemon) == {"llm/a", "other/b"})
            before = daemon.assembly.pods
            reload_daemon(daemon, cluster(tmp_path, kube, kubernetes={"namespaces": ["other"]}))
            assert daemon.assembly.pods is not before
            assert wait_for(lambda: up(daemon) == {"other/b"})
            again = daemon.assembly.pods
            reload_daemon(daemon)
            assert daemon.assembly.pods is again, "the same goes on"
            keys = cluster(tmp_path, kube)
            del keys["discovery"]
            reload_daemon(daemon, keys)
            assert wait_for(lambda: replicas(daemon) == {})
            assert health(daemon)["discovery"] is None


def test_daemon_outside_cluster_explains_itself(tmp_path: Path, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    keys = cluster(tmp_path, kube)
    del keys["discovery"]["kubernetes"]["api"]
    daemon = made(write(tmp_path, keys))
    with pytest.raises(KubernetesApiError, match=r"discovery\.kubernetes\.api\.url"):
        daemon.start()
    assert daemon.web is not None
    with pytest.raises(OSError):
        ask(daemon)


def test_failed_assembly_leaves_no_thread(tmp_path: Path, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(write(tmp_path, cluster(tmp_path, kube, role="standalone", data_dir="data")))
    before = set(threading.enumerate())

    def fails(loaded: object) -> Any:
        raise KeyError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(assembly, "build_tier_contexts", fails)
        with pytest.raises(KeyError):
            assemble(loaded)
    assert wait_for(lambda: set(threading.enumerate()) <= before)
    whole = assemble(loaded)
    assert whole.history is not None
    whole.close(time.time())
