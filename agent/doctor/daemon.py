"""Checks of the web address and of the daemon that answers there, by its metrics page. Another sign is a row of WRONG."""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.config.config import Config
from agent.config.load import LoadedConfig, plan_versions
from agent.config.web import Web, bind_address, find_web_file, page_url, read_web_file
from agent.doctor.check_result import CheckLevel, CheckResult, fail, ok, warn
from agent.doctor.machine import DataFolderProbe
from agent.errors import ConfigError
from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.http_server.server import read_gate, read_tls
from agent.version import VERSION
from exporters.metrics import names

WEB_SECONDS = 3.0
"""Time limit in seconds of the whole request: any program may hold the port."""

MOST_PAGE_BYTES = 16 * 1024 * 1024

CHECK = "daemon"

LINE = re.compile(r"^(sizewatch_[a-z0-9_]+)(?:\{(.*)\})? (\S+)$", re.ASCII)

LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

MOST_SHOWN = 5
"""Maximum number of lines per sign of trouble."""

OLD_TURN_SECONDS = 120.0
"""Maximum age in seconds of the last cycle, besides three periods (exporters/prometheus_rules/self_monitoring.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortProbe:
    """Web address. `trouble` is why it cannot be listened on; `ours`: a sizewatch answers there."""

    trouble: str = ""
    in_use: bool = False
    ours: bool = False
    page: str = ""
    """Metrics page of that sizewatch, or empty."""
    file_troubles: tuple[str, ...] = ()


def probe_port(config: Config) -> PortProbe:
    """Return whether the web address can be listened on, and whether the files it needs can be read."""
    web = config.web
    files = _web_file_troubles(web)
    try:
        found = socket.getaddrinfo(*bind_address(web.listen), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        ours, page = _asked_page(web) if in_use else (False, "")
        trouble = error.strerror or str(error)
        return PortProbe(trouble=trouble, in_use=in_use, ours=ours, page=page, file_troubles=files)
    return PortProbe(file_troubles=files)


def _asked_page(web: Web) -> tuple[bool, str]:
    """Return whether a sizewatch listens there, by its metrics or its password challenge, and its metrics page."""
    thread = DeadlineThread("doctor", WEB_SECONDS)
    try:
        return thread.run(lambda: _ask_page(web))
    except (OSError, http.client.HTTPException, ConfigError, NotAnsweringError):
        return False, ""
    finally:
        thread.stop()


def _ask_page(web: Web) -> tuple[bool, str]:
    port, tls = web.address[1], find_web_file(web.config_file).tls_server_config
    there, headers = urlsplit(page_url(web, port)), {}
    asked: http.client.HTTPConnection
    if tls is None:
        # No token: any user of this machine may listen on a port without TLS.
        asked = http.client.HTTPConnection(there.hostname or "", port, timeout=WEB_SECONDS)
    else:
        # It must have our certificate; the host name does not matter.
        context = ssl.create_default_context(cafile=tls.cert_file)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        asked = http.client.HTTPSConnection(there.hostname or "", port, timeout=WEB_SECONDS, context=context)
        headers = _authorization(web)
    with closing(asked) as connection:
        connection.request("GET", "/metrics", headers=headers)
        result = connection.getresponse()
        page = result.read(MOST_PAGE_BYTES)
    said = (result.getheader("Server", ""), result.getheader("WWW-Authenticate", ""))
    ours = b"sizewatch" in page or any("sizewatch" in text for text in said)
    return ours, page.decode("utf-8", "replace") if ours and result.status == 200 else ""


def _authorization(web: Web) -> dict[str, str]:
    """Return the header with the first token of the file."""
    if web.bearer_token_file is None:
        return {}
    with open(web.bearer_token_file, encoding="ascii", errors="replace") as file:
        token = file.readline(4096).strip()
    return {"Authorization": f"Bearer {token}"} if token.isascii() and token.isprintable() else {}


def _web_file_troubles(web: Web) -> tuple[str, ...]:
    """Return the errors of the web server about its files."""
    troubles: list[str] = []
    file = find_web_file(web.config_file)
    for read in (
        lambda: read_web_file(web.config_file),
        lambda: read_gate(web, file),
        lambda: read_tls(file.tls_server_config) if file.tls_server_config else None,
    ):
        try:
            read()
        except ConfigError as bad:
            troubles += bad.problems
    return tuple(troubles)


def check_port(seen: PortProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    check, listen = "web", loaded.config.web.listen
    for trouble in seen.file_troubles:
        yield fail(check, trouble, "correct the file or its name, and let this user read it")
    if not seen.trouble:
        yield ok(check, f"{listen} is free")
    elif seen.ours:
        yield ok(check, f"{listen}: a sizewatch answers there already")
    elif seen.in_use:
        text = f"{listen} is taken, and not by a sizewatch that can be asked"
        yield fail(
            check, text, f"see who holds it (ss -ltnp 'sport = :{loaded.config.web.address[1]}'), or change web.listen"
        )
    else:
        advice = "web.listen must be an address of this machine, with a port above 1023 unless run as root"
        yield fail(check, f"{listen}: {seen.trouble}", advice)


class MetricCheck(NamedTuple):
    """Sign of trouble in a metric. `text` is filled with the labels and the value of the sample."""

    metric: names.ExportedMetric
    is_wrong: Callable[[float], bool]
    level: CheckLevel
    text: str
    advice: str


def _is_0(value: float) -> bool:
    return value == 0


def _above_0(value: float) -> bool:
    return value > 0


WRONG: tuple[MetricCheck, ...] = (
    MetricCheck(
        names.CONFIG_OK,
        _is_0,
        CheckLevel.FAIL,
        "goes on with an older configuration: the file could not be used when it was read again",
        "correct what stands under config here, then reload (SIGHUP)",
    ),
    MetricCheck(
        names.HISTORY_UP,
        _is_0,
        CheckLevel.FAIL,
        "cannot write its history now",
        "see data_dir and history here; its log and its status page say why",
    ),
    MetricCheck(
        names.HISTORY_DROPPED,
        _above_0,
        CheckLevel.WARN,
        "lost {value:.0f} minutes of replicas that it could not write, since it was started",
        "see data_dir and history here; what is lost stays lost",
    ),
    MetricCheck(
        names.TURN_ERRORS,
        _above_0,
        CheckLevel.WARN,
        "met {value:.0f} unexpected errors in its turns since it was started",
        "report what its log says of them: they are defects in sizewatch",
    ),
    MetricCheck(
        names.GPU_PROBLEMS,
        _above_0,
        CheckLevel.WARN,
        "has {value:.0f} troubles with reading GPUs",
        "see gpus here; its status page says which",
    ),
    MetricCheck(names.DISCOVERY_UP, _is_0, CheckLevel.FAIL, "is not told of this node's pods", "see pods here"),
    MetricCheck(
        names.ALERTMANAGER_UP,
        _is_0,
        CheckLevel.FAIL,
        "cannot post alerts to {alertmanager}",
        "see alerting here; its status page says why",
    ),
    MetricCheck(
        names.ALERTS_REFUSED,
        _above_0,
        CheckLevel.WARN,
        "has {value:.0f} alerts that {alertmanager} does not take",
        "its status page says why",
    ),
    MetricCheck(
        names.REPORT_UP,
        _is_0,
        CheckLevel.FAIL,
        "cannot write its weekly report",
        "see report here; `sizewatch report --out DIR` writes one by hand",
    ),
    MetricCheck(
        names.REPORT_DELIVERY_UP,
        _is_0,
        CheckLevel.FAIL,
        "does not get its report to {destination}",
        "see report here; its status page says why",
    ),
    MetricCheck(
        names.TIER_IN_SIGHT, _is_0, CheckLevel.FAIL, "is told nothing of {tier} by the store", "see store here"
    ),
    MetricCheck(
        names.TARGET_UP,
        _is_0,
        CheckLevel.WARN,
        "has no page of {tier}/{replica} that it could use",
        "see that target here; where it is well now, it was not at the last scrape",
    ),
)


Samples = dict[str, list[tuple[dict[str, str], float]]]
"""Series by metric: labels and value."""


def check_folder_owner(seen: DataFolderProbe | None, web: PortProbe) -> Iterator[CheckResult]:
    """Report another daemon in the folder. A daemon that answers at web.listen is this installation's."""
    if seen is None or not seen.holder:
        return
    if web.ours:
        yield ok("data_dir", f"a sizewatch has it (process {seen.holder})")
        return
    text = f"{seen.path} is in use by another sizewatch (process {seen.holder}), which does not answer at web.listen"
    yield fail("data_dir", text, "stop that one, or name another data_dir: a second daemon does not start there")


