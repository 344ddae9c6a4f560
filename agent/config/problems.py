"""Problems of a configuration: one sentence each, beginning with the path to correct.

`rules.plan.validation` gives the texts of general problems. Here are the checks between values, and of rule thresholds
that would make a rule fail in every cycle. It never raises and quotes no text of the file that may be a secret. A
contradiction is a function that yields (path, text) and a row in CHECKS. If it needs the plan, the row is in
PLAN_CHECKS.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails

from agent.durations import parse_duration
from exporters.alertmanager.payload import OWN_LABELS
from rules.catalogue.registry import BY_NAME
from rules.engines.registry import ENGINES
from rules.gpu_sources.registry import BY_NAME as EXPORTERS
from rules.plan import validation
from rules.plan.schema import Plan
from rules.plan.validation import Path, path_text
from rules.verdicts.rule import Rule

NEVER_ZERO = frozenset({"above", "allowed_share", "factor", "ratio", "share", "target"})
"""Thresholds used as a divisor, or as a factor of a histogram limit."""

AT_MOST_ONE = frozenset({"allowed_share", "busiest_hours", "fullest_hours", "median_share"})
"""Thresholds that are a share of a count."""

ORDERED = (("warning", "critical"), ("critical_below", "below"), ("above", "critical_above"))
"""Pairs of limits; the first must not exceed the second."""


def wrong_thresholds(rule: Rule, numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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


WORDS = "words"
"""Error type for messages that are already complete sentences."""

Found = Iterator[tuple[Path, str]]

_NAMES_ITS_VALUE = ("literal_error", "float_type", "int_type", "bool_type", "extra_forbidden")
# `rules.plan.validation` names the type of an unknown error; nothing more of a file's text may be shown.
_TEXT: Any = type("text", (), {})()


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return every validation problem, in the order of the schema's keys."""
    return tuple(printable(_problem(entry, model)) for entry in error.errors(include_url=False))


def _problem(entry: Any, model: type[BaseModel]) -> str:
    path, kind, value = tuple(entry["loc"]), entry["type"], entry["input"]
    if kind == WORDS:
        return f"{path_text(path)}: {entry['msg']}"
    if not path:
        return "configuration: must be a mapping of keys to values"
    shown = _TEXT if isinstance(value, str) and kind not in _NAMES_ITS_VALUE else value
    detail = InitErrorDetails(type=kind, loc=path, input=shown, ctx=entry.get("ctx", {}))
    (said,) = validation.problems_of(ValidationError.from_exception_data(model.__name__, [detail]), model)
    return said.replace("is not a key of a plan", "is not a key of the configuration", 1)


def cross_problems(data: object, plan: Plan | None) -> tuple[str, ...]:
    """Return every contradiction between valid values, also for a file with other problems."""
    if not isinstance(data, Mapping):
        return ()
    found = [entry for check in CHECKS for entry in check(data)]
    if plan is not None:
        found += [entry for plan_check in PLAN_CHECKS for entry in plan_check(data, plan)]
    found += (*_unknown_tiers(data, plan), *_thresholds(data))
    return tuple(printable(f"{path_text(path)}: {text}") for path, text in found)


