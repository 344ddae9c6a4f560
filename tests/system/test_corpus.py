"""Damaged input of every reader: a file of tests/corpus, or a mutation of one, is read or refused with a documented error."""

import asyncio
import copy
import gzip
import itertools
import json
import math
import socket
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import answering
from page_checks import NOW, check_numbers, check_snapshot, check_window, engine_pages, message_trouble
from paths import TESTS
from result_files import read_results
from status_samples import agent_status

from agent.alerting.delivery import AlertmanagerClient
from agent.alerting.webhook import WebhookReceiver
from agent.alerting.webhook import read as read_alerts
from agent.benchmarks.plan_edit import chosen_tier, open_plan, replace_curve
from agent.cli import dashboards
from agent.config.files import load_plan
from agent.config.load import load as load_config
from agent.config.load import parse_config
from agent.config.peer import Peer
from agent.config.store import StoreConfig
from agent.config.web import Web, read_web_file
from agent.errors import ScrapeError, SizewatchError
from agent.fleet.agent_series import AgentPages
from agent.fleet.engine_series import EnginePages, GpuPages
from agent.fleet.sums import group_sums, sum_by_replica
from agent.forecasting.csv_series import read_trace
from agent.gpu.collector import samples
from agent.history.schema import HistoryError, decode_window
from agent.history.store import Reader
from agent.http_client.client import HttpClient, PageFetcher
from agent.http_server.credentials import Authenticator
from agent.http_server.server import WebServer, read_secrets
from agent.kubernetes.api import KubernetesClient, parse_event
from agent.kubernetes.discovery import TierCandidates, discover
from agent.kubernetes.pod_gpus import list_devices, read_devices
from agent.kubernetes.pods import parse_pod
from agent.prometheus.answers import matrix, parse_answer, vector
from agent.prometheus.api import StoreApi
from agent.replay.replay import replay
from agent.reporting import storage
from agent.scrape.engine_probe import probe_engine
from agent.scrape.exposition import SeriesReader
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load as load_recording
from exporters.alertmanager.payload import AlertPayload
from exporters.render.safe_text import one_line
from exporters.report.build import message
from rules.gpu_sources.registry import EXPORTERS
from rules.plan.schema import BenchmarkCurve, Point
from rules.replicas import starts
from rules.telemetry.snapshots import Snapshot

CORPUS = TESTS / "corpus"
SECONDS = 2.0
MOST_BYTES = 4 * 2**20
SMALL_PLAN = (TESTS / "plans" / "cpu-small.yaml").read_bytes()
POINTS = tuple(Point(concurrency=n, completed_rps=n, ttft_p99_seconds=0.1 * n) for n in (1.0, 2.0))
CURVE = BenchmarkCurve(source=("a.json",), points=POINTS)


