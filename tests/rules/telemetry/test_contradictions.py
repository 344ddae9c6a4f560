"""Times of one source that exclude each other: told with both numbers, and quiet where skew or running requests explain them."""

import math
from pathlib import Path

import pytest
from paths import TESTS

from agent.scrape.scrapers import PageReader
from rules.telemetry.contradictions import at_once_contradiction, find_contradictions, find_page_contradiction
from rules.telemetry.histograms import Cumulative

EDGES = (0.001, 0.1, 1.0, 10.0, 100.0, math.inf)


@pytest.mark.parametrize(
    ("ttft", "e2e", "tpot", "tokens", "text", "wrong"),
    [
        (9.0, 3.6, None, None, "TTFT mean 9 s is above E2E mean 3.6 s", ("ttft", "e2e")),
        (0.3, 2.3, 45.0, 44, "TPOT 45 s x 43 tokens is 1935 s, E2E - TTFT is 2 s", ("ttft", "tpot", "e2e")),
        (0.3, 2.3, 4.5e-5, 44, "TPOT 4.5e-05 s x 43 tokens is 0.001935 s, E2E - TTFT is 2 s", ("tpot",)),
        (0.3, 2300.0, 0.045, 44, "TPOT 0.045 s x 43 tokens is 1.935 s, E2E - TTFT is 2300 s", ("ttft", "tpot", "e2e")),
        (7e-5, 4.1, 7.5e-5, 100, "TPOT 7.5e-05 s x 99 tokens is 0.007425 s, E2E - TTFT is 4.1 s", ("ttft", "tpot")),
        (7e-5, 4.1, 0.0415, 100, "TTFT mean 7e-05 s is below a tenth of a decode step", ("ttft",)),
        (7e-5, 4.1, None, 100, "TTFT mean 7e-05 s is below a tenth of a decode step", ("ttft",)),
        (
            2.0,
            2.0,
            None,
            44,
            "TTFT mean 2 s is E2E mean 2 s for 44 tokens: answers were not streamed",
            ("ttft", "tpot"),
        ),
        (2.0, 2.001, 2e-5, 44, "answers were not streamed", ("ttft", "tpot")),
    ],
)
def test_exclusive_times_tell_both_numbers(
    ttft: float, e2e: float, tpot: float | None, tokens: float | None, text: str, wrong: tuple[str, ...]
) -> None:
    (found,) = find_contradictions(ttft=ttft, e2e=e2e, tpot=tpot, tokens=tokens)
    assert text in found.text
    assert found.wrong == wrong
    assert found.not_streamed is ("not streamed" in text)


@pytest.mark.parametrize(
    ("ttft", "e2e", "tpot", "tokens"),
    [
        (0.3, 2.285, 0.045, 44),
        (3.61, 3.6, None, None),  # rounded
        (0.02, 0.47, 0.0035, 62),  # a client with time of its own after the last token
        (30.0, 30.1, 0.02, 4),  # a long prompt, a short answer
        (30.0, 30.2, 0.01, 60),  # little of the time is decode
        (2.0, 2.0, None, 1),  # one token: nothing follows it
        (5e-4, 0.05, 0.001, 50),  # a small model
        (0.0, 0.0, None, None),
        (None, 2.0, 0.1, 44),
        (0.3, None, 0.1, 44),
    ],
)
def test_times_that_can_be_are_quiet(
    ttft: float | None, e2e: float | None, tpot: float | None, tokens: float | None
) -> None:
    assert not list(find_contradictions(ttft=ttft, e2e=e2e, tpot=tpot, tokens=tokens))


def test_clients_are_held_against_rate_and_latency() -> None:
    told = "7 rps x 2.285 s are 16 requests at once, the load is 64 clients"
    assert at_once_contradiction(64, 7.0, 2.285, 5120) == told
    assert at_once_contradiction(8, 7.0, 2.285, 40) == told.replace("64", "8")
    assert at_once_contradiction(64, 7.0, 2.285, 320) == told  # 45 s for five requests of 2 s a client
    assert at_once_contradiction(64, 7.0, 2.285, 150) is None  # the slowest requests may be most of the run
    assert at_once_contradiction(3, 1.4, 0.7, 16) is None  # too few for a mean
    assert at_once_contradiction(64, 7.0, 2.285, None) is None  # an open loop below its cap, or one with failures
    assert at_once_contradiction(22, 7.0, 2.285, 5120) is None


