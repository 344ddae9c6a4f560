"""Fuzz targets that read what stands on our own disk and may be damaged or changed there: history, reports, users, tokens."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from fuzz_target import Target, bounded_words

from agent.errors import ConfigError
from agent.history.errors import HistoryError, HistoryOpenError
from agent.history.store import HistoryStore
from agent.http_server.credentials import hash_password, read_gate
from agent.http_server.options import WebOptions
from agent.http_server.reports import report_reply
from agent.kubernetes.api import KubernetesApiError, _parsed
from agent.kubernetes.lease import Leadership
from agent.reporting import storage
from exporters.report.build import message
from rules.replicas import starts


@cache
def _history() -> bytes:
    """A small history, as it lies on the disk."""
    import history_samples

    from rules.evaluator.timeline import TimelineEvent, TimelineKind

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "h.db"
        with closing(HistoryStore(path)) as store:
            store.book(history_samples.booking(minute) for minute in range(90))
            store.add_event(
                TimelineEvent(t=history_samples.START, kind=TimelineKind.START, tier="h100", replica="r0", text="text")
            )
            store.keep("a-name", '{"sentence": "s"}')
            store.seal(history_samples.START + 2 * 86_400)
        with closing(HistoryStore(path)) as store:
            store.book([history_samples.booking(91)])
        shutil.copy(path, copied := Path(folder) / "copy.db")
        return copied.read_bytes()


def run_history(data: bytes) -> None:
    """Each six bytes are a place and two bytes that stand there instead; two left over cut the file there (in 16 bytes)."""
    import history_samples

    whole = bytearray(_history())
    edits = [struct.unpack("<IH", data[at : at + 6]) for at in range(1, len(data) - 5, 6)][:64]
    for at, value in edits:
        struct.pack_into("<H", whole, at % (len(whole) - 1), value)
    if len(data) % 6 == 3:
        del whole[16 * struct.unpack("<H", data[-2:])[0] :]
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "h.db"
        path.write_bytes(whole)
        if data[:1] == b"\x01":
            with closing(HistoryStore(path)) as store:
                with suppress(HistoryError):
                    store.book([history_samples.booking(60)])
                with suppress(HistoryError):
                    store.seal(history_samples.START + 86_400)
                store.prune(history_samples.START + 90 * 86_400)
            return
        _read_all(path, history_samples.START)


def _read_all(path: Path, start: float) -> None:
    with HistoryStore.open_reader(path) as reader:
        several = (
            lambda: reader.minutes("h100", start, start + 86_400),
            lambda: reader.replica_bins("h100", start, start + 86_400),
            lambda: reader.bins("h100", start, start + 86_400),
            lambda: reader.plan_versions("h100", start, start + 86_400),
            lambda: reader.demand("h100", start, start + 86_400),
            lambda: (
                reader.findings(start),
                reader.unknowns(start),
                reader.foreign_alerts(start),
                reader.events(start),
            ),
            lambda: (reader.read_value("a-name"), reader.newest_minute_end, reader.format),
        )
        for asked in several:
            try:
                asked()
            except HistoryError as error:
                bounded_words([str(error)])


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run_credentials(data: bytes) -> None:
    """The first byte chooses between the users' file and that of tokens."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data[1:])
        file.flush()
        key = "bearer_token_file" if data[:1] == b"\x01" else "basic_auth_users_file"
        gate = read_gate(WebOptions(port=0, **{key: file.name}))  # type: ignore[arg-type]
    assert not gate.open, "a file that lets everybody in"
    for nobody in ("", "Bearer ", "Basic Og=="):
        assert not gate.admits(nobody), nobody


def run_report(data: bytes) -> None:
    """A report.json and the daemon's reports.json: shown in the list, made into a message, remembered."""
    with tempfile.TemporaryDirectory(dir=_memory()) as name:
        folder = Path(name) / "2026-01-05"
        folder.mkdir()
        (folder / "report.json").write_bytes(data)
        for path in ("/reports/", "/reports/2026-01-05/report.json"):
            assert report_reply(Path(name), path, "").status == "200 OK"
        with suppress(ValueError):
            storage.read_state(folder / "report.json")
        with suppress(ValueError):
            starts.from_text(data.decode("utf-8", "replace"))
    try:
        said = message(json.loads(data), "")
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        # What is no report is told as such by who sends it (agent.reporting.delivery.deliver).
        return
    bounded_words((said.subject, *said.body.splitlines()))


class _Answers:
    """Leases whose answers are given beforehand; an answer that is no object is a refusal with that status."""

    def __init__(self, several: list[object]) -> None:
        self._several = several

    def _next(self) -> dict[str, object]:
        found = self._several.pop(0) if self._several else 500
        if not isinstance(found, dict):
            raise KubernetesApiError("refused", found if isinstance(found, int) else None)
        return found

    def get(self, path: str) -> dict[str, object]:
        return self._next()

    def create(self, path: str, body: object) -> dict[str, object]:
        return self._next()

    def replace(self, path: str, body: object) -> dict[str, object]:
        return self._next()


