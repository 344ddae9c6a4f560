"""Sections `fleet`, `tiers` and `store`: the Prometheus-compatible store of role fleet."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from agent.config.targets import EngineName
from agent.http_client.options import Peer, Url
from agent.sections import (
    ConfigSection,
    Contradictions,
    EnvironmentFileName,
    Seconds,
    Timeout,
    duration_range,
    full_match,
    validation_error,
)
from rules.plan.schema import Plan

MOST_BYTES = 64 * 1024 * 1024
MOST_SAMPLES = 2_000_000
"""Sample limit of one query: about the content of MOST_BYTES (20-30 bytes of JSON each), and 1 s of CPU of this agent.

Prometheus itself limits the samples that a query reads to 50,000,000 (--query.max-samples)."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    (
        *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"),
        *("transfer-encoding", "user-agent", "x-scope-orgid"),
    )
)

_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'

_MATCHERS = re.compile(rf"\s*{_MATCHER}(\s*,\s*{_MATCHER})*\s*,?\s*")

_LABEL = r"^[a-zA-Z_][a-zA-Z0-9_]*$"


def _matchers(value: object) -> object:
    """Validate label matchers strictly: they are part of every query."""
    if not isinstance(value, str) or not _MATCHERS.fullmatch(value):
        raise validation_error(
            'must be label matchers as they stand between { and }, such as job="vllm",cluster=~"a|b"'
        )
    return value.strip().rstrip(",").rstrip()


def _base(value: object) -> object:
    if isinstance(value, str) and re.search(r"[?#]", value):
        raise validation_error("must be the store's base address, without a query")
    if isinstance(value, str) and re.search(r"/api/v1(/|$)", value):
        raise validation_error("must be the address before /api/v1, which is added")
    return value


def _header_name(value: object) -> object:
    if isinstance(value, str) and not _HEADER_NAME.fullmatch(value):
        raise validation_error(f"{value[:40]!r} is no name of a header")
    if isinstance(value, str) and value.lower() in _OWN_HEADERS:
        raise validation_error(f"{value} is set by other options")
    return value


Matchers = Annotated[str, BeforeValidator(_matchers), WithJsonSchema({"type": "string", "title": "label matchers"})]

Label = Annotated[str, Field(pattern=_LABEL), WithJsonSchema({"type": "string", "title": "label", "pattern": _LABEL})]

Turn = Annotated[Seconds, duration_range(5.0, 300.0)]

Delay = Annotated[Seconds, duration_range(0.0, 600.0)]

BackFill = Annotated[Seconds, duration_range(0.0, 91 * 86_400.0)]

OrgId = Annotated[
    str,
    full_match("[!-~]([ -~]*[!-~])?", "must be printable ASCII without blanks around it, as a header carries"),
    WithJsonSchema({"type": "string", "minLength": 1}),
]

HeaderName = Annotated[str, BeforeValidator(_header_name)]


class GpuSource(ConfigSection):
    """The series of a GPU exporter that the store scrapes."""

    exporter: Literal["dcgm", "amd", "nvidia_smi"] = Field(
        "dcgm", description="dcgm: dcgm-exporter; amd: device-metrics-exporter; nvidia_smi: nvidia_gpu_exporter."
    )
    selector: Matchers = Field(description="Label matchers of its series.")
    replica_label: Label = Field(
        "exported_pod",
        description="The label of its series that has a replica's name, as the tier's replica_label has it.",
    )


class TierSource(ConfigSection):
    """Location of a tier's series in the store. Without an entry: the node agents' series of the tier."""

    source: Literal["agents", "engines"] = Field(
        "agents",
        alias="from",
        description="agents: sizewatch's own series, as role node exports them; engines: the engines' own, where no agent runs.",
    )
    selector: Matchers | None = Field(
        None,
        description="Label matchers of the tier's series; from agents tier=... is added, and they narrow it further.",
    )
    replica_label: Label = Field(
        "instance", description="From engines: the label that tells replicas apart, such as pod."
    )
    pool_label: Label | None = Field(
        None,
        description="From engines: a label whose value is the pool, mixed, prefill or decode; default all are mixed.",
    )
    engine: EngineName | None = Field(None, description="From engines: its name, such as vllm; default the plan's.")
    gpus: GpuSource | None = Field(None, description="From engines: where their GPUs are told of.")

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield keys that the source does not use, or lacks."""
        if self.source == "agents" and self.gpus:
            yield ("gpus",), "is for from: engines; agents tell of GPUs themselves"
        if self.source == "engines" and not self.selector:
            yield ("selector",), "is missing; without it every engine of the store would be this tier"


class FleetConfig(ConfigSection):
    """Queries of role fleet to the store."""

    turn_seconds: Turn = Field(60.0, description="Time between two turns.")
    delay_seconds: Delay = Field(
        30.0,
        description="How long after a scrape its samples can be asked for: what the way into the store takes.",
    )
    each_up_to: Annotated[int, Field(ge=0, le=10_000)] = Field(
        32,
        description="From agents: tiers of at most so many replicas are read replica by replica, larger ones as sums by load.",
    )
    back_fill_seconds: BackFill = Field(
        28 * 86_400.0,
        description="How far back missing demand is filled from the store, for the forecast; 0s: not at all.",
    )


class StoreConfig(Peer):
    """A Prometheus-compatible store: Prometheus, Thanos, Mimir, VictoriaMetrics."""

    url: Annotated[Url, BeforeValidator(_base)] = Field(
        description="What its Prometheus API is served under, such as http://prometheus:9090, http://mimir:8080/prometheus or "
        "http://vmselect:8481/select/0/prometheus."
    )
    timeout_seconds: Timeout = Field(10.0, description="For one query.")
    most_samples: Annotated[int, Field(ge=1000, le=50_000_000)] = Field(
        MOST_SAMPLES, description="An answer with more samples is refused; long grids are asked in parts of so many."
    )
    max_bytes: Annotated[int, Field(ge=65536)] = Field(
        MOST_BYTES, alias="max_answer_bytes", description="A larger answer, after decompression, is refused."
    )
    partial_answers: Literal["refuse", "take"] = Field(
        "refuse",
        description="What to do with an answer that lacks a part of the store (Thanos, Mimir, VictoriaMetrics' cluster): refuse "
        "makes it a gap; take judges by too little.",
    )
    org_id: OrgId | None = Field(None, description="Tenant, sent as X-Scope-OrgID; a|b of several.")
    header_files: dict[HeaderName, EnvironmentFileName] = Field(
        {}, description="Further headers, by name: files that hold them."
    )
