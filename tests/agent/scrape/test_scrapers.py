"""Scraping all targets of a cycle over real sockets: one target's trouble is its own."""

import logging
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from engine_server import (
    Act,
    Engine,
    Handler,
    answers_500,
    born,
    cuts_off,
    engines,
    give,
    hangs,
    is_html,
    is_strange,
    pages,
    redirects,
)
from paths import TESTS
from waiting import CEILING_SECONDS, wait_for

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import PageFetcher
from agent.scrape import scrapers as scrapers_module
from agent.scrape.scrapers import PageReader, ScrapeResult, Scrapers, Target

TIMEOUT = 0.3


def targets(served: Sequence[Engine], hanging: Collection[int] = ()) -> list[Target]:
    """Those that will hang are given up soon, the others as good as never."""
    return [
        Target(
            tier="t",
            replica=f"r{place}",
            pool="mixed",
            peer=Peer(url=engine.url, timeout_seconds=TIMEOUT if place in hanging else CEILING_SECONDS),
        )
        for place, engine in enumerate(served)
    ]


@pytest.fixture
def served() -> Iterator[list[Engine]]:
    with engines(3) as three:
        yield three


@pytest.fixture
def scrapers(served: list[Engine]) -> Iterator[Scrapers]:
    with closing(Scrapers(targets(served))) as made:
        yield made


def run_cycle(scrapers: Scrapers) -> Mapping[tuple[str, str], ScrapeResult]:
    return scrapers.collect_results(scrapers.start_scrapes())


def kinds(cycle: Any) -> list[str]:
    """What became of each target: `page`, the kind of its failure, or `left alone`."""
    return [
        "page" if o.snapshot is not None else str(o.error.kind) if o.error is not None else "left alone"
        for o in cycle.values()
    ]


def test_every_target_gives_a_timed_page(served: list[Engine], scrapers: Scrapers) -> None:
    before = time.time()
    cycle = run_cycle(scrapers)
    after = time.time()
    assert list(cycle) == [("t", "r0"), ("t", "r1"), ("t", "r2")]
    for engine, outcome in zip(served, cycle.values(), strict=True):
        assert outcome.snapshot.t == outcome.t
        assert before <= engine.asked[0] <= outcome.t <= after
        assert 0 < outcome.seconds <= after - before


def test_hanging_targets_are_awaited_together(served: list[Engine], scrapers: Scrapers) -> None:
    together = threading.Barrier(len(served))

    def waits(handler: Handler) -> None:
        together.wait(CEILING_SECONDS)
        give(handler, handler.server.pages[0])

    for engine in served:
        engine.act = waits
    assert kinds(run_cycle(scrapers)) == ["page"] * 3
    for engine in served:
        engine.act = hangs
    hanging = Scrapers(targets(served, {0, 1, 2}))
    assert kinds(run_cycle(hanging)) == ["timeout"] * 3
    hanging.close()


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (answers_500, ScrapeFailure.HTTP_STATUS),
        (redirects, ScrapeFailure.REDIRECT),
        (cuts_off, ScrapeFailure.CUT_OFF),
        (is_strange, ScrapeFailure.INCONSISTENT),
        (is_html, ScrapeFailure.CONTENT_TYPE),
    ],
)
def test_failing_target_is_named_by_kind(
    served: list[Engine], scrapers: Scrapers, act: Act, kind: ScrapeFailure
) -> None:
    served[0].act = act
    assert kinds(run_cycle(scrapers)) == [str(kind), "page", "page"]


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ((TESTS / "cases" / "10-empty" / "headers_only.prom").read_text(), "vLLM"),
        (
            '# TYPE vllm:num_requests_running gauge\n# TYPE vllm:cache_config_info gauge\nhttp_requests_total{a="b"} 3\n',
            "vLLM",
        ),
        ("# TYPE sglang:num_running_reqs gauge\n# TYPE sglang:time_to_first_token_seconds histogram\n", "SGLang"),
        ("# TYPE tgi_queue_size gauge\n# TYPE tgi_batch_current_size gauge\nprocess_start_time_seconds 17\n", "TGI"),
        ("# TYPE ray_vllm_num_requests_running gauge\n# TYPE ray_vllm_num_requests_waiting gauge\nup 1\n", "vLLM"),
    ],
)
def test_declared_engine_has_no_series_yet(page: str, title: str) -> None:
    with pytest.raises(ScrapeError, match=f"inconsistent: {title}, but no series yet"):
        PageReader().read(page.encode(), 0.0)


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        ("# TYPE http_requests_total counter\nhttp_requests_total 3\nprocess_start_time_seconds 17\n", None),
        ((TESTS / "cases" / "10-empty" / "scalellm.prom").read_text(), None),
        ("# TYPE request_success_total counter\nup 1\n", None),
        ("# TYPE vllm:num_requests_running gauge\n# TYPE vllm:num_requests_waiting gauge\nup 1\n", "sglang"),
        ('# TYPE vllm:num_requests_running gauge\nvllm:prompt_tokens_total{model_name="m"} 1\n', None),
    ],
)
def test_page_without_samples_is_no_engine(page: str, engine: str | None) -> None:
    with pytest.raises(ScrapeError, match=r"no page of an engine|not a page of sglang"):
        PageReader(engine).read(page.encode(), 0.0)


