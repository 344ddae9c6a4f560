"""A real engine under an overload of requests four times as long as the benchmark's: all surfaces say one thing.

The recording (`tests/recordings/overload`) has three quiet minutes, four minutes of 4 rps of which about 2.8 finish, and
the recovery. A daemon scrapes its pages on a simulated clock. At ten moments the status page, `status`, `/api/status`,
`check`, `whatif`, `prewarm` and the gauges are asked; at the height and at the end a report is written.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from building import build_once
from daemon_runs import at, run_command
from loopback import answering
from paths import TESTS
from recorded import folder

from agent.config.load import load
from agent.daemon.factory import assemble
from agent.daemon.status_builder import status
from agent.sources.recording import load as load_recording
from agent.sources.recording import scrapes
from exporters.metrics import exposition
from exporters.status.page import render_page, status_json
from exporters.status.records import AgentHealth
from rules.catalogue.registry import ACTIONS

TIER = "cpu-small"
PLAN = TESTS / "plans" / "cpu-small-short.yaml"
OVERLOAD_BEGIN, OVERLOAD_END = 180.0, 420.0
"""Seconds after the first scrape at which long requests begin and end to arrive."""

MOMENTS = (100.0, 170.0, 240.0, 285.0, 330.0, 375.0, 415.0, 480.0, 600.0, 830.0)
HEIGHT, LAST = 415.0, 830.0
ARRIVING_RPS, COMPLETED_RPS = 4.0, 2.8
"""What the clients sent, and what they had back in the last two minutes of the overload."""

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What every surface says at one moment; `whatif` by instances, exit codes beside the documents."""

    prewarm: Json
    check: tuple[int, Json]
    whatif: Mapping[int, tuple[int, Json]]
    overview: tuple[int, str]
    api: Json
    page: str
    metrics: str
    report: Json | None

    @property
    def recommended(self) -> int:
        count: int = self.prewarm["recommendation"]["replicas"]
        return count

    @property
    def words(self) -> str:
        """The status page as text."""
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.page))

    def read_gauge(self, name: str) -> float:
        (line,) = (one for one in self.metrics.splitlines() if one.startswith(f'{name}{{tier="{TIER}"}}'))
        return float(line.rpartition(" ")[2])


def run_at(now: float, *words: str) -> tuple[int, str]:
    """Return the exit code of a command at that time, and its standard output."""
    with at(now):
        return run_command(*words)[:2]


def run_json(now: float, *words: str) -> tuple[int, Json]:
    code, text = run_at(now, *words, "--format", "json")
    return code, json.loads(text)


def build_response(body: bytes, kind: str = "text/plain; version=0.0.4") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def watch_recording(into: Path, later: float) -> dict[float, Moment]:
    """Return the surfaces at each of MOMENTS, of a daemon that scrapes the recorded pages so many seconds later."""
    into.mkdir()
    recording, _ = load_recording(folder("overload"))
    pages = [one for one in scrapes(recording, []) if one.body is not None]
    begin = pages[0].t + later
    clock = [begin]
    moments: dict[float, Moment] = {}
    served, answer = [build_response(b"")], [build_response(b"")]
    (into / "plan.yaml").write_text(PLAN.read_text())
    config = into / "sizewatch.yaml"
    with answering(served) as engine, answering(answer) as web:
        target = {"url": f"{engine}/metrics", "tier": TIER, "replica": "r0"}
        whole = {"plan": "plan.yaml", "targets": [target], "gpus": {"source": "none"}, "scrape_interval": "5s"}
        config.write_text(yaml.safe_dump(whole))
        with at(begin):
            daemon = assemble(load(config), clock=lambda: clock[0])
        try:
            due = list(MOMENTS)
            for before, scrape in zip([None, *pages], pages, strict=False):
                now = clock[0] = scrape.t + later
                served[0] = build_response(scrape.body or b"")
                with at(now):
                    daemon.loop.run_cycle()
                    if before is None or before.t // 60 != scrape.t // 60:
                        daemon.forecast(now)
                if due and now - begin >= due[0]:
                    offset = due.pop(0)
                    moments[offset] = ask_surfaces(daemon, config, now, answer, web, offset in (HEIGHT, LAST))
        finally:
            daemon.close(clock[0])
    return moments


def ask_surfaces(daemon: Any, config: Path, now: float, answer: list[bytes], web: str, with_report: bool) -> Moment:
    daemon.forecast(now)
    found = status(daemon, now, AgentHealth(), started_at=now - 60)
    api = status_json(found)
    answer[0] = build_response(json.dumps(api).encode(), "application/json")
    ask = ("-c", str(config), "--tier", TIER)
    report = None
    if with_report:
        out = config.parent / f"report-{now:.0f}"
        run_at(now, "report", "-c", str(config), "--since", "1h", "--out", str(out))
        report = json.loads((out / "report.json").read_text())["tiers"][0]
    return Moment(
        prewarm=run_json(now, "prewarm", *ask)[1],
        check=run_json(now, "check", "-c", str(config)),
        whatif={count: run_json(now, "whatif", *ask, "--instances", str(count)) for count in (1, 2, 3, 6)},
        overview=run_at(now, "status", "--url", web),
        api=api,
        page=render_page(found).decode(),
        metrics=exposition.render(found, "text/plain")[0].decode(),
        report=report,
    )


