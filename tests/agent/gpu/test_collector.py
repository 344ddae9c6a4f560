"""The GPUs of a node: windows from readouts, owners by name or process, what is told when they are not read."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from gpu_pages import MADE, T, by_uuid, readout
from nvml_fixture import StandIn, nvml_library, nvml_state  # noqa: F401 (fixtures)

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.gpu.collector import UNREAD_SECONDS, ExporterPage, GpuCollector
from agent.gpu.nvml_reader import NvmlReader
from agent.gpu.owners import GpuAssignment, PidFileError, assign_gpus, lineage, read_pid
from agent.scrape.scrapers import Target
from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM as DCGM_EXPORTER
from rules.telemetry.snapshots import GpuReadout


def target(replica: str, *gpus: str, pid_file: Path | None = None) -> Target:
    return Target(
        tier="t",
        replica=replica,
        pool="mixed",
        peer=Peer(url="http://127.0.0.1:1/metrics"),
        gpus=gpus,
        pid_file=str(pid_file) if pid_file else None,
    )


TWO = by_uuid(readout("GPU-a", 0), readout("GPU-b", 1))


def proc(folder: Path, parents: Mapping[int, int]) -> Path:
    """A /proc of these processes, whose names are of the worst kind."""
    for pid, parent in parents.items():
        (folder / str(pid)).mkdir(parents=True)
        (folder / str(pid) / "stat").write_text(f"{pid} (worker ) 1 (x) S {parent} {pid} 0 -1", encoding="ascii")
    return folder


HALVES = by_uuid(readout("MIG-1c1e9a04", None, pids=(os.getpid(),)), readout("MIG-2c1e9a04", None, pids=()))
UNREAD = "is configured for it and is not read here"
PAIR = by_uuid(replace(readout("GPU-a", 0), host="n1"), replace(readout("GPU-b", 0, t=T - 999), host="n2"))


@pytest.mark.parametrize(
    ("named", "readouts", "gpus", "missing"),
    [
        (("GPU-b",), TWO, ("GPU-b",), ""),
        (("1",), TWO, ("GPU-b",), ""),
        (("1", "0"), TWO, ("GPU-b", "GPU-a"), ""),
        (("1", "GPU-b"), TWO, ("GPU-b",), ""),
        ((), TWO, (), ""),
        (("auto",), TWO, ("GPU-a", "GPU-b"), ""),
        (("0",), by_uuid(readout("GPU-new", 0, t=T + 120), readout("GPU-old", 0)), ("GPU-new",), ""),
        (("0",), by_uuid(readout("GPU-c", 0), *TWO.values()), (), "GPU 0 is GPU-c and GPU-a: name it by UUID"),
        (("0", "7", "GPU-x"), TWO, ("GPU-a",), f"GPU 7, GPU-x {UNREAD}"),
        (("0", "GPU-b"), PAIR, ("GPU-b",), "GPU 0 is of n1 or n2: name it by UUID"),
        (("auto",), PAIR, (), "its GPUs are not known: those read are of n1 or n2"),
        (("0",), HALVES, (), f"GPU 0 {UNREAD} (where MIG is on, name its instances: {', '.join(HALVES)})"),
    ],
)
def test_gpus_are_owned_by_uuid_or_index(
    named: tuple[str, ...], readouts: Mapping[str, GpuReadout], gpus: tuple[str, ...], missing: str
) -> None:
    (found,) = assign_gpus([target("r", *named)], readouts).values()
    assert (found.gpus, found.missing) == (gpus, missing)


def test_auto_needs_a_single_target() -> None:
    found = assign_gpus([target("r", "auto"), target("s", "auto")], TWO)
    assert [owned.gpus for owned in found.values()] == [(), ()]


def test_pid_file_finds_gpus_of_descendants(tmp_path: Path) -> None:
    tree = proc(tmp_path / "proc", {10: 1, 11: 10, 12: 11, 20: 1, 21: 20})
    files = {name: tmp_path / name for name in ("r", "s")}
    files["r"].write_text("10\n")
    files["s"].write_text("20")
    readouts = by_uuid(readout("GPU-a", 0, pids=(12, 99)), readout("GPU-b", 1, pids=(12, 21)), readout("GPU-c", 2))
    targets = [target(name, "auto", pid_file=file) for name, file in files.items()]
    found = assign_gpus(targets, readouts, lambda pid: lineage(pid, tree))
    assert found == {("t", "r"): GpuAssignment(gpus=("GPU-a", "GPU-b")), ("t", "s"): GpuAssignment(gpus=("GPU-b",))}


@pytest.mark.parametrize(
    ("text", "why"), [(None, "no such file"), *((text, "no process id") for text in ("", "vllm", "-5", "0", "\u0661"))]
)
def test_pid_file_without_a_process_is_named(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "engine.pid"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(PidFileError, match=rf"engine\.pid: .*{why}"):
        read_pid(str(file))
    (found,) = assign_gpus([target("r", "auto", pid_file=file)], TWO).values()
    assert (found.gpus, "its GPUs are not known: pid_file" in found.missing) == ((), True)
    file.write_text("10")
    (found,) = assign_gpus([target("r", "auto", pid_file=file)], TWO, lambda pid: frozenset({pid})).values()
    assert found.missing == "its GPUs are not known: process 10 uses none that is read"


def test_pipe_is_no_pid_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    with (tmp_path / "pid").open("r+b", buffering=0) as pipe:
        pipe.write(b"10\n" * 10)
        with pytest.raises(PidFileError, match="no such file"):
            read_pid(str(tmp_path / "pid"))


def test_lineage_ends_where_proc_does(tmp_path: Path) -> None:
    tree = proc(tmp_path / "proc", {10: 1, 11: 10, 30: 31, 31: 30})
    assert lineage(11, tree) == {11, 10, 1}
    assert lineage(999, tree) == {999}
    assert lineage(30, tree) == {30, 31}, "a circle of pids that were used again"
    (tree / "11" / "stat").write_text("11 (cut")
    assert lineage(11, tree) == {11}
    assert {os.getpid(), os.getppid()} <= lineage(os.getpid())


DCGM = """\
DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-a",device="nvidia0",modelName="H"}} {celsius}
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="GPU-a",device="nvidia0",modelName="H"}} {millijoules}
DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-a",device="nvidia0",modelName="H"}} {code}
"""


class Exporter:
    """A dcgm-exporter whose page is set by the test; an error in its place is raised."""

    page: bytes | ScrapeError = b""

    def show(self, celsius: float, millijoules: float, code: int = 0) -> None:
        self.page = DCGM.format(celsius=celsius, millijoules=millijoules, code=code).encode()

    def fetch(self) -> bytes:
        if isinstance(self.page, ScrapeError):
            raise self.page
        return self.page


def test_dcgm_value_counts_once_per_refresh() -> None:
    exporter = Exporter()
    gpus = GpuCollector(ExporterPage(exporter, DCGM_EXPORTER))
    joules = covered = 0.0
    events, seen = [], []
    for turn in range(14):
        refresh = turn // 2
        # A fault counts when its code comes.
        exporter.show(50.0 + refresh, 1e6 * refresh, (79, 79, 79, 48, 48, 0, 48)[refresh])
        windows = gpus.read_gpus(T + 15 * turn).windows
        seen.append(bool(windows))
        for window in windows.values():
            joules += window.counters["gpu_energy_joules"]
            covered += window.counters["gpu_energy_covered_seconds"]
            events.append(window.counters["gpu_fault_events"])
    # 1,000 J every 30 s: neither doubled by the scrapes between nor thinned by them.
    assert (joules, covered) == (6000.0, 180.0)
    assert seen == [False, False, *[True, False] * 6]
    assert gpus.latest["GPU-a"].t == T + 180
    assert events == [0, 0, 1, 0, 0, 1]
    assert gpus.latest["GPU-a"].counters["gpu_fault_events_by_code/xid-48"] == 2


def test_failing_dcgm_page_is_a_problem() -> None:
    exporter = Exporter()
    gpus = GpuCollector(ExporterPage(exporter, DCGM_EXPORTER))
    exporter.page = ScrapeError(ScrapeFailure.CONNECT, "connection refused")
    assert gpus.read_gpus(T).problems == ("dcgm-exporter: connect: connection refused",)
    exporter.show(50, 1)
    assert (gpus.read_gpus(T + 15).problems, *gpus.latest) == ((), "GPU-a")


def test_amd_gpus_give_energy_throttling_and_faults() -> None:
    exporter = Exporter()
    page = (MADE / "made-amd-1.5-mi300x.prom").read_text(encoding="utf-8")
    later = {" 2.5293978861568e+13": " 2.5312978861568e+13", " 8000000": " 8030000", " 53994": " 56994"}
    gpus = GpuCollector(ExporterPage(exporter, AMD))
    exporter.page = page.encode()
    assert gpus.read_gpus(T).windows == {}
    for before, after in later.items():
        assert before in page
        page = page.replace(before, after)
    exporter.page = (page.replace("} 23\n", "} 31\n")).encode()
    turn = gpus.read_gpus(T + 30)
    assert turn.problems == ()
    busy, idle = (turn.windows[gpu] for gpu in ("692501000010", "692501000011"))
    assert busy.counters["gpu_energy_joules"] / busy.counters["gpu_energy_covered_seconds"] == pytest.approx(19e3 / 30)
    assert busy.counters["gpu_throttled_power_seconds"] == pytest.approx(30 * 3000 / 30000)
    assert (busy.counters["gpu_fault_events"], idle.counters["gpu_fault_events"]) == (0, 1)
    assert idle.counters["gpu_fault_events_by_code/afid-31"] == 1
    assert "gpu_gfx_active" in busy.sampled
    assert gpus.latest["692501000010"].pids == (4021, 4022)
    assert gpus.read_gpus(T + 45).windows == {}, "no GPU stands at 0 W: the exporter has not read it again"


def test_unread_gpu_is_told_after_two_minutes() -> None:
    exporter = Exporter()
    gpus, none = GpuCollector(ExporterPage(exporter, DCGM_EXPORTER)), GpuCollector(None)
    exporter.show(50, 1)
    gpus.read_gpus(T)
    owned = GpuAssignment(gpus=("GPU-a",))
    assert gpus.trouble(("t", "r"), owned, T + UNREAD_SECONDS) == ""
    # Blanks alone are no reading.
    exporter.show(*[2.0**63 - 14] * 3)
    for collector in (gpus, none):
        assert collector.read_gpus(T + UNREAD_SECONDS + 15).windows == {}
    assert gpus.trouble(("t", "r"), owned, T + UNREAD_SECONDS + 15) == "GPU GPU-a has not been read for 135 s"
    assert gpus.trouble(("t", "other"), GpuAssignment(gpus=()), T + 1000) == ""
    missing = GpuAssignment(gpus=(), missing="GPU 7 is missing")
    assert [none.trouble(("t", "r"), missing, T + n * 1000) for n in range(3)] == ["", "", ""]
    gpus.note_owners({("t", "r"): owned}, T + 150)
    told = [gpus.trouble(("t", "r"), one, T + 300) for one in (missing, owned)]
    assert told == ["GPU 7 is missing", "GPU GPU-a has not been read for 300 s"]


def test_missing_gpus_are_told_after_a_while() -> None:
    gpus = GpuCollector(ExporterPage(Exporter(), DCGM_EXPORTER))
    missing, none = GpuAssignment(gpus=(), missing="GPU 7 is missing"), GpuAssignment(gpus=())

    def trouble(owned: GpuAssignment, now: float) -> str:
        gpus.note_owners({("t", "r"): owned}, now)
        return gpus.trouble(("t", "r"), owned, now)

    assert trouble(missing, T) == ""
    assert trouble(missing, T + UNREAD_SECONDS + 1) == "GPU 7 is missing"
    assert trouble(none, T + 200) == ""
    assert trouble(missing, T + 201) == "", "an engine that restarts has a while again"


def test_gone_parts_are_forgotten() -> None:
    last_seen = {"a/1": 0, "b/0": 15, "c/1@n2": 0, "d": 0, "lost": 15, "a/2": 345, "b": 345, "d/5": 345}
    page: list[GpuReadout] = []
    gpus = GpuCollector(Mock(read=lambda now: (page, ())))
    for t in (0, 15, 330, 345):
        shown = (readout(gpu, None if "/" in gpu else 0, t=T + t) for gpu, end in last_seen.items() if t <= end)
        page[:] = (replace(one, host=one.gpu.partition("@")[2]) for one in shown)
        gpus.read_gpus(T + t)
    assert list(gpus.latest) == ["c/1@n2", "lost", "a/2", "b", "d/5"]


def test_machine_of_new_name_is_one() -> None:
    page: list[GpuReadout] = []
    gpus = GpuCollector(Mock(read=lambda now: (page, ())))
    for shown, host in ((("a", "b", "c"), "pod-1"), (("b", "c"), "pod-2"), (("c",), "pod-3")):
        page[:] = (replace(readout(gpu, place), host=host) for place, gpu in enumerate(shown))
        gpus.read_gpus(T)
    assert assign_gpus([target("r", "auto")], gpus.latest)["t", "r"].gpus == ("a", "b", "c")


def test_defect_costs_the_gpus_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        turn = GpuCollector(Mock(read=Mock(side_effect=AttributeError("a binding that changed")))).read_gpus(T)
    assert (turn.problems, turn.windows) == (("defect in sizewatch while reading GPUs: AttributeError",), {})
    assert caplog.records[0].exc_info is not None


def test_nvml_windows_carry_their_own_seconds(nvml: StandIn) -> None:
    uuid = nvml.add_gpu()
    reader_time = [0.0]
    gpus = GpuCollector(NvmlReader(clock=lambda: reader_time[0]))
    gpus.read_gpus(T)
    nvml.set({"0.energy_mj": 5_006_000})
    reader_time[0] = 15.0
    turn = gpus.read_gpus(T + 15)
    assert turn.problems == ()
    window = turn.windows[uuid]
    assert window.counters["gpu_energy_joules"] == pytest.approx(6.0)
    assert window.counters["gpu_energy_covered_seconds"] == pytest.approx(15.0)
    assert (window.expected_seconds, window.covered_seconds) == (0.0, 0.0)
    gpus.close()
    assert nvml.opened() == 0
