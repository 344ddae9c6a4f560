"""Limits that a system sets from outside, and what the doctor says of them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from test_run import loaded

from agent.doctor import run
from agent.doctor.check_result import CheckLevel
from agent.doctor.process_limits import LimitsProbe, check_limits, memory_limit
from agent.worker.process import MIB


def groups(folder: Path, rows: str, **limits_of: str) -> int | None:
    """The limit with these control groups: files by path, `__` for a slash."""
    for name, text in limits_of.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name.replace("_max", ".max").replace("_in_bytes", ".limit_in_bytes")).write_text(text)
    (folder / "own").write_text(rows)
    return memory_limit(folder, folder / "own")


def test_the_least_memory_of_all_groups_above_counts(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/a/b\n", a__b__memory_max="max\n", a__memory_max="1000\n", memory_max="2000\n") == 1000


def test_a_container_finds_its_limit_at_the_top_where_its_path_is_the_hosts(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/kubepods/pod1/../../x\n", memory_max="3000\n") == 3000


def test_version_1_of_control_groups_is_read_too_and_its_number_for_no_limit_is_none(tmp_path: Path) -> None:
    rows = "9:name=systemd:/\n4:memory,hugetlb:/x\n"
    assert groups(tmp_path / "one", rows, memory__x__memory_in_bytes="4000\n") == 4000
    assert groups(tmp_path / "two", rows, memory__x__memory_in_bytes="9223372036854771712\n") is None
    assert memory_limit(tmp_path, tmp_path / "not there") is None


def said(folder: Path, seen: LimitsProbe, **keys: object) -> list[tuple[CheckLevel, str, str]]:
    return [(one.level, one.text, one.advice) for one in check_limits(seen, loaded(folder, **keys))]


def test_memory_that_forecasts_do_not_fit_into_is_warned_of_and_without_them_it_is_enough(tmp_path: Path) -> None:
    seen = LimitsProbe(memory_bytes=256 * MIB)
    ((level, text, advice),) = said(tmp_path, seen, forecast={"enabled": True})
    assert (level, text) == (CheckLevel.WARN, "its control group may use 256 MiB of memory, 612 MiB may be needed")
    assert advice == "raise the limit (MemoryMax, resources.limits.memory), or set forecast.enabled: false"
    assert said(tmp_path, seen, forecast={"enabled": False}) == []


def test_the_limits_of_the_manifests_are_enough(tmp_path: Path) -> None:
    """docs/install-kubernetes.md: 128 MiB for role node, 1 GiB for standalone."""
    assert said(tmp_path, LimitsProbe(memory_bytes=128 * MIB), role="node") == []
    assert said(tmp_path, LimitsProbe(memory_bytes=1024 * MIB), forecast={"enabled": True}) == []


def test_a_file_that_may_not_grow_fails_where_a_history_is_kept(tmp_path: Path) -> None:
    code = "from agent.doctor.process_limits import probe_limits; print(probe_limits().file_bytes)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "4096\n"
    ((level, text, advice),) = said(tmp_path, LimitsProbe(file_bytes=4096))
    assert (level, text.partition(":")[0]) == (CheckLevel.FAIL, "no file may grow beyond 4096 bytes")
    assert advice.startswith("lift the limit: ulimit -f unlimited")
    assert said(tmp_path, LimitsProbe(file_bytes=4096), role="node") == []


def test_without_threads_the_rest_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuses)
    found = run.run_checks(loaded(tmp_path, {"url": "http://127.0.0.1:1/metrics", "tier": "cpu-small"}))
    (line,) = [one for one in found if one.level is CheckLevel.FAIL]
    assert line.text == "it may begin no thread (can't start new thread)"
    assert "pids.max of a container" in line.advice
