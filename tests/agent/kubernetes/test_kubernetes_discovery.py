"""From pods to targets: which are engines, where they answer, which tier they are of, and what hostile ones can do."""

import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from gpu_pages import by_uuid, readout
from kube_standin import Object, pod
from kubelet_server import ANSWER, kubelet
from loopback import answering
from paths import TESTS

from agent.config.load import parse_config
from agent.config.targets import Kubernetes, PodTier
from agent.errors import ConfigError
from agent.gpu.collector import samples
from agent.kubernetes import pod_gpus
from agent.kubernetes.discovery import MOST_TARGETS, DiscoveryResult, TierCandidates, discover, find_open_tiers
from agent.kubernetes.pod_gpus import (
    Devices,
    PodResourcesError,
    assign_pod_gpus,
    find_shared_gpus,
    gpus_from_exporter,
    read_devices,
    socket_exists,
    visible_gpus,
)
from agent.kubernetes.pods import MOST_LABELS, MOST_TEXT, Pod, parse_pod, truncate_value
from agent.scrape.exposition import SeriesReader
from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.exporter import GpuExporter
from rules.plan.schema import parse_plan
from rules.telemetry.snapshots import GpuReadout

PLAN = parse_plan(yaml.safe_load((TESTS / "plans" / "guide-h100.yaml").read_text(encoding="utf-8")))
(TIER, PLANNED), *_ = PLAN.tiers.items()
TWO = {"one": PLANNED, "two": PLANNED.model_copy(update={"model": "other-model"})}


def keys(**given: Any) -> Kubernetes:
    loaded = parse_config({"discovery": {"kubernetes": {"node": "gpu-1", **given}}}, environment={})
    assert loaded.discovery.kubernetes is not None
    return loaded.discovery.kubernetes


def read(data: Object) -> Pod:
    found = parse_pod(data)
    assert found is not None
    return found


def found(
    *several: Object, known: TierCandidates | None = None, taken: tuple[tuple[str, str], ...] = (), **given: Any
) -> DiscoveryResult:
    known = known or TierCandidates(
        tiers=PLAN.tiers, entries=(PodTier(tier=TIER),), namespaces=tuple(given.get("namespaces", ()))
    )
    return discover([read(one) for one in several], keys(**given), known, taken)


def only(discovered: DiscoveryResult) -> str:
    """The reason of the one pod that is left out."""
    assert discovered.targets == ()
    (left,) = discovered.left_out
    return left.reason


ON = {"sizewatch.io/scrape": "true"}


PORTS = (("http", 8000), ("metrics", 9090))


@pytest.mark.parametrize(
    ("notes", "ports", "given", "url"),
    [
        ({"port": "9100", "path": "/prometheus/metrics"}, None, {}, "http://10.0.0.7:9100/prometheus/metrics"),
        ({"scheme": "https"}, None, {}, "https://10.0.0.7:8000/metrics"),
        ({}, PORTS, {}, "http://10.0.0.7:9090/metrics"),
        ({}, PORTS, {"ports": [8000]}, "http://10.0.0.7:8000/metrics"),
        ({"port": "http"}, PORTS, {}, "http://10.0.0.7:8000/metrics"),
    ],
)
def test_annotated_pod_is_a_target(notes: dict[str, str], ports: Any, given: dict[str, Any], url: str) -> None:
    own = {f"sizewatch.io/{name}": text for name, text in {"scrape": "true", "engine": "trtllm", **notes}.items()}
    more = {} if ports is None else {"ports": ports}
    (one,) = found(pod("a", address="10.0.0.7", annotations=own, **more), **given).targets
    assert (one.url, one.key, one.pool, one.engine) == (url, (TIER, "llm/a"), "mixed", "trtllm")
    (six,) = found(pod("a", address="fd00::7", annotations=own, **more), **given).targets
    assert six.url == url.replace("10.0.0.7", "[fd00::7]")


