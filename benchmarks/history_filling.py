"""A history of weeks of a large fleet, made in minutes: what `benchmarks/history.py` measures.

A real vLLM's minute (`agent/demo/recordings`) is scaled to a load that follows day and week, its counts drawn anew (Poisson),
and booked for a few replicas over one day by the daemon's own writer. The rows of that day stand for the others: they are copied
to the other replicas and days with their times shifted, so that each has the size that it would have, though not numbers of its
own. The hours of each tier, its demand and its episodes are made for the whole fleet.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from agent.config.files import load_plan
from agent.demo.simulation.weeks import PLAN
from agent.history.codec import SeriesKey, bin_code, decode_window, encode_window
from agent.history.schema import HOURS, MINUTES, QUARTERS, SumTable
from agent.history.store import HistoryStore
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.confidence import Certainty
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.plan.schema import Plan, plan_version
from rules.replicas.track import ScrapeTrack, record_success
from rules.telemetry import arrivals, windows
from rules.telemetry.signals import Reading
from rules.telemetry.windows import Window
from rules.verdicts.finding import Finding
from rules.verdicts.verdict import Status, Subject, Verdict

RECORDING = Path(__file__).resolve().parent.parent / "agent" / "demo" / "recordings" / "steady_quiet"
HOUR, DAY, WEEK = 3600, 86_400, 604_800
SHARES = (0.5, 0.3, 0.2)
"""Of the replicas, by tier."""

MADE_REPLICAS = 2
"""Of each tier, booked minute by minute."""

SPREAD = 0.3
"""Of the load over the replicas and minutes of an hour: no router is even."""

EPISODES_A_DAY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A tier of the fleet: how many replicas, its plan's view and version."""

    name: str
    context: TierContext
    version: str
    replicas: tuple[str, ...]


