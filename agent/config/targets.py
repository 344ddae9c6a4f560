"""Sections `targets` and `gpus`: metrics pages of engines and GPU exporters, and their contradictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from agent.config.values import (
    BasicAuth,
    ConfigSection,
    EnvironmentFileName,
    Found,
    GpuList,
    Name,
    Timeout,
    TlsConfig,
    Url,
    as_mapping,
    credential_options,
    list_entries,
    unknown_key_text,
)
from agent.durations import parse_duration
from agent.http_client.options import TargetOptions
from rules.engines.registry import ENGINES
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import BY_NAME
from rules.plan.schema import Plan
from rules.plan.validation import Path

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Twelve times the largest page of an engine that we know. Thirty such pages at once fit into a node agent's memory."""


class Connection(ConfigSection):
    """Address of a metrics page and its credentials."""

    url: Url = Field(description="Address of the metrics page; without user, password or ${...}.")
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None
    max_page_bytes: Annotated[int, Field(ge=1024)] = Field(
        MAX_PAGE_BYTES, description="A larger page, after decompression, is refused."
    )

    def options(self, timeout_seconds: float) -> TargetOptions:
        """Return the options of the page fetcher."""
        return TargetOptions(
            url=self.url,
            timeout_seconds=timeout_seconds,
            max_bytes=self.max_page_bytes,
            **credential_options(self),
        )


class TargetKeys(Connection):
    """Each entry is one engine instance."""

    tier: Name = Field(description="Tier of the plan that it belongs to.")
    replica: Name | None = Field(None, description="Its name, unique in the tier; default host:port of the url.")
    pool: Literal["mixed", "prefill", "decode"] = Field("mixed", description="Part of the tier it belongs to.")
    engine: Name | None = Field(None, description="Such as vllm; default: recognised from the page.")
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


def default_replica(url: object) -> str:
    """Return the default replica name: host:port of the url, or "" for an invalid url."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or not parts.hostname:
            return ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    except ValueError:
        return ""


def _connections(data: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    yield from list_entries(data, ("targets",))
    gpus = as_mapping(data.get("gpus"))
    for name in BY_NAME:
        yield ("gpus", name), as_mapping(gpus.get(name))
    yield ("store",), as_mapping(data.get("store"))
    yield from list_entries(data, ("alerting", "alertmanagers"))


def _seconds(value: object) -> float | None:
    try:
        return parse_duration(value) if isinstance(value, str) else None
    except ValueError:
        return None


def find_late_timeouts(data: Mapping[str, Any]) -> Found:
    interval = _seconds(data.get("scrape_interval", "15s"))
    for path, part in (((), data), *list_entries(data, ("targets",))):
        timeout = _seconds(part.get("scrape_timeout"))
        if interval and timeout and timeout > interval:
            yield (*path, "scrape_timeout"), f"must not exceed scrape_interval ({data.get('scrape_interval', '15s')})"


def find_repeated_replicas(data: Mapping[str, Any]) -> Found:
    first: dict[tuple[str, str], int] = {}
    for path, target in list_entries(data, ("targets",)):
        name = target.get("replica") or default_replica(target.get("url"))
        if not (name and isinstance(name, str) and isinstance(target.get("tier"), str)):
            continue
        before = first.setdefault((target["tier"], name), int(path[-1]))
        if before != path[-1]:
            yield path, f"is replica {name} of tier {target['tier']}, as targets[{before}] is; give each its own name"


def find_shared_gpus(data: Mapping[str, Any]) -> Found:
    first: dict[str | int, int] = {}
    for path, target in list_entries(data, ("targets",)):
        gpus = target.get("gpus")
        for gpu in dict.fromkeys(g for g in gpus if isinstance(g, str | int)) if isinstance(gpus, list) else ():
            before = first.setdefault(gpu, int(path[-1]))
            if before != path[-1]:
                yield (*path, "gpus"), f"GPU {gpu} already belongs to targets[{before}]; one GPU has one replica"


def find_login_contradictions(data: Mapping[str, Any]) -> Found:
    for path, part in _connections(data):
        if part.get("bearer_token_file") and part.get("basic_auth"):
            yield (*path, "basic_auth"), "is given beside bearer_token_file; a request carries only one of them"
        url, tls = part.get("url"), part.get("tls")
        if tls and isinstance(url, str) and url.lower().startswith("http://"):
            yield (*path, "tls"), "is given, but the url begins with http://; write https://"
        if as_mapping(tls).get("key_file") and not as_mapping(tls).get("cert_file"):
            yield (*path, "tls", "key_file"), "needs cert_file"


def find_gpu_source_contradictions(data: Mapping[str, Any]) -> Found:
    gpus = as_mapping(data.get("gpus"))
    source = gpus.get("source", "nvml")
    for name, exporter in BY_NAME.items():
        if source == name and not gpus.get(name):
            yield ("gpus", name), f"is missing; source {name} needs the url of {exporter.a_title}"
        elif gpus.get(name) and source != name and source in ("nvml", "none", *BY_NAME):
            yield ("gpus", "source"), f"must be {name} where gpus.{name} is given"


def find_needless_pid_files(data: Mapping[str, Any]) -> Found:
    for path, target in list_entries(data, ("targets",)):
        if target.get("pid_file") and target.get("gpus", "auto") != "auto":
            yield (*path, "pid_file"), "has no use beside a list of gpus; it is for gpus: auto"


def find_unknown_engines(data: Mapping[str, Any]) -> Found:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    for path, target in list_entries(data, ("targets",)):
        engine = target.get("engine")
        if engine and isinstance(engine, str) and engine not in known:
            yield (*path, "engine"), unknown_key_text(engine, known, "an engine whose pages can be read")


def find_unplanned_pools(data: Mapping[str, Any], plan: Plan) -> Found:
    for path, target in list_entries(data, ("targets",)):
        tier = target.get("tier")
        planned = plan.tiers[tier].pools if isinstance(tier, str) and tier in plan.tiers else ()
        pool = target.get("pool", "mixed")
        if planned and pool in ("mixed", "prefill", "decode") and pool not in planned:
            yield (*path, "pool"), f"must be {' or '.join(planned)}, as the plan says of tier {tier}, not {pool}"
