"""The reader says of every page what prometheus_client says of it, or nothing.

No number is read from a page that was not whole: every real page cut anywhere, over a real socket and in the reader.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loopback import answering
from page_checks import NOW, check_snapshot, check_window, engine_pages
from paths import SHARED, TESTS
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families
from waiting import CEILING_SECONDS

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import PageFetcher
from agent.scrape.exposition import MOST_LINES, ExpositionSeries, ParsedPage, SeriesReader
from agent.scrape.scrapers import PageReader
from exporters.render.safe_text import one_line
from rules.engines.reader import compile_layout, is_mapped_name, snapshot
from rules.engines.registry import ENGINES
from rules.telemetry import windows
from rules.telemetry.signals import Gap

PAGES = TESTS / "pages"

Samples = Counter[tuple[str, tuple[tuple[str, str], ...], str]]


def everything(name: str) -> bool:
    return True


def vllm(name: str) -> bool:
    return name.startswith(("vllm:", "process_"))


def by_the_library(text: str) -> Samples:
    """The page's samples. The library adds `_total` to counters that lack it, so the ending is taken off everywhere."""
    families: Iterable[Metric] = text_families(text)
    if text.endswith("# EOF\n"):
        lines = text.split("\n")
        # The library refuses its own pages whose metadata says `vllm:x` and whose samples `vllm_x`.
        lines = [line.replace(":", "_") if line.startswith(("# HELP ", "# TYPE ")) else line for line in lines]
        families = openmetrics_families("\n".join(lines))  # type: ignore[no-untyped-call]
    # Names and labels are made one plain line as they are read.
    return Counter(
        (
            one_line(sample.name.removesuffix("_total")),
            tuple(sorted((one_line(name), one_line(value)) for name, value in sample.labels.items())),
            repr(number(sample.value)),
        )
        for family in families
        for sample in family.samples
    )


def number(value: float) -> float:
    """The library reads `-0` and long rows of digits as int; minus zero is zero here."""
    try:
        return float(value) + 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def by_the_reader(page: ParsedPage) -> Samples:
    assert len(page.series) == len(page.values)
    return Counter(
        (series.name.removesuffix("_total"), series.labels, repr(number(value)))
        for series, value in zip(page.series, page.values, strict=True)
    )


def refusal(reader: SeriesReader, text: str) -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        reader.read(text.encode())
    return caught.value


def check_against_the_library(text: str) -> None:
    expected = by_the_library(text)
    reader = SeriesReader(everything)
    first = reader.read(text.encode())
    again = reader.read(text.encode())
    assert by_the_reader(first) == expected
    assert by_the_reader(again) == expected
    assert again.series is first.series
    reader.read(b"other 1\n# EOF\n" if text.endswith("# EOF\n") else b"other 1\n")
    assert by_the_reader(reader.read(text.encode())) == expected


@pytest.mark.parametrize("folder", [PAGES, SHARED / "pages" / "real", SHARED / "pages" / "generated"], ids=str)
def test_pages_read_as_the_library_does(folder: Path) -> None:
    if not folder.is_dir():
        pytest.skip("../shared/pages is not here: only the pages in tests/pages are read")
    pages = [path for path in folder.iterdir() if path.suffix in (".prom", ".txt")]
    assert len(pages) >= 8
    for path in pages:
        check_against_the_library(path.read_text())


def test_wanted_series_come_out() -> None:
    page = SeriesReader(vllm).read((PAGES / "steady_after_load.prom").read_bytes())
    assert {series.name.split(":")[0] for series in page.series if not series.name.startswith("process_")} == {"vllm"}
    assert len(page.series) == 380
    assert SeriesReader(vllm).read(b"x 1\nx 2\nvllm:y 3\n").values == (3.0,), "others may repeat a series"
    assert page.families["vllm:time_to_first_token_seconds"] == "histogram"
    assert page.families["python_info"] == "gauge"
    assert page.families["http_request_size_bytes"] == "summary"


