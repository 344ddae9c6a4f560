"""Faults that `make chaos` found something by, or that no other test does, each short and the same every time."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_runs import ask, configuration, process, results, write
from engine_server import Handler, answers_500, cuts_off, engines, give, hangs, is_html, is_strange, redirects
from paths import ROOT, SUPPORT
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.config.peer import Peer
from agent.scrape.scrapers import Scrapers, Target


def page_of(handler: Handler) -> bytes:
    return handler.server.pages[0]


def hangs_mid_page(handler: Handler) -> None:
    page = page_of(handler)
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    handler.wfile.write(page[: len(page) // 2])
    hangs(handler)


def new_series(handler: Handler) -> bytes:
    asked = len(handler.server.asked)
    return b"".join(b'vllm:num_requests_running{engine="%d-%d"} 1.0\n' % (asked, n) for n in range(10_001))


MISBEHAVIOURS: dict[str, Callable[[Handler], None]] = {
    **{act.__name__: act for act in (answers_500, cuts_off, hangs, hangs_mid_page, is_html, is_strange, redirects)},
    "garbage": lambda handler: give(handler, bytes(range(256)) * 16 + b"\n"),
    "long label": lambda handler: give(
        handler, page_of(handler).replace(b'model_name="', b'model_name="' + b"m" * 70_000)
    ),
    "blank lines": lambda handler: give(handler, page_of(handler) + b"\n" * 1_000_000),
    "comment lines": lambda handler: give(handler, page_of(handler) + b"# a comment\n" * 150_000),
    "series without end": lambda handler: give(handler, page_of(handler) + new_series(handler)),
}


@pytest.mark.parametrize("fault", MISBEHAVIOURS)
@pytest.mark.parametrize("turns", [1, 3, 5])
def test_recovered_engine_is_seen_in_two_cycles(fault: str, turns: int) -> None:
    with engines(1) as (engine,):
        hurried = fault.startswith("hangs")
        options = Peer(url=engine.url, timeout_seconds=0.25 if hurried else CEILING_SECONDS)
        scrapers = Scrapers([Target(tier="t", replica="r0", pool="mixed", peer=options)])
        engine.act = MISBEHAVIOURS[fault]
        during = [scrapers.collect_results(scrapers.start_scrapes())["t", "r0"].snapshot for _ in range(turns)]
        engine.act = None
        engine.released.set()
        after = [scrapers.collect_results(scrapers.start_scrapes())["t", "r0"] for _ in range(2)]
        # A busy machine may take longer than that for a good page as well.
        while hurried and after[-1].snapshot is None and len(after) < 100:
            after.append(scrapers.collect_results(scrapers.start_scrapes())["t", "r0"])
        scrapers.close()
    assert during == [None] * turns
    assert after[-1].snapshot is not None


def python(program: str, *words: str) -> str:
    """What a program of its own says, on a machine whose files may not grow."""
    text = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(SUPPORT)!r}]\n{program}"
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, check=True)
    return done.stdout


NO_ROOM_FOR_THE_NAME = """
import logging, resource
from pathlib import Path
from agent.files import DataDir
from agent.errors import ConfigError
logging.basicConfig(stream=sys.stdout, format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
ours = DataDir(Path(sys.argv[1]), Path("sizewatch.yaml"))
try:
    DataDir(Path(sys.argv[1]), Path("sizewatch.yaml"))
except ConfigError as error:
    print(error)
"""


def test_full_disk_costs_holder_name_only(tmp_path: Path) -> None:
    told = python(NO_ROOM_FOR_THE_NAME, str(tmp_path / "data")).splitlines()
    assert told[0].endswith('daemon.lock error="File too large"')
    assert "is in use by another sizewatch" in told[1]


def test_suspended_daemon_continues(tmp_path: Path) -> None:
    port = free_port()
    with engines() as served:
        path = write(tmp_path, configuration(served, web={"listen": f"127.0.0.1:{port}"}))
        with process("run", "-c", str(path)) as started:
            url = f"http://127.0.0.1:{port}/"
            assert wait_for(lambda: results(url))
            started.send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            asked = len(served[0].asked)
            started.send_signal(signal.SIGCONT)
            assert wait_for(lambda: len(served[0].asked) >= asked + 2)
            page = ask(url, "metrics").decode()
            started.send_signal(signal.SIGTERM)
            _, said = started.communicate(timeout=CEILING_SECONDS)
    assert started.returncode == 0
    assert "sizewatch_cycle_errors_total 0.0" in page
    assert "Traceback" not in said
