"""Settings for all tests: no test is a timing, and in CI the random ones are the same each time."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator

    from simulation_truth import PastFleet

# Tests take samples from each other by name, whatever folder they are in; base names are unique.
sys.path += sorted({str(path.parent) for path in Path(__file__).parent.rglob("test_*.py")})

# Threads of the numbers' library wait for each other in every worker; set before it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so; the programs that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets begin and alerts end at once, for tests of the delivery alone."""
    monkeypatch.setattr("rules.evaluator.incident_alerts.TICKET_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("rules.evaluator.incident_alerts.KEEP_SECONDS", 0.0)


@pytest.fixture(scope="session")
def past_fleet(tmp_path_factory: pytest.TempPathFactory) -> PastFleet:
    """Filled once, as it takes long; what tests do to their copies is theirs."""
    from building import build_once
    from simulation_truth import PastFleet

    return build_once(tmp_path_factory, "past-fleet", PastFleet)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Asserts of a file are rewritten by one worker, which keeps them; the others wait for it and read what it kept."""
    path = collector.path
    if not isinstance(collector, pytest.Module) or any(
        (path.parent / "__pycache__").glob(f"{path.stem}.*-pytest-*.pyc")
    ):
        return (yield)
    with path.open() as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not walk it again and again."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than cores (`-n auto`): many tests wait for servers and clocks, and leave their core to others meanwhile."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2
