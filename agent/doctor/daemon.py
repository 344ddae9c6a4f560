"""What the doctor says of the daemon that runs on this configuration: what its own page tells is wrong with it.

Owns the table WRONG and reading that page. Who listens at the port is `doctor_probes`'s; a daemon that shows its page to nobody
without a password is not asked. Another sign of trouble is a row of WRONG.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckLevel, CheckResult, fail, ok, warn
from agent.doctor.machine_probes import PortProbe
from agent.version import VERSION
from exporters.metrics import names

CHECK = "daemon"

LINE = re.compile(r"^(sizewatch_[a-z0-9_]+)(?:\{(.*)\})? (\S+)$", re.ASCII)
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

MOST_SHOWN = 5
"""Lines of one kind; a fleet that is away is one trouble."""

OLD_TURN_SECONDS = 120.0
"""Beside three turns: the age of a last turn that nothing explains (exporters/prometheus_rules/self_monitoring.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCheck:
    """Where `is_wrong` says so of a sample, `text` with its labels and its value."""

    metric: names.ExportedMetric
    is_wrong: Callable[[float], bool]
    level: CheckLevel
    text: str
    advice: str


def _is_0(value: float) -> bool:
    return value == 0


def _above_0(value: float) -> bool:
    return value > 0


WRONG: tuple[MetricCheck, ...] = (
    MetricCheck(
        metric=names.CONFIG_OK,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="goes on with an older configuration: the file could not be used when it was read again",
        advice="correct what stands under config here, then reload (SIGHUP)",
    ),
    MetricCheck(
        metric=names.HISTORY_UP,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="cannot write its history now",
        advice="see data_dir and history here; its log and its status page say why",
    ),
    MetricCheck(
        metric=names.HISTORY_DROPPED,
        is_wrong=_above_0,
        level=CheckLevel.WARN,
        text="lost {value:.0f} minutes of replicas that it could not write, since it was started",
        advice="see data_dir and history here; what is lost stays lost",
    ),
    MetricCheck(
        metric=names.TURN_ERRORS,
        is_wrong=_above_0,
        level=CheckLevel.WARN,
        text="met {value:.0f} unexpected errors in its turns since it was started",
        advice="report what its log says of them: they are defects in sizewatch",
    ),
    MetricCheck(
        metric=names.GPU_PROBLEMS,
        is_wrong=_above_0,
        level=CheckLevel.WARN,
        text="has {value:.0f} troubles with reading GPUs",
        advice="see gpus here; its status page says which",
    ),
    MetricCheck(
        metric=names.DISCOVERY_UP,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="is not told of this node's pods",
        advice="see pods here",
    ),
    MetricCheck(
        metric=names.ALERTMANAGER_UP,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="cannot post alerts to {alertmanager}",
        advice="see alerting here; its status page says why",
    ),
    MetricCheck(
        metric=names.ALERTS_REFUSED,
        is_wrong=_above_0,
        level=CheckLevel.WARN,
        text="has {value:.0f} alerts that {alertmanager} does not take",
        advice="its status page says why",
    ),
    MetricCheck(
        metric=names.REPORT_UP,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="cannot write its weekly report",
        advice="see report here; `sizewatch report --out DIR` writes one by hand",
    ),
    MetricCheck(
        metric=names.REPORT_DELIVERY_UP,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="does not get its report to {destination}",
        advice="see report here; its status page says why",
    ),
    MetricCheck(
        metric=names.TIER_IN_SIGHT,
        is_wrong=_is_0,
        level=CheckLevel.FAIL,
        text="is told nothing of {tier} by the store",
        advice="see store here",
    ),
    MetricCheck(
        metric=names.TARGET_UP,
        is_wrong=_is_0,
        level=CheckLevel.WARN,
        text="has no page of {tier}/{replica} that it could use",
        advice="see that target here; where it is well now, it was not at the last scrape",
    ),
)


Samples = dict[str, list[tuple[dict[str, str], float]]]
"""Of each metric its series: labels and value."""


def check_daemon(seen: PortProbe, loaded: LoadedConfig, now: float) -> Iterator[CheckResult]:
    """A line for each thing that its page tells, or one that there is none; nothing where its page was not seen."""
    if not seen.page:
        return
    samples = _samples(seen.page)
    found = [*_age(samples, loaded, now), *_version(samples)]
    for wrong in WRONG:
        lines = [_finding(wrong, *sample) for sample in samples.get(wrong.metric.name, ()) if wrong.is_wrong(sample[1])]
        found += lines[:MOST_SHOWN]
        if len(lines) > MOST_SHOWN:
            text = f"and {len(lines) - MOST_SHOWN} more of these"
            found.append(CheckResult(check=CHECK, level=wrong.level, text=text, advice=wrong.advice))
    yield from found or [ok(CHECK, f"{loaded.config.web.listen}: tells of no trouble of its own")]


def _age(samples: Samples, loaded: LoadedConfig, now: float) -> Iterator[CheckResult]:
    allowed = OLD_TURN_SECONDS + 3 * loaded.config.turn_seconds
    for _, ended in samples.get(names.LAST_TURN.name, ()):
        if (age := now - ended) > allowed:
            text = f"its last turn ended {age:.0f} s ago: what it shows is old"
            yield fail(CHECK, text, "look at its log; restart it if the turns do not come back")


def _version(samples: Samples) -> Iterator[CheckResult]:
    for labels, _ in samples.get(names.BUILD_INFO.name, ()):
        if labels.get("version", VERSION) != VERSION:
            text = f"is sizewatch {labels['version']}, {VERSION} is installed here"
            yield warn(CHECK, text, "restart it, so that it is the one that is installed")


def _samples(page: str) -> Samples:
    found: Samples = {}
    for line in page.splitlines():
        if (told := LINE.match(line)) is None:
            continue
        try:
            value = float(told[3])
        except ValueError:
            continue
        found.setdefault(told[1], []).append((dict(LABEL.findall(told[2] or "")), value))
    return found


def _finding(wrong: MetricCheck, labels: dict[str, str], value: float) -> CheckResult:
    shown = {name: labels.get(name, "?") for name in wrong.metric.labels}
    return CheckResult(
        check=CHECK, level=wrong.level, text=wrong.text.format(value=value, **shown), advice=wrong.advice
    )