def test_layout_stays_while_numbers_change() -> None:
    reader = SeriesReader(everything)
    first = reader.read(b"# HELP x One.\n# TYPE x gauge\nx 1\n")
    second = reader.read(b"# HELP x One.\n# TYPE x gauge\nx -2.5e3\n")
    third = reader.read(b"# HELP x Another text.\n# TYPE x gauge\nx 3\n")
    assert first.series is second.series is third.series
    assert [page.values for page in (first, second, third)] == [(1.0,), (-2500.0,), (3.0,)]
    assert reader.read(b"# TYPE x gauge\nx 3\ny 4\n").series is not first.series


def test_another_type_is_seen() -> None:
    reader = SeriesReader(everything)
    first = reader.read(b"# TYPE a gauge\na 1\n")
    assert first.families == {"a": "gauge"}
    assert reader.read(b"# TYPE b gauge\na 1\n").families == {"b": "gauge", "a": "untyped"}
    other = reader.read(b"# TYPE a counter\na 1\n")
    assert other.families == {"a": "counter"}
    assert other.series is not first.series


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(" Inf\n", " NaN\n", id="the library takes the name out of a lone number"),
        pytest.param("x 5 5\n", "x 5 6\n", id="a timestamp that looks like the value"),
        pytest.param("x 1\n   \n", "x 1\n   Inf\n", id="a blank line that grows a number"),
        pytest.param("x 1\n\n", "x 1\n# y\n", id="a blank line that becomes a comment"),
        pytest.param("x 1\ny 1\n", "y 1\nx 2\n", id="two lines that change places"),
        pytest.param('x{a="1"} 1\n', 'x{a="2"} 1\n', id="another label of the same length"),
    ],
)
def test_cache_does_not_mislead_the_next_page(first: str, second: str) -> None:
    reader = SeriesReader(everything)
    for text in (first, first, second, second):
        assert by_the_reader(reader.read(text.encode())) == by_the_library(text)


ODD = (("a", "line\ufffdbreak"), ("b", 'say "hi", {ok} # 1 \\ 2'))
ADAPTERS = ",".join(f"adapter-{n}" for n in range(100))


@pytest.mark.parametrize(
    ("text", "series", "values", "families"),
    [
        ('x{b="say \\"hi\\", {ok} # 1 \\\\ 2",a="line\\nbreak"} 7\n', [("x", ODD)], (7.0,), {"x": "untyped"}),
        (
            '# TYPE "my.tokens_total" counter\n{"my.tokens_total",pod="ä"} 7\n',
            [("my.tokens_total", (("pod", "ä"),))],
            (7.0,),
            {"my.tokens_total": "counter"},
        ),
        ("# HELP helped What it is.\nhelped 1\n", [("helped", ())], (1.0,), {"helped": "untyped"}),
        # llama.cpp prints its averages of nothing so on Windows; it must not cost the page.
        ("x -nan(ind)\ny 2\n", [("x", ()), ("y", ())], (math.nan, 2.0), {"x": "untyped", "y": "untyped"}),
        (f'x{{running_lora_adapters="{ADAPTERS}"}} 1\n', [("x", (("running_lora_adapters", ADAPTERS),))], (1.0,), None),
        (
            '# TYPE t histogram\nt_bucket{le="+Inf"} 1 # {trace="a b"} 0.5 1.0\nt_sum 1.0\nt_count 1\n# EOF\n',
            [("t_bucket", (("le", "+Inf"),)), ("t_sum", ()), ("t_count", ())],
            (1.0, 1.0, 1.0),
            {"t": "histogram"},
        ),
    ],
    ids=["odd labels", "quoted names", "no type", "Windows' NaN", "long list of adapters", "exemplar"],
)
def test_page_comes_out_whole(text: str, series: list[Any], values: tuple[float, ...], families: Any) -> None:
    reader = SeriesReader(everything)
    for _ in range(2):
        page = reader.read(text.encode())
        assert page.series == tuple(ExpositionSeries(*one) for one in series)
        assert page.values == pytest.approx(values, nan_ok=True)
        assert families in (None, page.families)


