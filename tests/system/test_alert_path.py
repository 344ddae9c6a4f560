"""The whole path of an alert, all of it real.

By rule files: a recorded engine, the daemon, Prometheus, Alertmanager, whom it calls. By posts, at the recordings' own
times: evaluator, incidents, payloads, Alertmanager.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from alert_path_servers import (
    ROUTE_TIMES,
    RULE_TIMES,
    Pager,
    alertmanager,
    firing,
    judged_until,
    pager,
    query,
    receivers_at,
    reload,
    rule_troubles,
    scraping,
    sped_up,
)
from daemon_runs import StandingClock, Stepped, at_port, configuration, stepping, write
from paths import ROOT
from waiting import free_port, wait_for

from agent.alerting.delivery import AlertmanagerClient
from agent.config.files import load_plan
from agent.config.peer import Peer
from agent.demo.engines import Player, RecordedTrack, track
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from exporters.alertmanager.payload import AlertPayload, AlertSettings, present
from exporters.render.text import alert_name, runbook_url
from rules.evaluator.incident_alerts import IncidentAlert, step_incident_alerts
from rules.evaluator.incidents import group_incidents
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import build_tier_context
from rules.verdicts.verdict import Finding

ALERTS = ROOT / "rules" / "prometheus" / "sizewatch-alerts.yaml"
ROUTES = ROOT / "examples" / "alertmanager.yml"
CASCADE = "KvCacheCascade"
WHERE = ("cpu-small", "r0")

SPEED = 60
"""So many times shorter are durations of rules and routes, which are waited for."""

LOUD = ("sizewatch-critical", "sizewatch-warning")
"""Groups of the rules whose alerts people are told."""

STEP = 15.0
"""Seconds of the recording between two turns."""

BEGIN = 46.0
"""Seconds of the recording that are left out: nothing happens in them."""


def afterwards(*names: str) -> RecordedTrack:
    """Recordings one after the other, each by an engine that was started anew."""
    tracks = []
    for name in names:
        recording, problems = load(recorded.folder(name))
        assert problems == ()
        tracks.append(track(recording, "cpu-small", BEGIN))
    joined = list(tracks[0].scrapes)
    for one in tracks[1:]:
        moved = joined[-1].t + 5.0 - one.scrapes[0].t
        joined += [replace(scrape, t=scrape.t + moved) for scrape in one.scrapes]
    return replace(tracks[0], scrapes=tuple(joined))


@contextmanager
def watched(folder: Path, port: int, clock: StandingClock, **keys: Any) -> Iterator[Stepped]:
    """A daemon on this port that watches an engine through a cascade and through healthy hours after it."""
    player = Player((afterwards("kv_cascade", *("diurnal_quiet", "steady") * 6),), clock)
    data = configuration([], scrape_interval=f"{STEP:.0f}s", **keys)
    data["targets"] = [{"url": player.url("cpu-small"), "tier": "cpu-small", "replica": "r0"}]
    try:
        with stepping(write(folder, data), clock, **at_port(port)) as stepped:
            yield stepped
            assert stepped.daemon.counts.cycle_errors == 0
    finally:
        player.stop()


def judged(prometheus: str, watching: Stepped) -> None:
    """Waits until Prometheus has judged the page of the last turn: what passes unseen proves nothing."""
    page = f"timestamp(sizewatch_cycles_total == {watching.daemon.counts.cycles})"
    scraped = wait_for(lambda: query(prometheus, page), every=0.1)
    assert scraped, "Prometheus does not scrape"
    since = float(scraped[0]["value"][1])
    assert wait_for(lambda: judged_until(prometheus, LOUD) > since, every=0.1), "Prometheus does not judge"


def told(called: Pager, receiver: str, status: str) -> list[dict[str, Any]]:
    """The alerts that one receiver of the sample configuration was told with one status."""
    messages = [one for one in list(called.messages) if one["receiver"] == receiver]
    return [alert for one in messages for alert in one["alerts"] if alert["status"] == status]


def of(severity: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [alert for alert in found if alert["labels"]["severity"] == severity]


def names(found: list[dict[str, Any]]) -> set[str]:
    return {alert["labels"]["alertname"] for alert in found}


def of_agents() -> set[str]:
    """Names of the alerts that say how sizewatch itself is: a busy machine may cause them."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    (own,) = [group for group in groups if group["name"] == "sizewatch-itself"]
    return {rule["alert"] for rule in own["rules"]}