def page(first: tuple[float, ...], whole: tuple[float, ...], *, ttft: float, e2e: float) -> dict[str, Cumulative]:
    return {"ttft_seconds": Cumulative(EDGES, first, ttft), "e2e_seconds": Cumulative(EDGES, whole, e2e)}


TOKENS = {"generation_tokens": 100_000.0}


def test_running_requests_refute_no_ttft() -> None:
    slow = page((0, 0, 0, 0, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=30_000.0, e2e=4_000.0)
    found = find_page_contradiction(slow, TOKENS)
    assert found[1] == ("ttft_seconds", "e2e_seconds")
    # 90 of 1,090 wait for their 600th second and have not finished: the mean TTFT is above the mean E2E, and may be.
    queued = page((0, 0, 1000, 1000, 1000, 1090), (0, 0, 0, 1000, 1000, 1000), ttft=54_500.0, e2e=4_000.0)
    assert find_page_contradiction(queued, TOKENS) is None


def test_few_requests_are_no_evidence() -> None:
    few = page((0, 0, 0, 0, 99, 99), (0, 0, 0, 99, 99, 99), ttft=3_000.0, e2e=400.0)
    assert find_page_contradiction(few, TOKENS) is None
    corrupted = page((0, 0, 1000, 1000, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=9e6, e2e=4_000.0)
    assert find_page_contradiction(corrupted, TOKENS) is None


def test_gaps_of_several_tokens_prove_nothing() -> None:
    times = page((0, 0, 1000, 1000, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=500.0, e2e=4_000.0)
    chunks = times | {"itl_seconds": Cumulative(EDGES, (0, 0, 20_000, 20_000, 20_000, 20_000), 3_500.0)}
    assert find_page_contradiction(chunks, TOKENS) is None
    nothing = times | {"itl_seconds": Cumulative(EDGES, (99_000,) * 6, 5.0)}
    found = find_page_contradiction(nothing, TOKENS)
    assert found[1] == ("itl_seconds",)


def test_oldest_vllm_page_contradicts_nothing() -> None:
    body = (TESTS / "cases" / "39-ttft-zero" / "page.prom").read_bytes()
    snapshot = PageReader().read(body, 1.8e9)
    assert snapshot.contradictory == {"ttft_seconds", "itl_seconds"}
    assert "e2e_seconds" in snapshot.histograms
    (problem,) = snapshot.problems
    assert problem.startswith("ttft_seconds: TPOT 7.519e-05 s x 99 tokens is 0.007444 s, E2E - TTFT is 4.125 s")
    for zeros in ((b" 0.5871782302856445\n", b" 0.0\n"), (b"} 60.0\n", b"} 0.0\n")):
        assert PageReader().read(body.replace(*zeros), 1.8e9).contradictory == {"ttft_seconds", "itl_seconds"}


@pytest.mark.parametrize("name", sorted(path.name for path in (TESTS / "pages").glob("*_after_load.prom")))
def test_pages_of_real_engines_contradict_nothing(name: str) -> None:
    snapshot = PageReader().read(Path(TESTS / "pages" / name).read_bytes(), 1.8e9)
    assert not snapshot.contradictory


def test_running_generations_prove_nothing() -> None:
    times = page((0, 0, 1000, 1000, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=500.0, e2e=4_000.0)
    times |= {"tpot_seconds": Cumulative(EDGES, (0, 1000, 1000, 1000, 1000, 1000), 35.0)}
    running = {"generation_tokens": 900_000.0}
    assert find_page_contradiction(times, running) is None
    lengths = {"generation_tokens_per_request": Cumulative((64.0, 128.0, float("inf")), (0, 1000, 1000), 100_000.0)}
    assert find_page_contradiction(times | lengths, running) is None
    finished = {"generation_tokens_per_request": Cumulative((64.0, 128.0, float("inf")), (0, 0, 1000), 900_000.0)}
    assert find_page_contradiction(times | finished, running) is not None