@pytest.mark.parametrize(
    ("given", "data", "wanted"),
    [
        ({}, pod("gpu and port", gpus=8), True),
        ({}, pod("gpu, no port of ours", gpus=8, ports=(("grpc", 50051),)), False),
        ({}, pod("an exporter with a port called metrics", gpus=0, ports=(("metrics", 9100),)), False),
        ({}, pod("off", annotations={"sizewatch.io/scrape": "false"}), False),
        ({}, pod("over", annotations=ON, phase="Succeeded"), False),
        ({"selector": "app=vllm"}, pod("selected", ports=(("odd", 1),), annotations={"sizewatch.io/port": "1"}), True),
        ({"selector": "app=vllm", "namespaces": ["llm"]}, pod("selected", gpus=0), True),
        ({"ports": [50051]}, pod("another port", ports=(("grpc", 50051),)), True),
    ],
)
def test_what_tells_an_engine(given: dict[str, Any], data: Object, wanted: bool) -> None:
    discovered = found(data, **given)
    assert [one.pod.name for one in discovered.targets] == ([data["metadata"]["name"]] if wanted else [])
    assert discovered.left_out == ()


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ({"port": "nine"}, "is no port of its containers"),
        ({"port": "0"}, "is no port of its containers"),
        ({"port": "65536"}, "is no port of its containers"),
        ({"port": "80@evil"}, "is no port of its containers"),
        ({"path": "//evil.example/x"}, "is no path"),
        ({"path": "@evil.example/"}, "is no path"),
        ({"path": "/x?y=1"}, "is no path"),
        ({"path": "/a\nHost: evil"}, "is no path"),
        ({"path": "/" + "x" * 10_000}, "is no path"),
        ({"path": "/<script>"}, "is no path"),
        ({"scheme": "file"}, "http or https"),
        ({"pool": "<script>"}, "must be one of mixed"),
        ({"engine": "vlm"}, "did you mean vllm"),
        ({"tier": "<script>alert(1)</script>"}, "no name of a tier"),
        ({"tier": "a\nb"}, "no name of a tier"),
        ({"tier": "x" * 10_000}, "no name of a tier"),
        ({"tier": TIER + "x"}, f"did you mean {TIER}"),
    ],
)
def test_wrong_annotation_leads_nowhere(notes: dict[str, str], reason: str) -> None:
    said = only(found(pod("a", annotations={**ON, **{f"sizewatch.io/{k}": v for k, v in notes.items()}})))
    assert reason in said
    assert len(said) < 400
    assert not {"<", "\n"} & set(said)


METADATA = "169.254.169.254 fd00:ec2::254 100.100.100.200 168.63.129.16 192.0.0.192 ::ffff:192.0.0.192"
LOCAL = "::ffff:169.254.169.254 fe80::1 224.0.0.1 ff02::1 0.0.0.0 :: ::ffff:0.0.0.0"
NO_ADDRESS = f"evil.example 10.0.0.1:80 10.0.0.1/../ 10.0.0.1@evil {'x' * 5000} [::1]"


@pytest.mark.parametrize("address", f"{METADATA} {LOCAL} {NO_ADDRESS}".split())
def test_no_metadata_service_is_asked(address: str) -> None:
    reason = only(found(pod("a", annotations=ON, address=address)))
    is_address = address not in NO_ADDRESS.split()
    assert ("its address is none that a pod has" if is_address else "no IP address") in reason


def test_pod_texts_are_cut_and_clean() -> None:
    labels = {f"l{n}": "v" for n in range(500)} | {"a": "x" * 10_000}
    notes = {**ON, "other.io/huge": "y" * 200_000, "sizewatch.io/tier": "a\x00\u2028\n" + "z" * 9000}
    one = read(pod("a", labels=labels, annotations=notes))
    assert len(one.labels) <= MOST_LABELS
    assert max(map(len, [*one.labels.values(), *one.own.values()])) <= MOST_TEXT
    assert one.own["tier"].startswith("a z")
    assert set(one.own) == {"scrape", "tier"}
    assert truncate_value("\ud800x\x1b[31m") == "x [31m"