def test_speeding_up_changes_durations_alone() -> None:
    before = ALERTS.read_text(encoding="utf-8")
    pairs = zip(before.splitlines(), sped_up(before, RULE_TIMES, SPEED).splitlines(), strict=True)
    changed = {(a.strip(), b.strip()) for a, b in pairs if a != b}
    assert {a.partition(":")[0] for a, _ in changed} == set(RULE_TIMES)
    assert {("interval: 15s", "interval: 250ms"), ("for: 30s", "for: 500ms"), ("for: 2m", "for: 2s")} <= changed
    assert sped_up(" for: 2m\n  for: 0s\n", ("for",), 20) == " for: 6s\n  for: 0s\n"
    with pytest.raises(ValueError):
        sped_up(" for: 1h30m\n", ("for",), 20)


@pytest.mark.server
def test_rules_page_a_cascade_once(tmp_path: Path) -> None:
    port, rules, routes = free_port(), tmp_path / "alerts.yaml", tmp_path / "alertmanager.yaml"
    text = ALERTS.read_text(encoding="utf-8")
    # That an alert is kept stays as long as in life: no page that is late on a busy machine ends one.
    rules.write_text(sped_up(text, ("for", "interval"), SPEED), encoding="utf-8")
    with (
        pager() as called,
        watched(tmp_path, port, StandingClock(time.time())) as watching,
        alertmanager(tmp_path, routed(routes, called.url)) as manager,
        scraping(tmp_path, f"127.0.0.1:{port}", manager.url, rules) as prometheus,
    ):

        def pages() -> list[dict[str, Any]]:
            judged(prometheus, watching)
            return of("critical", firing(prometheus))

        def is_over() -> bool:
            judged(prometheus, watching)
            return not query(prometheus, AT_WORK)

        assert watching.steps_until(pages, STEP, 30), "no page in Prometheus"
        (alert,) = of("critical", firing(prometheus))
        assert (alert["labels"]["alertname"], alert["labels"]["tier"], alert["labels"]["replica"]) == (
            alert_name(CASCADE),
            *WHERE,
        )
        assert (alert["labels"]["severity"], alert["labels"]["source"]) == ("critical", "sizewatch")
        assert alert["annotations"]["summary"] == "KV cache cascade: cpu-small/r0"
        assert "Next: " in alert["annotations"]["description"]

        assert wait_for(lambda: told(called, "pages", "firing")), called.messages
        (paged,) = told(called, "pages", "firing")
        assert (paged["labels"]["alertname"], paged["labels"]["severity"]) == (alert_name(CASCADE), "critical")
        assert paged["annotations"]["runbook_url"] == runbook_url(CASCADE)
        (page,) = of("critical", manager.alerts())
        assert (page["fingerprint"], page["status"]["state"]) == (paged["fingerprint"], "active")

        # Its symptoms are found, and until it is over none of them has an alert of its own.
        assert watching.steps_until(is_over, STEP, 60), "it does not end"
        found = f'max_over_time(sizewatch_verdict{{tier="cpu-small",rule!="{CASCADE}"}}[1d]) >= 1'
        assert query(prometheus, found)
        assert ever(prometheus, "critical") == {alert_name(CASCADE)}
        assert ever(prometheus, "warning") <= of_agents()
        assert names(of("warning", manager.alerts())) <= of_agents()
        assert told(called, "pages", "resolved") == []

        rules.write_text(sped_up(text, RULE_TIMES, SPEED), encoding="utf-8")
        reload(prometheus)
        assert wait_for(lambda: told(called, "pages", "resolved"), every=0.1), firing(prometheus)
        (over,) = told(called, "pages", "resolved")
        assert over["fingerprint"] == paged["fingerprint"]
        assert over["startsAt"] == paged["startsAt"] < over["endsAt"]
        assert of("critical", firing(prometheus)) == of("critical", manager.alerts()) == []

        # Nothing else paged, at any time and anywhere; the watchdog came through, and every rule could be evaluated.
        for _ in range(3):
            watching.step(STEP)
            judged(prometheus, watching)
        assert ever(prometheus, "critical") == names(told(called, "pages", "firing")) == {alert_name(CASCADE)}
        assert len(told(called, "pages", "firing")) == len(told(called, "pages", "resolved")) == 1
        assert {a["labels"]["severity"] for a in told(called, "tickets", "firing")} <= {"warning"}
        assert wait_for(lambda: told(called, "outside", "firing"), every=0.1)
        assert names(told(called, "outside", "firing")) == {"SizewatchWatchdog"}
        assert rule_troubles(prometheus) == []
        assert alert_name(CASCADE) not in names(told(called, "tickets", "firing"))


