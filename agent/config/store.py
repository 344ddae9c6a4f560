"""Sections `fleet`, `tiers` and `store`: the Prometheus-compatible store of role fleet."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agent.config.peer import Peer, Url
from agent.config.sections import ConfigSection
from agent.config.targets import EngineName
from agent.config.values import ExpandedFile, Seconds, Timeout, duration_range, full_match
from rules.plan.validation import Contradictions, validation_error

_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'


def _matchers(value: str) -> str:
    """Validate label matchers strictly: they are part of every query."""
    if not re.fullmatch(rf"\s*{_MATCHER}(\s*,\s*{_MATCHER})*\s*,?\s*", value):
        raise validation_error('must be label matchers as between { and }, such as job="vllm",cluster=~"a|b"')
    return value.strip().rstrip(",").rstrip()


def _base(value: str) -> str:
    if re.search(r"[?#]|/api/v1(/|$)", value):
        raise validation_error("must be the store's base address, without a query and without /api/v1")
    return value


Matchers = Annotated[str, AfterValidator(_matchers), Field(title="label matchers")]
Label = Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$", title="label")]
Cycle = Annotated[Seconds, duration_range(5.0, 300.0)]
Delay = Annotated[Seconds, duration_range(0.0, 600.0)]
BackFill = Annotated[Seconds, duration_range(0.0, 91 * 86_400.0)]

_ORG_ID = full_match("[!-~]([ -~]*[!-~])?", "must be printable ASCII without blanks around it, as a header carries")
OrgId = Annotated[str, Field(min_length=1), _ORG_ID]
_HEADER = (
    "(?i)(?!(accept|accept-encoding|authorization|connection|content-(length|type)|host|transfer-encoding|user-agent"
    "|x-scope-orgid)$)[a-z0-9!#$%&'*+.^_`|~-]+"
)
HeaderName = Annotated[str, full_match(_HEADER, "must be the name of a header that no other key sets")]


class GpuSource(ConfigSection):
    """The series of a GPU exporter that the store scrapes."""

    exporter: Literal["dcgm", "amd"] = Field("dcgm", description="dcgm: dcgm-exporter; amd: device-metrics-exporter.")
    selector: Matchers = Field(description="Label matchers of its series.")
    replica_label: Label = Field("exported_pod", description="Its label with a replica's name, as the tier has it.")


class TierSource(ConfigSection):
    """Location of a tier's series in the store. Without an entry: the node agents' series of the tier."""

    source: Literal["agents", "engines"] = Field(
        "agents", alias="from", description="agents: of role node; engines: their own."
    )
    selector: Matchers | None = Field(None, description="Label matchers of its series; from agents beside tier=...")
    replica_label: Label = Field("instance", description="From engines: the label of a replica, such as pod.")
    pool_label: Label | None = Field(None, description="From engines: label of the pool; default all are mixed.")
    engine: EngineName | None = Field(None, description="From engines: its name, such as vllm; default the plan's.")
    gpus: GpuSource | None = Field(None, description="From engines: where their GPUs are told of.")

    def _contradictions(self) -> Contradictions:
        if self.source == "agents" and self.gpus:
            yield ("gpus",), "is for from: engines; agents tell of GPUs themselves"
        if self.source == "engines" and not self.selector:
            yield ("selector",), "is missing; without it every engine of the store would be this tier"


class FleetConfig(ConfigSection):
    """Queries of role fleet to the store."""

    cycle_seconds: Cycle = Field(60.0, description="Time between two cycles.")
    delay_seconds: Delay = Field(30.0, description="How long a sample is on its way into the store.")
    each_up_to: Annotated[int, Field(ge=0, le=10_000)] = Field(32, description="From agents: larger tiers are sums.")
    back_fill_seconds: BackFill = Field(28 * 86_400.0, description="How far back missing demand is filled; 0s: not.")


class StoreConfig(Peer):
    """A Prometheus-compatible store: Prometheus, Thanos, Mimir, VictoriaMetrics."""

    url: Annotated[Url, AfterValidator(_base)] = Field(
        description="Its Prometheus API, such as http://prometheus:9090."
    )
    timeout_seconds: Timeout = Field(10.0, description="For one query.")
    # About the samples in max_bytes, with 20 to 30 bytes of JSON each, and 1 s of CPU of this agent.
    most_samples: int = Field(2_000_000, ge=1000, le=50_000_000, description="An answer with more samples is refused.")
    max_bytes: int = Field(
        64 * 1024 * 1024, ge=65536, alias="max_answer_bytes", description="Limit of an unpacked answer."
    )
    partial_answers: Literal["refuse", "take"] = Field("refuse", description="Answers without a part of the store.")
    org_id: OrgId | None = Field(None, description="Tenant, sent as X-Scope-OrgID; a|b of several.")
    header_files: dict[HeaderName, ExpandedFile] = Field({}, description="Further headers: files by name.")
