"""Real stores on loopback for `benchmarks/fleet.py`, filled by remote write, and what they cost.

VictoriaMetrics and Prometheus take the same message (prometheus.io/docs/specs/remote_write_spec): protobuf, framed as
snappy that compresses nothing. A replica's message is made once for all that behave alike and its names are exchanged in
place, so that millions of samples cost little to make.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from struct import pack

from fleet_replica import Series, renamed

REPLICA = "@REPLICA" + "@" * 28
NODE, CARD = "@NODE", "R" * 27
"""Placeholders, each as long as what takes its place."""

AROUND = {
    "instance": f"10.42.{NODE}:19095",
    "job": "sizewatch/sizewatch-node",
    "namespace": "sizewatch",
    "pod": f"sizewatch-node-{NODE}",
    "container": "sizewatch",
    "endpoint": "http",
}
"""Labels that Prometheus' operator adds to what it scrapes."""

BEHAVIOURS = 16
"""So many ways of replicas to behave: each its load."""

SEEN = "sizewatch_target_last_success_timestamp_seconds"
OF_LOAD = ("_running", "_waiting", "kv_utilization_ratio", "kv_utilization_max_ratio", "_active_ratio")
WHOLE = ("_bucket", "_count", "requests_finished_total", "tokens_total")
A_POST = 4_000_000
"""Bytes of one message: the stores take 32 MiB."""


def pod_name(tier: int, number: int) -> str:
    """As a Deployment names its pods; 36 characters."""
    some = md5(f"{tier}/{number}".encode(), usedforsecurity=False).hexdigest()
    return f"vllm-llama-70b-t{tier}-6c9f7d8b5d-{some[:7]}"


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def _labels(one: Series) -> bytes:
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in one.labels)


def snappy(data: bytes) -> bytes:
    """The block format with one literal: as long as what it frames, and any reader takes it."""
    return _varint(len(data)) + b"\xfc" + (len(data) - 1).to_bytes(4, "little") + data


class Loads:
    """Values of a replica's series by behaviour, minute by minute. `noise` is how far a minute's load is from what it would be
    by itself, as a share of it."""

    def __init__(self, series: Sequence[Series], noise: float = 0.0) -> None:
        self._chance = random.Random(1)
        self._noise = noise
        self._series = series
        self._done = [0.0] * BEHAVIOURS

    def values(self, number: int, end: float, steps: int = 1) -> list[list[list[float]]]:
        """Return the values of each behaviour in so many steps of the minute that ends at `end`, the `number`th. Minutes
        must follow each other."""
        loads = [self._load(behaviour, number) for behaviour in range(BEHAVIOURS)]
        found = [
            [self._values(behaviour, loads[behaviour], (step + 1) / steps, number, end) for step in range(steps)]
            for behaviour in range(BEHAVIOURS)
        ]
        self._done = [done + load for done, load in zip(self._done, loads, strict=True)]
        return found

    def _load(self, behaviour: int, minute: int) -> float:
        """Of the recorded load; it swings."""
        chance = 1.0 + self._noise * (2.0 * self._chance.random() - 1.0)
        return (0.3 + 0.11 * behaviour) * (1.0 + 0.25 * math.sin(minute / 9.0 + behaviour)) * chance

    def _values(self, behaviour: int, load: float, part: float, number: int, end: float) -> list[float]:
        done, minutes = self._done[behaviour] + load * part, number + part
        found = []
        for one in self._series:
            name = one.name
            if name == SEEN:
                value = scraped_at(behaviour, part, end) - 0.25
            elif one.level:
                value = one.first * load if name.endswith(OF_LOAD) else one.first
            else:
                value = one.first + one.a_minute * (minutes if "_gpu_" in name else done)
            found.append(math.floor(value) if name.endswith(WHOLE) else value)
        return found


def scraped_at(behaviour: int, part: float, end: float) -> float:
    """When an agent of that behaviour was scraped, in the given part of the minute."""
    return end - 60.0 * (1.0 - part) - 14.0 + 0.8 * behaviour


def own_name(name: str, text: bytes) -> bytes:
    """Exchanges the placeholders for what is a replica's own."""
    card = md5(name.encode(), usedforsecurity=False).hexdigest()[: len(CARD)]
    found = text.replace(REPLICA.encode(), name.encode())
    return found.replace(NODE.encode(), card[:5].encode()).replace(CARD.encode(), card.encode())