@dataclass(frozen=True, slots=True)
class Bench:
    """A folder to write into, a server over TCP and one over a file that answer with `said[0]`, and our own server."""

    folder: Path
    said: list[bytes] = field(default_factory=lambda: [b""])
    url: str = ""
    socket_path: str = ""
    web: WebServer | None = None

    def written(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder, said = tmp_path_factory.mktemp("corpus"), [b""]
    (folder / "plan.json").write_text(json.dumps(yaml.safe_load(SMALL_PLAN), default=str), encoding="utf-8")
    (folder / "token").write_text("glsa_token", encoding="utf-8")
    (folder / "reports" / "2026-01-05").mkdir(parents=True)
    status = agent_status()
    web = WebServer(Web.model_construct(listen="127.0.0.1:0"), lambda: status, lambda: None)
    web.pages.receiver = WebhookReceiver(Authenticator(("a-token-of-the-webhook",))).receive
    web.pages.reports = folder / "reports"
    web.start()
    with answering(said) as url, answering(said, str(folder / "kubelet.sock")) as path:
        yield Bench(folder, said, url, path, web)
    web.stop()


def record(bench: Bench, data: bytes) -> None:
    with Reader(bench.folder / "history.db", sqlite3.connect(":memory:")) as reader, reader._decoding("minutes"):
        decode_window(zlib.compress(data))


def check_words(problems: Any) -> None:
    assert not (wrong := message_trouble(problems)), wrong


def attempt(reader: PageReader, page: bytes) -> Snapshot | ScrapeError:
    try:
        return reader.read(page, NOW + 15)
    except ScrapeError as error:
        return error


def page(bench: Bench, data: bytes) -> None:
    """A reader that has read another page (the first byte says which) and a fresh one read the same."""
    warm = PageReader()
    warm.read(engine_pages()[data[0] % len(engine_pages())], NOW)
    found, fresh = attempt(warm, data[1:]), attempt(PageReader(), data[1:])
    if isinstance(found, Snapshot):
        assert repr(found) == repr(fresh), "two readers read two things"
        check_snapshot(found)
    if isinstance(fresh, ScrapeError):
        raise fresh


def gpu_page(bench: Bench, data: bytes) -> None:
    exporter = EXPORTERS[data[0] % len(EXPORTERS)]
    found = exporter.read(samples(SeriesReader(exporter.wanted).read(data[1:])), NOW)
    check_words(map(one_line, found.problems))
    assert len({readout.gpu for readout in found.readouts}) == len(found.readouts), "two GPUs of one name"
    for readout in found.readouts:
        check_numbers(readout.counters, "counter")
        assert all(map(math.isfinite, readout.gauges.values()))


def recording(bench: Bench, data: bytes) -> None:
    """An index, a line of ---, then scrapes, packed or not."""
    index, _, lines = data.partition(b"\n---\n")
    bench.written("recording.yaml", index)
    bench.written("scrapes.jsonl.gz", lines if lines[:2] == b"\x1f\x8b" else gzip.compress(lines, compresslevel=1))
    loaded, problems = load_recording(bench.folder)
    found = replay(loaded, None, problems=problems)
    check_words(problem.replace("\n", " ") for problem in found.problems)
    for shown in found.windows:
        check_window(shown.window)


def config(bench: Bench, data: bytes) -> None:
    """The plan that the configuration may name lies in its folder."""
    environment = {"NAME": "n", "NODE_NAME": "gpu-1", "POD_NAME": "p", "POD_NAMESPACE": "s"}
    check_words(load_config(bench.written("config.yaml", data), environment=environment).warnings)


def plan_file(bench: Bench, data: bytes) -> Path:
    """The first byte chooses between YAML and JSON."""
    return bench.written("p.json" if data[0] == 1 else "p.yaml", data[1:])


def plan_edit(bench: Bench, data: bytes) -> None:
    """A plan gets a curve, and nothing else changes."""
    path = plan_file(bench, data)
    first = open_plan(path)
    tier = chosen_tier(first, None)
    text, _ = replace_curve(first, tier, CURVE, (("head",), ((), ("note",))))
    path.write_text(text, encoding="utf-8", newline="")
    before, after = copy.deepcopy(first.data), copy.deepcopy(open_plan(path).data)
    assert BenchmarkCurve.model_validate(after["tiers"][tier].pop("curve")) == CURVE
    before["tiers"][tier].pop("curve", None)
    assert after == before


def store(bench: Bench, data: bytes) -> None:
    """The answer of a store, as each of its readers takes it. The first byte is free."""
    answer = parse_answer("http://store:9090", data[1:])
    if answer.error is not None:
        check_words((answer.error, answer.error_type))
        return
    with suppress(SizewatchError):
        vector(answer, 10_000)
    series, times = matrix(answer, 10_000), (NOW, NOW + 60)
    for one in series:
        assert len(one.times) == len(one.values) > 0
        assert all(a < b for a, b in itertools.pairwise(one.times)), "times do not rise"
    for found in (*EnginePages("instance").pages(series), *AgentPages().pages(series)):
        if found.snapshot is not None:
            check_numbers(found.snapshot.counters, "counter")
            check_numbers(found.snapshot.gauges, "gauge")
    for exporter in EXPORTERS:
        list(EnginePages("instance", gpus=GpuPages(exporter, "instance")).pages(series))
    group_sums(series, *times)
    sum_by_replica(series, "ttft_seconds", *times)


def request(bench: Bench, data: bytes) -> None:
    """Whatever is asked, our server answers in HTTP or hangs up, and answers the next request."""
    assert bench.web is not None
    for asked in (data, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"):
        said = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", bench.web.port)) as sock:
            sock.sendall(asked)
            sock.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: sock.recv(65_536), b""))
        assert not said.startswith(b"HTTP/1.1 500"), "an error of ours"
        assert not said or said.startswith(b"HTTP/1."), said[:40]
    assert said, "it no longer answers"