@pytest.mark.parametrize("text", ["1_000", "0x1", "", "one", "nan(1)", "1,5", "1 2 x_y"])
def test_refused_number_is_refused_when_cached(text: str) -> None:
    reader = SeriesReader(everything)
    reader.read(b"# TYPE x gauge\nx 1\ny 1\n")
    error = refusal(reader, f"# TYPE x gauge\nx {text}\ny 1\n")
    assert error.kind is ScrapeFailure.SYNTAX
    assert error.text.startswith("line 2 is not a line of an exposition page")


def test_repeated_series_names_both_lines() -> None:
    text = '# TYPE x gauge\nx{a="1",b="2"} 1\nx{a="2",b="2"} 1\nx{b="2",a="1"} 1\n'
    error = refusal(SeriesReader(everything), text)
    assert error.kind is ScrapeFailure.DUPLICATE
    assert error.text == "line 4 repeats the series of line 2: x"


@pytest.mark.parametrize(
    ("page", "kind", "words"),
    [
        (b"x 1\ny 12", ScrapeFailure.CUT_OFF, "ends inside a line"),
        (b"", ScrapeFailure.CUT_OFF, "the page is empty"),
        (b"x 1\ny{a= 1\n", ScrapeFailure.SYNTAX, "line 2 "),
        (b"# TYPE x banana\nx 1\n", ScrapeFailure.SYNTAX, "line 1 "),
        (b"# TYPE x\nx 1\n", ScrapeFailure.SYNTAX, "line 1 "),
        (b'x 1\ny{a="\xff"} 2\n', ScrapeFailure.SYNTAX, "line 2 is not a line of an exposition page"),
    ],
)
def test_broken_page_is_refused_with_its_place(page: bytes, kind: ScrapeFailure, words: str) -> None:
    with pytest.raises(ScrapeError) as caught:
        SeriesReader(everything).read(page)
    assert caught.value.kind is kind
    assert words in caught.value.text


SMALL_PAGE = """\
# HELP vllm:waiting Requests waiting.
# TYPE vllm:waiting gauge
vllm:waiting{engine="0",model_name="a b"} 3.0
vllm:waiting{engine="1",model_name="a b"} 0.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="say \\"x\\""} 58030.0
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{engine="0",le="0.5"} 1.0
vllm:ttft_seconds_bucket{engine="0",le="+Inf"} 12.0
vllm:ttft_seconds_sum{engine="0"} 1.25e-05
vllm:ttft_seconds_count{engine="0"} 12.0

# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 22.369999999999997
stamped{a="b"} 1 1795198649973
untyped NaN
"""
NASTY = st.sampled_from([*' \t{}"\\,=#_0159eE+-.NaInf\r\x1c\xa0é٣:\n', "# ", " 1 2", "1_0", "} ", ' # {a="b"} 1'])


# Of a line, a place in it and a nasty text.
DAMAGES: dict[str, Callable[[str, int, str], str]] = {
    "inserted": lambda line, place, text: line[:place] + text + line[place:],
    "cut out": lambda line, place, text: line[:place] + line[place + 1 :],
    "cut short": lambda line, place, text: line[:place],
    "replaced": lambda line, place, text: line[:place] + text + line[place + 1 :],
    "doubled": lambda line, place, text: f"{line}\n{line}",
    "renumbered": lambda line, place, text: f"{line.rpartition(' ')[0]} {text}",
}
Damage = tuple[str, int, int, str]
DAMAGE = st.tuples(
    st.sampled_from(sorted(DAMAGES)), st.integers(0, SMALL_PAGE.count("\n") - 1), st.integers(0, 60), NASTY
)


