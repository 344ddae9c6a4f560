"""A page that holds several engines under the live loop and in replay: each is a replica, and a router is none."""

import gzip
import json
from pathlib import Path

import pytest
import yaml
from loops import LoopParts, scrape_loop
from paths import TESTS

from agent.config.files import load_plan
from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.replay.replay import replay
from agent.scrape.scrapers import GONE_SECONDS, Scrapers, Target
from agent.sources.recording import load
from rules.plan.load_bins import build_tier_context
from rules.verdicts.verdict import Subject, Verdict

T = 1_790_000_000.0
TWO = (TESTS / "cases" / "04-sidecar-two-workers" / "page.prom").read_text()
ROUTER = (TESTS / "cases" / "01-router" / "page.prom").read_text()
ONE = "\n".join(line for line in TWO.splitlines() if "127.0.0.1:8002" not in line) + "\n"
WORKERS = ("a/127.0.0.1:8001", "a/127.0.0.1:8002")


class Sidecar:
    """A page that can be changed, at a clock that can be set."""

    def __init__(self) -> None:
        self.page, self.now = TWO, T

    def fetch(self) -> bytes:
        if not self.page:
            raise ScrapeError(ScrapeFailure.CONNECT, "refused")
        return self.page.encode()

    def close(self) -> None:
        """Nothing is held."""

    def loop(self, pool: str = "mixed") -> LoopParts:
        options = Peer(url="http://127.0.0.1:1/metrics", timeout_seconds=60.0)
        target = Target(tier="t", replica="a", pool=pool, peer=options)
        scrapers = Scrapers([target], clock=lambda: self.now, fetcher=lambda *options: self)  # type: ignore[arg-type, return-value]
        return scrape_loop([target], {"t": build_tier_context("t", None)}, scrapers, lambda: self.now)

    def cycle(self, parts: LoopParts, seconds: float = 15.0) -> None:
        self.now += seconds
        parts.loop.run_cycle()


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar()


def replicas(parts: LoopParts) -> list[str]:
    return [name for _, name in parts.loop.state.replicas]


def verdict(parts: LoopParts, rule: str, replica: str | None) -> str:
    result = parts.loop.state.rules[rule, Subject(tier="t", replica=replica)].result
    return result.status.value if isinstance(result, Verdict) else result.reason.value


def test_each_worker_is_a_replica(sidecar: Sidecar) -> None:
    parts = sidecar.loop("decode")
    for _ in range(3):
        sidecar.cycle(parts)
    assert tuple(replicas(parts)) == WORKERS
    pages = [one.track.last for one in parts.loop.state.replicas.values()]
    assert [page.gauges["kv_utilization"] for page in pages if page] == [0.11, 0.93]
    (tier,) = parts.status(sidecar.now).tiers
    assert [(one.name, one.up, one.pool) for one in tier.replicas] == [(name, True, "decode") for name in WORKERS]
    assert parts.loop.evaluator.tier("t").pools == dict.fromkeys(WORKERS, "decode")
    assert verdict(parts, "TierDown", None) == "ok"


def test_vanished_worker_is_down_then_gone(sidecar: Sidecar) -> None:
    parts = sidecar.loop()
    sidecar.page = ""
    sidecar.cycle(parts)
    assert replicas(parts) == ["a"], "a page that is down at first"
    sidecar.page = TWO
    for _ in range(3):
        sidecar.cycle(parts)
    assert tuple(replicas(parts)) == WORKERS
    sidecar.page = ""
    for _ in range(6):
        sidecar.cycle(parts)
    assert [verdict(parts, "TargetDown", name) for name in WORKERS] == ["warning", "warning"]
    sidecar.page = TWO
    for _ in range(3):
        sidecar.cycle(parts)
    sidecar.page = ONE + 'sglang_num_running_reqs{worker_addr="http://127.0.0.1:8003"} 1\n'
    for _ in range(3):
        sidecar.cycle(parts)
    assert [verdict(parts, "TargetDown", name) for name in WORKERS] == ["ok", "warning"]
    sidecar.cycle(parts, GONE_SECONDS)
    assert replicas(parts) == [WORKERS[0], "a/127.0.0.1:8003"]


def test_router_page_is_no_replica(sidecar: Sidecar) -> None:
    parts = sidecar.loop()
    sidecar.page = ROUTER
    for _ in range(20):
        sidecar.cycle(parts)
    assert replicas(parts) == []
    assert parts.loop.state.open_findings() == ()
    (tier,) = parts.status(sidecar.now).tiers
    ((row),) = tier.replicas
    assert not row.up
    assert "a router's page" in row.problems[0]


def test_replay_judges_each_worker(tmp_path: Path) -> None:
    lines = [json.dumps({"t": T + 15 * cycle, "text": TWO}) for cycle in range(20)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps({"t": T, "text": ROUTER}).encode()))
    targets = [{"file": f"{name}.jsonl.gz", "tier": "cpu-small", "replica": name} for name in "ax"]
    (tmp_path / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": "two", "targets": targets}))
    recording, problems = load(tmp_path)
    result = replay(recording, load_plan(TESTS / "plans" / "cpu-small.yaml"), 60.0, problems)
    assert {one.replica for one in result.windows if one.replica} == set(WORKERS)
    assert {one.result.subject.replica for one in result.rule_states} == {*WORKERS, None}
    assert "a router's page" in result.problems[0]