def test_pod_without_address_or_port_is_reported() -> None:
    (left,) = found(pod("a", address=None, phase="Pending")).left_out
    assert (left.reason, left.later) == ("has no address yet", True)
    said = only(found(pod("a", annotations=ON, ports=(("grpc", 50051),))))
    assert said == "has no container port of discovery.kubernetes.ports (its ports: grpc); give sizewatch.io/port"
    for port, reasons in (("8000", []), ("10250", ["sizewatch.io/port: 10250"])):
        on_host = found(pod("a", annotations={**ON, "sizewatch.io/port": port}, hostNetwork=True))
        assert ["is no port of its containers" in one.reason for one in on_host.left_out] == [True for _ in reasons]


def test_pod_limit_keeps_incumbents_and_gpus() -> None:
    known = TierCandidates(tiers=PLAN.tiers, entries=(PodTier(tier=TIER, namespaces=("aaa", "llm")),))
    crowd = [read(pod(f"p{n}", namespace="aaa", gpus=0, annotations=ON, made=1.0)) for n in range(2 * MOST_TARGETS)]
    last = read(pod("vllm-0", made=2.0))
    found = discover([*crowd, last], keys(), known)
    assert (len(found.targets), len(found.left_out)) == (MOST_TARGETS, MOST_TARGETS + 1)
    assert found.targets[0].pod is last
    assert found.left_out[0].reason == f"is one too many: at most {MOST_TARGETS} pods of a node are watched"
    stays = {one.uid for one in crowd[-MOST_TARGETS:]}
    assert {one.pod.uid for one in discover([*crowd, last], keys(), known, incumbents=stays).targets} == stays


def test_new_pod_replaces_ending_namesake() -> None:
    old = pod("a", namespace="x", uid="old", made=1.0)
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    others = (pod("a", namespace="x", uid="new"), pod("a", namespace="y"), pod("b", namespace="z"))
    discovered = found(old, *others, taken=((TIER, "z/b"),))
    assert [one.key for one in discovered.targets] == [(TIER, "x/a"), (TIER, "y/a")]
    assert discovered.targets[0].pod.uid == "new"
    assert {one.reason for one in discovered.left_out} == {
        "has the name of a pod that is watched still",
        f"is replica z/b of tier {TIER}, which is a target of the configuration too",
    }