def check_daemon(seen: PortProbe, loaded: LoadedConfig, now: float) -> Iterator[CheckResult]:
    """Report each sign of trouble on the page, or their absence. Report nothing without a page."""
    if not seen.page:
        return
    samples = _samples(seen.page)
    found = [*_age(samples, loaded, now), *_version(samples), *_plan(samples, loaded)]
    for wrong in WRONG:
        lines = [_finding(wrong, *sample) for sample in samples.get(wrong.metric.name, ()) if wrong.is_wrong(sample[1])]
        found += lines[:MOST_SHOWN]
        if len(lines) > MOST_SHOWN:
            text = f"and {len(lines) - MOST_SHOWN} more of these"
            found.append(CheckResult(check=CHECK, level=wrong.level, text=text, advice=wrong.advice))
    yield from found or [ok(CHECK, f"{loaded.config.web.listen}: tells of no trouble of its own")]


def _age(samples: Samples, loaded: LoadedConfig, now: float) -> Iterator[CheckResult]:
    allowed = OLD_TURN_SECONDS + 3 * loaded.config.turn_seconds
    for _, ended in samples.get(names.LAST_TURN.name, ()):
        if (age := now - ended) > allowed:
            text = f"its last turn ended {age:.0f} s ago: what it shows is old"
            yield fail(CHECK, text, "look at its log; restart it if the turns do not come back")


