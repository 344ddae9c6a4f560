"""Daemons for tests: in a thread of this process or as a process of their own, with a configuration in a folder."""

import io
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from engine_server import Engine
from paths import ROOT
from waiting import CEILING_SECONDS, StandingClock, wait_for

from agent.cli.main import main
from agent.config.config import Config
from agent.config.load import load
from agent.config.targets import TargetKeys
from agent.daemon.assembly import assemble
from agent.daemon.daemon import Daemon, DaemonOptions

PLAN = ROOT / "tests" / "plans" / "cpu-small.yaml"

FAST = 10.0
"""So many times faster are cycles than the half second that a configuration may ask for at least."""


def configuration(engines: Sequence[Engine], **keys: Any) -> dict[str, Any]:
    """Engines r0, r1 and so on of the tier that the plan has, scraped as often as may be, without GPUs."""
    return {
        "plan": str(PLAN),
        "scrape_interval": "500ms",
        "targets": [{"url": e.url, "tier": "cpu-small", "replica": f"r{n}"} for n, e in enumerate(engines)],
        "gpus": {"source": "none"},
        # A process of its own that loads pandas: only for tests that are about it.
        "forecast": {"enabled": False},
        **keys,
    }


def write(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "sizewatch.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def at_port(port: int) -> dict[str, Any]:
    """Surroundings of a daemon that listens there."""
    return {"web": lambda loaded: loaded.config.web.model_copy(update={"listen": f"127.0.0.1:{port}"})}


def made(path: Path, **surroundings: Any) -> Daemon:
    """A daemon on any free port, with fast cycles."""
    options = {"speed": FAST, **at_port(0), **surroundings}
    return Daemon(load(path), DaemonOptions(**options))


def _patience(config: Config, target: TargetKeys | None = None) -> float:
    """The time for a scrape that was configured, else far more than the interval that is its default."""
    return (target and target.scrape_timeout_seconds) or config.scrape_timeout_seconds or CEILING_SECONDS


@contextmanager
def running(path: Path, cycles: int = 2, **surroundings: Any) -> Iterator[Daemon]:
    """A daemon in a thread, after its first cycles. An engine that is slow on a busy machine is not one that is down."""
    with mock.patch.object(Config, "timeout_seconds", _patience):
        daemon = made(path, **surroundings)
        thread = threading.Thread(target=daemon.run)
        thread.start()
        try:
            assert wait_for(lambda: daemon.counts.cycles >= cycles), "no cycles"
            yield daemon
        finally:
            daemon.stop()
            thread.join(CEILING_SECONDS)
            assert not thread.is_alive()


@dataclass(frozen=True, slots=True)
class Stepped:
    """A daemon that takes a cycle when the test says so, at a clock that stands between: the machine may be as slow as it is."""

    daemon: Daemon
    clock: StandingClock

    def step(self, seconds: float) -> None:
        """A cycle so many seconds later."""
        self.clock.now += seconds
        self.daemon._run_cycle()

    def steps_until(self, what: Callable[[], Any], seconds: float, most: int) -> Any:
        """What the function gives as soon as that is true after a cycle, or at the end of so many."""
        for _ in range(most):
            self.step(seconds)
            if found := what():
                return found
        return None


@contextmanager
def stepping(path: Path, clock: StandingClock, **surroundings: Any) -> Iterator[Stepped]:
    """A daemon after its first cycle, the only one that it takes of itself."""
    times = {"assemble": partial(assemble, clock=clock), "clock": clock, "speed": 1e-4}
    with running(path, cycles=1, **times, **surroundings) as daemon:
        yield Stepped(daemon, clock)


def reload_daemon(daemon: Daemon, data: dict[str, Any] | None = None) -> None:
    """Let a daemon read its configuration again, which is this one if it is given, and wait until it is in use."""
    before = daemon.counts.config_reloads
    if data is not None:
        write(daemon.loaded.path.parent, data)
    daemon.ask_reload()
    assert wait_for(lambda: daemon.counts.config_reloads > before), daemon.counts.config_trouble


def further(daemon: Daemon, cycles: int = 1) -> None:
    """Waits for so many cycles that begin after now."""
    until = daemon.counts.cycles + cycles + 1
    assert wait_for(lambda: daemon.counts.cycles >= until), "no cycles"


def looks_around(daemon: Daemon) -> None:
    """Waits until the daemon has looked at its mounted files and its pods four times, and has done what followed."""
    looks, look = [0], daemon._look_around

    def counted() -> None:
        looks[0] += 1
        look()

    with mock.patch.object(daemon, "_look_around", counted):
        assert wait_for(lambda: looks[0] > 3), "it does not look around"


def ask(daemon_or_url: Daemon | str, page: str = "", token: str | None = None) -> bytes:
    """The body of a page of a daemon."""
    if isinstance(daemon_or_url, Daemon):
        daemon_or_url = daemon_or_url.web.url
    request = urllib.request.Request(daemon_or_url + page)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=CEILING_SECONDS) as result:
        body: bytes = result.read()
        return body


def metric(daemon: Daemon, name: str) -> float:
    """The value of a metric that has one series."""
    (line,) = [x for x in ask(daemon, "metrics").decode().splitlines() if x.startswith((f"{name} ", f"{name}{{"))]
    return float(line.rpartition(" ")[2])


def health(daemon: Daemon) -> dict[str, Any]:
    """What the status page's twin says of the agent itself, when the daemon has time to answer."""
    with suppress(urllib.error.HTTPError):
        return dict(json.loads(ask(daemon, "api/status"))["agent"])
    time.sleep(0.1)
    return health(daemon)


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`sizewatch WORDS` as a process of its own; whatever is left of it at the end is killed."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import agent.__main__", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def results(url: str) -> bool:
    """Whether a daemon there has had its first cycle."""
    try:
        return bool(ask(url, "readyz"))
    except OSError:
        return False


@contextmanager
def at(now: float) -> Iterator[None]:
    """The clock stands at `now` (unix seconds)."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: now)
        yield


def run_command(*words: str) -> tuple[int, str, str]:
    """The exit code of a command, which ends as one that was foreseen, and both of its outputs."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(list(words))
    assert code in (0, 1, 2, 3), (words, errors.getvalue())
    return code, out.getvalue(), errors.getvalue()