NAMED = {**ON, "sizewatch.io/tier": TIER}


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (PodTier(tier=TIER),),
        (PodTier(tier=TIER, labels={"app": "vllm"}),),
        (PodTier(tier="other", namespaces=("llm",)), PodTier(tier=TIER)),
        (PodTier(tier=TIER, namespaces=("prod",)), PodTier(tier=TIER)),
    ],
)
@pytest.mark.parametrize("notes", [NAMED, ON])
def test_pod_without_gpu_joins_no_tier(entries: tuple[PodTier, ...], notes: dict[str, str]) -> None:
    known = TierCandidates(tiers=PLAN.tiers, entries=entries)
    stranger = pod("a", gpus=0, annotations=notes)
    said = only(found(stranger, known=known))
    assert "its namespace" in said or "matches the tiers" in said
    stranger["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "0"}}
    assert only(found(stranger, known=known)) == said, "a request for no GPU is none"


def test_claim_counts_by_kubelet_only() -> None:
    claims = pod("a", annotations=NAMED, gpus=0)
    claims["spec"]["containers"][0]["resources"] = {"claims": [{"name": "anything"}]}
    assert only(found(claims)).startswith("requests devices by a claim, which may be no GPU, and")
    told = TierCandidates(tiers=PLAN.tiers, holders=frozenset({"llm/a"}))
    assert found(claims, known=told).targets


def test_tier_takes_its_namespaces_alone() -> None:
    known = TierCandidates(
        tiers={"one": PLANNED, "two": PLANNED},
        entries=(PodTier(tier="one", namespaces=("prod",)), PodTier(tier="two", namespaces=("dev",))),
    )
    assert found(pod("a", annotations=ON, namespace="dev"), known=known).targets[0].tier == "two"
    assert found(pod("a", annotations={**ON, "sizewatch.io/tier": "one"}, namespace="prod"), known=known).targets
    reason = "its namespace is none of those that discovery.kubernetes.tiers allows for "
    assert only(found(pod("a", annotations=ON), known=known)).startswith("has no tier: give it the label")
    named = {**ON, "sizewatch.io/tier": "one"}
    assert only(found(pod("a", annotations=named, namespace="dev"), known=known)) == reason + "one"
    anywhere = replace(known, entries=(*known.entries, PodTier(tier="one")))
    assert found(pod("a", annotations=named, namespace="dev"), known=anywhere).targets
    # The operator's own namespaces admit a pod without a GPU.
    for entries, namespaces in (((PodTier(tier=TIER, namespaces=("llm",)),), ()), ((PodTier(tier=TIER),), ("llm",))):
        admits = TierCandidates(tiers=PLAN.tiers, entries=entries, namespaces=namespaces)
        assert found(pod("a", gpus=0, annotations=NAMED), known=admits).targets
    assert find_open_tiers(("one", "three"), known) == ("three",)
    assert find_open_tiers(("one",), TierCandidates(namespaces=("x",))) == ()


def test_its_own_word_comes_before_the_configurations() -> None:
    known = TierCandidates(
        tiers=TWO,
        entries=(
            PodTier(tier="two", labels={"app": "vllm"}),
            PodTier(tier="one", labels={"app": "x"}, namespaces=("llm",)),
        ),
    )
    assert found(pod("a", labels={"sizewatch.io/tier": "one"}), known=known).targets[0].tier == "one"
    assert found(pod("a"), known=known).targets[0].tier == "two"
    assert found(pod("a", labels={"app": "x"}), known=known).targets[0].tier == "one"
    both = TierCandidates(tiers=TWO, entries=(*known.entries, PodTier(tier="one")))
    assert "matches the tiers one, two" in only(found(pod("a"), known=both))
    anything = TierCandidates(entries=())
    assert found(pod("a", labels={"sizewatch.io/tier": "no-plan"}), known=anything).targets[0].tier == "no-plan"


LWS = "leaderworkerset.sigs.k8s.io/"


def member(index: int, **more: Any) -> Object:
    labels = {f"{LWS}name": "deep", f"{LWS}group-index": "3", f"{LWS}worker-index": str(index)}
    notes = {f"{LWS}leader-name": "deep-3"} if index else {}
    return pod("deep-3" if not index else f"deep-3-{index}", labels=labels, annotations={**ON, **notes}, **more)


def test_group_workers_are_not_scraped() -> None:
    discovered = found(member(0), member(1), member(2))
    assert [one.pod.name for one in discovered.targets] == ["deep-3"]
    assert [one.key for one in discovered.workers] == [(TIER, "llm/deep-3")] * 2
    nameless = member(1)
    del nameless["metadata"]["annotations"][f"{LWS}leader-name"]
    assert "without the annotation leader-name" in only(found(nameless))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "names the environment variable NODE_NAME, which is not set"),
        ({"node": "Not A Name"}, "discovery.kubernetes.node: must be the name of an object"),
        ({"node": "n", "namespaces": ["A B"]}, "discovery.kubernetes.namespaces[0]"),
        ({"node": "n", "ports": []}, "discovery.kubernetes.ports: must be a list"),
        ({"node": "n", "ports": ["x y"]}, "must be a list of names"),
        ({"node": "n", "keep": "1s"}, "discovery.kubernetes.keep: must be from 30s"),
        ({"node": "n", "tiers": [{"labels": {}}]}, "discovery.kubernetes.tiers[0].tier"),
        ({"node": "n", "nodes": "x"}, "discovery.kubernetes.nodes"),
        ({"scope": "pod", "pod": "a"}, "POD_NAMESPACE"),
    ],
)
def test_wrong_keys_are_reported_with_place(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as bad:
        parse_config({"discovery": {"kubernetes": given}}, environment={})
    assert any(said in problem for problem in bad.value.problems), bad.value.problems


# ---- GPUs: the kubelet over a real gRPC server, then the labels of the exporter ----


GPU, MIG = "GPU-8f6d1a2b-1111-2222-3333-44445555666", "MIG-1a2b3c4d-0000-1111-2222-333344445555"

DEVICES = (
    Devices(namespace="llm", pod="vllm-0", resource="nvidia.com/gpu", ids=(f"{GPU}6", f"{GPU}7")),
    Devices(namespace="llm", pod="vllm-0", resource="rdma/hca", ids=("mlx5_0",)),
    Devices(namespace="llm", pod="mig-0", resource="nvidia.com/mig-1g.10gb", ids=(MIG,)),
    Devices(namespace="dev", pod="shared-0", resource="nvidia.com/gpu.shared", ids=(f"{GPU}8::3",)),
    Devices(namespace="llm", pod="dra-0", resource="gpu.nvidia.com", ids=("gpu-1/gpu-0",)),
)


@pytest.mark.parametrize("times", [0, 1, 1500])
def test_the_kubelet_tells_each_containers_devices(tmp_path: Path, times: int) -> None:
    asked = []
    with kubelet(tmp_path / "k.sock", lambda request, _: asked.append(request) or ANSWER * times) as path:
        assert socket_exists(path)
        assert read_devices(path) == DEVICES * times
        assert read_devices(path) == DEVICES * times, "a question is a connection of its own"
    assert asked == [b"", b""]


def refuse(_: bytes, context: Any) -> bytes:
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by\nrate limit")
    raise AssertionError


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refuse, r"RESOURCE_EXHAUSTED.*rate limit"),
        (lambda *_: b"\x0a\xff\xff", "no ListPod"),
        (lambda *_: ANSWER * 100, "larger than max"),
    ],
)
def test_kubelet_refusals_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, words: str
) -> None:
    monkeypatch.setattr(pod_gpus, "MOST_BYTES", 1000)
    with kubelet(tmp_path / "k.sock", answer) as path, pytest.raises(PodResourcesError, match=words):
        read_devices(path)