AT_WORK = f'sizewatch_verdict{{rule="{CASCADE}"}} > 0 or sizewatch_incident_alert{{rule="{CASCADE}"}} > 0'


def ever(prometheus: str, severity: str) -> set[str]:
    """Names of the alerts of that severity that have fired since the begin."""
    alerts = f'ALERTS{{severity="{severity}",alertstate="firing"}}'
    found = query(prometheus, f"group by (alertname) (last_over_time({alerts}[1d]))")
    return {one["metric"]["alertname"] for one in found}


def routed(path: Path, url: str) -> Path:
    """The sample configuration, sped up, with one address for all receivers."""
    text = sped_up(ROUTES.read_text(encoding="utf-8"), ROUTE_TIMES, SPEED)
    path.write_text(receivers_at(text, url), encoding="utf-8")
    return path


TIER, REPLICA = WHERE
SETTINGS = AlertSettings(resend_seconds=86_400.0)
"""So seldom that what fires at a time of the recording still fires now."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Seconds in which the engine does not answer."""

    seconds: float


Part = str | Dead
Pages = list[tuple[float, bytes | None]]

QUIET = ("diurnal_quiet",) * 3
CASCADE_PARTS = ("steady_quiet", "kv_cascade", *QUIET)
SCENES: dict[str, tuple[tuple[Part, ...], list[str]]] = {
    "cascade": (CASCADE_PARTS, ["KvCacheCascade of cpu-small/r0 (critical)"]),
    "death": ((*QUIET, Dead(300.0), *QUIET), ["TierDown of cpu-small (critical)"]),
    "restart": ((*QUIET, Dead(30.0), *QUIET), []),
    "slow restart": (("restart", *QUIET), ["TierDown of cpu-small (critical)"]),
    "slow": ((*QUIET, *("steady",) * 8), ["TpotDivergence of cpu-small (warning)"]),
    "quiet": (QUIET * 2, []),
}
"""Parts of an engine's life, and the only alerts that may be posted in it."""


def pages(parts: Sequence[Part]) -> Pages:
    """Seconds since the begin, and the page of then, None while the engine is dead."""
    found: Pages = []
    for part in parts:
        t = found[-1][0] if found else 0.0
        if isinstance(part, Dead):
            found += [(t + STEP * n, None) for n in range(1, round(part.seconds / STEP) + 1)]
            continue
        recording, problems = load(recorded.folder(part))
        assert problems == ()
        several = list(scrapes(recording, []))
        first = last = several[0].t - STEP
        for one in several:
            if one.t - last > STEP - 1.0:
                last = one.t
                found.append((t + one.t - first, one.body))
    return found