def run_lease(data: bytes) -> None:
    """Answers of the API, one after another, to who wants to lead."""
    found = _parsed(data)
    given, clock = _Answers(list(found) if isinstance(found, list) else [found]), [1000.0]
    one = Leadership(given, "n", "ns", "me", clock=lambda: clock[0], wall=lambda: 1.8e9)
    for _ in range(4):
        one.step(clock[0])
        assert not one.is_leader(clock[0]) or one.holder in ("me", ""), "it leads by the lease of another"
        clock[0] += 2.0
    one.release(clock[0])


def _edits() -> Iterator[bytes]:
    yield b"\x00"
    yield b"\x01"
    size = len(_history())
    for at in range(0, size, max(1, size // 48)):
        yield bytes([at & 1]) + struct.pack("<IH", at, 0xFFFF)
        yield b"\x00" + struct.pack("<IHIH", at, 0, at + 2, 0x41)
    yield b"\x00" + struct.pack("<H", size // 32)
    text = _history().find(b"h100")
    while text >= 0:
        yield b"\x00" + struct.pack("<IH", text, 0x80FF)
        text = _history().find(b"h100", text + 1)


def _secrets() -> Iterator[bytes]:
    import base64

    made = hash_password(b"password", b"0123456789abcdef")
    salt, digest = (base64.b64encode(part).rstrip(b"=") for part in (made.salt, made.hash))
    yield b"\x00# users\nalice:$scrypt$ln=13,r=8,p=10$" + salt + b"$" + digest + b"\n"
    yield b"\x01# tokens\n0123456789abcdef0123\nfedcba9876543210fedc\n"


def _reports() -> Iterator[bytes]:
    body = {
        "headline": "All is well",
        "simulated": False,
        "zone": "Europe/Berlin",
        "since": 1.7e9,
        "until": 1.7e9 + 604_800,
    }
    body |= {"tiers": [{"verdict": "It fits."}], "remarks": ["one"]}
    yield json.dumps(body).encode()
    yield json.dumps(
        {"begun_at": 1.7e9, "waiting": [{"destination": "d", "report": "r", "until": 1.8e9}], "sent": {"d": 1}}
    ).encode()
    yield json.dumps({"tier": "t", "replica": "r", "t": 1.7e9, "seen_at": 1.7e9, "settled": True}).encode()


def _leases() -> Iterator[bytes]:
    meta = {"name": "n", "resourceVersion": "1"}
    theirs = {
        "holderIdentity": "other",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 1,
        "renewTime": "2026-01-01T00:00:00Z",
    }
    ours = {**theirs, "holderIdentity": "me"}
    yield json.dumps([404, {"metadata": meta, "spec": ours}, {"metadata": meta, "spec": ours}]).encode()
    yield json.dumps(
        [{"metadata": meta, "spec": theirs}, {"metadata": meta, "spec": {**theirs, "leaseDurationSeconds": 0}}, 409]
    ).encode()
    yield json.dumps([{"metadata": meta, "spec": {}}, {"metadata": meta, "spec": ours}, 409, 404, 500]).encode()


_JSON_WORDS = (
    b"NaN",
    b"1e999",
    b"1" + b"0" * 400,
    b"9" * 5000,
    b"null",
    b"true",
    b'"\\ud800"',
    b"[" * 2000,
    b"-1",
    b"1e308",
)

TARGETS = (
    Target(
        name="history",
        run=run_history,
        seeds=_edits,
        declared=(HistoryOpenError, HistoryError),
        words=(b"\xff\xff", b"\x00\x00", b"\x80"),
        reads=("agent.history.reader", "agent.history.schema", "agent.history.errors"),
    ),
    Target(
        name="credentials",
        run=run_credentials,
        seeds=_secrets,
        declared=(ConfigError,),
        words=(
            b"$scrypt$ln=",
            b",r=",
            b",p=",
            b"9" * 5000,
            b"=",
            b"\xff",
            b"\x00",
            b":",
            b"\n",
            b"A" * 10_000,
            b"\xd9\xa3",
        ),
        reads=("agent.http_server.credentials",),
    ),
    Target(
        name="report",
        run=run_report,
        seeds=_reports,
        words=_JSON_WORDS,
        reads=("agent.reporting.storage", "agent.http_server.reports", "exporters.report.build"),
    ),
    Target(name="lease", run=run_lease, seeds=_leases, words=_JSON_WORDS, reads=("agent.kubernetes.lease",)),
)