def printable(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()


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


def unknown_key_text(name: str, known: tuple[str, ...], what: str) -> str:
    """Return the problem text for an unknown `name`, with the closest or all known names."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"is not {what}; did you mean {close[0]}?" if close else f"is not {what}; known: {', '.join(known)}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _targets(data: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    entries = data.get("targets")
    for place, target in enumerate(entries if isinstance(entries, list | tuple) else ()):
        yield ("targets", place), _mapping(target)


def _connections(data: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    yield from _targets(data)
    gpus = _mapping(data.get("gpus"))
    for name in EXPORTERS:
        yield ("gpus", name), _mapping(gpus.get(name))
    yield ("store",), _mapping(data.get("store"))
    yield from _alertmanagers(data)


def _alertmanagers(data: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    entries = _mapping(data.get("alerting")).get("alertmanagers")
    for place, one in enumerate(entries if isinstance(entries, list | tuple) else ()):
        yield ("alerting", "alertmanagers", place), _mapping(one)


def _seconds(value: object) -> float | None:
    try:
        return parse_duration(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _late_timeout(data: Mapping[str, Any]) -> Found:
    interval = _seconds(data.get("scrape_interval", "15s"))
    for path, part in (((), data), *_targets(data)):
        timeout = _seconds(part.get("scrape_timeout"))
        if interval and timeout and timeout > interval:
            yield (*path, "scrape_timeout"), f"must not exceed scrape_interval ({data.get('scrape_interval', '15s')})"


def _same_replica(data: Mapping[str, Any]) -> Found:
    first: dict[tuple[str, str], int] = {}
    for path, target in _targets(data):
        name = target.get("replica") or default_replica(target.get("url"))
        if not (name and isinstance(name, str) and isinstance(target.get("tier"), str)):
            continue
        before = first.setdefault((target["tier"], name), int(path[-1]))
        if before != path[-1]:
            yield path, f"is replica {name} of tier {target['tier']}, as targets[{before}] is; give each its own name"


def _same_gpu(data: Mapping[str, Any]) -> Found:
    first: dict[str | int, int] = {}
    for path, target in _targets(data):
        gpus = target.get("gpus")
        for gpu in dict.fromkeys(g for g in gpus if isinstance(g, str | int)) if isinstance(gpus, list) else ():
            before = first.setdefault(gpu, int(path[-1]))
            if before != path[-1]:
                yield (*path, "gpus"), f"GPU {gpu} already belongs to targets[{before}]; one GPU has one replica"


def _login(data: Mapping[str, Any]) -> Found:
    for path, part in _connections(data):
        if part.get("bearer_token_file") and part.get("basic_auth"):
            yield (*path, "basic_auth"), "is given beside bearer_token_file; a request carries only one of them"
        url, tls = part.get("url"), part.get("tls")
        if tls and isinstance(url, str) and url.lower().startswith("http://"):
            yield (*path, "tls"), "is given, but the url begins with http://; write https://"
        if _mapping(tls).get("key_file") and not _mapping(tls).get("cert_file"):
            yield (*path, "tls", "key_file"), "needs cert_file"


def _gpu_source(data: Mapping[str, Any]) -> Found:
    gpus = _mapping(data.get("gpus"))
    source = gpus.get("source", "nvml")
    for name, exporter in EXPORTERS.items():
        if source == name and not gpus.get(name):
            yield ("gpus", name), f"is missing; source {name} needs the url of {exporter.a_title}"
        elif gpus.get(name) and source != name and source in ("nvml", "none", *EXPORTERS):
            yield ("gpus", "source"), f"must be {name} where gpus.{name} is given"


def _needless_pid_file(data: Mapping[str, Any]) -> Found:
    for path, target in _targets(data):
        if target.get("pid_file") and target.get("gpus", "auto") != "auto":
            yield (*path, "pid_file"), "has no use beside a list of gpus; it is for gpus: auto"


def _unknown_engine(data: Mapping[str, Any]) -> Found:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    for path, target in _targets(data):
        engine = target.get("engine")
        if engine and isinstance(engine, str) and engine not in known:
            yield (*path, "engine"), unknown_key_text(engine, known, "an engine whose pages can be read")


def _alert_path(data: Mapping[str, Any]) -> Found:
    several = dict(_alertmanagers(data))
    path = _mapping(data.get("alerting")).get("path", "rules")
    if path == "posts" and not several:
        yield ("alerting", "alertmanagers"), "is missing; path posts needs the url of at least one Alertmanager"
    if path == "rules" and several:
        yield ("alerting", "alertmanagers"), "is given, but path: rules posts nothing; write path: posts"
    first: dict[str, str] = {}
    for place, one in several.items():
        url = one.get("url")
        if isinstance(url, str) and first.setdefault(url.rstrip("/"), path_text(place)) != path_text(place):
            yield place, f"has the url of {first[url.rstrip('/')]}; each Alertmanager is posted to once"


def _external_labels(data: Mapping[str, Any]) -> Found:
    for name in _mapping(_mapping(data.get("alerting")).get("external_labels")):
        path = ("alerting", "external_labels", str(name))
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", str(name), re.ASCII) or str(name).startswith("__"):
            yield path, "is no label name (letters, digits and _, not beginning with a digit or __)"
        elif name in OWN_LABELS:
            yield path, f"is a label that alerts have already; they are {', '.join(sorted(OWN_LABELS))}"


def _same_event(data: Mapping[str, Any]) -> Found:
    entries = _mapping(data.get("forecast")).get("events")
    first: dict[str, int] = {}
    for place, event in enumerate(entries if isinstance(entries, list | tuple) else ()):
        name = _mapping(event).get("name")
        if isinstance(name, str) and first.setdefault(name, place) != place:
            path = ("forecast", "events", place, "name")
            yield path, f"is that of events[{first[name]}]; a time that comes again is one event with a recurrence"


def _report_of_a_node(data: Mapping[str, Any]) -> Found:
    report, role = _mapping(data.get("report")), data.get("role")
    if role == "node" and report and report.get("enabled") is not False:
        why = f"is given, but role {role} writes no report: it lacks the history of weeks; move it to role standalone or fleet"
        yield ("report",), why


def _same_destination(data: Mapping[str, Any]) -> Found:
    entries = _mapping(data.get("report")).get("deliver")
    first: dict[str, int] = {}
    for place, one in enumerate(entries if isinstance(entries, list | tuple) else ()):
        name = _mapping(one).get("name")
        if isinstance(name, str) and first.setdefault(name, place) != place:
            yield ("report", "deliver", place, "name"), f"is that of deliver[{first[name]}]; give each its own name"


CHECKS: tuple[Callable[[Mapping[str, Any]], Found], ...] = (
    _late_timeout,
    _same_replica,
    _same_gpu,
    _login,
    _gpu_source,
    _needless_pid_file,
    _unknown_engine,
    _alert_path,
    _external_labels,
    _same_event,
    _report_of_a_node,
    _same_destination,
)


def _other_pool(data: Mapping[str, Any], plan: Plan) -> Found:
    for path, target in _targets(data):
        tier = target.get("tier")
        planned = plan.tiers[tier].pools if isinstance(tier, str) and tier in plan.tiers else ()
        pool = target.get("pool", "mixed")
        if planned and pool in ("mixed", "prefill", "decode") and pool not in planned:
            yield (*path, "pool"), f"must be {' or '.join(planned)}, as the plan says of tier {tier}, not {pool}"


PLAN_CHECKS: tuple[Callable[[Mapping[str, Any], Plan], Found], ...] = (_other_pool,)


def _unknown_tiers(data: Mapping[str, Any], plan: Plan | None) -> Found:
    served = [target["tier"] for _, target in _targets(data) if isinstance(target.get("tier"), str)]
    pods = _mapping(_mapping(data.get("discovery")).get("kubernetes"))
    entries = pods.get("tiers")
    served += [str(_mapping(one).get("tier")) for one in (entries if isinstance(entries, list | tuple) else ())]
    tiers = tuple(dict.fromkeys([*served, *(plan.tiers if plan else ())]))
    # An unusable plan has its own problems and unknown tiers. Without a plan, pods name their tiers.
    complete = plan is not None or not (data.get("plan") or pods)
    costs = _mapping(_mapping(data.get("forecast")).get("late_request_cost"))
    for path, named in (
        (("thresholds",), _mapping(data.get("thresholds"))),
        (("forecast", "late_request_cost"), costs),
    ):
        for tier in named if complete else ():
            if tier not in tiers:
                yield (*path, str(tier)), unknown_key_text(str(tier), tiers, "a tier of targets or plan")


def _thresholds(data: Mapping[str, Any]) -> Found:
    for tier, rules in _mapping(data.get("thresholds")).items():
        for rule, numbers in _mapping(rules).items():
            yield from _rule_thresholds(("thresholds", str(tier), str(rule)), str(rule), _mapping(numbers))


def _rule_thresholds(path: Path, name: str, numbers: Mapping[str, Any]) -> Found:
    if name not in BY_NAME:
        yield path, unknown_key_text(name, tuple(BY_NAME), "a rule")
        return
    rule = BY_NAME[name]
    for threshold in numbers:
        if threshold not in rule.thresholds:
            yield (
                (*path, str(threshold)),
                unknown_key_text(str(threshold), tuple(rule.thresholds), f"a threshold of {name}"),
            )
    for wrong, why in wrong_thresholds(rule, numbers):
        yield (*path, wrong) if wrong else path, why
