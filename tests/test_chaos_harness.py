"""The harness of `make chaos`: its table, and how it reads what a killed daemon told."""

from __future__ import annotations

import sys

import pytest
from daemon_runs import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from chaos_faults import FAULTS
from chaos_kills import Life, read

from exporters.names import FAMILY, OWN

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