class Writer:
    """Writes what every replica exports, a minute at a time, with `noise` as `Loads` has it."""

    def __init__(
        self, url: str, tiers: Sequence[Sequence[str]], series: Sequence[Series], interval: float, noise: float = 0.0
    ) -> None:
        self.samples = 0
        self.seconds = 0.0
        self._url = url
        self._tiers = tiers
        self._series = series
        self._interval = interval
        self._loads = Loads(series, noise)
        own = [renamed(one, {"tier": "tier", "replica": REPLICA, **AROUND}) for one in series]
        self._heads = [[_labels(renamed(one, {"tier": f"tier-{tier}"})) for one in own] for tier in range(len(tiers))]

    def minute(self, number: int, end: float) -> None:
        """Everything of the minute that ends at `end` (unix seconds), the `number`th."""
        began = time.process_time()
        steps = max(1, round(60.0 / self._interval))
        values = self._loads.values(number, end, steps)
        for tier, replicas in enumerate(self._tiers):
            templates = [self._template(tier, behaviour, values[behaviour], end) for behaviour in range(BEHAVIOURS)]
            self._post_all(own_name(name, templates[place % BEHAVIOURS]) for place, name in enumerate(replicas))
        self.samples += steps * len(self._series) * sum(map(len, self._tiers))
        self.seconds += time.process_time() - began

    def _template(self, tier: int, behaviour: int, values: Sequence[Sequence[float]], end: float) -> bytes:
        parts = [(step + 1) / len(values) for step in range(len(values))]
        stamps = [b"\x10" + _varint(round(scraped_at(behaviour, part, end) * 1000)) for part in parts]
        message = []
        for place, head in enumerate(self._heads[tier]):
            several = b"".join(
                _field(2, b"\x09" + pack("<d", of[place]) + stamp) for of, stamp in zip(values, stamps, strict=True)
            )
            message.append(_field(1, head + several))
        return b"".join(message)

    def _post_all(self, messages: Iterator[bytes]) -> None:
        lot = bytearray()
        for message in messages:
            lot += message
            if len(lot) > A_POST:
                self._post(bytes(lot))
                lot.clear()
        if lot:
            self._post(bytes(lot))

    def _post(self, message: bytes) -> None:
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        asked = urllib.request.Request(f"{self._url}/api/v1/write", snappy(message), headers)
        try:
            with urllib.request.urlopen(asked, timeout=300):
                pass
        except urllib.error.HTTPError as error:
            text = error.read(1000).decode(errors="replace")
            raise SystemExit(f"the store refused {len(message)} bytes: {error.code} {text}") from error


class StoreProcess:
    """One store that was started here."""

    def __init__(self, name: str, folder: Path, command: Sequence[str] = ()) -> None:
        """`command` starts a store that is not installed; the port is added to it."""
        self.name = name
        self.folder = folder
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                (*command, str(port)) if command else _command(name, folder, port), stdout=log, stderr=log
            )
        self._wait(f"{self.url}/-/ready" if name == "prometheus" else f"{self.url}/health")

    @property
    def cpu_seconds(self) -> float:
        """So far, user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mib(self) -> float:
        """Now."""
        return status_mib("VmRSS", self._process.pid)

    def flush(self) -> None:
        """Until what was written can be asked for."""
        if self.name == "victoria-metrics":
            with urllib.request.urlopen(f"{self.url}/internal/force_flush", timeout=300):
                pass

    @property
    def ending(self) -> str:
        """Return how the store ended by itself, with the end of its log. Empty while it runs."""
        if (status := self._process.poll()) is None:
            return ""
        return f"{self.name} ended with {status}:\n{self._log.read_text(errors='replace')[-2000:]}"

    def _wait(self, url: str) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not self.ending:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self._process.kill()
        raise SystemExit(self.ending or f"{url} did not answer within 60 s")

    def stop(self) -> None:
        """Its data stay in the folder."""
        self._process.terminate()
        self._process.wait(120)


@contextmanager
def store(name: str, folder: Path, command: Sequence[str] = ()) -> Iterator[StoreProcess]:
    """A store without samples."""
    one = StoreProcess(name, folder, command)
    try:
        yield one
    finally:
        if ending := one.ending:
            print(ending, file=sys.stderr, flush=True)
        one.stop()


def status_mib(key: str, pid: int | str = "self") -> float:
    """A line of /proc/PID/status that is told in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _command(name: str, folder: Path, port: int) -> tuple[str, ...]:
    program = shutil.which(name)
    if program is None:
        raise SystemExit(f"{name} is not installed here (Debian: prometheus, victoria-metrics)")
    if name == "prometheus":
        (folder / "prometheus.yml").write_text("{}\n")
        return (
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver",
            "--storage.tsdb.retention.time=100y",
            "--log.level=error",
        )
    return (
        program,
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder / 'data'}",
        "-retentionPeriod=100y",
        "-search.latencyOffset=0s",
        "-loggerLevel=ERROR",
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