def test_broken_kubelet_socket_costs_the_answer(tmp_path: Path) -> None:
    assert not socket_exists(str(tmp_path / "none.sock"))
    with pytest.raises(PodResourcesError, match=r"there is no socket .*none\.sock here"):
        read_devices(str(tmp_path / "none.sock"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(PodResourcesError, match="did not answer"):
            read_devices(str(tmp_path / "silent.sock"), 0.2)
    settings = struct.pack(">I", 0)[1:] + b"\x04\x00" + struct.pack(">I", 0)
    for place, (said, why) in enumerate(((b"HTTP/1.1 400 Bad Request\r\n\r\n", "."), (settings, "did not answer"))):
        with answering([said], str(tmp_path / f"{place}.sock")) as path, pytest.raises(PodResourcesError, match=why):
            read_devices(path, 1.0)


READOUTS = by_uuid(*(readout(f"{GPU}{n}", index=n - 6) for n in (6, 7, 8)), readout(MIG))


def a_pod(name: str, namespace: str = "llm", uid: str = "u") -> Pod:
    return Pod(uid=uid, namespace=namespace, name=name, wants_gpu=True)


@pytest.mark.parametrize(
    ("pod", "devices", "gpus", "missing"),
    [
        (a_pod("vllm-0"), DEVICES, (f"{GPU}6", f"{GPU}7"), ""),
        (a_pod("mig-0"), DEVICES, (MIG,), ""),
        (a_pod("shared-0", "dev"), DEVICES, (f"{GPU}8",), ""),
        # A pod of another namespace is another pod, and devices that are claimed are not GPUs by name.
        (a_pod("vllm-0", "other"), DEVICES, (), "its GPUs are not known"),
        (a_pod("dra-0"), DEVICES, (), "gpu-1/gpu-0 of gpu.nvidia.com"),
        # The exporter counts where the kubelet is silent.
        (a_pod("named"), "there is no socket", (f"{GPU}8",), ""),
        (a_pod("vllm-0"), "no socket", (), "its GPUs are not known: no socket; no GPU exporter names it"),
        (replace(a_pod("cpu"), wants_gpu=False), (), (), ""),
    ],
)
def test_devices_belong_to_their_pods(pod: Pod, devices: Any, gpus: tuple[str, ...], missing: str) -> None:
    named = {**READOUTS, f"{GPU}8": replace(READOUTS[f"{GPU}8"], pods=("llm/named", "dev/other"))}
    found = assign_pod_gpus(pod, named, devices)
    assert found.gpus == gpus
    assert missing in found.missing
    assert bool(missing) is bool(found.missing)
    assert assign_pod_gpus(pod, {}, devices).missing == "" or isinstance(devices, str)


@pytest.mark.parametrize(
    ("devices", "gpu"),
    [
        *(((device,), f"{GPU}7") for device in (f"{GPU}7", f"{GPU}7::15", "1", "1::2", "nvidia1", "nvidia1/vgpu3")),
        *(((device,), None) for device in ("nvidia1/gi2", "9", "GPU-gone", "0000:c1:00.0", "amdgpu_xcp_30", "")),
        *(((device,), None) for device in ("x" * 253, "gpu-1/gpu-0")),
        ((f"{GPU}6", "GPU-gone"), None),
    ],
)
def test_device_spelling_is_gpu_or_gap(devices: tuple[str, ...], gpu: str | None) -> None:
    ours = replace(DEVICES[0], ids=devices)
    found = assign_pod_gpus(a_pod("vllm-0"), READOUTS, (ours,))
    assert found.gpus == ((gpu,) if gpu else ())
    assert (devices[-1] in found.missing) == (gpu is None)


def test_shared_gpu_is_reported() -> None:
    seen = (READOUTS, (DEVICES[3], replace(DEVICES[3], pod="shared-1", ids=(f"{GPU}8::4",))))
    several = {("t", name): assign_pod_gpus(a_pod(name, "dev"), *seen) for name in ("shared-0", "shared-1")}
    (told,) = find_shared_gpus(several)
    assert told.startswith(f"GPU {GPU}8 is shared by shared-0, shared-1")


DCGM_PAGE = """# HELP DCGM_FI_DEV_GPU_TEMP x
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",modelName="H",Hostname="n",container="engine",namespace="llm",pod="vllm-0"} 40
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b",modelName="H",container_name="engine",pod_namespace="llm",pod_name="vllm-1"} 41
DCGM_FI_DEV_GPU_TEMP{gpu="2",UUID="GPU-c",modelName="H",Hostname="n",container="",namespace="",pod=""} 42
"""


def pods_on(exporter: GpuExporter, page: bytes) -> dict[str, GpuReadout]:
    return by_uuid(*exporter.read(samples(SeriesReader(exporter.wanted).read(page)), 1.0).readouts)


def test_sidecar_takes_own_gpus_from_exporter() -> None:
    readouts = pods_on(DCGM, DCGM_PAGE.encode())
    pods = {"GPU-a": ("llm/vllm-0",), "GPU-b": ("llm/vllm-1",), "GPU-c": ()}
    assert {uuid: one.pods for uuid, one in readouts.items()} == pods
    assert gpus_from_exporter("llm/vllm-1", readouts).gpus == ("GPU-b",)
    assert "not exposed" in gpus_from_exporter("llm/vllm-2", readouts).missing
    assert gpus_from_exporter("llm/vllm-2", {}).missing == ""
    page = (TESTS / "gpu_exporter_pages" / "made-amd-1.5-mi300x.prom").read_bytes()
    given = page.replace(b'pod=""', b'pod="vllm-0"').replace(b'namespace=""', b'namespace="llm"')
    assert {one.pods for one in pods_on(AMD, page).values()} == {()}
    assert {one.pods for one in pods_on(AMD, given).values()} == {("llm/vllm-0",)}


@pytest.mark.parametrize(
    ("visible", "planned", "gpus", "missing"),
    [
        (2, 2, ("GPU-0", "GPU-1"), ""),
        (8, 2, (), "NVML shows 8, the plan gives a replica 2"),
        (1, 2, (), "NVML shows 1, the plan gives a replica 2"),
        (0, 2, (), ""),
    ],
)
def test_nvml_gives_a_sidecar_all_or_nothing(visible: int, planned: int, gpus: tuple[str, ...], missing: str) -> None:
    readouts = {
        f"GPU-{n}": GpuReadout(t=1.0, gpu=f"GPU-{n}", product="H", counters={}, gauges={}) for n in range(visible)
    }
    owned = visible_gpus("llm/vllm-0", readouts, planned)
    assert owned.gpus == gpus
    assert missing in owned.missing
    assert bool(owned.missing) == bool(missing)
