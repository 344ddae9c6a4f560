"""Sections `targets` and `gpus`: metrics pages of engines and GPU exporters, and their contradictions."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from agent.config.peer import PeerKeys, Url
from agent.config.sections import ConfigSection, repeats, unknown_name_text
from agent.config.values import EnvironmentFileName, Name, Timeout, names_or_numbers
from rules.engines.registry import ENGINES
from rules.gpu_sources.registry import BY_NAME
from rules.plan.validation import Contradictions, validation_error

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Twelve times the largest page of an engine that we know. Thirty such pages at once fit into a node agent's memory."""


def _engine(value: str) -> str:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    if value not in known:
        raise validation_error(unknown_name_text(value, known, "an engine whose pages can be read"))
    return value


EngineName = Annotated[Name, AfterValidator(_engine)]


class Connection(PeerKeys):
    """Address of a metrics page and its credentials."""

    url: Url = Field(description="Address of the metrics page; without user, password or ${...}.")
    max_bytes: Annotated[int, Field(ge=1024)] = Field(
        MAX_PAGE_BYTES, alias="max_page_bytes", description="A larger page, after decompression, is refused."
    )


_GPUS = "must be auto or a list of GPUs, by UUID or index (`nvidia-smi -L` lists both)"
_GPU = names_or_numbers(r"[A-Za-z0-9][\w.:/#-]*", _GPUS, or_text="auto")
GpuList = Annotated[tuple[str | int, ...] | Literal["auto"], _GPU, Field(title="auto or list of GPUs")]


class TargetKeys(Connection):
    """Each entry is one engine instance."""

    tier: Name = Field(description="Tier of the plan that it belongs to.")
    replica: Name | None = Field(None, description="Its name, unique in the tier; default host:port of the url.")
    pool: Literal["mixed", "prefill", "decode"] = Field("mixed", description="Part of the tier it belongs to.")
    engine: EngineName | None = Field(None, description="Such as vllm; default: recognised from the page.")
    engine_version: Name | None = Field(None, description="Its release, where it does not tell it (vLLM does).")
    scrape_timeout_seconds: Timeout | None = Field(None, description="Of this target alone; default as above.")
    gpus: GpuList = Field("auto", description="GPUs it owns, by UUID or index; auto: found by process id.")
    pid_file: EnvironmentFileName | None = Field(None, description="File with the engine's process id, for gpus: auto.")

    @property
    def name(self) -> str:
        """Return the replica name."""
        return self.replica or default_replica(self.url)

    def _contradictions(self) -> Contradictions:
        yield from super()._contradictions()
        if self.pid_file and self.gpus != "auto":
            yield ("pid_file",), "has no use beside a list of gpus; it is for gpus: auto"


def find_shared(targets: tuple[TargetKeys, ...]) -> Contradictions:
    """Yield each name and GPU that two targets have."""
    for place, before in repeats((target.tier, target.name) for target in targets):
        name, tier = targets[place].name, targets[place].tier
        yield ("targets", place), f"is replica {name} of tier {tier}, as targets[{before}] is; give each its own name"
    owners = [(place, gpu) for place, target in enumerate(targets) if target.gpus != "auto" for gpu in target.gpus]
    for again, before in repeats(gpu for _, gpu in owners):
        place, gpu = owners[again]
        text = f"GPU {gpu} already belongs to targets[{owners[before][0]}]; one GPU has one replica"
        yield ("targets", place, "gpus"), text


class GpusConfig(ConfigSection):
    source: Literal["nvml", "dcgm", "amd", "none"] = Field("nvml", description="Where GPUs are read.")
    dcgm: Connection | None = Field(None, description="A dcgm-exporter, for source dcgm.")
    amd: Connection | None = Field(None, description="An AMD device-metrics-exporter, for source amd.")

    def _contradictions(self) -> Contradictions:
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
