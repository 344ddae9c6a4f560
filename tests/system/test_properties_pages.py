"""No number is ever read from a page that was not whole: every real page cut anywhere, over a real socket and in the reader."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import answering
from page_checks import NOW, check_snapshot, check_window, engine_pages
from waiting import CEILING_SECONDS

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import PageFetcher
from agent.scrape.scrapers import PageReader
from rules.engines.reader import compile_layout, is_mapped_name, snapshot
from rules.engines.registry import ENGINES
from rules.telemetry import windows
from rules.telemetry.signals import Gap

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n"


def announced(page: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(page), page)


def chunked(page: bytes) -> bytes:
    half = len(page) // 2
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (page[:half], page[half:]))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


@pytest.mark.parametrize("framed", [announced, chunked])
def test_an_answer_cut_anywhere_is_no_page(framed: object) -> None:
    said = [b""]
    with answering(said) as url:
        fetcher = PageFetcher(Peer(url=f"{url}/metrics", timeout_seconds=CEILING_SECONDS))

        @settings(max_examples=30, deadline=None)
        @given(st.integers(0, 5), st.floats(0, 1, exclude_max=True))
        def cut(which: int, share: float) -> None:
            page = engine_pages()[which]
            whole = framed(page)  # type: ignore[operator]
            said[0] = whole
            assert fetcher.fetch() == page
            # The five bytes of the last chunk say nothing but that this is the end, and the first of them says it.
            said[0] = whole[: int(share * (len(whole) - (5 if framed is chunked else 0)))]
            # Cut inside the headers there is no length left, and the reader refuses the empty page.
            with pytest.raises(ScrapeError):
                PageReader().read(fetcher.fetch(), NOW)

        cut()
        fetcher.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(engine_pages()) - 1), st.floats(0, 1, exclude_max=True))
def test_page_cut_inside_line_is_refused(which: int, share: float) -> None:
    page = engine_pages()[which]
    cut = page[: int(share * len(page))]
    if cut.endswith(b"\n"):
        cut = cut[:-1]
    reader = PageReader()
    reader.read(page, NOW)
    with pytest.raises(ScrapeError) as refused:
        reader.read(cut, NOW + 15)
    assert refused.value.kind is ScrapeFailure.CUT_OFF


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(engine_pages()) - 1), st.floats(0, 1))
def test_cut_page_shrinks_no_histogram(which: int, share: float) -> None:
    """Where nothing frames a page (a saved file), a histogram that lost buckets is broken, never a smaller one; one of
    several replicas' parts may be gone, but what is there is whole."""
    page = engine_pages()[which]
    whole = PageReader().read(page, NOW)
    cut = page[: page.rfind(b"\n", 0, int(share * len(page)) + 1) + 1]
    try:
        found = PageReader().read(cut, NOW)
    except ScrapeError:
        return
    check_snapshot(found)
    for family, one in found.histograms.items():
        # A page of Dynamo has a family twice, its own and the engine's: the other one is whole too.
        known = whole.histograms[family].edges
        assert one.edges in (known, (math.inf,)) or not set(one.edges) < set(known), family


def test_huge_gauge_is_impossible() -> None:
    page = b"# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length 2.5\nsglang:num_running_reqs 1\n"
    reader = PageReader()
    before = reader.read(page, NOW)
    after = reader.read(page.replace(b" 2.5", b" 2.4e307"), NOW + 15)
    assert before.gauges["spec_accept_length"] == 2.5
    assert after.impossible == {"spec_accept_length"}
    assert windows.diff_snapshots(before, after).gaps["spec_accept_length"] is Gap.IMPOSSIBLE


NUMBERS = st.one_of(
    st.floats(), st.integers(-(10**400), 10**400), st.sampled_from(["NaN", "+Inf", "-Inf", "-0", "1e999"])
)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 7), st.lists(st.tuples(st.integers(0, 10**6), NUMBERS), min_size=1, max_size=8))
def test_numbers_in_use_are_finite_and_positive(which: int, numbers: list[tuple[int, object]]) -> None:
    page = engine_pages()[which]
    lines = page.split(b"\n")
    samples = [place for place, line in enumerate(lines) if line and not line.startswith(b"#")]
    for place, number in numbers:
        at = samples[place % len(samples)]
        lines[at] = lines[at].rpartition(b" ")[0] + f" {number}".encode()
    reader = PageReader()
    before = reader.read(page, NOW)
    try:
        after = reader.read(b"\n".join(lines), NOW + 15)
    except ScrapeError:
        return
    check_snapshot(after)
    check_window(windows.diff_snapshots(before, after))


def test_nameless_series_is_no_zero() -> None:
    """Absence is never zero: a store's series without a name once made every family that its engine lacked one."""
    name = "vllm:num_requests_running"
    for engine in ENGINES:
        assert not is_mapped_name("", (engine,))
        page = snapshot(compile_layout([(name, {}), ("", {})], engine), [1.0, 7.0], 0.0)
        assert page == snapshot(compile_layout([(name, {})], engine), [1.0], 0.0)
