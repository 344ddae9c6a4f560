"""Keys of `sizewatch.yaml` with units, defaults and meaning, as strict frozen records.

Contradictions, files and the plan are in `agent.config.load`. After a new key, run `sizewatch render` to update
`docs/config.schema.json` and `docs/configuration.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.config.calendar_values import Bin, Country, Hold, Length, LocalTime, Recurrence, Zone
from agent.config.discovery_keys import Discovery
from agent.config.problems import default_replica
from agent.config.report_keys import WRITING_ROLES, ReportConfig
from agent.config.store_keys import FleetConfig, StoreConfig, TierSource
from agent.config.values import (
    BasicAuth,
    EnvironmentFileName,
    FileName,
    GpuList,
    Interval,
    Listen,
    Name,
    Resend,
    Timeout,
    TlsConfig,
    Url,
    split_listen,
)
from agent.http_client.transport import DEFAULT_MAX_BYTES, TargetOptions
from agent.scrape import scrapers
from exporters.alertmanager.payload import RUNBOOKS, AlertSettings
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import BY_NAME

DEFAULT_TIMEOUT_SECONDS = 10.0
HISTORY_FILE = "history.db"
"""History file name in `data_dir`."""
REPORTS = "reports"
"""Reports folder name in `data_dir`."""

Text = Annotated[str, Field(min_length=1)]
Role = Literal["standalone", "node", "fleet"]


class _ConfigSection(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Connection(_ConfigSection):
    """Address of a metrics page and its credentials."""

    url: Url = Field(description="Address of the metrics page; without user, password or ${...}.")
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None
    max_page_bytes: Annotated[int, Field(ge=1024)] = Field(
        DEFAULT_MAX_BYTES, description="A larger page, after decompression, is refused."
    )

    def options(self, timeout_seconds: float) -> TargetOptions:
        """Return the options of the page fetcher."""
        tls, login = self.tls or TlsConfig(), self.basic_auth
        return TargetOptions(
            url=self.url,
            timeout_seconds=timeout_seconds,
            max_bytes=self.max_page_bytes,
            ca_file=tls.ca_file,
            insecure_skip_verify=tls.insecure_skip_verify,
            bearer_token_file=self.bearer_token_file,
            username=login.username if login else None,
            password_file=login.password_file if login else None,
            client_cert_file=tls.cert_file,
            client_key_file=tls.key_file,
            server_name=tls.server_name,
        )


class TargetKeys(Connection):
    """Each entry is one engine instance."""

    tier: Name = Field(description="Tier of the plan that it belongs to.")
    replica: Name | None = Field(None, description="Its name, unique in the tier; default host:port of the url.")
    pool: Literal["mixed", "prefill", "decode"] = Field("mixed", description="Part of the tier it belongs to.")
    engine: Name | None = Field(None, description="Such as vllm; default: recognised from the page.")
    engine_version: Name | None = Field(None, description="For words only.")
    scrape_timeout_seconds: Timeout | None = Field(
        None, alias="scrape_timeout", description="Of this target alone; default as above."
    )
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


class GpusConfig(_ConfigSection):
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


class WebTls(_ConfigSection):
    cert_file: EnvironmentFileName = Field(description="Certificate, with its chain.")
    key_file: EnvironmentFileName = Field(description="Its key.")
    client_ca_file: EnvironmentFileName | None = Field(
        None, description="CA of the certificates that readers must show; /healthz asks for none."
    )
    min_version: Literal["1.2", "1.3"] = Field("1.2", description="The oldest TLS that is spoken.")


class Web(_ConfigSection):
    """Metrics, health and the status page."""

    listen: Listen = Field(
        "127.0.0.1:9095", description="Address to listen on; ':9095' is every address of the machine."
    )
    tls: WebTls | None = None
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File with the token a reader must send.")
    basic_auth_users_file: EnvironmentFileName | None = Field(None, description="File with the users that may read.")
    hosts: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        (), description="Names that browsers know a loopback address without credentials by, beside localhost."
    )

    @property
    def address(self) -> tuple[str, int]:
        """Return host (empty: every address) and port."""
        return split_listen(self.listen)


class Alertmanager(_ConfigSection):
    """Alertmanager to post alerts to. Each member of a cluster gets all alerts."""

    url: Url = Field(description="Its address, with the path it is served under; such as http://127.0.0.1:9093.")
    timeout_seconds: Timeout = Field(
        10.0, alias="timeout", description="For one request.", json_schema_extra={"default": "10s"}
    )
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None

    def options(self, path: str) -> TargetOptions:
        """Return the connection options for `path`."""
        tls, login = self.tls or TlsConfig(), self.basic_auth
        return TargetOptions(
            url=self.url.rstrip("/") + path,
            timeout_seconds=self.timeout_seconds,
            ca_file=tls.ca_file,
            insecure_skip_verify=tls.insecure_skip_verify,
            bearer_token_file=self.bearer_token_file,
            username=login.username if login else None,
            password_file=login.password_file if login else None,
            client_cert_file=tls.cert_file,
            client_key_file=tls.key_file,
            server_name=tls.server_name,
        )


class WebhookConfig(_ConfigSection):
    """POST /webhook/alertmanager: an Alertmanager webhook receiver for alerts of other systems."""

    bearer_token_file: EnvironmentFileName = Field(
        description="File with the token that the Alertmanager must send; it reads no page."
    )


class AlertingConfig(_ConfigSection):
    """Alert delivery, on one path for the installation, and reception of external alerts."""

    path: Literal["rules", "posts"] = Field(
        "rules", description="rules: Prometheus alerts by the rule files; posts: this agent posts to Alertmanager."
    )
    alertmanagers: Annotated[tuple[Alertmanager, ...], Field(strict=False)] = Field(
        (), description="Where to post, for path posts."
    )
    resend_seconds: Resend = Field(
        60.0,
        alias="resend",
        description="How often an alert that fires is posted again; not posted for four times as long it ends.",
        json_schema_extra={"default": "1m"},
    )
    external_labels: dict[str, Text] = Field({}, description="Labels that every posted alert gets, such as cluster.")
    external_url: Url | None = Field(None, description="The status page's address for people, linked from alerts.")
    runbook_url: Url = Field(RUNBOOKS, description="The page with the runbooks, linked from alerts.")
    receiver: WebhookConfig | None = None

    def settings(self) -> AlertSettings:
        """Return the settings of posted alerts."""
        return AlertSettings(
            resend_seconds=self.resend_seconds,
            external_labels=self.external_labels,
            external_url=self.external_url,
            runbooks=self.runbook_url,
        )


class EventConfig(_ConfigSection):
    """Each entry is a known event with more or less traffic than usual."""

    name: Name = Field(description="What it is called.")
    start: LocalTime = Field(description="When it begins (the first time, where it comes again), by the clock in zone.")
    duration_seconds: Length = Field(alias="duration", description="How long it lasts, by the same clock.")
    factor: Annotated[float, Field(ge=0, le=1000)] = Field(
        description="Traffic that is expected by what is usual at that time: 3 is three times as much, 0 is none."
    )
    recurrence: Recurrence | None = Field(
        None, description="When it comes again, as an RRULE of RFC 5545, such as FREQ=MONTHLY;BYMONTHDAY=1."
    )


class ForecastConfig(_ConfigSection):
    """Known future traffic, and the required certainty of capacity. The lead is the plan's cold_start_seconds, until
    enough cold starts were timed from the request for the replica."""

    enabled: bool = Field(True, description="Forecast in a process of its own, wherever a history is kept.")
    zone: Zone = Field("UTC", description="The clock that the users live by; days and weeks are cut by it.")
    country: Country | None = Field(
        None, description="Whose public holidays count as Sundays: DE, or DE-BY of a part of a country; default none."
    )
    events: Annotated[tuple[EventConfig, ...], Field(strict=False)] = Field((), description="Known events.")
    bin_seconds: Bin = Field(
        300.0,
        alias="bin",
        description="The traffic is forecast in sums over so long.",
        json_schema_extra={"default": "5m"},
    )
    quantile: Annotated[float, Field(ge=0.5, le=0.999)] | None = Field(
        None,
        description="Share of the time in which the forecast demand must be enough, where no costs say it; default what is "
        "worth its price by the lead (docs/prewarming.md).",
    )
    late_request_cost: dict[Text, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="By tier: what a request costs that comes while no replica has room for it, in the plan's currency.",
    )
    scale_down_hold_seconds: Hold | None = Field(
        None,
        alias="scale_down_hold",
        description="Replicas are given up only when none of the time before needed them; default a lead and a minute, and "
        "never less: one that is given up earlier has not served.",
    )


class Logging(_ConfigSection):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")


class Config(_ConfigSection):
    """Targets to watch, intervals, and storage and display of results."""

    role: Role = Field(
        "standalone",
        description="standalone: everything here; node: collect and judge, keep nothing; fleet: judge whole tiers from a store.",
    )
    plan: FileName | None = Field(None, description="The sizing plan; without it nothing can be compared with a plan.")
    scrape_interval_seconds: Interval = Field(
        15.0,
        alias="scrape_interval",
        description="Time between two scrapes of a target.",
        json_schema_extra={"default": "15s"},
    )
    scrape_timeout_seconds: Timeout | None = Field(
        None, alias="scrape_timeout", description="For one scrape; default 10s, or the interval where that is shorter."
    )
    data_dir: FileName | None = Field(
        None, description="Folder of the history; default sizewatch-data, but for role node no history."
    )
    targets: Annotated[tuple[TargetKeys, ...], Field(strict=False)] = Field((), description="The engines to watch.")
    discovery: Discovery = Discovery()
    tier_verdicts: bool = Field(
        True,
        description="Role node: whether verdicts about whole tiers are told. false where role fleet judges them: a node sees only "
        "the replicas of its own.",
    )
    tiers: dict[Name, TierSource] = Field({}, description="Role fleet: where each tier's series stand in the store.")
    fleet: FleetConfig = FleetConfig()
    store: StoreConfig | None = None
    gpus: GpusConfig = GpusConfig()
    thresholds: dict[str, dict[str, dict[str, Annotated[float, Field(ge=0)]]]] = Field(
        {}, description="By tier, rule and threshold: numbers that replace those of the catalogue."
    )
    web: Web = Web()
    alerting: AlertingConfig = AlertingConfig()
    forecast: ForecastConfig = ForecastConfig()
    report: ReportConfig = ReportConfig()
    logging: Logging = Logging()

    @property
    def history_path(self) -> Path | None:
        """Return the history file, or None without a history."""
        return Path(self.data_dir) / HISTORY_FILE if self.data_dir else None

    @property
    def report_folder(self) -> Path | None:
        """Return the folder of weekly reports, or None if no reports are written."""
        if self.role not in WRITING_ROLES or not self.data_dir or not self.report.enabled:
            return None
        return Path(self.report.directory) if self.report.directory else Path(self.data_dir) / REPORTS

    @property
    def turn_seconds(self) -> float:
        """Return the seconds between two cycles."""
        return self.fleet.turn_seconds if self.role == "fleet" else self.scrape_interval_seconds

    @property
    def settling_seconds(self) -> float:
        """Return the seconds after which every minute is complete."""
        late = self.fleet.delay_seconds if self.role == "fleet" else 0.0
        return late + 2 * self.turn_seconds

    def list_targets(self) -> tuple[scrapers.Target, ...]:
        """Return the targets for the collector."""
        return tuple(
            scrapers.Target(
                tier=target.tier,
                replica=target.name,
                pool=target.pool,
                options=target.options(self.timeout_seconds(target)),
                engine=target.engine,
                engine_version=target.engine_version,
                gpus=("auto",) if target.gpus == "auto" else tuple(str(gpu) for gpu in target.gpus),
                pid_file=target.pid_file,
            )
            for target in self.targets
        )

    def timeout_seconds(self, target: TargetKeys | None = None) -> float:
        """Return the time limit of one scrape in seconds."""
        given = (target and target.scrape_timeout_seconds) or self.scrape_timeout_seconds
        return given or min(DEFAULT_TIMEOUT_SECONDS, self.scrape_interval_seconds)