def kubernetes(bench: Bench, data: bytes) -> None:
    """Events of a watch, one a line."""
    pods = [one for line in data.split(b"\n") if (one := parse_pod(parse_event(line)["object"])) is not None]
    for pod in pods:
        check_words((pod.name, pod.namespace, pod.node, pod.address, *pod.labels.values(), *pod.own.values()))
    keys = parse_config({"discovery": {"kubernetes": {"node": "gpu-1"}}}, environment={}).discovery.kubernetes
    tiers = load_plan(TESTS / "plans" / "cpu-small.yaml").tiers
    known = TierCandidates(tiers=tiers)
    check_words(excluded.text for excluded in discover(pods, keys, known).left_out)


def kubelet(bench: Bench, data: bytes) -> None:
    bench.said[0] = data
    read_devices(bench.socket_path, SECONDS)


def answer(bench: Bench, data: bytes) -> None:
    bench.said[0] = data
    options = Peer(url=f"{bench.url}/metrics", timeout_seconds=SECONDS, max_bytes=MOST_BYTES)
    with closing(PageFetcher(options)) as fetcher:
        assert len(fetcher.fetch()) <= MOST_BYTES


def peer(bench: Bench, data: bytes) -> None:
    """The first byte chooses who asks."""
    bench.said[0], url, choice = data[1:], bench.url, data[0] % 6
    if choice == 0:
        with closing(HttpClient(Peer(url=url, bearer_token_file=str(bench.folder / "token")))) as grafana:
            folders = dashboards._ask(grafana, list[dashboards.Folder], f"{url}/api/folders")
            check_words(folder.uid for folder in folders)
    elif choice == 1:
        alert = AlertPayload(title="A", firing=True, body={"labels": {"alertname": "A"}})
        client = AlertmanagerClient(Peer(url=url, timeout_seconds=SECONDS))
        check_words(client.round((alert,)).values())
    elif choice in (2, 3):
        with closing(KubernetesClient(Peer(url=url, timeout_seconds=SECONDS))) as kube:
            if choice == 2:
                kube.get("/api/v1/pods")
            else:
                with kube.watch("/api/v1/pods", 1.0) as events:
                    list(itertools.islice(events, 1000))
    elif choice == 4:
        with closing(StoreApi(StoreConfig(url=url, timeout_seconds=SECONDS, max_bytes=MOST_BYTES))) as api:
            api.query("up", 1.0)
    else:
        found = probe_engine(Peer(url=f"{url}/metrics", timeout_seconds=SECONDS))
        check_words((found.model,))


def credentials(bench: Bench, data: bytes) -> None:
    """The first byte chooses between the web configuration file and that of tokens."""
    path = str(bench.written("secret", data[1:]))
    if data[0] != 1:
        read_web_file(path)
        return
    gate, _ = read_secrets(Web.model_construct(listen="127.0.0.1:0", bearer_token_file=path))
    assert not gate.open, "a file that lets everybody in"
    assert not any(asyncio.run(gate.admits(words)) for words in ("", "Bearer ", "Basic Og=="))


