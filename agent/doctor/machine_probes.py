"""What the doctor looks at on this machine: its process, GPUs, disk, history and port.

Owns the records of what was seen and how it was looked for; targets are `doctor_pages`'s. It judges nothing:
`doctor_machine` does. Whatever goes wrong while looking is kept in the record, in words. Another thing to look at is a record here.
"""

from __future__ import annotations

import errno
import http.client
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agent.config.keys import Config
from agent.errors import ConfigError
from agent.files import holder
from agent.gpu.collector import ExporterPage, GpuReader
from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.gpu.nvml_device import NvmlRefusedError, ask
from agent.gpu.nvml_reader import NvmlReader
from agent.history.errors import HistoryError, HistoryOpenError
from agent.history.schema import list_copies
from agent.history.store import HistoryStore
from agent.http_client.connection import PageFetcher
from agent.http_server.connections import TlsAdapter
from agent.http_server.credentials import read_gate
from agent.http_server.options import WebOptions, options_of
from rules.telemetry.snapshots import GpuReadout

WEB_SECONDS = 3.0
"""For asking who has our port, all of it: it may be anybody."""

MOST_PAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessProbe:
    python: str
    open_files: int
    """How many files and sockets the process may have open."""
    packages: Mapping[str, str]
    """Version of each package that matters and is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusProbe:
    source: str
    readouts: tuple[GpuReadout, ...] = ()
    problems: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolderProbe:
    """The folder of the history, or the nearest one above it that exists. `trouble` says why it cannot be written."""

    path: str
    existing: str
    trouble: str = ""
    errno: int = 0
    free_bytes: int = 0
    free_files: int | None = None
    """How many more files the disk can hold; None where it has no such limit."""
    filesystem: str = ""
    mode: int = 0
    holder: str = ""
    """The process of the daemon that has it; empty where none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryProbe:
    """The file of the history; `trouble` says why it cannot be read."""

    path: str
    exists: bool
    trouble: str = ""
    format: int = 0
    ahead_seconds: float = 0.0
    """By how much the newest minute ends after now."""
    copies: tuple[tuple[str, int], ...] = ()
    """Name and size of each copy that a change of the format left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortProbe:
    """`trouble` says why the port cannot be listened on; `ours` that a sizewatch answers there already."""

    trouble: str = ""
    in_use: bool = False
    ours: bool = False
    page: str = ""
    """The metrics of the sizewatch that answers there, where it shows them."""
    file_troubles: tuple[str, ...] = ()


def probe_process() -> ProcessProbe:
    packages = {}
    for name in ("sizewatch", "nvidia-ml-py", "pynvml"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ProcessProbe(python=platform.python_version(), open_files=soft, packages=packages)


def probe_gpus(config: Config, clock: Callable[[], float]) -> GpusProbe:
    """Every GPU that the configured source shows."""
    keys = config.gpus
    source: GpuReader
    if keys.source == "none":
        return GpusProbe(source=keys.source)
    if keys.exporter is not None:
        exporter, connection = keys.exporter
        source = ExporterPage(PageFetcher(connection.options(config.timeout_seconds())), exporter)
    else:
        source = NvmlReader()
    try:
        readouts, problems = source.read(clock())
        driver = _driver() if readouts and keys.source == "nvml" else ""
    finally:
        source.close()
    return GpusProbe(source=keys.source, readouts=readouts, problems=problems, driver=driver)


def _driver() -> str:
    try:
        return str(ask("nvmlSystemGetDriverVersion"))
    except NvmlRefusedError as refused:
        return f"of unknown version: {refused}"


def probe_data_folder(path: Path) -> DataFolderProbe:
    """Return whether a folder, or the one it will be made in, can be written. Leaves nothing behind."""
    existing = next((place for place in (path, *path.absolute().parents) if os.path.exists(place)), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"sizewatch")
            probe.flush()
        free_bytes = shutil.disk_usage(existing).free
        mode = existing.stat().st_mode
        room = os.statvfs(existing)
    except OSError as error:
        trouble, number = error.strerror or str(error), error.errno or 0
        return DataFolderProbe(
            path=str(path), existing=str(existing), trouble=trouble, errno=number, holder=holder(path)
        )
    return DataFolderProbe(
        path=str(path),
        existing=str(existing),
        free_bytes=free_bytes,
        # File systems without such a number say 0 of 0.
        free_files=room.f_favail if room.f_files else None,
        filesystem=_filesystem(existing),
        holder=holder(path),
        mode=mode & 0o7777 if existing == path else 0,
    )


def _filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Kind of the file system that holds a path; empty where this system does not say."""
    try:
        rows = [line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    holding = [(row[1], row[2]) for row in rows if len(row) > 2 and path.resolve().is_relative_to(row[1])]
    # The last mount of a place hides the ones before.
    return max(enumerate(holding), key=lambda entry: (len(entry[1][0]), entry[0]))[1][1] if holding else ""


def probe_history(path: Path, now: float) -> HistoryProbe:
    """Return whether the history can be opened and read, as `sizewatch check` does beside a running daemon."""
    copies = tuple((one.name, one.lstat().st_size) for one in list_copies(path))
    try:
        path.lstat()
    except FileNotFoundError:
        return HistoryProbe(path=str(path), exists=False, copies=copies)
    except OSError as error:
        # Of a folder that may not be entered, or is a file, the line of the folder speaks.
        return HistoryProbe(path=str(path), exists=False, trouble=f"{path}: {error.strerror}", copies=copies)
    try:
        with HistoryStore.open_reader(path, alone=is_idle_file(path)) as reader:
            ahead = (reader.newest_minute_end or now) - now
            return HistoryProbe(path=str(path), exists=True, format=reader.format, ahead_seconds=ahead, copies=copies)
    except (HistoryOpenError, HistoryError) as error:
        return HistoryProbe(path=str(path), exists=True, trouble=str(error), copies=copies)


def probe_port(config: Config) -> PortProbe:
    """Return whether the web address can be listened on, and whether the files it needs can be read."""
    options = options_of(config.web)
    files = _web_file_troubles(options)
    try:
        found = socket.getaddrinfo(options.bind_host, options.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        ours, page = _asked_page(options) if in_use else (False, "")
        trouble = error.strerror or str(error)
        return PortProbe(trouble=trouble, in_use=in_use, ours=ours, page=page, file_troubles=files)
    return PortProbe(file_troubles=files)


def _asked_page(options: WebOptions) -> tuple[bool, str]:
    """Return whether what listens there says that it is ours, in its metrics or in asking for a password; and its page
    of metrics, where
    it gives one."""
    thread = DeadlineThread("doctor", WEB_SECONDS)
    try:
        return thread.run(lambda: _ask_page(options))
    except (OSError, http.client.HTTPException, ConfigError, NotAnsweringError):
        return False, ""
    finally:
        thread.stop()


def _ask_page(options: WebOptions) -> tuple[bool, str]:
    there, headers = urlsplit(options.url(options.port)), {}
    asked: http.client.HTTPConnection
    if not options.tls:
        # No token here: on a port without TLS anybody of this machine may listen.
        asked = http.client.HTTPConnection(there.hostname or "", options.port, timeout=WEB_SECONDS)
    else:
        # That it holds our certificate is what is asked; on which of its names it is reached does not matter.
        context = ssl.create_default_context(cafile=options.cert_file)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        asked = http.client.HTTPSConnection(there.hostname or "", options.port, timeout=WEB_SECONDS, context=context)
        headers = _authorization(options)
    with closing(asked) as connection:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        page = answer.read(MOST_PAGE_BYTES)
    said = (answer.getheader("Server", ""), answer.getheader("WWW-Authenticate", ""))
    ours = b"sizewatch" in page or any("sizewatch" in text for text in said)
    return ours, page.decode("utf-8", "replace") if ours and answer.status == 200 else ""


def _authorization(options: WebOptions) -> dict[str, str]:
    """The first token of those that the daemon takes."""
    if options.bearer_token_file is None:
        return {}
    with open(options.bearer_token_file, encoding="ascii", errors="replace") as file:
        token = file.readline(4096).strip()
    return {"Authorization": f"Bearer {token}"} if token.isascii() and token.isprintable() else {}


def _web_file_troubles(options: WebOptions) -> tuple[str, ...]:
    """What the web server itself would say of the files that it needs."""
    troubles: list[str] = []
    try:
        read_gate(options)
    except ConfigError as bad:
        troubles += bad.problems
    try:
        if options.cert_file and options.key_file:
            TlsAdapter(options.cert_file, options.key_file, options.client_ca_file, options.min_version)
    except ConfigError as bad:
        troubles += bad.problems
    return tuple(troubles)


def is_idle_file(path: Path) -> bool:
    """Return whether nobody has the file open and no log of it waits: it can then be read without leaving anything
    beside it."""
    log = path.with_name(f"{path.name}-wal")
    try:
        return not holder(path.parent) and not (log.exists() and log.stat().st_size)
    except OSError:
        return False