def test_target_down_is_left_alone_and_returns(served: list[Engine], scrapers: Scrapers) -> None:
    served[0].act = answers_500
    seen = [kinds(run_cycle(scrapers))[0] for _ in range(14)]
    # After the first two failures no cycle is left out, then always one.
    assert [cycle for cycle, what in enumerate(seen, 1) if what == "http_status"] == [1, 2, 3, 5, 7, 9, 11, 13]
    assert set(seen) == {"http_status", "left alone"}
    assert [len(engine.asked) for engine in served] == [8, 14, 14]
    served[0].act = None
    after = [kinds(run_cycle(scrapers))[0] for _ in range(2)]
    assert "page" in after, "back within two cycles, wherever in its waiting it was"
    assert run_cycle(scrapers)["t", "r0"].snapshot is not None
    served[0].act = answers_500
    assert [kinds(run_cycle(scrapers))[0] for _ in range(3)] == ["http_status"] * 3


def test_clock_set_back_delays_no_target() -> None:
    now = [10_000.0]
    with engines(1) as served:
        scrapers = Scrapers(targets(served), clock=lambda: now[0])
        served[0].act = answers_500
        for _ in range(3):
            run_cycle(scrapers)
        served[0].act = None
        now[0] -= 3600.0
        seen = [kinds(run_cycle(scrapers))[0] for _ in range(2)]
        scrapers.close()
    assert seen == ["left alone", "page"]