def report(bench: Bench, data: bytes) -> None:
    """A report.json and the state of the reports: listed, made into a message, read again."""
    path = bench.written("reports/2026-01-05/report.json", data)
    assert bench.web is not None
    for address in ("/reports/", "/reports/2026-01-05/report.json"):
        with urlopen(f"http://127.0.0.1:{bench.web.port}{address}") as page:
            assert page.status == 200
    for read in (lambda: storage.read_state(path), lambda: starts.START.validate_json(data.decode("utf-8", "replace"))):
        with suppress(ValueError):
            read()
    with suppress(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        message(json.loads(data), "")


ReadInput = Callable[[Bench, bytes], object]
BY_ERROR: dict[tuple[type[Exception], ...], dict[str, ReadInput]] = {
    (SizewatchError,): {
        "answer": answer,
        "benchmark": lambda bench, data: read_results(bench.written("b.json", data)),
        "config": config,
        "credentials": credentials,
        "gpu_page": gpu_page,
        "kubelet": kubelet,
        "kubernetes": kubernetes,
        "page": page,
        "peer": peer,
        "plan": lambda bench, data: load_plan(plan_file(bench, data)),
        "plan_edit": plan_edit,
        "recording": recording,
        "report": report,
        "request": request,
        "store": store,
        "trace": lambda bench, data: check_words(read_trace(bench.written("t.csv", data), zone="Europe/Berlin").notes),
    },
    (ValueError,): {"webhook": lambda bench, data: read_alerts(data, NOW)},
    (DecodeError,): {"pod_resources": lambda bench, data: tuple(list_devices(data))},
    (HistoryError,): {"record": record},
}
READERS = {name: (read, errors) for errors, several in BY_ERROR.items() for name, read in several.items()}
KEPT = sorted(CORPUS.glob("*/*"))


def check_input(bench: Bench, name: str, data: bytes) -> None:
    """Raise what a reader raises beside its documented error, and AssertionError for words that nobody may print."""
    read, documented = READERS[name]
    try:
        read(bench, data or b"\0")
    except documented as error:
        check_words(getattr(error, "problems", None) or (str(error),))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kept_input_is_read_or_refused(path: Path, bench: Bench) -> None:
    check_input(bench, path.parent.name, path.read_bytes())


WORDS = (
    *(b"NaN", b"-1", b"1e999", b"9" * 400, b"null", b'"\\ud800"', b"\xff", b"\x00", b"\r\n", b"[" * 300, b"*a", b'""'),
    *(b"\x1b[2J", b"A" * 9_000, b'le="+Inf"', b"# EOF\n", b"\x1f\x8b", b"Content-Length: 5\r\n", b"2026-13-45", b"}"),
)
EDITS = st.lists(
    st.tuples(st.sampled_from(("cut", "insert", "flip", "swap")), st.floats(0, 1), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: list[tuple[str, float, int]]) -> bytes:
    for kind, share, number in edits:
        at = int(share * len(data))
        if kind == "cut":
            data = data[:at] + data[at + number :]
        elif kind == "insert":
            data = data[:at] + WORDS[number % len(WORDS)] + data[at:]
        elif kind == "flip":
            data = data[:at] + bytes([number]) + data[at + 1 :]
        else:
            lines = data.split(b"\n")
            one, other = int(share * (len(lines) - 1)), number % len(lines)
            lines[one], lines[other] = lines[other], lines[one]
            data = b"\n".join(lines)
    return data


SOUND = {
    "config": sorted((TESTS / "configs").glob("*.yaml")),
    "gpu_page": sorted((TESTS / "gpu_exporter_pages").glob("*.prom")),
    "page": sorted((TESTS / "pages").iterdir()),
    "plan": sorted((TESTS / "plans").glob("*.yaml")),
    "plan_edit": [TESTS / "plans" / "cpu-small.yaml"],
}
"""Sound inputs, beside the kept ones."""


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=12, derandomize=True)
@given(st.data())
def test_mutated_input_is_read_or_refused(name: str, bench: Bench, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*SOUND.get(name, ()), *sorted((CORPUS / name).iterdir())]))
    choice = b"" if path.parent.parent == CORPUS or name == "config" else data.draw(st.binary(min_size=1, max_size=1))
    check_input(bench, name, edited(choice + path.read_bytes(), data.draw(EDITS)))


def test_every_corpus_folder_has_a_reader() -> None:
    assert {path.parent.name for path in KEPT} == READERS.keys()