def _version(samples: Samples) -> Iterator[CheckResult]:
    for labels, _ in samples.get(names.BUILD_INFO.name, ()):
        if labels.get("version", VERSION) != VERSION:
            text = f"is sizewatch {labels['version']}, {VERSION} is installed here"
            yield warn(CHECK, text, "restart it, so that it is the one that is installed")


def _plan(samples: Samples, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report tiers of which the daemon judges another plan than that on disk."""
    on_disk = plan_versions(loaded)
    for labels, _ in samples.get(names.PLAN_INFO.name, ()):
        tier, version = labels.get("tier", "?"), labels.get("plan_version", "?")
        if tier in on_disk and version != on_disk[tier]:
            text = f"judges {tier} by plan version {version}; the plan on disk is {on_disk[tier]}"
            yield warn(CHECK, text, "its log and its status page say why the file could not be taken up")


def _samples(page: str) -> Samples:
    found: Samples = {}
    for line in page.splitlines():
        if (told := LINE.match(line)) is None:
            continue
        try:
            value = float(told[3])
        except ValueError:
            continue
        found.setdefault(told[1], []).append((dict(LABEL.findall(told[2] or "")), value))
    return found


def _finding(wrong: MetricCheck, labels: dict[str, str], value: float) -> CheckResult:
    shown = {name: labels.get(name, "?") for name in wrong.metric.labels}
    text = wrong.text.format(value=value, **shown)
    return CheckResult(check=CHECK, level=wrong.level, text=text, advice=wrong.advice)