def damaged(text: str, damages: list[Damage]) -> str:
    lines = text.split("\n")
    for how, line, place, nasty in damages:
        lines[line] = DAMAGES[how](lines[line], place, nasty)
    return "\n".join(lines)


@settings(max_examples=400, deadline=None)
@given(st.lists(DAMAGE, min_size=1, max_size=4))
@example([("renumbered", 13, 0, "NaN"), ("cut short", 14, 0, "")])
@example([("inserted", 11, 0, "0")])
@example([("renumbered", 11, 0, "0")])
def test_damaged_page_is_refused_or_equal(damages: list[Damage]) -> None:
    """1. Never other values than the library's. 2. Whatever the library refuses is refused. 3. What else is refused is
    refused for what the library does not look at: a series twice, a last line without its end,
    a broken TYPE line that another one follows. 4. A damaged page leaves no trace."""
    text = damaged(SMALL_PAGE, damages)
    try:
        expected = by_the_library(text)
    except Exception:  # noqa: BLE001 - the library raises what it happens to raise
        expected = None
    warm, cold = SeriesReader(everything), SeriesReader(everything)
    clean = warm.read(SMALL_PAGE.encode())
    for reader in (warm, warm, cold, cold):
        found = read_or_refused(reader, text)
        if isinstance(found, ScrapeError):
            stricter = found.kind in (ScrapeFailure.DUPLICATE, ScrapeFailure.CUT_OFF)
            assert expected is None or stricter or is_of_a_type_line(found, text)
        else:
            assert found == expected
    assert by_the_reader(warm.read(SMALL_PAGE.encode())) == by_the_reader(clean)


def is_of_a_type_line(error: ScrapeError, page: str) -> bool:
    """Whether the line that is refused begins with # TYPE."""
    number = re.match(r"line (\d+) is not", error.text)
    return number is not None and page.split("\n")[int(number[1]) - 1].startswith("# TYPE")


def read_or_refused(reader: SeriesReader, text: str) -> Samples | ScrapeError:
    try:
        return by_the_reader(reader.read(text.encode()))
    except ScrapeError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789.+-eEINFTYinfaty_ \t", max_size=12))
def test_any_number_reads_as_the_library_does(text: str) -> None:
    reader = SeriesReader(everything)
    reader.read(b'x{a="b"} 1\ny 1\n')
    page = f'x{{a="b"}} {text}\ny {text}\n'
    try:
        expected = by_the_library(page)
    except ValueError:
        assert refusal(reader, page).kind is ScrapeFailure.SYNTAX
    else:
        assert by_the_reader(reader.read(page.encode())) == expected


def _page(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in ("# TYPE vllm:num_requests_running gauge", *lines)).encode()


def _running(**labels: str) -> str:
    told = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"vllm:num_requests_running{{{told}}} 1.0"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (b"\n" * (MOST_LINES + 1), "more than 20000 lines"),
        (b"# a comment\n" * (MOST_LINES + 1), "more than 20000 lines"),
        (_page(_running(model_name="m" * 257)), "a label model_name of 257 characters in line 2, more than 256"),
        (_page(*(_running(model_name=f"m{n}") for n in range(65))), "names more than 64 models"),
        (_page(*(_running(engine=f"{n}") for n in range(10_001))), "10001 samples, more than 10000"),
    ],
    ids=["blank lines", "comments", "long label", "models", "samples"],
)
def test_page_that_costs_too_much_is_refused(page: bytes, text: str) -> None:
    reader = SeriesReader(lambda name: name.startswith("vllm"))
    good = _page(_running(model_name="m" * 256))
    assert len(reader.read(good).series) == 1
    with pytest.raises(ScrapeError) as error:
        reader.read(page)
    assert error.value.kind is ScrapeFailure.TOO_LARGE
    assert text in str(error.value)
    assert len(reader.read(good).series) == 1


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
