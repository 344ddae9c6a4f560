"""GPUs of a pod: from the kubelet, else from the GPU exporter, else from the processes on the GPUs.

Add the device ids of another device plugin to SPELLINGS. Each pod of a time-shared GPU gets its values, which belong to
all of them together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.gpu.owners import PROC, GpuAssignment, gpus_by_index
from agent.kubernetes.pod_resources import Devices
from agent.kubernetes.pods import GPU_RESOURCES, Pod
from rules.telemetry.snapshots import GpuReadout

SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?P<name>(?:GPU|MIG)-[0-9A-Za-z/-]+)(?:::\d+)?"), "UUID, of a time slice or an MPS share with ::N"),
    (re.compile(r"(?P<index>\d{1,3})(?:::\d+)?"), "index (deviceIDStrategy: index)"),
    (re.compile(r"nvidia(?P<index>\d{1,3})(?:/vgpu\d+)?"), "GKE, whole or shared"),
)
"""Device ids of device plugins: NVIDIA's k8s-device-plugin (internal/rm), Google's (pattern of dcgm-exporter)."""

DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
"""Drivers of dynamic resource allocation. Their device ids are names, not UUIDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAssignmentSources:
    """Input of the sources. `devices` is None without an answer of the kubelet; `error` is the reason."""

    readouts: Mapping[str, GpuReadout]
    devices: Sequence[Devices] | None = None
    error: str = ""
    proc: Path = PROC


FoundGpus = tuple[tuple[str, ...], str]
"""GPUs by UUID, or a reason."""


def assign_pod_gpus(pod: Pod, seen: GpuAssignmentSources) -> GpuAssignment:
    """Return the GPUs of a pod. Nothing is missing for a pod that requests no GPU."""
    reasons = []
    for source in SOURCES:
        gpus, why = source(pod, seen)
        if gpus:
            return GpuAssignment(gpus=gpus)
        reasons.append(why)
    missing = f"its GPUs are not known: {'; '.join(filter(None, reasons))}"
    return GpuAssignment(gpus=(), missing=missing if pod.wants_gpu and seen.readouts else "")


def gpus_from_exporter(place: str, readouts: Mapping[str, GpuReadout]) -> GpuAssignment:
    """Return the GPUs that an exporter assigns to a pod (namespace/name), for a sidecar."""
    gpus = _named(place, readouts)
    missing = f"not exposed: the GPU exporter's page names no GPU of pod {place}; let it add Kubernetes' labels"
    return GpuAssignment(gpus=gpus, missing="" if gpus or not readouts else missing)


def find_shared_gpus(by_replica: Mapping[tuple[str, str], GpuAssignment]) -> tuple[str, ...]:
    """Return a sentence for each GPU of several replicas."""
    times = Counter(gpu for each in by_replica.values() for gpu in each.gpus)
    return tuple(
        f"GPU {gpu} is shared by {', '.join(sorted(key[1] for key, each in by_replica.items() if gpu in each.gpus))}: "
        "what it says is of all of them together"
        for gpu, number in sorted(times.items())
        if number > 1
    )


def _by_kubelet(pod: Pod, seen: GpuAssignmentSources) -> FoundGpus:
    if seen.devices is None:
        return (), seen.error
    ours = [one for one in seen.devices if (one.namespace, one.pod) == (pod.namespace, pod.name) and is_gpu(one)]
    if not ours:
        return (), "the kubelet gave it no GPU"
    indices = gpus_by_index(seen.readouts)
    known = {one: _gpu(one, seen.readouts, indices) for each in ours for one in each.ids}
    strange = [device_id for device_id, gpu in known.items() if gpu is None]
    if strange:
        # A part must not look like the whole.
        named = ", ".join(strange[:3])
        return (), f"the kubelet names device {named} of {ours[0].resource}, which is no GPU that is read here"
    return tuple(dict.fromkeys(gpu for gpu in known.values() if gpu is not None)), ""


def is_gpu(devices: Devices) -> bool:
    """Return whether the devices are of a GPU's device plugin or driver."""
    return devices.resource.startswith(GPU_RESOURCES) or devices.resource in DRIVERS


def _gpu(device_id: str, readouts: Mapping[str, GpuReadout], indices: Mapping[str, str]) -> str | None:
    if device_id in readouts:
        return device_id
    for spelling, _ in SPELLINGS:
        match = spelling.fullmatch(device_id)
        if match is not None:
            parts = match.groupdict()
            gpu = parts.get("name") or indices.get(parts.get("index") or "", "")
            return gpu if gpu in readouts else None
    return None


def _by_exporter(pod: Pod, seen: GpuAssignmentSources) -> FoundGpus:
    gpus = _named(pod.place, seen.readouts)
    says = any(readout.pods for readout in seen.readouts.values())
    return gpus, "" if gpus else "the GPU exporter names it nowhere" if says else "no GPU exporter names pods here"


def _named(place: str, readouts: Mapping[str, GpuReadout]) -> tuple[str, ...]:
    return tuple(gpu for gpu, readout in readouts.items() if place in readout.pods)


def _by_process(pod: Pod, seen: GpuAssignmentSources) -> FoundGpus:
    """Search the control groups of processes for the pod's uid (systemd writes _ for -). It needs hostPID."""
    uids = (pod.uid, pod.uid.replace("-", "_"))
    gpus = tuple(gpu for gpu, one in seen.readouts.items() if _any_of(one.pids, uids, seen.proc))
    visible = any(one.pids for one in seen.readouts.values())
    return (
        gpus,
        "" if gpus else "none of its processes is on a GPU" if visible else "no processes are visible (hostPID)",
    )


def _any_of(pids: Iterable[int], uids: tuple[str, ...], proc: Path) -> bool:
    return any(f"pod{uid}" in _control_groups(pid, proc) for pid in pids for uid in uids)


def _control_groups(pid: int, proc: Path) -> str:
    try:
        with (proc / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        # The process has ended or is not visible.
        return ""


SOURCES: tuple[Callable[[Pod, GpuAssignmentSources], FoundGpus], ...] = (_by_kubelet, _by_exporter, _by_process)