@pytest.mark.parametrize(
    ("fetch", "name"),
    [(Mock(side_effect=KeyError("a defect")), "KeyError"), (Mock(return_value=None), "AttributeError")],
)
def test_defect_costs_its_target_alone(fetch: Mock, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fetcher(options: Peer, *accept: str) -> Any:
        return Mock(fetch=fetch) if options.url.endswith("broken") else PageFetcher(options, *accept)

    with engines(1) as served:
        sound = targets(served)[0]
        broken = replace(sound, replica="b", peer=Peer(url=f"{served[0].url}/broken"))
        scrapers = Scrapers([broken, sound], fetcher=fetcher)
        with caplog.at_level(logging.ERROR):
            cycle = run_cycle(scrapers)
        scrapers.close()
    assert kinds(cycle) == ["inconsistent", "page"]
    assert name in str(cycle["t", "b"].error)
    (record,) = caplog.records
    assert "tier=t replica=b" in record.getMessage()
    assert record.exc_info is not None


@contextmanager
def half_held(count: int, cycle_seconds: float = CEILING_SECONDS) -> Iterator[tuple[Scrapers, threading.Event]]:
    """Scrapers of `count` targets that hang, each before one that answers."""
    free = threading.Event()

    def answer(url: str) -> bytes:
        if "held" in url:
            free.wait(CEILING_SECONDS)
        return pages()[0]

    def fetcher(options: Peer, accept: str = "") -> Any:
        return SimpleNamespace(fetch=lambda: answer(options.url), close=list)

    both = [
        Target(tier="t", replica=f"{kind}{n}", pool="mixed", peer=Peer(url=f"http://{kind}{n}/metrics"))
        for n in range(count)
        for kind in ("held", "well")
    ]
    scrapers = Scrapers(both, fetcher=fetcher, cycle_seconds=cycle_seconds)
    try:
        yield scrapers, free
    finally:
        free.set()
        scrapers.close()


def test_many_hung_targets_cost_nobody() -> None:
    with half_held(32) as (scrapers, _):
        started = scrapers.start_scrapes()

        def interrupt() -> None:
            if wait_for(lambda: all(scrape.done() for key, scrape in started.items() if "well" in key[1])):
                scrapers.interrupt()

        closer = threading.Thread(target=interrupt)
        closer.start()
        cycle = scrapers.collect_results(started)
        closer.join()
        assert kinds(cycle) == ["left alone", "page"] * 32


@pytest.mark.parametrize(("cycle_seconds", "alone"), [(0.75, 0.01), (1.5, 0.02), (15.0, 0.2), (float("inf"), 0.2)])
def test_wait_alone_leaves_the_cycle(cycle_seconds: float, alone: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(scrapers_module, "wait", lambda scrapes, seconds: waits.append(seconds))
    monkeypatch.setattr(scrapers_module, "time", SimpleNamespace(monotonic=lambda: 7.0, time=time.time))
    with half_held(2, cycle_seconds) as (scrapers, _):
        scrapers.start_scrapes()
    assert waits == pytest.approx([alone] * 4)


def test_late_scrape_failed_and_occupies_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapers_module, "CLOSING_SHARE", 0.0)
    with half_held(1) as (scrapers, free):
        started = scrapers.start_scrapes()
        assert wait_for(lambda: started["t", "well0"].done())
        assert kinds(scrapers.collect_results(started)) == ["timeout", "page"]
        monkeypatch.undo()
        assert kinds(run_cycle(scrapers)) == ["left alone", "page"]
        free.set()
        assert wait_for(lambda: kinds(run_cycle(scrapers)) == ["page", "page"])


def test_slow_parse_costs_its_own_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    free, read = threading.Event(), PageReader.read_engines
    slow: list[PageReader] = []

    def read_slowly(reader: PageReader, body: bytes, t: float) -> Any:
        if reader in slow:
            free.wait(CEILING_SECONDS)
        return read(reader, body, t)

    monkeypatch.setattr(PageReader, "read_engines", read_slowly)
    monkeypatch.setattr(scrapers_module, "GRACE_SECONDS", 0.0)
    with engines(2) as served:
        scrapers = Scrapers(targets(served, {0}))
        slow.append(scrapers._scrapers["t", "r0"].reader)

        def is_parsed_for_long() -> bool:
            cycle = run_cycle(scrapers)
            assert kinds(cycle)[1] == "page"
            error = cycle["t", "r0"].error
            return error is not None and "still looked up, read or parsed" in error.text

        # On a busy machine the page itself may come too late.
        assert wait_for(is_parsed_for_long)
        free.set()
        assert wait_for(lambda: kinds(run_cycle(scrapers)) == ["page", "page"])
        scrapers.close()


def test_dripping_targets_leave_no_thread() -> None:
    """Each target that drips holds a thread until its deadline, and the others keep their interval."""
    dripping, timeout_seconds = 20, 0.4

    def drip(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b"x")
                time.sleep(0.05)

    before = {thread for thread in threading.enumerate() if thread.name == "scrape"}
    with engines(2) as served:
        served[0].act = drip
        slow, well = (Peer(url=engine.url, timeout_seconds=timeout_seconds) for engine in served)
        several = [Target(tier="t", replica=f"drip{n}", pool="mixed", peer=slow) for n in range(dripping)]
        scrapers = Scrapers([*several, Target(tier="t", replica="well", pool="mixed", peer=well)])
        for _ in range(3):
            cycle = run_cycle(scrapers)
            assert kinds(cycle)[-1] == "page"
            assert set(kinds(cycle)[:-1]) <= {"timeout", "left alone"}
            threads = {thread for thread in threading.enumerate() if thread.name == "scrape"} - before
            assert len(threads) <= dripping + 1
        scrapers.close()
    assert wait_for(lambda: {thread for thread in threading.enumerate() if thread.name == "scrape"} <= before)


def test_endless_lookup_costs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """getaddrinfo knows no deadline: a resolver that is away holds it for half a minute."""
    found, ask = threading.Event(), socket.getaddrinfo

    def looked_up(host: Any, *words: Any, **more: Any) -> Any:
        if host == "engine.example":
            found.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ask(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    with engines(1) as served:
        url = "http://engine.example:8000/metrics"
        away = Target(tier="t", replica="a", pool="mixed", peer=Peer(url=url, timeout_seconds=0.2))
        scrapers = Scrapers([away, *targets(served)])
        cycle = run_cycle(scrapers)
        assert not found.is_set()
        assert kinds(cycle) == ["timeout", "page"]
        error = cycle["t", "a"].error
        assert "still looked up" in error.text
        assert kinds(run_cycle(scrapers)) == ["left alone", "page"], "the scrape that hangs has its connection still"
        found.set()
        assert wait_for(lambda: "connect" in kinds(run_cycle(scrapers)))
        scrapers.close()


def release_of(cycle: Mapping[tuple[str, str], ScrapeResult]) -> str | None:
    (one,) = cycle.values()
    return one.snapshot.facts.get("engine_version")


@contextmanager
def one_engine(release: bytes, **keys: Any) -> Iterator[tuple[Engine, Scrapers]]:
    with engines(1) as (engine,):
        engine.release = release
        (target,) = targets([engine])
        scrapers = Scrapers([replace(target, **keys)])
        yield engine, scrapers
        scrapers.close()


def test_release_is_asked_once_a_process() -> None:
    with one_engine(b'{"version": "0.32.0+cpu"}', engine_version="0.31.0") as (engine, scrapers):
        assert [release_of(run_cycle(scrapers)) for _ in range(3)] == ["0.32.0+cpu"] * 3
        assert engine.release_asked == 1
        engine.pages, engine.release = tuple(born(page, 2e9) for page in engine.pages), b'{"version": "0.33.0"}'
        # A restart may be an upgrade.
        assert [release_of(run_cycle(scrapers)) for _ in range(2)] == ["0.33.0", "0.33.0"]
        assert engine.release_asked == 2


@pytest.mark.parametrize("configured", [None, "0.31.0"])
@pytest.mark.parametrize(
    "told", [b"", b"{", b"[]", b'{"version": 3}', b'{"version": "a b"}', b'{"version": "' + b"9" * 5000, b"[" * 4000]
)
def test_engine_without_a_release_is_scraped(told: bytes, configured: str | None) -> None:
    with one_engine(told, engine_version=configured) as (engine, scrapers):
        assert [release_of(run_cycle(scrapers)) for _ in range(3)] == [configured] * 3
        assert engine.release_asked == 1


def test_release_is_asked_beside_a_proxied_page() -> None:
    asked: list[str] = []

    def fetcher(options: Peer, accept: str = "") -> Any:
        asked.append(options.url)
        return Mock(fetch=lambda: pages()[0])

    options = Peer(url="https://api/proxy/pod/metrics?token=x", timeout_seconds=1.0)
    scrapers = Scrapers([Target(tier="t", replica="r", pool="mixed", peer=options)], fetcher=fetcher)
    run_cycle(scrapers)
    run_cycle(scrapers)
    assert asked[1] == "https://api/proxy/pod/version"
    scrapers.close()
