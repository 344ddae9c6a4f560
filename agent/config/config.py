"""Keys of `sizewatch.yaml` with units, defaults and meaning: the root, `logging` and `thresholds`.

Each other section has a module. After a new key, run `sizewatch render`. A contradiction between keys is found in
`_contradictions` of the section that holds them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from agent.config.forecast import ForecastConfig
from agent.config.notifications import AlertingConfig, ReportConfig
from agent.config.peer import Peer
from agent.config.sections import ConfigSection
from agent.config.store import FleetConfig, StoreConfig, TierSource
from agent.config.targets import Discovery, GpusConfig, TargetKeys, find_shared
from agent.config.values import Entries, FileName, Name, Seconds, Timeout, duration_range
from agent.config.web import Web
from agent.durations import duration_text
from rules.catalogue.overrides import unknown_thresholds, wrong_thresholds
from rules.catalogue.registry import CATALOGUE
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import BY_NAME
from rules.plan.schema import Plan
from rules.plan.validation import Contradictions, path_text, problem_texts, refuse
from rules.problems import unknown_name_text

# Verdicts and history are per minute.
Interval = Annotated[Seconds, duration_range(0.5, 60.0)]

Role = Literal["standalone", "node", "fleet"]


def _refuse_rules(tiers: Any) -> Any:
    if isinstance(tiers, dict):
        refuse(((name,), f"is a rule: write {{TIER: {{{name}: ...}}}}") for name in tiers if name in CATALOGUE)
    return tiers


def _check_thresholds(rules: Any, check_types: ValidatorFunctionWrapHandler) -> Any:
    """Refuse every wrong threshold of a tier, an unknown one also beside a value of a wrong type."""
    try:
        checked = check_types(rules)
    except ValidationError as error:
        problems = []
        for entry in error.errors(include_url=False):
            place = tuple(part for part in entry["loc"] if part != "[key]")
            for text in problem_texts(entry, ConfigSection):
                problems.append((place, text.removeprefix(f"{path_text(place)}: ")))
        refuse(iter([*problems, *unknown_thresholds(rules)]))
    refuse(wrong_thresholds(checked))
    return checked


TierThresholds = Annotated[dict[str, dict[str, Annotated[float, Field(ge=0)]]], WrapValidator(_check_thresholds)]


class Logging(ConfigSection):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")


class Config(ConfigSection):
    """Targets to watch, intervals, and storage and display of results."""

    role: Role = Field("standalone", description="standalone: all; node: judge, keep nothing; fleet: judge by a store.")
    plan: FileName | None = Field(None, description="The sizing plan; without it nothing can be compared with a plan.")
    scrape_interval_seconds: Interval = Field(15.0, description="Time between two scrapes of a target.")
    scrape_timeout_seconds: Timeout | None = Field(
        None, description="Default 10s, at most the interval; a cycle closes at 0.8 of it."
    )
    data_dir: FileName | None = Field(None, description="Of the history; default sizewatch-data, role node: none.")
    targets: Entries[TargetKeys] = Field((), description="The engines to watch.")
    discovery: Discovery = Discovery()
    tier_verdicts: bool = Field(True, description="Role node: judge whole tiers too; false where role fleet does.")
    tiers: dict[Name, TierSource] = Field({}, description="Role fleet: where each tier's series stand in the store.")
    fleet: FleetConfig = FleetConfig()
    store: StoreConfig | None = None
    gpus: GpusConfig = GpusConfig()
    thresholds: Annotated[dict[str, TierThresholds], BeforeValidator(_refuse_rules)] = Field(
        {}, description="By tier and rule, in place of the catalogue's."
    )
    web: Web = Web()
    alerting: AlertingConfig = AlertingConfig()
    forecast: ForecastConfig = ForecastConfig()
    report: ReportConfig = ReportConfig()
    logging: Logging = Logging()

    @property
    def history_path(self) -> Path | None:
        """Return the history file, or None without a history."""
        return Path(self.data_dir) / "history.db" if self.data_dir else None

    @property
    def report_folder(self) -> Path | None:
        """Return the folder of weekly reports, or None if no reports are written."""
        if self.role == "node" or not self.data_dir or not self.report.enabled:
            return None
        return Path(self.report.directory) if self.report.directory else Path(self.data_dir) / "reports"

    @property
    def cycle_seconds(self) -> float:
        return self.fleet.cycle_seconds if self.role == "fleet" else self.scrape_interval_seconds

    @property
    def settling_seconds(self) -> float:
        """Return the seconds after which every minute is complete."""
        late = self.fleet.delay_seconds if self.role == "fleet" else 0.0
        return late + 2 * self.cycle_seconds

    def _contradictions(self) -> Contradictions:
        yield from find_shared(self.targets)
        yield from self._keys_of_other_roles()
        why = f"must not exceed scrape_interval ({duration_text(self.scrape_interval_seconds)})"
        if (self.scrape_timeout_seconds or 0.0) > self.scrape_interval_seconds:
            yield ("scrape_timeout",), why
        for place, target in enumerate(self.targets):
            if (target.scrape_timeout_seconds or 0.0) > self.scrape_interval_seconds:
                yield ("targets", place, "scrape_timeout"), why

    def _keys_of_other_roles(self) -> Contradictions:
        fleet = self.role == "fleet"
        if fleet and self.store is None:
            yield ("store",), "is missing; role fleet reads everything from it"
        for key in ("targets", "discovery"):
            if fleet and self._is_given(key):
                yield (key,), "role fleet scrapes nothing; node agents or the store's own scrapes do"
        for key in ("tiers", "fleet"):
            if not fleet and self._is_given(key):
                yield (key,), "is for role fleet"
        if not self.tier_verdicts and self.role != "node":
            yield ("tier_verdicts",), "may be false in role node only; whoever judges whole tiers tells it"
        if self.role == "node" and self._is_given("report") and self.report.enabled:
            yield ("report",), "is given, but role node writes none; move it to role standalone or fleet"

    def _is_given(self, key: str) -> bool:
        section = getattr(self, key)
        return bool(section.model_fields_set if isinstance(section, ConfigSection) else section)

    def plan_contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield pools that the plan lacks, and tiers that no target and no plan has. Without a plan, pods name tiers."""
        for place, target in enumerate(self.targets):
            pools = plan.tiers[target.tier].pools if plan and target.tier in plan.tiers else ()
            if pools and target.pool not in pools:
                text = f"must be {' or '.join(pools)}, as the plan says of tier {target.tier}, not {target.pool}"
                yield ("targets", place, "pool"), text
        pods = self.discovery.kubernetes
        if plan is None and (self.plan or pods):
            return
        known = dict.fromkeys([target.tier for target in self.targets] + list(plan.tiers if plan else ()))
        known |= dict.fromkeys(entry.tier for entry in (pods.tiers if pods else ()))
        costs = (("forecast", "late_request_cost", tier) for tier in self.forecast.late_request_cost)
        for path in (*(("thresholds", tier) for tier in self.thresholds), *costs):
            if path[-1] not in known:
                yield path, unknown_name_text(path[-1], tuple(known), "a tier of targets or plan")

    @property
    def gpu_exporter(self) -> tuple[GpuExporter, Peer] | None:
        """Return the configured GPU exporter and its address, or None for another source."""
        connection = getattr(self.gpus, self.gpus.source, None)
        if connection is None:
            return None
        peer = connection.to_peer(timeout_seconds=self.timeout_seconds(), max_bytes=connection.max_bytes)
        return BY_NAME[self.gpus.source], peer

    def timeout_seconds(self, target: TargetKeys | None = None) -> float:
        """Return the time limit of one scrape in seconds."""
        given = (target and target.scrape_timeout_seconds) or self.scrape_timeout_seconds
        return given or min(10.0, self.scrape_interval_seconds)
