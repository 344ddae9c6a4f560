"""Reader of the GPUs that a configuration names."""

from __future__ import annotations

from agent.config.config import Config
from agent.gpu.collector import ExporterPage, GpuReader
from agent.http_client.page import PageFetcher


def make_gpu_reader(config: Config) -> GpuReader | None:
    """Return the reader of the configured source, or None without one."""
    kubernetes = config.discovery.kubernetes
    if config.gpus.source == "nvml":
        if kubernetes is not None and kubernetes.scope == "pod":
            # NVML shows a sidecar the whole node, without the owner of each GPU.
            return None
        # An agent without GPUs of its own loads no library for them.
        from agent.gpu.nvml_reader import NvmlReader

        return NvmlReader()
    if config.gpu_exporter is not None:
        exporter, peer = config.gpu_exporter
        return ExporterPage(PageFetcher(peer), exporter)
    return None
