"""Sums over the engines' own series say exactly what the replicas say, in a real VictoriaMetrics and a real Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from paths import SHARED
from store_servers import prometheus_with_blocks, victoria_metrics
from stored_recordings import Sample, engine_samples, samples
from test_fleet_turns import TIER, VIEW, Fleet, NewestOnly

from agent.config.store import FleetConfig as FleetKeys
from agent.config.store import TierSource
from agent.fleet import engine_series
from agent.fleet.aggregates import EngineAggregates
from agent.fleet.engine_sums import EngineSums, ReleaseGroup, part_sums, scrape_count_query
from agent.fleet.sums import GROUP, WHAT
from agent.fleet.tier_readers import AdaptiveTierReader, AggregatedTierReader, ReplicaReader, build_tier_reader
from agent.prometheus.answers import InstantSample, MatrixSeries
from agent.prometheus.api import StoreApi
from agent.prometheus.options import StoreOptions
from rules.engines.vllm_v1 import VLLM_V1
from rules.telemetry import readings, windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window

BEGIN = 1_790_000_000.0
MATCHERS = 'job="engines"'

Change = Callable[[int, Sample], Iterable[Sample]]


@cache
def a_few(name: str) -> tuple[Sample, ...]:
    """A recording with a scrape every 15 s."""
    samples = tuple(engine_samples(name, "engines"))
    kept = set(sorted({one[2] for one in samples})[::3])
    return tuple(one for one in samples if one[2] in kept)


def copies(
    count: int, names: tuple[str, ...], change: Change = lambda number, one: (one,), until: float = 280.0
) -> Iterator[Sample]:
    """So many replicas that do what was recorded, each a little later than the one before."""
    for number in range(count):
        recorded = a_few(names[number % len(names)])
        first = recorded[0][2]
        later = BEGIN + number * 0.7 % 15 - first
        for name, labels, t, value in recorded:
            moved = later if name.endswith(("process_start_time_seconds", "_created")) else 0.0
            one = (name, {**labels, "instance": f"engine-{number:03d}:8000"}, t + later, value + moved)
            if t - first < until:
                yield from change(number, one)


@contextmanager
def store(kind: str, folder: Path, samples: Iterable[Sample]) -> Iterator[str]:
    if kind == "prometheus":
        with prometheus_with_blocks(folder, samples) as url:
            yield url
    else:
        with victoria_metrics(folder) as vm:
            vm.write(samples)
            yield vm.url


def both(url: str, engine: str = "vllm", turns: int = 4) -> dict[str, tuple[Fleet, int]]:
    found = {}
    for way, most in (("each", 1000), ("sums", 0)):
        api = StoreApi(StoreOptions(url=url, timeout_seconds=60.0))
        selector = engine_series.engine_selector(engine, MATCHERS)
        reader = engine_series.EnginePages("instance", "", engine)
        each = ReplicaReader(TIER, selector, reader, NewestOnly(api), 60.0)
        sums = EngineSums(engine=engine, matchers=MATCHERS, replica_label="instance")
        summed = AggregatedTierReader(TIER, EngineAggregates(sums, "", VIEW.basis.ttft_slo_seconds, api), 60.0)
        fleet = Fleet(
            api, AdaptiveTierReader(each, summed, scrape_count_query(MATCHERS, "instance"), most, api), BEGIN - 30
        )
        fleet.go(turns)
        fleet.closed += fleet.loop.evaluator.flush(fleet.loop.state)
        assert fleet.source.errors == {}
        assert fleet.loop.defects == 0
        found[way] = fleet, api.counts.queries
    return found


def same(found: dict[str, tuple[Fleet, int]]) -> dict[str, Window]:
    """The sum of all minutes of either way, which must be the same."""
    whole = {way: windows.sum_windows(c.slice.window for c in fleet.closed) for way, (fleet, _) in found.items()}
    each, sums = whole["each"], whole["sums"]
    assert {c.replica for c in found["sums"][0].closed} == {"*"}
    assert each.covered_seconds > 0
    assert sums.counters == pytest.approx(each.counters)
    assert sums.covered_seconds == pytest.approx(each.covered_seconds)
    assert sums.expected_seconds == pytest.approx(each.expected_seconds, rel=1e-4)
    assert sums.short_seconds == pytest.approx(each.short_seconds)
    assert sums.gaps == each.gaps
    assert sums.histograms.keys() == each.histograms.keys()
    for family, parts in each.histograms.items():
        assert [part.edges for part in sums.histograms[family]] == [part.edges for part in parts], family
        assert [part.counts for part in sums.histograms[family]] == [part.counts for part in parts], family
        assert [part.total for part in sums.histograms[family]] == pytest.approx([part.total for part in parts]), family
    assert sums.gauges.keys() == each.gauges.keys()
    for family, gauge in each.gauges.items():
        assert asdict(sums.gauges[family]) == pytest.approx(asdict(gauge)), family
    read = [readings.read_all(one, VIEW.basis) for one in (each, sums)]
    for name, expected in read[0].items():
        for part in ("value", "low", "high", "n", "gap"):
            assert getattr(read[1][name], part, None) == pytest.approx(getattr(expected, part, None)), (name, part)
    return whole


@pytest.mark.parametrize("kind", ["victoria", "prometheus"])
def test_sums_of_engines_series_say_exactly_what_the_replicas_say(kind: str, tmp_path: Path) -> None:
    with store(kind, tmp_path, copies(6, ("steady", "cascade_fast", "specdecode"))) as url:
        found = both(url)
    same(found)
    assert found["sums"][1] <= 4 * 4
    cascades = {way: {e.subject for e in fleet.findings("KvCacheCascade")} for way, (fleet, _) in found.items()}
    assert cascades["sums"] == cascades["each"] != set()


def test_a_mix_of_recordings_with_events_on_the_way_adds_up_as_well(tmp_path: Path) -> None:
    with store("victoria", tmp_path, copies(6, ("lora", "prefix", "steady"))) as url:
        found = both(url)
    whole = same(found)
    assert whole["sums"].counters["requests_finished"] > 0


@pytest.mark.parametrize("kind", ["victoria", "prometheus"])
def test_sglang_whose_series_repeat_by_rank_counts_once(kind: str, tmp_path: Path) -> None:
    def two_ranks(number: int, one: Sample) -> Iterator[Sample]:
        name, labels, t, value = one
        yield one
        if labels.get("tp_rank") == "0":
            yield name, {**labels, "tp_rank": "1"}, t, value

    with store(kind, tmp_path, copies(3, ("sglang",), two_ranks)) as url:
        whole = same(both(url, "sglang"))
    assert whole["sums"].counters["http_requests_ok"] > 0
    assert whole["sums"].histograms["itl_seconds"][0].n > 0


def test_processes_that_repeat_a_number_and_engines_that_add_to_it_are_told_apart(tmp_path: Path) -> None:
    def doubled(number: int, one: Sample) -> Iterator[Sample]:
        name, labels, t, value = one
        if "engine" not in labels:
            yield one
            return
        for engine in ("0", "1") if number == 1 else ("0",):
            for pid in ("7", "8") if number == 2 else ():
                yield name, {**labels, "engine": engine, "pid": pid}, t, value
            if number != 2:
                yield name, {**labels, "engine": engine}, t, value

    with store("victoria", tmp_path, copies(4, ("steady",), doubled)) as url:
        whole = same(both(url))
    with store("victoria", tmp_path / "once", copies(4, ("steady",))) as url:
        once = same(both(url))
    ended = "requests_ended_by_length"
    assert whole["sums"].counters[ended] > once["sums"].counters[ended] * 1.2 > 0


def test_a_replica_that_began_anew_inside_the_minute_is_in_no_sum(tmp_path: Path) -> None:
    again = BEGIN + 105.0

    def begun_anew(number: int, one: Sample) -> Iterator[Sample]:
        name, labels, t, value = one
        if number != 1 or t < again:
            yield one
        if number == 1:
            moved = 105.0 if name.endswith(("process_start_time_seconds", "_created")) else 0.0
            yield name, labels, t + 105.0, value + moved

    with store("victoria", tmp_path, copies(3, ("steady",), begun_anew)) as url:
        found = both(url)
    whole = same(found)
    assert whole["sums"].counters["restarts"] == 1
    assert whole["sums"].covered_seconds < whole["sums"].expected_seconds - 50


def test_other_bucket_edges_are_never_summed_over_le(tmp_path: Path) -> None:
    def coarser(number: int, one: Sample) -> Iterator[Sample]:
        edges = ("0.005", "0.02", "0.06", "0.1", "0.5", "1.0", "2.5", "7.5")
        if number != 2 or not one[0].endswith("seconds_bucket") or one[1]["le"] not in edges:
            yield one

    with store("victoria", tmp_path, copies(4, ("steady",), coarser)) as url:
        whole = same(both(url))
    assert len(whole["sums"].histograms["ttft_seconds"]) == 2
    assert len(whole["sums"].histograms["prompt_tokens_per_request"]) == 1


OLD_NAMES = {
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries_total": "vllm:gpu_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total": "vllm:gpu_prefix_cache_hits_total",
}


def of_two_releases(number: int, one: Sample) -> Iterator[Sample]:
    """The old release, one that has the old names beside the new ones, and the new one. The old has no TPOT of requests."""
    name, labels, t, value = one
    stem = next((new for new in OLD_NAMES if name.startswith(new)), "")
    if stem and number % 3 < 2:
        yield name.replace(stem, OLD_NAMES[stem]), labels, t, value
    if number % 3 or not (stem or name.startswith("vllm:request_time_per_output_token")):
        yield one


def test_releases_that_name_things_differently_are_added_up_apart(tmp_path: Path) -> None:
    with store("victoria", tmp_path, copies(6, ("steady",), of_two_releases)) as url:
        found = both(url)
        whole = same(found)
    assert found["sums"][1] <= 9
    with store("victoria", tmp_path / "new", copies(6, ("steady",))) as url:
        new = same(both(url))
    sums, of_new = whole["sums"], new["sums"]
    assert sums.histograms["itl_seconds"][0].n == of_new.histograms["itl_seconds"][0].n > 0
    assert sums.short_seconds["tpot_seconds"] == pytest.approx(sums.covered_seconds / 3, rel=0.05)
    # Blocks of the old release, as its table says.
    assert sums.counters["prefix_queried_tokens"] > of_new.counters["prefix_queried_tokens"]


PAGES = SHARED / "pages" / "generated"
GROWING = ("_total", "_bucket", "_sum", "_count")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_release_beside_every_other_adds_up(engine: str, tmp_path: Path) -> None:
    if not PAGES.is_dir():
        pytest.skip("../shared/pages is not here: sums over releases side by side were NOT checked on their pages")
    pages = {path.stem: path.read_text() for path in sorted(PAGES.glob(f"{engine}-*.prom"))}
    assert len(pages) > 3
    scraped = [
        (name, labels, t, value * (place + 1) if name.endswith(GROWING) else value)
        for number, page in enumerate((*pages.values(), *pages.values()))
        for place in range(5)
        for name, labels, t, value in samples(
            page, BEGIN + 60.0 * place + number, {"instance": f"engine-{number}", "job": "engines"}
        )
        # The generated pages draw more hits than queries here, and times that exclude each other. A page that says so is
        # not believed, a sum cannot see it.
        if "external_prefix_cache" not in name and "e2e_request_latency" not in name
    ]
    up = [("up", {"instance": i, "job": "engines"}, t, 1.0) for i, t in {(s[1]["instance"], s[2]) for s in scraped}]
    with store("victoria", tmp_path, [*scraped, *up]) as url:
        found = both(url, engine)
    same(found)
    assert found["sums"][1] < found["each"][1] + len(pages) * 4


def test_labels_that_the_target_moved_away_are_read_under_their_own_name(tmp_path: Path) -> None:
    def by_operator(number: int, one: Sample) -> Iterator[Sample]:
        name, labels, t, value = one
        moved = {("exported_endpoint" if key == "endpoint" else key): text for key, text in labels.items()}
        yield name, {**moved, "endpoint": "metrics"}, t, value

    with store("victoria", tmp_path, copies(2, ("sglang",), by_operator)) as url:
        whole = same(both(url, "sglang"))
    with store("victoria", tmp_path / "plain", copies(2, ("sglang",))) as url:
        plain = same(both(url, "sglang"))
    assert whole["sums"].counters["http_requests_ok"] == plain["sums"].counters["http_requests_ok"] > 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_series_that_appears_on_the_way_is_no_increase(count: int, tmp_path: Path) -> None:
    def born_late(number: int, one: Sample) -> Iterator[Sample]:
        some = number != 1 and one[0].startswith(("vllm:request_queue_time", "vllm:request_time_per_output_token"))
        if not (some or one[0].startswith("vllm:request_decode_time")) or one[2] > BEGIN + 120:
            yield one

    with store("victoria", tmp_path, copies(count, ("steady",), born_late)) as url:
        whole = same(both(url))
    assert whole["sums"].gaps["decode_seconds"] is whole["sums"].gaps["queue_seconds"] is Gap.NOT_EXPOSED
    assert whole["sums"].short_seconds["queue_seconds"] > 50


def test_a_sum_whose_buckets_rise_by_chance_is_not_believed_where_replicas_have_other_edges() -> None:
    part = ReleaseGroup(key="0.0", engine=VLLM_V1, repeated=False, members=("a", "b"))
    results = []
    for what, by_edge in (
        ("sums", {"1.0": 4.0, "2.0": 5.0, "+Inf": 9.0}),
        ("counted", {"1.0": 2.0, "2.0": 1.0, "+Inf": 2.0}),
    ):
        for le, value in by_edge.items():
            labels = {"__name__": "vllm:e2e_request_latency_seconds_bucket", "le": le, GROUP: "0.0", WHAT: what}
            after = value * 2 if what == "sums" else value
            results.append(MatrixSeries(labels, (60.0, 120.0), (value, after)))
    found = part_sums(results, (part,), (60.0, 120.0))["0.0"]
    assert found is not None
    assert "e2e_seconds" in found.open
    assert found.window.histograms == {}
    assert part_sums((), (part,), (60.0, 120.0)) == {"0.0": None}


class Asked(StoreApi):
    """A store whose questions of the moment are kept."""

    def __init__(self, url: str) -> None:
        super().__init__(StoreOptions(url=url, timeout_seconds=60.0))
        self.instants: list[str] = []

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        self.instants.append(expr)
        return super().query(expr, t)


def test_a_tier_of_engines_is_read_as_sums_from_the_configured_size_on(tmp_path: Path) -> None:
    source = TierSource.model_validate({"from": "engines", "selector": MATCHERS, "engine": "vllm"})
    with store("victoria", tmp_path, copies(5, ("cascade_fast", "steady"))) as url:
        for most, sums in ((5, False), (4, True)):
            api = Asked(url)
            asking = build_tier_reader(TIER, source, VIEW, FleetKeys(each_up_to=most), api)
            fleet = Fleet(api, asking, BEGIN - 30)
            fleet.go(4)
            assert asking.sums is sums
            assert fleet.source.errors == {}
            found = {e.subject.replica for e in fleet.findings("KvCacheCascade")}
            assert found == {f"engine-{number:03d}:8000" for number in (0, 2, 4)}
    # The TTFT objective is 2 s.
    assert r'le=~"|1\\.0|2\\.5|\\+Inf"' in api.instants[-1]
