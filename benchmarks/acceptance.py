"""The whole promise in one run: a table of steps, exit code 0 or 1.

    python benchmarks/acceptance.py [--short] [--out DIR]

One daemon with a plan scrapes recorded engines and the NVML stand-in. A real Prometheus has the shipped rules, a real
Alertmanager the sample routes. A stand-in for KEDA reads `sizewatch_recommended_replicas` from that Prometheus and starts
recorded engines with their recorded cold start. The daemon's clock takes steps of 15 s as fast as the machine allows; times of
rules and routes are divided by 60. SIMULATED: the demand of tier chat, now and in the weeks before. Its recorded engines are
played at the pace of their share of it. `--short` has less of the morning, and neither the page's end nor the weekly report.
Files are kept in `--out`, by default a new folder.
"""

from __future__ import annotations

import copy
import ctypes
import json
import logging
import math
import os
import random
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import common
import yaml
from alert_path_servers import ROUTE_TIMES, RULE_TIMES, alertmanager, pager, query, receivers_at, scraping, sped_up
from daemon_runs import ask, at_port, reload_daemon, stepping, write
from forecast_samples import keep_amounts
from notifications import OPEN, QUIET, SCENES, Story
from nvml_fixture import StandIn, compile_standin
from promql import list_panels, read_metrics
from promql_parser import parse
from waiting import StandingClock, free_port, wait_for

from exporters.autoscaling.manifests import recommended_query
from exporters.grafana.dashboards import DASHBOARDS, dashboard_json
from exporters.render.safe_text import shorten
from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import alert_name
from rules.catalogue.registry import margin_of
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import TierPlan

SPEED, STEP_SECONDS, MINUTE, HOUR, DAY = 60, 15.0, 60.0, 3600.0, 86_400.0
PATIENCE_SECONDS, SCRAPE_SECONDS = 60.0, 3.0
CHAT, CASCADING, SLOW = "chat", "cascade", "slow"
PAST_MINUTES = 28 * 1440
CASCADE, FOREIGN = "KvCacheCascade", "InferenceLatencyHigh"

NIGHT_RPS, DAY_RPS, RISE_MINUTES, EVENING_MINUTES, FALL_MINUTES = 10.0, 36.0, 10.0, 420.0, 180.0
"""Simulated demand: people begin to work, every day at the same time."""

RECORDED_RPS, START_SECONDS = 1.996, 17.03
"""Of the recording that engines of tier chat play (steady_quiet): requests per second, and time from process start until
it served."""

MOST_REPLICAS, LEAST_REPLICAS, TOLERANCE, MOST_PODS, STABILIZATION_SECONDS = 12, 2, 0.1, 4, 300.0
"""The first two of the scaler, the others of the HPA's defaults."""

REACTING = (margin_of().target_utilization, 0.7, 0.5)
"""Utilisations of reacting HPAs. The first is that of recommended counts, so it is the one to beat."""

NOT_HERE = "SpeculationAcceptanceLow"
"""A rule that a panel shows; no engine here speculates."""


def demand_rps(t: float, rise: float) -> float:
    """Return the requests per second of the minute that holds `t` (unix seconds). Every day is alike but for chance."""
    minute = t // MINUTE * MINUTE
    day, place = divmod(minute - rise + DAY / 2, DAY)
    since = (place - DAY / 2) / MINUTE
    share = max(0.0, min(1.0, since / RISE_MINUTES, (EVENING_MINUTES - since) / FALL_MINUTES))
    usual = (NIGHT_RPS + share * (DAY_RPS - NIGHT_RPS)) * random.Random(day).gauss(1.0, 0.04)
    return max(0.0, random.Random(minute).gauss(usual, math.sqrt(usual / MINUTE)))


