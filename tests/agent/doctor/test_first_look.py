"""`sizewatch doctor URL`: what two pages of a real engine show, 15 s apart or over minutes."""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_pages import DCGM_PAGE
from loopback import answering
from paths import SHARED, TESTS

from agent.cli import main
from agent.demo.engines import Player, RecordedTrack, track
from agent.doctor.engine_hosts import OF_HOST
from agent.doctor.engine_pages import Objectives, look_at_files
from agent.scrape.scrapers import PageReader
from agent.sources.recording import Scrape, load, scrapes
from exporters.documents.diagnosis import TierLook

OBJECTIVES = Objectives(ttft=2.0, tpot=0.09)
PAGES = sorted((TESTS / "pages").iterdir())


def recorded(name: str) -> list[Scrape]:
    recording, _ = load(TESTS / "recordings" / name)
    return [scrape for scrape in scrapes(recording, []) if scrape.target == 0 and scrape.body]


def pair(pages: list[Scrape], share: float, seconds: float = 15.0) -> list[Scrape]:
    """Two pages of a recording about `seconds` apart, the first at this share of it."""
    first = pages[int((len(pages) - 1) * share)]
    return [first, next((page for page in pages if page.t - first.t >= seconds - 1), pages[-1])]


def look(pages: list[Scrape]) -> TierLook:
    bodies = [page.body for page in pages if page.body is not None]
    (found,) = look_at_files([Path("a"), Path("b")], bodies, pages[-1].t - pages[0].t, OBJECTIVES)
    return found


def looks(name: str) -> list[TierLook]:
    pages = recorded(name)
    pairs = [pair(pages, (k + 0.5) / 10) for k in range(10)]
    return [look(both) for both in pairs if both[0].t < both[1].t]


@pytest.mark.parametrize("name", ["diurnal_quiet", "near_full_healthy", "restart", "routing", "scale_up_cold_cache"])
def test_quiet_engines_have_no_finding(name: str) -> None:
    assert [[verdict.rule for verdict in each.verdicts] for each in looks(name) if each.verdicts] == []


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("cascade_slow", "KvCacheCascade"),
        ("cascade_fast", "KvEviction"),
        ("overload", "TtftSloBurn"),
        ("specdecode", "SpeculationAcceptanceLow"),
        ("failing", "RequestsRefused"),
    ],
)
def test_true_rule_is_named(name: str, rule: str) -> None:
    assert rule in {verdict.rule for each in looks(name) for verdict in each.verdicts}


@pytest.mark.parametrize(
    ("name", "cause"),
    [("lora", "adapters"), ("overload", "evictions"), ("prefix", "changed traffic"), ("steady", "slower machine")],
)
def test_true_cause_is_first(name: str, cause: str) -> None:
    assert cause in [v.causes[0].cause for each in looks(name) for v in each.verdicts if v.rule.endswith("SloBurn")]
    assert [v.rule for v in look(pair(recorded("lora"), 0.3, 300.0)).verdicts] == ["TtftSloBurn", "TpotSloBurn"]


def test_only_full_cache_is_certain_in_seconds() -> None:
    verdicts = [v for name in ("overload", "failing", "steady") for each in looks(name) for v in each.verdicts]
    assert {verdict.rule for verdict in verdicts if verdict.certainty == "certain"} == {"KvCacheNearCeiling"}


def test_unfelt_full_cache_is_a_warning() -> None:
    found = [(v.rule, v.status) for each in looks("kv_brim_healthy") for v in each.verdicts]
    assert {status for _, status in found} == {"warning"}
    assert {rule for rule, _ in found} <= {"KvCacheNearCeiling", "KvEviction"}


def test_engine_without_steps_is_certainly_stopped() -> None:
    first, _ = pair(recorded("overload"), 0.6)
    verdict = next(v for v in look([first, replace(first, t=first.t + 15)]).verdicts if v.rule == "EngineStalled")
    assert (verdict.certainty, verdict.status, verdict.subject.replica) == ("certain", "critical", "a")
    assert not [detail for detail in verdict.details if "certain after" in detail]
    short = look([first, replace(first, t=first.t + 9.9)])
    assert (short.verdicts, short.doubts) == (
        (),
        ("a holds requests and made no token in 9.9 s: look longer",),
    )


