"""Sections `targets` and `gpus`: metrics pages of engines and GPU exporters, and their contradictions."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from agent.config.values import (
    ConfigSection,
    Contradictions,
    EngineName,
    EnvironmentFileName,
    GpuList,
    Name,
    Peer,
    Timeout,
    Url,
    refuse,
    repeats,
)
from agent.http_client.options import TargetOptions
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import BY_NAME
from rules.plan.schema import Plan

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Twelve times the largest page of an engine that we know. Thirty such pages at once fit into a node agent's memory."""


class Connection(Peer):
    """Address of a metrics page and its credentials."""

    url: Url = Field(description="Address of the metrics page; without user, password or ${...}.")
    max_page_bytes: Annotated[int, Field(ge=1024)] = Field(
        MAX_PAGE_BYTES, description="A larger page, after decompression, is refused."
    )

    def options(self, timeout_seconds: float) -> TargetOptions:
        """Return the options of the page fetcher."""
        return TargetOptions(
            url=self.url, timeout_seconds=timeout_seconds, max_bytes=self.max_page_bytes, **self.credentials
        )


class TargetKeys(Connection):
    """Each entry is one engine instance."""

    tier: Name = Field(description="Tier of the plan that it belongs to.")
    replica: Name | None = Field(None, description="Its name, unique in the tier; default host:port of the url.")
    pool: Literal["mixed", "prefill", "decode"] = Field("mixed", description="Part of the tier it belongs to.")
    engine: EngineName | None = Field(None, description="Such as vllm; default: recognised from the page.")
    engine_version: Name | None = Field(
        None, description="Release of the engine, where it does not tell it. vLLM does: /version beside its page."
    )
    scrape_timeout_seconds: Timeout | None = Field(None, description="Of this target alone; default as above.")
    gpus: GpuList = Field(
        "auto", description="GPUs it owns, by UUID or index; auto: found by process id where that can be seen."
    )
    pid_file: EnvironmentFileName | None = Field(
        None, description="File that holds the engine's process id, for gpus: auto."
    )

    @property
    def name(self) -> str:
        """Return the replica name."""
        return self.replica or default_replica(self.url)

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield a pool that the plan lacks, and a pid_file without use."""
        yield from super().contradictions(plan)
        pools = plan.tiers[self.tier].pools if plan and self.tier in plan.tiers else ()
        if pools and self.pool not in pools:
            text = f"must be {' or '.join(pools)}, as the plan says of tier {self.tier}, not {self.pool}"
            yield ("pool",), text
        if self.pid_file and self.gpus != "auto":
            yield ("pid_file",), "has no use beside a list of gpus; it is for gpus: auto"


def find_shared(targets: tuple[TargetKeys, ...]) -> Contradictions:
    """Yield each name and GPU that two targets have. The path begins with the target's place."""
    for place, before in repeats((target.tier, target.name) for target in targets):
        name, tier = targets[place].name, targets[place].tier
        yield (place,), f"is replica {name} of tier {tier}, as targets[{before}] is; give each its own name"
    owners = [(place, gpu) for place, target in enumerate(targets) if target.gpus != "auto" for gpu in target.gpus]
    for again, before in repeats(gpu for _, gpu in owners):
        place, gpu = owners[again]
        text = f"GPU {gpu} already belongs to targets[{owners[before][0]}]; one GPU has one replica"
        yield (place, "gpus"), text


Targets = Annotated[
    tuple[TargetKeys, ...], Field(strict=False), AfterValidator(lambda targets: refuse(find_shared(targets)) or targets)
]


class GpusConfig(ConfigSection):
    source: Literal["nvml", "dcgm", "amd", "nvidia_smi", "none"] = Field(
        "nvml", description="Where GPUs are read; that this machine has none is no error."
    )
    dcgm: Connection | None = Field(None, description="A dcgm-exporter, for source dcgm.")
    amd: Connection | None = Field(None, description="An AMD device-metrics-exporter, for source amd.")
    nvidia_smi: Connection | None = Field(None, description="An nvidia_gpu_exporter, for source nvidia_smi.")

    @property
    def exporter(self) -> tuple[GpuExporter, Connection] | None:
        """Return the configured GPU exporter and its connection, or None for another source."""
        connection = {"dcgm": self.dcgm, "amd": self.amd, "nvidia_smi": self.nvidia_smi}.get(self.source)
        return (BY_NAME[self.source], connection) if connection is not None else None

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield an exporter that is missing, or that the source does not use."""
        for name, exporter in BY_NAME.items():
            given = getattr(self, name) is not None
            if self.source == name and not given:
                yield (name,), f"is missing; source {name} needs the url of {exporter.a_title}"
            elif given and self.source != name:
                yield ("source",), f"must be {name} where gpus.{name} is given"


def default_replica(url: str) -> str:
    """Return the default replica name: host:port of a valid url."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
