"""Stand-in for the store of `benchmarks/fleet.py`: answers the queries of role fleet over agents' series from formulas.

It runs as a process of its own, so that its CPU and memory are not role fleet's. It replaces storage and PromQL only: values,
labels and form of the answers are those of the real stores with `fleet_stores.Writer`, and an hour costs minutes. It reads
the few forms of query that `agent.fleet` writes and answers others with an error. Replicas of one behaviour have the same
values: a sum is a count times a value.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from fleet import BEGIN, pods_of_tiers, series_of_a_replica
from fleet_replica import renamed
from fleet_stores import AROUND, BEHAVIOURS, REPLICA, Loads, own_name

SELECTOR = re.compile(r'(\w*)\{(?:__name__=~"([^"]*)",)?tier="([^"]*)"(?:,replica=~"([^"]*)")?(?:,le=~"([^"]*)")?\}')
PART = re.compile(
    r'label_replace\((sum|count|min|max) by \(([\w,]*)\) \((.*?)\), "sizewatch_part", "([^"]*)", "", ""\)'
)
EACH = re.compile(r"max by \(([\w,]*)\) \((.*?)\)")
"""Series of every replica."""

COUNTED = re.compile(r"count\(max by \(replica\) \((.*)\)\)")

Labels = dict[str, str]


class Fleet:
    """Replicas of all tiers and their values at any minute."""

    def __init__(self, replicas: int, tiers: int, gpus: int) -> None:
        self.tiers = pods_of_tiers(replicas, tiers)
        self.series = series_of_a_replica(gpus)
        self.labels = [dict(renamed(one, {"replica": REPLICA, **AROUND}).labels) for one in self.series]
        self._loads = Loads(self.series)
        self._minutes: list[list[list[float]]] = []

    def values_at(self, t: float) -> list[list[float]]:
        """Return the values of every behaviour at `t` (unix seconds), the end of a minute."""
        number = round((t - BEGIN) / 60.0) - 1
        while len(self._minutes) <= number:
            place = len(self._minutes)
            self._minutes.append([several[0] for several in self._loads.values(place, BEGIN + 60.0 * (place + 1))])
        return self._minutes[number]

    def select(self, text: str) -> tuple[int, list[int], list[int]]:
        """Return the tier, the places of its series and of its replicas that a selector means."""
        found = SELECTOR.fullmatch(text)
        if found is None:
            raise ValueError(f"not a selector of role fleet: {text[:200]}")
        name, names, tier, replica, le = found.groups()
        number = int(tier.removeprefix("tier-"))
        wanted, edges = re.compile(name or names), re.compile(le.replace("\\\\", "\\")) if le else None
        places = [
            place
            for place, labels in enumerate(self.labels)
            if wanted.fullmatch(labels["__name__"]) and (edges is None or edges.fullmatch(labels.get("le", "")))
        ]
        pattern = re.compile(replica.replace("\\\\", "\\")) if replica else None
        members = [place for place, pod in enumerate(self.tiers[number]) if pattern is None or pattern.fullmatch(pod)]
        return number, places, members

    def each(self, text: str, kept: frozenset[str] | None, t: float) -> Iterator[str]:
        """Yield every series of a selector at `t` as JSON, reduced to the labels `kept`."""
        tier, places, members = self.select(text)
        values = self.values_at(t)
        heads = [
            json.dumps(
                {k: v for k, v in {**self.labels[p], "tier": f"tier-{tier}"}.items() if kept is None or k in kept},
                separators=(",", ":"),
            )
            for p in places
        ]
        for member in members:
            of = values[member % BEHAVIOURS]
            lines = (
                f'{{"metric":{head},"value":[{t:.0f},"{_number(of[p])}"]}}'
                for head, p in zip(heads, places, strict=True)
            )
            yield own_name(self.tiers[tier][member], ",".join(lines).encode()).decode()

    def part(self, way: str, by: frozenset[str], selector: str, ends: tuple[float, float], told: str) -> Iterator[str]:
        """Yield the series of one aggregation at both ends as JSON."""
        _, places, members = self.select(selector)
        many = Counter(member % BEHAVIOURS for member in members)
        grouped: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for place in places:
            labels = self.labels[place]
            grouped.setdefault(tuple((k, labels[k]) for k in sorted(by & labels.keys())), []).append(place)
        for labels_of, of in grouped.items():
            told_at = (_aggregated(way, self.values_at(t), of, many) for t in ends)
            both = [f'[{t:.0f},"{_number(value)}"]' for t, value in zip(ends, told_at, strict=True)]
            head = json.dumps({**dict(labels_of), "sizewatch_part": told}, separators=(",", ":"))
            yield f'{{"metric":{head},"values":[{",".join(both)}]}}'


def _aggregated(way: str, values: list[list[float]], places: list[int], many: Counter[int]) -> float:
    """Return the sum, count, min or max over replicas, so many of each behaviour, and over the series at `places`."""
    if way == "sum":
        return sum(values[behaviour][place] * n for behaviour, n in many.items() for place in places)
    if way == "count":
        return float(many.total() * len(places))
    ends = [values[behaviour][place] for behaviour in many for place in places]
    return min(ends) if way == "min" else max(ends)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def answer(fleet: Fleet, form: dict[str, str]) -> tuple[str, Iterator[str]]:
    """Return the type of a result and its series. Raise ValueError for a query of another form."""
    query = form["query"]
    if "time" in form:
        t = float(form["time"])
        if counted := COUNTED.fullmatch(query):
            _, _, members = fleet.select(counted[1])
            return "vector", iter((f'{{"metric":{{}},"value":[{t:.0f},"{len(members)}"]}}',))
        if each := EACH.fullmatch(query):
            return "vector", fleet.each(each[2], frozenset(each[1].split(",")), t)
        return "vector", fleet.each(query, None, t)
    ends = (float(form["start"]), float(form["end"]))
    parts = list(PART.finditer(query))
    if not parts or " or ".join(part[0] for part in parts) != query:
        raise ValueError("not a query of role fleet")
    return "matrix", (line for part in parts for line in _part(fleet, part, ends))


def _part(fleet: Fleet, part: re.Match[str], ends: tuple[float, float]) -> Iterator[str]:
    way, by, inner, told = part.groups()
    once = EACH.fullmatch(inner)
    return fleet.part(way, frozenset(by.split(",")), once[2] if once else inner, ends, told)


def handler(fleet: Fleet) -> type[BaseHTTPRequestHandler]:
    """Return the request handler over a fleet."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, b"ok")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            try:
                kind, series = answer(fleet, {name: several[0] for name, several in parse_qs(body).items()})
                text = f'{{"status":"success","data":{{"resultType":"{kind}","result":[{",".join(series)}]}}}}'
                self._send(200, text.encode())
            except (ValueError, KeyError) as error:
                told = {"status": "error", "errorType": "bad_data", "error": f"stand-in: {error!r}"}
                self._send(400, json.dumps(told).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    return Handler


if __name__ == "__main__":
    *counts, port = map(int, sys.argv[1:])
    ThreadingHTTPServer(("127.0.0.1", port), handler(Fleet(*counts))).serve_forever()