class Traffic:
    """Windows of a replica (or of many) at a load, drawn from a recorded minute."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._base = windows.sum_windows(_recorded())

    def chance(self) -> float:
        """Between 0 and 1."""
        return self._random.random()

    def load(self, t: float, replicas: int = 1, spread: float = 0.12) -> float:
        """Share of the benchmark's top load that a replica has: by hour and weekday, and by chance."""
        day = 0.5 - 0.5 * math.cos(2 * math.pi * (t % DAY) / DAY)
        weekday = 0.6 if int(t // DAY + 4) % 7 in (0, 6) else 1.0
        return (0.15 + 0.7 * day * weekday) * self._random.lognormvariate(0.0, spread / math.sqrt(replicas))

    def window(self, t: float, seconds: float, replicas: float, rps: float) -> Window:
        """What `replicas` did from about `t` on, each at `rps`."""
        base, rng = self._base, self._random
        start, end = (round(t + at + rng.uniform(0.0, 0.02), 3) for at in (0.0, seconds))
        covered = (end - start) * replicas
        share = rps * covered / base.counters["requests_finished"]
        each = rps / (base.counters["requests_finished"] / base.covered_seconds)
        return replace(
            base,
            start=start,
            end=end,
            expected_seconds=covered,
            covered_seconds=covered,
            counters={name: self._count(value * share) for name, value in base.counters.items()},
            histograms={
                name: tuple(
                    replace(
                        part,
                        counts=tuple(self._count(count * share) for count in part.counts),
                        total=(part.total or 0.0) * share * rng.gauss(1.0, 0.03),
                    )
                    for part in parts
                )
                for name, parts in base.histograms.items()
            },
            gauges={
                name: replace(
                    gauge,
                    integral=covered
                    if name == "engine_awake"
                    else gauge.integral / gauge.seconds * covered * each * rng.gauss(1.0, 0.05),
                    seconds=covered,
                    maximum=gauge.maximum if gauge.maximum in (0.0, 1.0) else rng.random(),
                    samples=float(math.ceil(covered / 15)),
                )
                for name, gauge in base.gauges.items()
            },
        )

    def _count(self, mean: float) -> float:
        """Poisson, of large means by the normal distribution."""
        if mean <= 0:
            return 0.0
        if mean > 50:
            return float(max(0, round(self._random.gauss(mean, math.sqrt(mean)))))
        found, chance = 0, math.exp(-mean)
        rest = self._random.random() - chance
        while rest > 0 and found < 500:
            found += 1
            chance *= mean / found
            rest -= chance
        return float(found)


def _recorded() -> Iterator[Window]:
    recording, _ = load(RECORDING)
    reader, track = PageReader(recording.targets[0].engine), ScrapeTrack()
    for scrape in scrapes(recording, []):
        if scrape.body is not None:
            track, one = record_success(track, reader.read(scrape.body, scrape.t))
            if one is not None and one.covered_seconds > 0:
                yield one


def fleet(folder: Path, replicas: int) -> tuple[Tier, ...]:
    """The tiers, with plan and configuration written into the folder."""
    counts = [max(1, round(replicas * share)) for share in SHARES]
    counts[0] += replicas - sum(counts)
    data = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    for tier, count in zip(data["tiers"].values(), counts, strict=True):
        tier["fleet"] |= {"instances": count}
        load = tier["workload"]["requests_per_second"]
        load |= {name: value * count / 3 for name, value in load.items()}
    (folder / "plan.yaml").write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    plan = load_plan(folder / "plan.yaml")
    found = tuple(_tier(plan, name, count) for name, count in zip(plan.tiers, counts, strict=True))
    targets = [
        {"url": f"http://127.0.0.1:9/{replica}/metrics", "tier": one.name, "replica": replica}
        for one in found
        for replica in one.replicas
    ]
    configuration = {"plan": "plan.yaml", "data_dir": ".", "scrape_interval": "15s", "targets": targets}
    (folder / "sizewatch.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return found


def _tier(plan: Plan, name: str, count: int) -> Tier:
    one = plan.tiers[name]
    replicas = tuple(f"{name}-{number}" for number in range(count))
    return Tier(
        name=name, context=load_bins.build_tier_context(name, one), version=plan_version(one), replicas=replicas
    )


def kind_days(kind: SumTable) -> int:
    """Whole days that rows of this kind are kept."""
    return round(kind.keep_seconds / DAY)


class Filling:
    """Weeks up to the minute before `now` (unix seconds) of these tiers into a new store."""

    def __init__(self, store: HistoryStore, tiers: tuple[Tier, ...], now: float, weeks: float, seed: int = 1) -> None:
        self._store, self._tiers, self._traffic = store, tiers, Traffic(seed)
        self._now = int(now // 60 * 60)
        self._today = self._now // DAY * DAY
        self._begin = self._now - round(weeks * WEEK)

    def run(self) -> None:
        """Fills."""
        for tier in self._tiers:
            self._book_a_day(tier)
            with self._store._transaction():
                for kind in (MINUTES, QUARTERS):
                    self._spread(tier, kind)
                self._hours(tier)
                self._demand(tier)
            self._store.book(spans=self._episodes(tier))

    def minute(self, t: float) -> list[ClosedMinute]:
        """A minute of the whole fleet."""
        return [self._booking(tier, replica, t) for tier in self._tiers for replica in tier.replicas]

    def _booking(self, tier: Tier, replica: str, t: float) -> ClosedMinute:
        assert tier.context.curve is not None
        rps = self._traffic.load(t) * tier.context.curve.points[-1].completed_rps
        window = self._traffic.window(t, 60.0, 1, rps)
        return ClosedMinute(
            tier=tier.name, plan_version=tier.version, slice=load_bins.bin_window(window, tier.context.curve, replica)
        )

    def _book_a_day(self, tier: Tier) -> None:
        """Yesterday of a few replicas, as a daemon books it."""
        for t in range(self._today - DAY, self._today, 60):
            self._store.book(self._booking(tier, replica, float(t)) for replica in tier.replicas[:MADE_REPLICAS])

    def _series(self, tier: Tier, replica: str) -> int:
        return self._store._series_id(SeriesKey(tier.name, tier.version, replica), self._now)

    def _spread(self, tier: Tier, kind: SumTable) -> None:
        """Rows of every replica and day that is kept, from those of yesterday."""
        connection, read = (
            self._store._connection,
            f"SELECT start, bin, beyond, body FROM {kind.table} WHERE series = ?",
        )
        made = [
            connection.execute(read, (self._series(tier, replica),)).fetchall()
            for replica in tier.replicas[:MADE_REPLICAS]
        ]
        connection.execute(
            f"DELETE FROM {kind.table} WHERE series IN (SELECT id FROM series WHERE tier = ?)", (tier.name,)
        )
        series = [self._series(tier, replica) for replica in tier.replicas]
        begin = max(self._begin, self._now - round(kind.keep_seconds))
        for number, rows in enumerate(made):
            for start, bin, beyond, body in rows:
                window = decode_window(body)
                for later in range(-kind_days(kind) * DAY, 2 * DAY, DAY):
                    if begin <= start + later <= self._now - kind.seconds:
                        shifted = encode_window(replace(window, start=window.start + later, end=window.end + later))
                        self._insert(
                            kind, [(start + later, one, bin, beyond, shifted) for one in series[number::MADE_REPLICAS]]
                        )

    def _insert(self, kind: SumTable, rows: list[tuple[int, int, int, str, bytes]]) -> None:
        self._store._connection.executemany(
            f"INSERT INTO {kind.table} (start, series, bin, beyond, body) VALUES (?, ?, ?, ?, ?)", rows
        )

    def _hours(self, tier: Tier) -> None:
        series = self._series(tier, "")
        self._store._connection.execute("DELETE FROM hours WHERE series = ?", (series,))
        for start in range(self._begin // HOUR * HOUR, self._now, HOUR):
            rows = self._hour(tier, start)
            self._insert(HOURS, [(start, series, code, beyond, encode_window(w)) for code, beyond, w in rows])

    def _hour(self, tier: Tier, t: int) -> list[tuple[int, str, Window]]:
        """The load bins that a hundred draws of a replica's load fall into, each with its share of the hour."""
        curve = tier.context.curve
        assert curve is not None
        top = curve.points[-1].completed_rps
        drawn: dict[tuple[int, str], list[float]] = {}
        for _ in range(100):
            rps = self._traffic.load(t + HOUR * self._traffic.chance(), 1, SPREAD) * top
            bin, beyond = curve.place(rps, None)
            code = bin_code(
                load_bins.BinnedWindow(
                    replica=None,
                    window=EMPTY,
                    rps=rps,
                    in_system=None,
                    bin=bin,
                    beyond=beyond,
                )
            )
            drawn.setdefault((code, "" if code >= 0 else beyond), []).append(rps)
        rows = {}
        for (code, beyond), several in drawn.items():
            window = self._traffic.window(t, HOUR, len(tier.replicas) * len(several) / 100, sum(several) / len(several))
            rows[code] = code, beyond, window
        return [rows[code] for code in sorted(rows)]

    def _demand(self, tier: Tier) -> None:
        # Demand is the same under any plan.
        curve = tier.context.curve
        assert curve is not None
        series = self._store._series_id(SeriesKey(tier.name, ""), self._now)
        self._store._connection.execute("DELETE FROM demand WHERE series = ?", (series,))
        count = len(tier.replicas)
        first = self._begin // 60 * 60
        # One window an hour tells what a minute holds; each minute has its own load.
        for hour in range(first, self._now, HOUR):
            window = self._traffic.window(float(hour), 60.0, count, curve.points[-1].completed_rps)
            parts = arrivals.minute_from_window(replace(window, start=float(hour), end=hour + 60.0))
            for t in range(hour, min(hour + HOUR, self._now), 60):
                share = self._traffic.load(t, count)
                scaled = {
                    name: getattr(parts, name) * share
                    for name in ("requests", "completed", "prompt_tokens", "generation_tokens", "waiting")
                }
                minute = replace(parts, start=float(t), first=float(t), last=t + 60.0, **scaled)
                self._store._insert_demand(tier.name, minute, "ON CONFLICT DO NOTHING")

    def _episodes(self, tier: Tier) -> Iterator[Finding]:
        for number, start in enumerate(range(self._begin, self._now, DAY // EPISODES_A_DAY)):
            subject = Subject(tier=tier.name, replica=tier.replicas[number % len(tier.replicas)])
            worst = Verdict(
                t=start + 600.0,
                rule="KvCacheCascade" if number % 5 == 0 else "TtftDivergence",
                subject=subject,
                status=Status.WARNING,
                certainty=Certainty.CERTAIN,
                observed=Reading(value=1.4, low=1.2, high=1.6, n=812.0),
                expected=Reading(value=0.9, low=0.9, high=0.9, n=3000.0),
                unit="seconds",
                sentence="TTFT P99 is 1.4 s where the benchmark measured 0.9 s at this load.",
            )
            yield Finding(
                rule=worst.rule,
                subject=subject,
                started_at=start + 0.0,
                ended_at=start + 1800.0,
                worst=worst,
                transitions=(),
            )


EMPTY = Window(start=0.0, end=0.0, expected_seconds=0.0, covered_seconds=0.0)