@pytest.fixture(scope="module", params=[0.0, 8 * 3600.0], ids=["across midnight", "within a day"])
def moments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Moment]:
    """It was recorded across midnight (UTC), when capacities are estimated anew."""
    later: float = request.param
    return build_once(tmp_path_factory, f"overload-{later:.0f}", partial(watch_recording, later=later))


@pytest.fixture(params=MOMENTS)
def moment(request: pytest.FixtureRequest, moments: dict[float, Moment]) -> Moment:
    found: Moment = moments[request.param]
    return found


@pytest.fixture(params=[one for one in MOMENTS if OVERLOAD_BEGIN + 90 < one <= OVERLOAD_END])
def overloaded(request: pytest.FixtureRequest, moments: dict[float, Moment]) -> Moment:
    found: Moment = moments[request.param]
    return found


def test_surfaces_have_one_count_and_sentence(moment: Moment) -> None:
    decision = moment.prewarm["recommendation"]
    overview = moment.api["overview"][0]
    assert overview["recommended"] == moment.recommended
    assert moment.read_gauge("sizewatch_recommended_replicas") == moment.recommended
    # A command reads the last minute once more: its demand may differ in the third digit.
    sentence = decision["sentence"].partition(" (lead")[0]
    assert sentence in moment.overview[1]
    assert sentence in moment.words
    assert decision["sentence"].partition("); ")[2] in moment.overview[1]
    missing = moment.recommended - 1
    assert (f"start {missing} now" in moment.words) == (missing > 0)
    assert ("enough for that" in moment.words) == (missing == 0)


def test_every_surface_has_one_capacity(moment: Moment) -> None:
    usable = moment.prewarm["recommendation"]["count"]["capacity"]["rps"]
    told = {
        "gauge": moment.read_gauge("sizewatch_capacity_rps"),
        "check": moment.check[1]["tiers"][0]["capacity_rps"],
        **{f"whatif {count}": answer["usable"]["rps"] for count, (_, answer) in moment.whatif.items()},
    }
    assert told == {name: pytest.approx(usable) for name in told}


def test_exit_codes_agree_with_the_words(moment: Moment) -> None:
    code, text = moment.overview
    headline = text.splitlines()[0]
    assert (code == 1) == ("incident" in headline) == bool(moment.api["overview"][0]["incidents"])
    assert headline.partition(" ")[2] in moment.words
    for whatif_code, answer in moment.whatif.values():
        assert (whatif_code == 1) == ("would break" in answer["sentence"] or "likely break" in answer["sentence"])
        assert (whatif_code == 0) == ("hold" in answer["sentence"])


def test_growing_queue_never_advises_against_replicas(overloaded: Moment) -> None:
    everything = overloaded.words + json.dumps(overloaded.api) + overloaded.overview[1] + json.dumps(overloaded.check)
    assert ACTIONS["keep_replicas"] not in everything
    assert "as planned" not in overloaded.words
    assert "no objective is surely missed" not in overloaded.words


def test_the_count_covers_what_arrives(overloaded: Moment) -> None:
    assert overloaded.recommended >= math.ceil(ARRIVING_RPS / COMPLETED_RPS)
    assert overloaded.prewarm["recommendation"]["now_requests"] == pytest.approx(ARRIVING_RPS, rel=0.15)


def test_size_is_broken_during_incident(overloaded: Moment) -> None:
    code, answer = overloaded.whatif[1]
    assert (code, answer["slo"]) == (1, "broken")
    assert re.match(r"(KV cache cascade|TTFT SLO burn) is open at this size since ", answer["sentence"])
    assert overloaded.whatif[6][0] == 0


def test_the_cause_names_the_lengths(moments: dict[float, Moment]) -> None:
    suspect = r"prompts are longer than planned: mean [12]\d\d tokens, 79 benchmarked"
    root = r"prompts are [23](\.\d)? ?x,? .*as long as benchmarked"
    for offset in (240.0, 330.0, 375.0, HEIGHT):
        assert re.search(f"{suspect}|{root}", moments[offset].words, re.IGNORECASE), offset


@pytest.mark.parametrize("offset", [100.0, 170.0])
def test_quiet_minutes_gain_nothing(moments: dict[float, Moment], offset: float) -> None:
    quiet = moments[offset]
    assert (quiet.overview[0], quiet.recommended, quiet.whatif[1][0]) == (0, 1, 0)
    assert quiet.api["overview"][0]["state"] == "learning"


def test_one_replica_is_enough_after_overload(moments: dict[float, Moment]) -> None:
    last = moments[LAST]
    assert (last.overview[0], last.recommended) == (0, 1)
    # The load of a what-if is the busiest of the hour, which one replica did not carry.
    assert [last.whatif[count][0] for count in (1, 3)] == [1, 0]
    # What the overload showed stays known: of 13.9 usable, 9.4 by the work, which are 3.6 of the day's requests.
    assert last.read_gauge("sizewatch_capacity_rps") in (pytest.approx(9.4, rel=0.05), pytest.approx(3.6, rel=0.05))


@pytest.mark.parametrize("offset", [HEIGHT, LAST])
def test_the_report_proposes_no_other_size(moments: dict[float, Moment], offset: float) -> None:
    report = moments[offset].report
    assert report["proposal"]["replicas"] is None
    assert report["proposal"]["kind"] == "no_recommendation"
