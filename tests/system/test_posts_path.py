"""The whole path by posts, at the recordings' own times: evaluator, incidents, payloads, and a real Alertmanager."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import recorded
from alert_path_servers import ROUTE_TIMES, Pager, alertmanager, pager, receivers_at, sped_up
from paths import ROOT
from waiting import wait_for

from agent.alerting.delivery import AlertmanagerClient
from agent.config.files import load_plan
from agent.config.peer import Peer
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from exporters.alertmanager.payload import AlertPayload, AlertSettings, present
from rules.evaluator.incident_alerts import IncidentAlert, step_incident_alerts
from rules.evaluator.incidents import group_incidents
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import build_tier_context
from rules.verdicts.verdict import Finding

TIER, REPLICA = "cpu-small", "r0"
EVERY = 15.0
"""Seconds between two scrapes, as by default."""

SAMPLE = ROOT / "examples" / "alertmanager.yml"
SETTINGS = AlertSettings(resend_seconds=86_400.0)
"""So seldom that what fires at a time of the recording still fires now."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Seconds in which the engine does not answer."""

    seconds: float


Part = str | Dead
Pages = list[tuple[float, bytes | None]]

QUIET = ("diurnal_quiet",) * 3
CASCADE = ("steady_quiet", "kv_cascade", *QUIET)
SCENES: dict[str, tuple[tuple[Part, ...], list[str]]] = {
    "cascade": (CASCADE, ["KvCacheCascade of cpu-small/r0 (critical)"]),
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
            found += [(t + EVERY * n, None) for n in range(1, round(part.seconds / EVERY) + 1)]
            continue
        recording, problems = load(recorded.folder(part))
        assert problems == ()
        several = list(scrapes(recording, []))
        first = last = several[0].t - EVERY
        for one in several:
            if one.t - last > EVERY - 1.0:
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
        for _, payloads in Watched(pages(CASCADE), 1_790_000_000.0).posts()
        if payloads and payloads[0].firing
    ]
    queues = [int(one["queue"].split()[0].replace(",", "")) for one in said]
    assert max(queues) > 3 * queues[0]
    assert len({one["summary"] for one in said}) > 2
    assert {one.get("stage", "") for one in said} >= {"4 of 4, user-visible"}
    assert "First suspect: prompts are longer than planned: " in said[0]["description"]
    assert all("Shed or reroute load now" in one["description"] for one in said)
    assert max(len(one["held_back"].split(",")) for one in said if "held_back" in one) >= 2


def told(called: Pager, status: str) -> list[tuple[str, str]]:
    """Receiver and name of the alerts that were notified with this status."""
    return [
        (message["receiver"], alert["labels"]["alertname"])
        for message in list(called.messages)
        for alert in message["alerts"]
        if alert["status"] == status
    ]


@pytest.mark.server
def test_posts_page_a_cascade_once(tmp_path: Path) -> None:
    found = pages(CASCADE)
    routes = tmp_path / "alertmanager.sample.yaml"
    with pager() as called:
        routes.write_text(
            receivers_at(sped_up(SAMPLE.read_text(encoding="utf-8"), ROUTE_TIMES, 1000), called.url), encoding="utf-8"
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
                    assert wait_for(lambda one=one: page in told(called, "firing" if one.firing else "resolved"))
            client.round([replace(ever[0], body=elsewhere(ever[0]))])
            # When a later alert was told, everything before it was.
            assert wait_for(lambda: ("pages", "Later") in told(called, "firing"))
            assert told(called, "firing") == [page, ("pages", "Later")]
            assert told(called, "resolved") == [page]


def elsewhere(one: AlertPayload) -> dict[str, object]:
    """The body of an alert that fires about another tier."""
    return {"labels": one.body["labels"] | {"tier": "other", "alertname": "Later"}, "annotations": {}}
