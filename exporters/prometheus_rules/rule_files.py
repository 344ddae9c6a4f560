"""Rule files for Prometheus: the types of a group's rows, and their YAML as a person would write it.

Owns Alert, Record, Group and how they are printed, plain or as PrometheusRule objects. It knows no rule and no name of
a metric: `exporters.prometheus_rules.alerts`, `.recording_rules`, `.itself_rules` and `.engine_only` fill the groups. A new kind
of file is a function here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule: must hold `hold_seconds` before it fires, and fires `keep_seconds` longer than it holds."""

    name: str
    expr: str
    hold_seconds: float
    keep_seconds: float
    labels: Pairs
    annotations: Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule; `labels` are added to what it computes."""

    name: str
    expr: str
    labels: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are evaluated together, in order, every `interval_seconds`."""

    name: str
    interval_seconds: float
    rows: tuple[Alert | Record, ...]


class Block(str):
    """Text that is printed as a literal block."""

    __slots__ = ()


class Dumper(yaml.SafeDumper):
    """PyYAML's own, with blocks and with lists set in below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


Dumper.add_representer(Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def rule_file(head: str, groups: Iterable[Group]) -> str:
    """A rule file for `rule_files:` of Prometheus; `head` is its comment."""
    return f"{comment_lines(head)}\n{dump_yaml({'groups': plain_groups(groups)})}"


def rule_objects(head: str, objects: Mapping[str, Iterable[Group]]) -> str:
    """The same groups as PrometheusRule objects of the Prometheus operator, by the objects' names."""
    documents = (
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "sizewatch"}},
            "spec": {"groups": plain_groups(groups)},
        }
        for name, groups in objects.items()
    )
    return "\n".join((comment_lines(head), "---\n".join(dump_yaml(document) for document in documents)))


def plain_groups(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """The groups as YAML has them."""
    return [
        {
            "name": group.name,
            "interval": duration(group.interval_seconds),
            "rules": [_alert(row) if isinstance(row, Alert) else _record(row) for row in group.rows],
        }
        for group in groups
    ]


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML in the order of the keys, nothing folded."""
    text: str = yaml.dump(
        data, Dumper=Dumper, sort_keys=False, width=10**6, allow_unicode=True, default_flow_style=False
    )
    # An empty line between rules and between groups: they are read one by one.
    apart = re.sub(r"\n(?= *- (?:name|alert|record): )", "\n\n", text)
    return re.sub(r"((?:groups|rules|receivers|time_intervals):\n)\n", r"\1", apart)


def comment_lines(text: str) -> str:
    """Lines of text as YAML comments."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.strip().splitlines())


def duration(seconds: float) -> str:
    """Whole seconds as Prometheus writes them: 90s, 5m, 1h, 3d."""
    whole = round(seconds)
    if whole != seconds or whole < 0:
        raise ValueError(f"{seconds} is no whole number of seconds")
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % length == 0:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def _alert(alert: Alert) -> dict[str, Any]:
    times = {"for": alert.hold_seconds, "keep_firing_for": alert.keep_seconds}
    return {
        "alert": alert.name,
        "expr": Block(alert.expr),
        **{key: duration(seconds) for key, seconds in times.items() if seconds},
        "labels": dict(alert.labels),
        "annotations": {key: Block(text) if "\n" in text else text for key, text in alert.annotations},
    }


def _record(record: Record) -> dict[str, Any]:
    labels = {"labels": dict(record.labels)} if record.labels else {}
    return {"record": record.name, "expr": Block(record.expr), **labels}