def test_dead_engine_is_not_fine() -> None:
    pages = recorded("failing")
    found = [look(pair(pages, share)).verdicts[0] for share in (0.3167, 0.35, 0.4, 0.45)]
    causes = {cause.cause for cause in found[-1].causes}
    assert ({v.rule for v in found}, causes) == ({"AvailabilityBurn"}, {"engine stopped"})


@pytest.mark.parametrize(
    ("name", "first", "second", "words"),
    [("restart", 0, -1, "restarted during the look"), ("overload", -1, 2, "counts backwards")],
)
def test_pages_of_two_lives_are_told(name: str, first: int, second: int, words: str) -> None:
    pages = recorded(name)
    (trouble,) = look([replace(pages[first], t=0.0), replace(pages[second], t=15.0)]).troubles
    assert words in trouble


def test_one_page_shows_the_life_only() -> None:
    found = look(recorded("overload")[-1:])
    assert (found.span_seconds, found.verdicts) == (0.0, ())
    assert "TtftSloBurn" in {verdict.rule for verdict in found.since_start}


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["doctor", *words])
    return code, *capsys.readouterr()


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str, float], list[str]]:
    def write(name: str, share: float) -> list[str]:
        paths = []
        for place, page in enumerate(pair(recorded(name), share)):
            paths.append(tmp_path / f"{place}.prom")
            paths[-1].write_bytes(page.body or b"")
        return [str(path) for path in paths]

    return write


def test_screen_leads_from_finding_to_next_command(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = doctor(capsys, *files("overload", 0.6))
    assert (code, err) == (1, "The pages count as 15 s apart (--for): all rates follow.\n")
    order = (
        "  critical  ",
        "(50.0%) in 15 s (certain)",
        "do first  Shed",
        "then      Remove",
        "evidence  ",
        "  also  ",
    )
    places = [out.index(text) for text in (*order, "since its start", "--for 5m", "a plan", "next ")]
    assert (places, out.count("do first")) == (sorted(places), 1)
    assert max(map(len, out.splitlines())) < 120
    assert len(out.splitlines()) < 60


def test_json_has_both_columns_and_verdicts(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, *files("overload", 0.6), "--json")
    (document,) = json.loads(out)["looks"]
    assert code == 1
    assert {"rule", "status", "certainty", "sentence", "causes", "actions"} <= document["verdicts"][0].keys()
    (ttft,) = (signal for signal in document["signals"] if signal["name"] == "ttft_p99_seconds")
    assert ttft["lately"]["n"] < ttft["since_start"]["n"]


def test_objectives_are_options(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pages = files("steady", 0.05)
    assert doctor(capsys, *pages)[0] == 0
    code, out, _ = doctor(capsys, *pages, "--ttft", "1ms", "--tpot", "80ms", "--bearer-token-file", "token")
    assert code == 1
    assert "missed the 1 ms TTFT objective" in out
    assert "next  sizewatch init with the same options" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "TTFT P99 2 s, TPOT P99 90 ms, for chat"),
        (("--archetype", "code"), "TTFT P99 2 s, TPOT P99 90 ms, for code"),
        (("--archetype", "batch"), "TTFT P99 none, TPOT P99 none, for batch"),
        (("--archetype", "rag", "--tpot", "80ms"), "TTFT P99 2 s, TPOT P99 80 ms, for rag"),
        (("--ttft", "1s", "--tpot", "80ms"), "TTFT P99 1 s, TPOT P99 80 ms, as given"),
    ],
)
def test_archetype_gives_objectives(words: tuple[str, ...], text: str, files: Any, capsys: Any) -> None:
    code, out, _ = doctor(capsys, *files("steady", 0.05), *words, "--json")
    assert code == 0
    assert f"Objectives: {text}" in json.loads(out)["objectives"]


