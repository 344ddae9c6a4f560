"""The harness of `make chaos`: its table, how it reads what a killed daemon told, and what it writes into the store."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from paths import ROOT
from waiting import CEILING_SECONDS

sys.path.append(str(ROOT / "benchmarks"))

import chaos_collector
from chaos_collector import MODES, Source, fetched, text
from chaos_daemon import REPLACED
from chaos_fault import Fault
from chaos_faults import FAULTS
from chaos_kills import Life, read

from exporters.metrics.names import FAMILY, OWN

NAMES = {metric.name for metric in (*OWN, *FAMILY.values())}


def test_every_fault_has_a_name_of_its_own_and_shows_in_a_metric_that_is_exported() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.metric.partition(" ")[0] for fault in FAULTS} <= NAMES


@pytest.mark.parametrize(
    ("told", "life"),
    [
        ([], Life()),
        (["begin 3.0\n", "done\n", "begin 2.0\n"], Life(booked=3.0, bookings=1, under_way=2.0)),
        (["begin 3.0\n", "done\n", "begin 2"], Life(booked=3.0, bookings=1)),
        (["seal\n", "sealed\n", "seal\n"], Life(sealing=True, seals=2)),
    ],
)
def test_what_a_killed_daemon_told_is_taken_up_to_the_line_that_was_cut_off(told: list[str], life: Life) -> None:
    assert read(told) == life


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_every_fault_can_be_part_of_a_pair(fault: Fault) -> None:
    assert any(fault.goes_with(other) and other.goes_with(fault) for other in FAULTS)


def test_what_lasts_an_hour_is_not_paired_with_what_would_change_its_promise() -> None:
    hours = [one for one in FAULTS if one.hour is not None]
    assert [one.name for one in hours] == ["store_away_an_hour", "alertmanager_away_an_hour"]
    for one in hours:
        assert not [other.name for other in FAULTS if one.goes_with(other) and (other.hour or other.moves_clock)]


SOURCE = Source(name="r1", url=str, labels={"job": "engines", "instance": "r1"}, renamed=(b'"a"', b'"b"'))


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        (
            b'# TYPE x counter\nx{tier="a"} 3\ny 4 17\n',
            [
                b'x{tier="b",job="engines",instance="r1"} 3 1500',
                b'y{job="engines",instance="r1"} 4 1500',
                b'up{job="engines",instance="r1"} 1 1500',
            ],
        ),
        (b"x 1\nx 2\n", [b'x{job="engines",instance="r1"} 1 1500', b'up{job="engines",instance="r1"} 1 1500']),
        (b'x 1\nx{tier="', [b'up{job="engines",instance="r1"} 0 1500']),
        (b"", [b'up{job="engines",instance="r1"} 1 1500']),
        (None, [b'up{job="engines",instance="r1"} 0 1500']),
    ],
)
def test_a_page_is_written_as_prometheus_would_and_one_that_it_would_not_take_is_up_0(
    page: bytes | None, lines: list[bytes]
) -> None:
    assert b"".join(text(SOURCE, page, 1.5)).splitlines() == lines


def test_samples_of_one_replica_are_missing_in_what_the_node_agent_tells_too() -> None:
    told = b'x{replica="r1"} 1 2\nx{replica="r2"} 1 2\n'
    assert MODES["one_missing"]("node", told) == b'x{replica="r2"} 1 2\n'
    assert MODES["one_missing"]("r1", told) == b""
    assert MODES["all_missing"]("r2", told) == b""


def test_every_benchmark_finds_the_modules_that_it_uses() -> None:
    """They run by hand only: a module that moved would be missed for weeks."""
    folder = ROOT / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    code = f"import importlib, sys; sys.path[:0] = {[str(ROOT), str(folder)]}\nfor name in {names}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_names_that_the_daemon_under_attack_replaces_are_there() -> None:
    assert [name for module, name in REPLACED if name not in vars(module)] == []


@pytest.mark.parametrize(
    ("sent", "page"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n4\r\nup 1\r\n1\r\n\n\r\n0\r\n\r\n", b"up 1\n"),
        (b"Transfer-Encoding: chunked\r\n\r\n4\r\nup 1\r\n1\r\n", None),
        (b"Content-Length: 5\r\n\r\nup 1\n", b"up 1\n"),
        (b"Content-Length: 9\r\n\r\nup 1\n", None),
    ],
)
def test_the_collector_takes_whole_pages_only_with_a_length_or_in_chunks(
    sent: bytes, page: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_collector, "TIMEOUT_SECONDS", CEILING_SECONDS)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        fetch = pool.submit(fetched, f"http://127.0.0.1:{server.getsockname()[1]}/metrics")
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + sent)
        assert fetch.result() == page