class ScaledFleet:
    """Replicas under a HorizontalPodAutoscaler on a metric of type AverageValue, by its own arithmetic and defaults.

    `starts` are unix seconds, oldest first. A minute is violated when its demand exceeds the capacity of ready replicas.
    """

    def __init__(self, average: float, t: float, capacity: float) -> None:
        self._average, self._capacity = average, capacity
        self.starts = [t - HOUR] * math.ceil(NIGHT_RPS / capacity / REACTING[0])
        self._recent: deque[int] = deque(maxlen=round(STABILIZATION_SECONDS / STEP_SECONDS))
        self.violated: set[float] = set()
        self.hours, self.prepared_at = 0.0, math.inf

    def ready(self, t: float) -> int:
        return sum(t - start >= START_SECONDS for start in self.starts)

    def live(self, t: float, demand: float) -> None:
        """Count a step up to `t` with this demand (requests/s)."""
        self.hours += len(self.starts) * STEP_SECONDS / HOUR
        if demand > self._capacity * self.ready(t):
            self.violated.add(t // MINUTE)
        if self._capacity * self.ready(t) >= DAY_RPS:
            self.prepared_at = min(self.prepared_at, t)

    def scale(self, metric: float, t: float) -> bool:
        """Read the metric of the whole tier. Return whether replicas were started or ended, the newest first."""
        current = len(self.starts)
        ratio, desired = metric / current / self._average, current
        if abs(ratio - 1.0) > TOLERANCE:
            desired = math.ceil(current * ratio - 1e-9)
        self._recent.append(desired)
        most = max(2 * current, current + MOST_PODS) if desired > current else current
        count = min(MOST_REPLICAS, max(LEAST_REPLICAS, min(most, max(self._recent))))
        self.starts = self.starts[:count] + [t] * (count - current)
        return count != current


class Engines:
    """Recorded engines by the path of their page; those of tier chat at the pace of their share of the demand."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began = clock, clock()
        self._stories = {name: Story(SCENES[name], self._began) for name in (CASCADING, SLOW)}
        self._chat: list[tuple[float, Story, float]] = []
        self.url = common.Server(self._respond).url

    def live(self, starts: list[float], rps: float) -> None:
        """Go on by a step, with so many requests per second for each ready replica of those that began at these times."""
        del self._chat[len(starts) :]
        for start in starts[len(self._chat) :]:
            # `Story` has a process that began a minute before.
            self._chat.append((start, Story(SCENES["quiet"], start + MINUTE), 0.0))
        for number, (start, story, place) in enumerate(self._chat):
            if self._clock() - start >= START_SECONDS:
                self._chat[number] = start, story, place + STEP_SECONDS * rps / RECORDED_RPS

    def _respond(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        name = path.split("/")[1]
        if name in self._stories:
            page = self._stories[name].page(self._clock() - self._began)
        else:
            start, story, place = self._chat[int(name.removeprefix(f"{CHAT}-"))]
            page = story.page(place) if self._clock() - start >= START_SECONDS else None
        return None if page is None else (200, page)


class Acceptance:
    """A run in a folder. Its rows are step, what is expected, what was seen, and whether these agree."""

    def __init__(self, folder: Path, gpus: StandIn, *, short: bool) -> None:
        self._folder, self._short, self._port = folder, short, free_port()
        self.clock = StandingClock(time.time() // MINUTE * MINUTE)
        self._rise = self.clock.now + (5 if short else 15) * MINUTE
        self._end = self._rise + (13 if short else 40) * MINUTE
        # The users live where it is about eight in the morning.
        self._zone = f"Etc/GMT{(datetime.fromtimestamp(self._rise, UTC).hour - 8 + 12) % 24 - 12:+d}"
        plans = {path: yaml.safe_load((common.ROOT / path).read_text()) for path, _ in (QUIET, OPEN)}
        small, slow = (plans[path]["tiers"][tier] for path, tier in (QUIET, OPEN))
        chat = copy.deepcopy(small)
        chat["fleet"] |= {"instances": 6, "minimum_warm": LEAST_REPLICAS}
        chat["workload"]["requests_per_second"] = {"average": 20.0, "peak": DAY_RPS}
        self._tiers = {CHAT: chat, CASCADING: small, SLOW: slow}
        capacity = build_tier_context(CHAT, TierPlan.model_validate(chat)).capacity
        assert capacity is not None
        self._engines, self._gpu = Engines(self.clock), gpus.add_gpu()
        self._warmed = ScaledFleet(1.0, self.clock.now, capacity.rps)
        self._reacting = {share: ScaledFleet(capacity.rps * share, self.clock.now, capacity.rps) for share in REACTING}
        self._recommended: float | None = None
        self._seen: dict[str, str] = {}
        self._forecast: dict[str, Any] = {}
        self._rows: list[tuple[str, str, str, bool]] = []

    def run(self) -> tuple[str, bool]:
        """Return the table, and whether all of it is as expected."""
        folder, rules = self._folder, self._folder / "alerts.yaml"
        self._write()
        starts = [self.clock.now - MINUTE * back for back in range(PAST_MINUTES, 0, -1)]
        amounts = ((start, demand_rps(start, self._rise) * MINUTE) for start in starts)
        keep_amounts(folder / "kept" / "history.db", amounts, CHAT)
        text = (common.ROOT / "rules" / "prometheus" / "sizewatch-alerts.yaml").read_text()
        rules.write_text(sped_up(text, RULE_TIMES, SPEED))
        with ExitStack() as stack:
            self._pager = stack.enter_context(pager())
            self._manager = stack.enter_context(alertmanager(folder, self._route_alerts()))
            self._engines.live(self._warmed.starts, 0.0)
            daemon = stack.enter_context(stepping(folder / "sizewatch.yaml", self.clock, **at_port(self._port)))
            self._daemon, target = daemon.daemon, f"127.0.0.1:{self._port}"
            # A busy machine is slow, and that is not what is shown.
            self._daemon.assembly.forecasts._question_seconds = 10 * PATIENCE_SECONDS
            self._prometheus = stack.enter_context(scraping(folder, target, self._manager.url, rules))
            while self.clock.now < self._end:
                self._step()
            if not self._short:
                wait_for(lambda: self._notified("pages", "resolved"), PATIENCE_SECONDS, every=0.1)
            self._conclude()
        rows = [(*texts, "yes" if is_fine else "NO") for *texts, is_fine in self._rows]
        table = text_grid(rows, ("step", "expected", "seen", "ok"), indent=0, words=1)
        return terminal_text(table, width=WIDEST), all(row[-1] for row in self._rows)

    def _write(self) -> None:
        """Write plan, token and configuration with the replicas that there are."""
        (self._folder / "kept").mkdir(exist_ok=True)
        (self._folder / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": self._tiers}))
        (self._folder / "token").write_text("acceptance-token-of-this-run\n")
        (self._folder / "token").chmod(0o600)
        names = {CASCADING: CASCADING, SLOW: SLOW}
        names |= {f"{CHAT}-{place}": CHAT for place in range(len(self._warmed.starts))}
        targets: list[dict[str, Any]] = []
        for name, tier in names.items():
            targets.append({"url": f"{self._engines.url}/{name}/metrics", "tier": tier, "replica": name})
        targets[0]["gpus"] = [self._gpu]
        due = datetime.fromtimestamp(self._end, ZoneInfo(self._zone))
        configuration = {
            "plan": "plan.yaml",
            "data_dir": "kept",
            "scrape_interval": f"{STEP_SECONDS:.0f}s",
            "targets": targets,
            "alerting": {"receiver": {"bearer_token_file": "token"}},
            "forecast": {"zone": self._zone},
            "report": {"weekday": f"{due:%A}".lower(), "at": f"{due:%H:%M}"},
        }
        write(self._folder, configuration)

    def _route_alerts(self) -> Path:
        """Return the sample configuration, sped up, that also sends the alerts of other systems to sizewatch."""
        text = sped_up((common.ROOT / "examples" / "alertmanager.yml").read_text(), ROUTE_TIMES, SPEED)
        sample = yaml.safe_load(receivers_at(text, self._pager.url))
        route = {"receiver": "sizewatch", "matchers": ['source!="sizewatch"'], "continue": True, "group_wait": "0s"}
        sample["route"]["routes"].insert(0, route)
        token = {"authorization": {"credentials_file": str(self._folder / "token")}}
        hook = {"url": f"http://127.0.0.1:{self._port}/webhook/alertmanager", "http_config": token}
        sample["receivers"].append({"name": "sizewatch", "webhook_configs": [hook]})
        path = self._folder / "alertmanager.yml"
        path.write_text(yaml.safe_dump(sample))
        return path

    def _step(self) -> None:
        """Let 15 s pass for engines, daemon and scalers."""
        self.clock.now = now = self.clock.now + STEP_SECONDS
        demand = demand_rps(now - STEP_SECONDS, self._rise)
        self._engines.live(self._warmed.starts, demand / max(1, self._warmed.ready(now)))
        self._daemon._run_cycle()
        for fleet in (self._warmed, *self._reacting.values()):
            fleet.live(now, demand)
        for fleet in self._reacting.values():
            # Its own measurement has no delay here: the load of the last whole minute.
            fleet.scale(demand_rps(now // MINUTE * MINUTE - MINUTE, self._rise), now)
        is_due = now % MINUTE == MINUTE / 2
        if is_due:
            self._daemon.assembly.forecast(now)
        if is_due or not self._notified("pages", "firing"):
            self._look()
        if self._recommended is not None and self._warmed.scale(self._recommended, now):
            self._write()
            reload_daemon(self._daemon)

    def _look(self) -> None:
        """Keep what is seen first, after Prometheus has scraped it. Another system alerts once the cascade is on."""
        page = f"timestamp(sizewatch_cycles_total) > {time.time()}"
        wait_for(lambda: query(self._prometheus, page), PATIENCE_SECONDS, every=0.05)
        if gauge := query(self._prometheus, recommended_query(CHAT)):
            self._recommended = float(gauge[0]["value"][1])
        status = json.loads(ask(self._daemon, "api/status"))
        tiers = {tier["tier"]: tier for tier in status["tiers"]}
        for tier, word in ((SLOW, "Divergence"), (CASCADING, CASCADE)):
            for verdict in tiers[tier]["verdicts"]:
                if word in verdict["rule"]:
                    self._seen.setdefault(tier, f"{verdict['rule']}: {verdict['sentence']}")
        if self._notified("pages", "firing") and FOREIGN not in self._seen:
            start = datetime.fromtimestamp(self.clock.now, UTC)
            times = {"startsAt": start.isoformat(), "endsAt": (start + timedelta(hours=2)).isoformat()}
            labels = {"alertname": FOREIGN, "instance": CASCADING, "severity": "warning"}
            self._manager.post({"labels": labels, **times, "annotations": {"summary": "P95 above 10 s"}})
            self._seen[FOREIGN] = ""
        for alert in status["foreign_alerts"]:
            if alert["diagnosis"]:
                self._seen[FOREIGN] = f"{alert['name']} by {alert['diagnosis']['rule']}"
        self._cold_start = tiers[CHAT]["forecast"]["cold_start"]
        if self.clock.now < self._rise:
            self._forecast = tiers[CHAT]["forecast"]["forecast"] or {}

    def _notified(self, receiver: str, status: str) -> list[str]:
        """Return the names of the alerts that this receiver got with this status."""
        alerts = [(m["receiver"], alert) for m in list(self._pager.messages) for alert in m["alerts"]]
        return [alert["labels"]["alertname"] for to, alert in alerts if to == receiver and alert["status"] == status]

    def _add(self, step: str, expected: str, seen: str, is_fine: bool = True) -> None:
        self._rows.append((step, expected, shorten(seen, 110) or "not shown: never seen", is_fine and bool(seen)))

    def _conclude(self) -> None:
        """Fill the table."""
        engines = len(self._warmed.starts) + 2
        # On a busy machine Prometheus' last scrape may be of the cycle before, in which a replica still started.
        wait_for(lambda: query(self._prometheus, f"count(sizewatch_target_up == 1) == {engines}"), PATIENCE_SECONDS)
        up = query(self._prometheus, "sizewatch_target_up == 1")
        gpu = query(self._prometheus, f'sizewatch_gpu_memory_used_bytes{{gpu="{self._gpu}"}} > 0')
        text = f"{len(up)} of {engines} engines, {len(gpu)} GPU by NVML"
        self._add("collects", "every engine, the GPU", text, len(up) == engines and len(gpu) == 1)
        self._add("diverges from the plan", "a Divergence of tier slow", self._seen.get(SLOW, ""))
        self._add("finds a cascade", CASCADE, self._seen.get(CASCADING, ""))
        paged, ended, page = (
            self._notified("pages", "firing"),
            self._notified("pages", "resolved"),
            [alert_name(CASCADE)],
        )
        text = f"paged {', '.join(paged)}; over {', '.join(ended) or 'not yet'}"
        expected = "one page" if self._short else "one page, and its end"
        self._add("pages once", expected, text, paged == page and (self._short or ended == page))
        foreign, expected = self._seen.get(FOREIGN, ""), f"{FOREIGN} by {CASCADE}"
        self._add("explains another's alert", expected, foreign, foreign == expected)
        self._add("forecasts the morning", "the day's rate within a fifth", *self._judge_forecast())
        timing = next((known for known in self._cold_start["known"] if known["timing"] == "process"), None)
        text = f"{engines - 2} replicas; {timing['count']} starts, P95 {timing['p95_seconds']:.1f} s" if timing else ""
        is_same = timing is not None and abs(timing["p95_seconds"] - START_SECONDS) < 0.1
        self._add("starts replicas", f"each timed as recorded: {START_SECONDS:.1f} s", text, is_same)
        ours, theirs = self._warmed, self._reacting[REACTING[0]]
        early, late = (fleet.prepared_at - self._rise - RISE_MINUTES * MINUTE for fleet in (ours, theirs))
        text = f"{early:+.0f} s from the peak's begin; reacting {late:+.0f} s"
        self._add("is ready before the peak", f"capacity for {DAY_RPS:g} rps", text, early < 0)
        texts = [f"reacting at {at:.0%}: {len(r.violated)} ({r.hours:.1f} h)" for at, r in self._reacting.items()]
        text = f"{len(ours.violated)} ({ours.hours:.1f} replica-hours); {', '.join(texts)}"
        expected = f"fewer than reacting at {REACTING[0]:.0%}"
        self._add("violates fewer minutes", expected, text, len(ours.violated) < len(theirs.violated))
        self._add("answers the boards", "every query of what is here", *self._ask_boards())
        if not self._short:
            self._add("reports the week", "cascade, other's alert, tiers", *self._report())

    def _judge_forecast(self) -> tuple[str, bool]:
        """Return the median forecast made before the rise of a bin after it, and whether it came true."""
        end = self._rise + (RISE_MINUTES + 1) * MINUTE
        point = next((point for point in self._forecast.get("points", ()) if point["t"] >= end), None)
        if point is None:
            return "", False
        true = sum(demand_rps(point["t"] + place * MINUTE, self._rise) for place in range(5)) / 5
        early = self._rise - self._forecast["made_at"]
        text = f"median {point['q50']:.1f} rps, made {early:.0f} s before the rise; {true:.1f} rps came"
        return text, abs(point["q50"] / true - 1.0) < 0.2

    def _ask_boards(self) -> tuple[str, bool]:
        rows = query(self._prometheus, 'group by (__name__) (last_over_time({job="sizewatch"}[1m]))')
        names, silent, count, absent = {row["metric"]["__name__"] for row in rows}, list[str](), 0, 0
        panels = [panel for dashboard in DASHBOARDS for panel in list_panels(dashboard_json(dashboard))]
        for title, target in ((panel["title"], target) for panel in panels for target in panel.get("targets", ())):
            text = target["expr"].replace("$__rate_interval", "1m").replace('="$tier"', '=~".*"')
            text = re.sub(r"\$\w+", ".*", text)
            if NOT_HERE in text or not names.issuperset(read_metrics(parse(text))):
                absent += 1
            elif wait_for(lambda text=text: query(self._prometheus, text), SCRAPE_SECONDS, every=0.1):
                count += 1
            else:
                silent.append(title)
        text = f"{count} answer, {absent} are of what is not here; silent: {', '.join(silent) or 'none'}"
        return text, not silent and count > absent

    def _report(self) -> tuple[str, bool]:
        self._daemon.assembly.write_reports(self.clock.now)
        state = json.loads(ask(self._daemon, "api/status"))["agent"]["reporting"]
        file = self._folder / "kept" / "reports" / state["newest"] / "report.md"
        text = file.read_text() if state["newest"] else state["trouble"]
        missing = [word for word in (CASCADE, FOREIGN, *self._tiers) if word not in text]
        return f"{state['headline'] or text}; missing: {', '.join(missing) or 'nothing'}", not missing


def main() -> int:
    options = common.build_parser(__doc__, short=False, out=Path).parse_args()
    folder = (options.out or Path(tempfile.mkdtemp(prefix="sizewatch-acceptance-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    gpus = StandIn(folder, ctypes.CDLL(str(compile_standin(folder))))
    os.environ["NVML_STANDIN_STATE"] = str(gpus.state_file)
    # The table is the output.
    logging.disable(logging.WARNING)
    began = time.monotonic()
    table, is_fine = Acceptance(folder, gpus, short=options.short).run()
    print(f"SIMULATED: the demand of tier {CHAT}, now and in the four weeks before.\n\n{table}\n")
    print(f"{time.monotonic() - began:.0f} s; files in {folder}")
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
