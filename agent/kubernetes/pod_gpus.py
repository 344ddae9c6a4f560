"""GPUs of a pod: from the kubelet, else from the GPU exporter.

Add the device ids of another device plugin to DEVICE_ID. Each pod of a time-shared GPU gets its values, which belong to
all of them together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from agent.gpu.owners import GpuAssignment, gpus_by_index
from agent.kubernetes.pod_resources import Devices
from agent.kubernetes.pods import GPU_RESOURCES, Pod
from rules.telemetry.snapshots import GpuReadout

DEVICE_ID = re.compile(
    r"""(?P<uuid>(?:GPU|MIG)-[0-9A-Za-z/-]+)(?:::\d+)?    # UUID, of a time slice or an MPS share with ::N
    |(?P<index>\d{1,3})(?:::\d+)?                        # deviceIDStrategy: index
    |nvidia(?P<gke>\d{1,3})(?:/vgpu\d+)?                 # GKE, whole or shared
    """,
    re.VERBOSE,
)
"""Device ids of device plugins: NVIDIA's k8s-device-plugin (internal/rm), Google's (pattern of dcgm-exporter)."""

DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
"""Drivers of dynamic resource allocation. Their device ids are names, not UUIDs."""


def assign_pod_gpus(pod: Pod, readouts: Mapping[str, GpuReadout], devices: Sequence[Devices] | str) -> GpuAssignment:
    """Return the GPUs of a pod. `devices` are the kubelet's, or the reason why it gave none.

    Nothing is missing for a pod that requests no GPU.
    """
    gpus, reason = ((), devices) if isinstance(devices, str) else _by_kubelet(pod, readouts, devices)
    if not gpus:
        gpus = _named(pod.place, readouts)
    missing = f"its GPUs are not known: {reason}; no GPU exporter names it" if pod.wants_gpu and readouts else ""
    return GpuAssignment(gpus=gpus, missing="" if gpus else missing)


def gpus_from_exporter(place: str, readouts: Mapping[str, GpuReadout]) -> GpuAssignment:
    """Return the GPUs that an exporter assigns to a pod (namespace/name), for a sidecar."""
    gpus = _named(place, readouts)
    missing = f"not exposed: the GPU exporter's page names no GPU of pod {place}; let it add Kubernetes' labels"
    return GpuAssignment(gpus=gpus, missing="" if gpus or not readouts else missing)


def visible_gpus(place: str, readouts: Mapping[str, GpuReadout], planned: int | None) -> GpuAssignment:
    """Return the GPUs of a sidecar's pod (namespace/name): those that an exporter assigns to it, else all that NVML shows.

    NVML shows what NVIDIA_VISIBLE_DEVICES names, without the owner: another number than planned may be GPUs of others.
    """
    if any(readout.pods for readout in readouts.values()) or not readouts or planned is None:
        return gpus_from_exporter(place, readouts)
    if len(readouts) == planned:
        return GpuAssignment(gpus=tuple(readouts))
    missing = f"not known: {len(readouts)} GPUs are visible, and the plan gives a replica {planned}"
    return GpuAssignment(gpus=(), missing=f"{missing}; name those of pod {place} in NVIDIA_VISIBLE_DEVICES")


def find_shared_gpus(by_replica: Mapping[tuple[str, str], GpuAssignment]) -> tuple[str, ...]:
    """Return a sentence for each GPU of several replicas."""
    replicas = defaultdict[str, list[str]](list)
    for (_, replica), owned in sorted(by_replica.items()):
        for gpu in owned.gpus:
            replicas[gpu].append(replica)
    return tuple(
        f"GPU {gpu} is shared by {', '.join(sorted(names))}: what it says is of all of them together"
        for gpu, names in sorted(replicas.items())
        if len(names) > 1
    )


def is_gpu(devices: Devices) -> bool:
    """Return whether the devices are of a GPU's device plugin or driver."""
    return devices.resource.startswith(GPU_RESOURCES) or devices.resource in DRIVERS


def _by_kubelet(
    pod: Pod, readouts: Mapping[str, GpuReadout], devices: Sequence[Devices]
) -> tuple[tuple[str, ...], str]:
    """Return the GPUs that the kubelet gave the pod, or a reason."""
    own = [given for given in devices if (given.namespace, given.pod) == (pod.namespace, pod.name) and is_gpu(given)]
    if not own:
        return (), "the kubelet gave it no GPU"
    indices = gpus_by_index(readouts)
    gpus = {}
    for device_id in (device_id for given in own for device_id in given.ids):
        gpus[device_id] = device_id
        if match := DEVICE_ID.fullmatch(device_id):
            gpus[device_id] = match["uuid"] or indices.get(match["index"] or match["gke"], device_id)
    if unknown := [device_id for device_id, gpu in gpus.items() if gpu not in readouts]:
        # A part must not look like the whole.
        names = ", ".join(unknown[:3])
        return (), f"the kubelet names device {names} of {own[0].resource}, which is no GPU that is read here"
    return tuple(dict.fromkeys(gpus.values())), ""


def _named(place: str, readouts: Mapping[str, GpuReadout]) -> tuple[str, ...]:
    return tuple(gpu for gpu, readout in readouts.items() if place in readout.pods)
