"""GPUs of pods: the kubelet's answer over a real gRPC server, the exporter's labels; in this order."""

import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from gpu_pages import by_uuid, readout
from kubelet_server import ANSWER, kubelet
from loopback import answering
from paths import TESTS

from agent.gpu.collector import samples
from agent.kubernetes import pod_gpus
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
from agent.kubernetes.pods import Pod
from agent.scrape.exposition import SeriesReader
from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.exporter import GpuExporter
from rules.telemetry.snapshots import GpuReadout

GPU, MIG = "GPU-8f6d1a2b-1111-2222-3333-44445555666", "MIG-1a2b3c4d-0000-1111-2222-333344445555"

DEVICES = (
    Devices(namespace="llm", pod="vllm-0", resource="nvidia.com/gpu", ids=(f"{GPU}6", f"{GPU}7")),
    Devices(namespace="llm", pod="vllm-0", resource="rdma/hca", ids=("mlx5_0",)),
    Devices(namespace="llm", pod="mig-0", resource="nvidia.com/mig-1g.10gb", ids=(MIG,)),
    Devices(namespace="dev", pod="shared-0", resource="nvidia.com/gpu.shared", ids=(f"{GPU}8::3",)),
    Devices(namespace="llm", pod="dra-0", resource="gpu.nvidia.com", ids=("gpu-1/gpu-0",)),
)


def test_the_kubelet_tells_each_containers_devices(tmp_path: Path) -> None:
    asked = []
    with kubelet(tmp_path / "k.sock", lambda request, _: asked.append(request) or ANSWER) as path:
        assert socket_exists(path)
        assert read_devices(path) == DEVICES
        assert read_devices(path) == DEVICES, "a question is a connection of its own"
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


@pytest.mark.parametrize(("answer", "devices"), [(b"", ()), (ANSWER * 1500, DEVICES * 1500)], ids=["none", "many"])
def test_kubelet_answer_arrives_whole(tmp_path: Path, answer: bytes, devices: tuple[Devices, ...]) -> None:
    with kubelet(tmp_path / "k.sock", lambda *_: answer) as path:
        assert read_devices(path) == devices


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
        (8, 2, (), "8 GPUs are visible, and the plan gives a replica 2"),
        (1, 2, (), "1 GPUs are visible, and the plan gives a replica 2"),
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
