"""Keys of `sizewatch.yaml` with units, defaults and meaning: the root, `logging` and `thresholds`.

Each other section has a module. After a new key, run `sizewatch render` to update `docs/config.schema.json` and
`docs/configuration.md`. A contradiction between keys is a function in the module of its section and an entry of CHECKS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from agent.config import alerting, forecast, report, store, targets
from agent.config.alerting import AlertingConfig
from agent.config.discovery import Discovery
from agent.config.forecast import ForecastConfig
from agent.config.report import WRITING_ROLES, ReportConfig
from agent.config.store import FleetConfig, StoreConfig, TierSource
from agent.config.targets import GpusConfig, TargetKeys
from agent.config.values import (
    ConfigSection,
    FileName,
    Found,
    Interval,
    Name,
    Timeout,
    as_mapping,
    error_detail,
    list_entries,
    repeat_detail,
    unknown_key_text,
)
from agent.config.web import Web
from agent.scrape import scrapers
from rules.catalogue.registry import CATALOGUE
from rules.plan.schema import Plan
from rules.plan.validation import Path as KeyPath
from rules.problems import MOST_PROBLEMS
from rules.thresholds import CatalogueRow

DEFAULT_TIMEOUT_SECONDS = 10.0

HISTORY_FILE = "history.db"
"""History file name in `data_dir`."""

REPORTS = "reports"
"""Reports folder name in `data_dir`."""

Role = Literal["standalone", "node", "fleet"]

NEVER_ZERO = frozenset({"above", "allowed_share", "factor", "ratio", "share", "target"})
"""Thresholds used as a divisor, or as a factor of a histogram limit."""

AT_MOST_ONE = frozenset({"allowed_share", "busiest_hours", "fullest_hours", "median_share"})
"""Thresholds that are a share of a count."""

ORDERED = (
    *(("warning", "critical"), ("critical_below", "below"), ("above", "critical_above")),
    *(("low", "high"), ("least_headroom", "most_headroom")),
)
"""Pairs of limits; the first must not exceed the second."""


class Logging(ConfigSection):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")


class Config(ConfigSection):
    """Targets to watch, intervals, and storage and display of results."""

    role: Role = Field(
        "standalone",
        description="standalone: everything here; node: collect and judge, keep nothing; fleet: judge whole tiers from a store.",
    )
    plan: FileName | None = Field(None, description="The sizing plan; without it nothing can be compared with a plan.")
    scrape_interval_seconds: Interval = Field(
        15.0,
        description="Time between two scrapes of a target.",
    )
    scrape_timeout_seconds: Timeout | None = Field(
        None, description="For one scrape; default 10s, or the interval where that is shorter."
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

    @model_validator(mode="wrap")
    @classmethod
    def _add_contradictions(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Report contradictions together with the problems of single values."""
        found = find_contradictions(data, (info.context or {}).get("plan"))
        # More than is told is not worth its memory: a file of the wrong type has thousands.
        details = [error_detail(path, text) for path, text in islice(found, MOST_PROBLEMS + 1)]
        try:
            config = handler(data)
        except ValidationError as error:
            details = [*map(repeat_detail, error.errors(include_url=False)[: MOST_PROBLEMS + 1]), *details]
        if details:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return config

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


def wrong_thresholds(rule: CatalogueRow, numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each problem of the rule's thresholds: name ("" for several) and reason."""
    for name, value in numbers.items():
        if name not in rule.thresholds or not _is_number(value):
            continue
        if not _is_finite(value):
            yield name, "must be a finite number"
        elif name in NEVER_ZERO and value == 0:
            yield name, "must be above 0"
        elif name in AT_MOST_ONE and value > 1:
            yield name, f"is a share: must be at most 1, not {value:g}"
    limits = {key: numbers.get(key, row.value) for key, row in rule.thresholds.items()}
    for lower, upper in ORDERED:
        low, high = limits.get(lower), limits.get(upper)
        if _is_number(low) and _is_number(high) and _is_finite(low) and _is_finite(high) and low > high:
            yield "", f"{lower} ({low}) must not be above {upper} ({high})"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    """Return whether the number fits a float, also for integers."""
    return abs(value) <= sys.float_info.max


def find_unknown_tiers(data: Mapping[str, Any], plan: Plan | None) -> Found:
    served = [target["tier"] for _, target in list_entries(data, ("targets",)) if isinstance(target.get("tier"), str)]
    pods = as_mapping(as_mapping(data.get("discovery")).get("kubernetes"))
    entries = pods.get("tiers")
    served += [str(as_mapping(one).get("tier")) for one in (entries if isinstance(entries, list | tuple) else ())]
    tiers = dict.fromkeys([*served, *(plan.tiers if plan else ())])
    # An unusable plan has its own problems and unknown tiers. Without a plan, pods name their tiers.
    complete = plan is not None or not (data.get("plan") or pods)
    costs = as_mapping(as_mapping(data.get("forecast")).get("late_request_cost"))
    for path, named in (
        (("thresholds",), as_mapping(data.get("thresholds"))),
        (("forecast", "late_request_cost"), costs),
    ):
        for tier in named if complete else ():
            if tier not in tiers:
                yield (*path, str(tier)), unknown_key_text(str(tier), tuple(tiers), "a tier of targets or plan")


def find_wrong_thresholds(data: Mapping[str, Any]) -> Found:
    for tier, rules in as_mapping(data.get("thresholds")).items():
        for rule, numbers in as_mapping(rules).items():
            yield from _rule_thresholds(("thresholds", str(tier), str(rule)), str(rule), as_mapping(numbers))


def _rule_thresholds(path: KeyPath, name: str, numbers: Mapping[str, Any]) -> Found:
    if name not in CATALOGUE:
        yield path, unknown_key_text(name, tuple(CATALOGUE), "a rule")
        return
    rule = CATALOGUE[name]
    for threshold in numbers:
        if threshold not in rule.thresholds:
            yield (
                (*path, str(threshold)),
                unknown_key_text(str(threshold), tuple(rule.thresholds), f"a threshold of {name}"),
            )
    for wrong, why in wrong_thresholds(rule, numbers):
        yield (*path, wrong) if wrong else path, why


CHECKS: tuple[Callable[[Mapping[str, Any]], Found], ...] = (
    targets.find_late_timeouts,
    targets.find_repeated_replicas,
    targets.find_shared_gpus,
    targets.find_login_contradictions,
    targets.find_gpu_source_contradictions,
    targets.find_needless_pid_files,
    targets.find_unknown_engines,
    alerting.find_alert_path_contradictions,
    alerting.find_wrong_external_labels,
    forecast.find_repeated_events,
    report.find_report_of_node,
    report.find_repeated_destinations,
)


def find_contradictions(data: object, plan: Plan | None) -> Found:
    """Yield every contradiction between valid values, also for a file with other problems."""
    if not isinstance(data, Mapping):
        return
    for check in CHECKS:
        yield from check(data)
    if plan is not None:
        yield from targets.find_unplanned_pools(data, plan)
    yield from find_unknown_tiers(data, plan)
    yield from find_wrong_thresholds(data)
    yield from store.find_fleet_contradictions(data)
