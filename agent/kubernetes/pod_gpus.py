"""Which GPUs a pod has: by the kubelet, else by what the GPU exporter says, else by the processes on them.

Owns the three sources in their order (SOURCES) and what ids of devices mean. Readouts and the kubelet's answer come in; of the
machine only /proc is read. Another device plugin's spelling of an id is a row in SPELLINGS.

A GPU that is shared in time has several pods, and what it says is of all of them together: each gets it, and that is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.gpu.owners import PROC, GpuAssignment
from agent.kubernetes.pod_resources import Devices
from agent.kubernetes.pods import GPU_RESOURCES, Pod
from rules.telemetry.snapshots import GpuReadout

SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?P<name>(?:GPU|MIG)-[0-9A-Za-z/-]+)(?:::\d+)?"), "UUID, of a time slice or an MPS share with ::N"),
    (re.compile(r"(?P<index>\d{1,3})(?:::\d+)?"), "index (deviceIDStrategy: index)"),
    (re.compile(r"nvidia(?P<index>\d{1,3})(?:/vgpu\d+)?"), "GKE, whole or shared"),
)
"""How device plugins write ids of GPUs: NVIDIA's k8s-device-plugin (internal/rm), Google's (dcgm-exporter's own pattern)."""

DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
"""Of dynamic resource allocation: the kubelet tells a device's name then, which is no UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAssignmentSources:
    """What a source may look at. `devices` is None where the kubelet was not asked or did not answer; `trouble` says why."""

    readouts: Mapping[str, GpuReadout]
    devices: Sequence[Devices] | None = None
    trouble: str = ""
    proc: Path = field(default=PROC)

    def find_by_index(self) -> dict[str, str]:
        """The GPU that has an index; of a replaced one that was read last."""
        several = sorted(self.readouts.values(), key=lambda one: one.t)
        return {str(one.index): one.gpu for one in several if one.index is not None}


Answer = tuple[tuple[str, ...], str]
"""GPUs by UUID, and in words why there are none."""


def assign_pod_gpus(pod: Pod, seen: GpuAssignmentSources) -> GpuAssignment:
    """The GPUs of a pod. One that asks for none, and has none, lacks none."""
    reasons = []
    for source in SOURCES:
        gpus, why = source(pod, seen)
        if gpus:
            return GpuAssignment(gpus=gpus)
        reasons.append(why)
    told = "; ".join(filter(None, reasons))
    return GpuAssignment(gpus=(), missing=f"its GPUs are not known: {told}" if pod.wants_gpu and seen.readouts else "")


def gpus_from_exporter(name: str, seen: GpuAssignmentSources) -> GpuAssignment:
    """The GPUs that an exporter says were given to a pod (namespace/name): all that a sidecar has to go by."""
    gpus = _named(name, seen.readouts)
    missing = f"not exposed: the GPU exporter's page names no GPU of pod {name}; let it add Kubernetes' labels"
    return GpuAssignment(gpus=gpus, missing="" if gpus or not seen.readouts else missing)


def find_shared_gpus(by_replica: Mapping[tuple[str, str], GpuAssignment]) -> tuple[str, ...]:
    """A sentence for each GPU that several replicas have."""
    times = Counter(gpu for each in by_replica.values() for gpu in each.gpus)
    return tuple(
        f"GPU {gpu} is shared by {', '.join(sorted(key[1] for key, each in by_replica.items() if gpu in each.gpus))}: "
        "what it says is of all of them together"
        for gpu, number in sorted(times.items())
        if number > 1
    )


def _by_kubelet(pod: Pod, seen: GpuAssignmentSources) -> Answer:
    if seen.devices is None:
        return (), seen.trouble
    ours = [one for one in seen.devices if (one.namespace, one.pod) == (pod.namespace, pod.name) and _is_gpu(one)]
    if not ours:
        return (), "the kubelet gave it no GPU"
    indices = seen.find_by_index()
    known = {one: _gpu(one, seen.readouts, indices) for each in ours for one in each.ids}
    strange = [device_id for device_id, gpu in known.items() if gpu is None]
    if strange:
        # A part would be told as if it were the whole.
        named = ", ".join(strange[:3])
        return (), f"the kubelet names device {named} of {ours[0].resource}, which is no GPU that is read here"
    return tuple(dict.fromkeys(gpu for gpu in known.values() if gpu is not None)), ""


def _is_gpu(devices: Devices) -> bool:
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


def _by_exporter(pod: Pod, seen: GpuAssignmentSources) -> Answer:
    gpus = _named(pod.place, seen.readouts)
    says = any(readout.pods for readout in seen.readouts.values())
    return gpus, "" if gpus else "the GPU exporter names it nowhere" if says else "no GPU exporter names pods here"


def _named(place: str, readouts: Mapping[str, GpuReadout]) -> tuple[str, ...]:
    return tuple(gpu for gpu, readout in readouts.items() if place in readout.pods)


def _by_process(pod: Pod, seen: GpuAssignmentSources) -> Answer:
    """With hostPID: the control group of a process holds the uid of its pod, by systemd's spelling with _ for -."""
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
        # It ended meanwhile, or it is not to be seen: nobody's.
        return ""


SOURCES: tuple[Callable[[Pod, GpuAssignmentSources], Answer], ...] = (_by_kubelet, _by_exporter, _by_process)