def test_missed_objective_of_few_requests_is_unsure(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(capsys, *files("near_full_healthy", 0.15))
    assert code == 0
    assert "unsure" in out
    assert "Nothing is wrong" not in out
    assert "24 requests are too few to be sure" in " ".join(out.split())


def test_lasting_fault_is_not_called_earlier(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = doctor(capsys, *files("prefix", 0.95))
    assert out.count("still ") == out.count("(likely, observed") == 2
    assert ("earlier" in out, "queueing" in doctor(capsys, *files("prefix", 0.6))[1]) == (False, False)


def test_few_refusals_beyond_chance_are_found(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (refused,) = (v.observed for v in look(pair(recorded("failing"), 0.3)).verdicts if v.rule == "RequestsRefused")
    assert refused.n < 100
    _, out, _ = doctor(capsys, *files("failing", 0.2))
    assert out.count("do first") == out.count("do first  Compare") + out.count("do first  Read some answers") == 2


def test_table_counts_refusals_as_the_rule_does() -> None:
    pages = recorded("failing")
    found = look(pages[len(pages) // 2 :][:1])
    (refused,) = (v.observed for v in found.since_start if v.rule == "RequestsRefused")
    shown = {signal.name: signal.since_start for signal in found.signals}
    assert shown["no_room_share"] == refused
    assert shown["bad_share"] != refused


def test_clients_that_left_are_in_the_table() -> None:
    recording, _ = load(TESTS / "cases" / "26-all-abort")
    first, last = (scrape for scrape in scrapes(recording, []) if scrape.t in (1795205700.0, 1795206900.0))
    seen = look([first, replace(last, t=first.t + 300)])
    assert {signal.name: signal.lately for signal in seen.signals}["left_share"].value == 1.0
    assert seen.doubts[0].startswith("100.0% of 2,400 requests were left")


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        (("vllm-0.33.0.prom", "vllm-0.33.0.prom"), "0.prom and 1.prom are the same page"),
        (("vllm-0.33.0.prom", "sglang_after_load.prom"), "0.prom is of vLLM, "),
    ],
)
def test_pages_that_show_no_span_are_refused(
    pages: tuple[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(pages):
        Path(f"{place}.prom").write_bytes((TESTS / "pages" / name).read_bytes())
    code, _, err = doctor(capsys, "0.prom", "1.prom")
    assert (code, text in err) == (2, True), err


def test_query_of_an_address_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    recording = load(TESTS / "recordings" / "overload")[0]
    ticks = iter(range(0, 10_000, 8))
    player = Player((track(recording, "r0", 200.0),), lambda: float(next(ticks)))
    try:
        texts = [
            doctor(capsys, f"{player.url('r0')}?token=s3cret", "--for", "5s", *words) for words in ((), ("--json",))
        ]
    finally:
        player.stop()
    for code, out, err in texts:
        assert code == 1
        assert "s3cret" not in out + err


def test_queue_without_finished_requests_is_told() -> None:
    queues = [v for each in looks("llamacpp") for v in each.verdicts if v.rule == "TtftSloBurn"]
    assert {verdict.unit for verdict in queues} == {"requests"}
    assert "how long they wait is not exposed" in queues[0].sentence
    hidden, pages = rb"(?m)^\S+(request_success|time_to_first_token).*\n", pair(recorded("overload"), 0.5)
    seen = look([replace(page, body=re.sub(hidden, b"", page.body or b"")) for page in pages])
    assert "the last one waits about" in "".join(v.sentence for v in seen.verdicts if v.unit == "requests")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_gets_an_answer(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = doctor(capsys, str(page))
    assert code in (0, 1), err
    assert "one page seen" in out


@pytest.mark.skipif(not SHARED.is_dir(), reason="the pages of others are not here")
def test_pages_of_others_get_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for page in sorted((SHARED / "pages").rglob("*.prom")):
        code, out, err = doctor(capsys, str(page))
        assert (code in (0, 1) and "one page seen" in out) or (code == 2 and str(page.name) in err), page


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nowhere"], 2, "'nowhere': no file, and no address such as http://127.0.0.1:8000/metrics"),
        (["http://[bad"], 2, "no address such as"),
        (["http://a b/metrics"], 2, "http://a b/metrics: url: must be"),
        (["127.0.0.1:9"], 3, "no page "),
        (["127.0.0.1:9/metrics"], 3, "no page "),
        (["http://127.0.0.1:9/metrics"], 3, "is it up?"),
        ([__file__], 2, "test_first_look.py"),
        ([__file__, "secnd.prom"], 2, "'secnd.prom': no file"),
    ],
)
def test_wrong_place_is_named(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    got, out, err = doctor(capsys, *words)
    assert got == code
    assert (text in out + err, out.endswith("\n\n")) == (True, False)


def test_saved_life_has_no_length() -> None:
    pages = [TESTS / "pages" / name for name in ("sglang-0.5.23.prom", "vllm-0.33.0.prom")]
    found = [look_at_files([page], [page.read_bytes()], 15.0, OBJECTIVES)[0].since_start for page in pages]
    sentences = [verdict.sentence for each in found for verdict in each if verdict.rule == "KvTransferFailing"]
    numbers = ("3718 on sglang-0.5.23.prom", "4888 on vllm-0.33.0.prom")
    assert sentences == [f"Failed KV transfers: {number}" for number in numbers]


def test_page_of_two_engines_is_two_tiers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("sglang_after_load.prom", "vllm-0.33.0.prom")
    page = tmp_path / "both.prom"
    page.write_bytes(b"".join((TESTS / "pages" / name).read_bytes() for name in names))
    code, out, _ = doctor(capsys, str(page))
    assert (code, "2 tiers, each judged alone" in out) == (0, True)


def test_unknown_objective_is_not_called_met(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pages = files("steady", 0.5)
    for page in pages:
        Path(page).write_text(re.sub(r"(?m)^vllm:request_time_per_output.*\n", "", Path(page).read_text()))
    _, out, _ = doctor(capsys, *pages)
    assert "unsure  TPOT is not exposed: the 90 ms TPOT objective is not judged" in out
    assert "Nothing is wrong" not in out
    pages = [str(TESTS / "pages" / f"sglang_{name}.prom") for name in ("startup", "after_load")]
    assert "save two within 5 min" in doctor(capsys, *pages, "--for", "301s")[2]
    _, out, _ = doctor(capsys, *pages, "--for", "300s")
    assert "unsure   TTFT is not exposed" in out
    assert "earlier  since its start: 2.4% of" in out, "what is not judged now does not last"


def test_page_without_a_number_is_not_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = TESTS / "pages" / "sglang_startup.prom"
    page = tmp_path / "nan.prom"
    page.write_text(re.sub(r"(?m)\} \S+$", "} NaN", (TESTS / "pages" / "sglang_after_load.prom").read_text()))
    code, out, _ = doctor(capsys, str(first), str(page))
    assert (code, "unknown  No signal" in out, "Nothing is wrong" in out) == (3, True, False)


def test_running_engines_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    ticks, began = iter(range(0, 10_000, 8)), time.time()
    names = {"r0": "steady", "r1": "overload"}
    tracks = tuple(track(load(TESTS / "recordings" / name)[0], key, 200.0) for key, name in names.items())
    player = Player(tracks, lambda: float(next(ticks)))
    try:
        urls = [player.url("r0"), player.url("r0").replace("127.0.0.1", "localhost"), player.url("r1")]
        code, out, err = doctor(capsys, *urls, "127.0.0.1:9", "--for", "5s", "--json")
    finally:
        player.stop()
    document = json.loads(out)
    assert (code, err) == (1, "")
    assert sum(len(each["loads"]) for each in document["looks"]) == 2
    assert document["problems"]
    (steady,) = PageReader().read_engines(recorded("steady")[-1].body or b"", 0.0).values()
    assert began <= (steady.ready_at or 0.0) + document["looks"][0]["age_seconds"] <= time.time()


@contextmanager
def played(name: str, begin: float) -> Iterator[list[str]]:
    """Addresses of all targets of a recording, whose time runs eight times as fast."""
    recording = load(TESTS / "recordings" / name)[0]
    pages = list(scrapes(recording, []))
    tracks = [
        RecordedTrack(name=f"r{place}", scrapes=tuple(page for page in pages if page.target == place), begin=begin)
        for place in range(len(recording.targets))
    ]
    player = Player(tuple(tracks), lambda: 8 * time.monotonic())
    try:
        yield [player.url(track.name) for track in tracks]
    finally:
        player.stop()


def test_odd_replica_and_uneven_load_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with played("mixed_tier", 50.0) as urls:
        _, out, _ = doctor(capsys, *urls, "--for", "5s", "--json")
        assert "Nothing is wrong" not in doctor(capsys, *urls, "--for", "5s")[1]
    (found,) = json.loads(out)["looks"]
    (odd,) = found["odd"]
    assert re.search(r"/r1/metrics: TTFT P50 .* \(the other ", odd)
    assert re.match(r"uneven: \S+/r0/metrics has [78]\d", found["spread"])


def test_like_replicas_share_the_load_evenly(capsys: pytest.CaptureFixture[str]) -> None:
    with played("routing", 50.0) as urls:
        code, out, _ = doctor(capsys, *urls, "--for", "5s")
    assert code == 0
    assert "load    evenly spread" in out
    assert f"next sizewatch init --run {' '.join(urls)} (a" in " ".join(out.split())
    assert "odd " not in out
    assert out.count("engine  ") == 1


def test_unlike_engines_are_no_tier(capsys: pytest.CaptureFixture[str]) -> None:
    with played("steady", 50.0) as steady, played("overload", 50.0) as overload:
        _, out, _ = doctor(capsys, *steady, "127.0.0.1:9", *overload, "--for", "5s")
    assert out.startswith("  no page  http://127.0.0.1:9/")
    assert "mixed  2 tiers, each judged alone: small-llama with KV cache of 32,768 tokens (1 engine)" in out


class MovingPage(list[bytes]):
    """Page of a GPU exporter that was refreshed before each request."""

    def __init__(self, is_moving: bool) -> None:
        self._watts = itertools.count(400, int(is_moving))

    def __getitem__(self, _: Any) -> Any:
        xid = next(line for line in DCGM_PAGE.splitlines() if "XID_ERRORS{" in line)
        page = DCGM_PAGE.replace("512.5", f"{next(self._watts)}.5").replace(xid, f"{xid[:-1]}79")
        return f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode()


@pytest.mark.parametrize(("is_moving", "gpus"), [(True, ""), (False, "; not measured again within 5 s")])
def test_gpu_exporter_among_addresses_is_read(is_moving: bool, gpus: str, capsys: Any) -> None:
    with played("steady", 50.0) as urls, answering(MovingPage(is_moving)) as exporter:
        _, out, _ = doctor(capsys, *urls, f"{exporter}/metrics", "--for", "5s", "--json")
        code, alone, _ = doctor(capsys, f"{exporter}/metrics", "--for", "5s")
    (found,) = json.loads(out)["looks"]
    shown = {signal["name"]: signal["lately"] for signal in found["signals"]}
    assert found["gpus"] == f"2 x NVIDIA H200; {OF_HOST}{gpus}; GPU-0 shows xid-79, since when is not known"
    assert ("gpu_utilization" in shown) == is_moving
    assert (code, "a page of dcgm-exporter, no engine" in " ".join(alone.split())) == (3, True)


ANSWERS = {
    "is not a page of metrics": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
    "answered 401: set or renew bearer_token_file": b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    "redirects; that is not followed": b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n",
    ": the page is empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ": no page of an engine": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nup 1\n\n",
}


def test_wrong_targets_are_named_and_others_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as servers:
        wrong = [servers.enter_context(answering([answer])) + "/metrics" for answer in ANSWERS.values()]
        engine = servers.enter_context(played("steady", 50.0))
        bad = ["http://x:pw@[bad", "nowhere", "http://a b/metrics"]
        code, out, _ = doctor(capsys, *wrong, *bad, *engine, "--for", "5s", "--json")
        assert doctor(capsys, *wrong)[0] == 3
        assert doctor(capsys, *bad[:1], wrong[0])[0] == 3
    document = json.loads(out)
    assert (code, len(document["looks"]), len(document["problems"])) == (3, 1, len(wrong) + len(bad))
    for place, problem in zip(("'[bad'", "'nowhere'", "http://a b/metrics"), document["problems"][-3:], strict=True):
        assert problem.startswith(f"{place}: ")
    assert not any(word in out for word in ("pw", "bad --for", "nowhere http"))
    for problem, url, text in zip(document["problems"], wrong, ANSWERS, strict=False):
        assert problem.startswith(url)
        assert text in problem
