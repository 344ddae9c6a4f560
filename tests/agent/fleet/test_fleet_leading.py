"""Two agents of one fleet and a Lease: both judge, one posts; the other goes on where the first ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kube_standin import Kube, serving
from loops import LoopParts, store_loop
from stored_recordings import MemoryStore, agent_samples
from test_fleet_turns import TIER, VIEW, Away, times
from waiting import CEILING_SECONDS, wait_for

from agent.alerting.service import AlertingService, AlertingSink
from agent.config.load import parse_config
from agent.config.store import Lease
from agent.errors import ConfigError
from agent.fleet import agent_series
from agent.fleet.tier_readers import ReplicaReader
from agent.kubernetes import lease
from agent.kubernetes.api import KubernetesEndpoint
from agent.kubernetes.lease import LeaderElection
from agent.sources.store import StoreSource


@contextmanager
def alertmanager() -> Iterator[tuple[str, list[str]]]:
    """An address, and the names of the alerts that were posted to it."""
    posted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.extend(alert["labels"]["alertname"] for alert in body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", posted
    finally:
        server.shutdown()
        server.server_close()


def member(name: str, server: KubernetesEndpoint, url: str, clock: Any) -> LoopParts:
    keys = {"role": "standalone", "alerting": {"path": "posts", "alertmanagers": [{"url": url}]}}
    config = parse_config(keys, environment={})
    samples = list(agent_samples("cascade_fast"))
    api = Away(MemoryStore.of(samples))
    asking = ReplicaReader(TIER, agent_series.selector(TIER), agent_series.AgentPages(), api)
    source = StoreSource(
        readers={("test", TIER): asking},
        api=api,
        agent_tiers=frozenset(),
        delay_seconds=0.0,
        leading=LeaderElection(Lease(name="fleet", namespace="llm", identity=name), server),
    )
    parts = store_loop(source, {TIER: VIEW}, clock)
    service, loop = AlertingService(config.alerting, clock), parts.loop
    loop.sinks += (AlertingSink(service, source, loop.state, loop.evaluator.tiers, lambda: parts.runtime.past),)
    return parts


def test_of_two_only_the_one_that_leads_posts_and_the_other_goes_on_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that is held is not lost on a busy machine, and nobody waits for the one that is given back.
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3600.0)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 2400.0)
    monkeypatch.setattr(lease, "RETRY_SECONDS", 0.1)
    (tmp_path / "token").write_text("good")
    begin, _ = times(list(agent_samples("cascade_fast")))
    now = begin - 1.0
    with serving(Kube()) as kube, alertmanager() as (one_url, of_one), alertmanager() as (other_url, of_other):
        server = KubernetesEndpoint(url=kube.url, token_file=str(tmp_path / "token"), timeout_seconds=CEILING_SECONDS)
        one = member("one", server, one_url, lambda: now)
        assert wait_for(lambda: one.source.is_leader)
        other = member("other", server, other_url, lambda: now)
        for _ in range(3):
            now += 60.0
            for each in (one, other):
                each.loop.run_cycle()
        assert wait_for(lambda: "KvCacheCascade" in of_one)
        findings = (*other.loop.state.open_findings(), *other.runtime.past)
        assert "KvCacheCascade" in {one.rule for one in findings}
        assert of_other == []
        assert (one.source.store_health().leads, other.source.store_health().leads) == (True, False)
        one.loop.stop()
        assert wait_for(lambda: other.source.is_leader)
        now += 10.0
        other.loop.run_cycle()
        assert wait_for(lambda: bool(of_other)), "alerts that fire go on from where it took over"
        other.loop.stop()
        assert kube.leases["fleet"]["spec"]["holderIdentity"] == ""


def test_one_that_cannot_ask_the_api_does_not_lead_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("stale")
    with serving(Kube()) as kube:
        server = KubernetesEndpoint(url=kube.url, token_file=str(tmp_path / "token"), timeout_seconds=CEILING_SECONDS)
        leading = LeaderElection(Lease(name="fleet", namespace="llm", identity="one"), server)
        assert wait_for(lambda: leading.trouble)
        assert "lease llm/fleet" in leading.trouble
        assert not leading.leads
        leading.stop()


def test_a_lease_takes_the_names_of_its_pod_and_says_which_are_missing() -> None:
    keys = {"role": "fleet", "store": {"url": "http://x"}, "fleet": {"lease": {}}}
    pod = {"POD_NAME": "fleet-0", "POD_NAMESPACE": "llm"}
    found = parse_config(keys, environment=pod).fleet.lease
    assert found is not None
    assert (found.name, found.namespace, found.identity) == ("sizewatch-fleet", "llm", "fleet-0")
    with pytest.raises(ConfigError) as caught:
        parse_config(keys, environment={})
    assert [text for text in caught.value.problems if "POD_NAME" in text and "downward API" in text]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"role": "fleet"}, "store: is missing"),
        (
            {"role": "fleet", "store": {"url": "http://x"}, "targets": [{"url": "http://y", "tier": "t"}]},
            "targets: role fleet",
        ),
        ({"role": "node", "fleet": {"turn": "60s"}}, "fleet: is for role fleet"),
        ({"role": "standalone", "tier_verdicts": False}, "tier_verdicts: may be false in role node only"),
        (
            {"role": "fleet", "store": {"url": "http://x"}, "tiers": {"t": {"from": "engines"}}},
            "tiers.t.selector: is missing",
        ),
        (
            {"role": "fleet", "store": {"url": "http://x"}, "tiers": {"t": {"selector": 'job="a"} or up{x="'}}},
            "tiers.t.selector: must be label matchers",
        ),
        (
            {"role": "fleet", "store": {"url": "http://x"}, "tiers": {"t": {"engine": "vlm"}}},
            "tiers.t.engine: must be one of",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_fleet_configuration_gets_wrong_is_told_with_its_place(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(keys, environment={})
    assert [text for text in caught.value.problems if text.startswith(said)], caught.value.problems