@dataclass(slots=True)
class Watched:
    """What an agent posts while it watches an engine: at each scrape the time and all payloads."""

    found: Pages
    began: float
    plan: str = "cpu-small-open"

    def posts(self) -> Iterator[tuple[float, tuple[AlertPayload, ...]]]:
        plan = load_plan(recorded.PLANS / f"{self.plan}.yaml")
        evaluator = Evaluator({TIER: build_tier_context(TIER, plan.tiers[TIER])})
        state, reader = EvaluatorState(), PageReader("vllm")
        past: list[Finding] = []
        alerts: tuple[IncidentAlert, ...] = ()
        for after, body in self.found:
            now = self.began + after
            page = None if body is None else reader.read(body, now)
            scrape = ReplicaScrape(tier=TIER, replica=REPLICA, t=now, snapshot=page, error="" if page else "refused")
            past += (
                one
                for one in evaluator.step(state, Observation(now=now, scrapes=(scrape,))).closed
                if isinstance(one, Finding)
            )
            known = (*state.open_findings(), *past)
            incidents = group_incidents(known, (one.result for one in state.rules.values()), now)
            alerts = step_incident_alerts(alerts, incidents, now)
            yield now, present(alerts, (), now, SETTINGS, {TIER: state.requests_waiting(TIER)})


@pytest.mark.parametrize("name", SCENES)
def test_incident_is_posted_and_resolved_once(name: str) -> None:
    parts, expected = SCENES[name]
    begun: list[str] = []
    ended: list[str] = []
    for _, payloads in Watched(pages(parts), 1_790_000_000.0).posts():
        firing = {one.title for one in payloads if one.firing}
        begun += sorted(firing - set(begun))
        assert not firing & set(ended), "none fires again"
        ended += sorted({one.title for one in payloads if not one.firing} - set(ended))
    assert begun == expected
    assert ended == (expected if name != "slow" else []), "a slow machine is not over"


def test_the_annotations_follow_the_incident() -> None:
    said = [
        payloads[0].body["annotations"]
        for _, payloads in Watched(pages(CASCADE_PARTS), 1_790_000_000.0).posts()
        if payloads and payloads[0].firing
    ]
    queues = [int(one["queue"].split()[0].replace(",", "")) for one in said]
    assert max(queues) > 3 * queues[0]
    assert len({one["summary"] for one in said}) > 2
    assert {one.get("stage", "") for one in said} >= {"4 of 4, user-visible"}
    assert "First suspect: prompts are longer than planned: " in said[0]["description"]
    assert all("Shed or reroute load now" in one["description"] for one in said)
    assert max(len(one["held_back"].split(",")) for one in said if "held_back" in one) >= 2


def notified(called: Pager, status: str) -> list[tuple[str, str]]:
    """Receiver and name of the alerts that were notified with this status."""
    return [
        (message["receiver"], alert["labels"]["alertname"])
        for message in list(called.messages)
        for alert in message["alerts"]
        if alert["status"] == status
    ]


@pytest.mark.server
def test_posts_page_a_cascade_once(tmp_path: Path) -> None:
    found = pages(CASCADE_PARTS)
    routes = tmp_path / "alertmanager.sample.yaml"
    with pager() as called:
        routes.write_text(
            receivers_at(sped_up(ROUTES.read_text(encoding="utf-8"), ROUTE_TIMES, 1000), called.url), encoding="utf-8"
        )
        with alertmanager(tmp_path, routes) as manager:
            client = AlertmanagerClient(Peer(url=manager.url))
            page = ("pages", "SizewatchKvCacheCascade")
            # What is watched ends now, so that every end lies behind Alertmanager's clock.
            ever: list[AlertPayload] = []
            for _, payloads in Watched(found, time.time() - found[-1][0]).posts():
                ever += payloads
                assert client.round(payloads) == {}
                for one in payloads:
                    # Alertmanager must have seen each state before the next.
                    assert wait_for(lambda one=one: page in notified(called, "firing" if one.firing else "resolved"))
            client.round([replace(ever[0], body=elsewhere(ever[0]))])
            # When a later alert was told, everything before it was.
            assert wait_for(lambda: ("pages", "Later") in notified(called, "firing"))
            assert notified(called, "firing") == [page, ("pages", "Later")]
            assert notified(called, "resolved") == [page]


def elsewhere(one: AlertPayload) -> dict[str, object]:
    """The body of an alert that fires about another tier."""
    return {"labels": one.body["labels"] | {"tier": "other", "alertname": "Later"}, "annotations": {}}
