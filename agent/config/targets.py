"""Sections `targets` and `gpus`: metrics pages of engines and GPU exporters, and their contradictions."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from agent.config.peer import PeerKeys, Url
from agent.config.sections import ConfigSection, repeats, unknown_key_text
from agent.config.values import EnvironmentFileName, Name, Timeout
from rules.engines.registry import ENGINES
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import BY_NAME
from rules.plan.schema import Plan
from rules.plan.validation import Contradictions, refuse, validation_error

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Twelve times the largest page of an engine that we know. Thirty such pages at once fit into a node agent's memory."""


def _engine(value: str) -> str:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    if value not in known:
        raise validation_error(unknown_key_text(value, known, "an engine whose pages can be read"))
    return value


EngineName = Annotated[Name, AfterValidator(_engine)]


def _gpus(value: object) -> object:
    """Return auto, or a list of indexes and UUIDs, as `nvidia-smi -L` lists both."""
    if value == "auto":
        return value
    if not isinstance(value, list | tuple) or not value or not all(map(_is_gpu, value)):
        raise validation_error("must be auto or a list of GPUs, by UUID or index (`nvidia-smi -L` lists both)")
    return tuple(value)


def _is_gpu(gpu: object) -> bool:
    if isinstance(gpu, str):
        return re.fullmatch(r"[A-Za-z0-9][\w.:/#-]*", gpu) is not None
    return type(gpu) is int and 0 <= gpu < 1024


GpuList = Annotated[tuple[str | int, ...] | Literal["auto"], BeforeValidator(_gpus)]


class Connection(PeerKeys):
    """Address of a metrics page and its credentials."""

    url: Url = Field(description="Address of the metrics page; without user, password or ${...}.")
    max_bytes: Annotated[int, Field(ge=1024)] = Field(
        MAX_PAGE_BYTES, alias="max_page_bytes", description="A larger page, after decompression, is refused."
    )


class TargetKeys(Connection):
    """Each entry is one engine instance."""

    tier: Name = Field(description="Tier of the plan that it belongs to.")
    replica: Name | None = Field(None, description="Its name, unique in the tier; default host:port of the url.")
    pool: Literal["mixed", "prefill", "decode"] = Field("mixed", description="Part of the tier it belongs to.")
    engine: EngineName | None = Field(None, description="Such as vllm; default: recognised from the page.")
    engine_version: Name | None = Field(None, description="Its release, where it does not tell it (vLLM does).")
    scrape_timeout_seconds: Timeout | None = Field(None, description="Of this target alone; default as above.")
    gpus: GpuList = Field(
        "auto", title="auto or list of GPUs", description="GPUs it owns, by UUID or index; auto: found by process id."
    )
    pid_file: EnvironmentFileName | None = Field(None, description="File with the engine's process id, for gpus: auto.")

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
    source: Literal["nvml", "dcgm", "amd", "none"] = Field("nvml", description="Where GPUs are read.")
    dcgm: Connection | None = Field(None, description="A dcgm-exporter, for source dcgm.")
    amd: Connection | None = Field(None, description="An AMD device-metrics-exporter, for source amd.")

    @property
    def exporter(self) -> tuple[GpuExporter, Connection] | None:
        """Return the configured GPU exporter and its connection, or None for another source."""
        connection = {"dcgm": self.dcgm, "amd": self.amd}.get(self.source)
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
