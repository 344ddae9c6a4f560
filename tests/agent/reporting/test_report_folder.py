"""Where reports stand: whole or not at all, the newest found by name, nothing foreign touched, no link followed."""

import os
from pathlib import Path

import pytest

from agent.reporting import storage

ONE = {"report.html": b"<html>", "report.json": b"{}"}


def test_report_appears_whole(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    (root / ".new-2026-11-09").mkdir(parents=True)
    (root / ".new-2026-11-09" / "report.html").write_bytes(b"half")
    assert storage.names(root) == storage.names(tmp_path / "nowhere") == ()
    storage.publish(root, "2026-11-23", ONE, keep=26)
    storage.publish(root, "2026-11-16", {"report.html": b"late"}, keep=26)
    assert storage.names(root) == ("2026-11-23", "2026-11-16")
    assert sorted(path.name for path in root.iterdir()) == ["2026-11-16", "2026-11-23"]
    assert storage.files(root, "2026-11-16") == ("report.html",)
    # Of the same date, the later report replaces the earlier.
    storage.publish(root, "2026-11-23", {"report.md": b"again"}, keep=26)
    assert storage.files(root, "2026-11-23") == ("report.md",)
    assert storage.read_report_file(root, "2026-11-23", "report.html") is None


def test_only_old_own_reports_go(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "2026-plans").mkdir()
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / "2020-01-01").symlink_to(outside)
    for day in range(10, 16):
        storage.publish(tmp_path, f"2026-11-{day}", ONE, keep=2)
    assert {one.name for one in tmp_path.iterdir()} == {
        "2026-11-15", "2026-11-14", "notes.txt", "2026-plans", "2020-01-01",
    }  # fmt: skip
    assert (outside / "kept").read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("..", "report.html"),
        ("2026-11-23/..", "report.html"),
        ("2026-11-23", "../secret"),
        ("2026-11-23", "secret"),
        ("2026-11-2٣", "report.html"),
        ("", "report.html"),
        ("latest", "report.html"),
    ],
)
def test_only_report_files_are_read(tmp_path: Path, name: str, file: str) -> None:
    storage.publish(tmp_path, "2026-11-23", {**ONE, "secret": b"no"}, keep=26)
    assert storage.read_report_file(tmp_path, name, file) is None


def test_links_pipes_and_folders_are_unread(tmp_path: Path) -> None:
    storage.publish(tmp_path, "2026-11-23", {**ONE, "report.md": b"x" * 100}, keep=26)
    (tmp_path / "secret").write_text("secret")
    place = tmp_path / "2026-11-23"
    (place / "report.html").unlink()
    (place / "report.html").symlink_to(tmp_path / "secret")
    (place / "report.json").unlink()
    os.mkfifo(place / "report.json")
    (place / "plan.next.yaml").mkdir()
    (tmp_path / "2026-11-24").symlink_to(place)
    for file in ("report.html", "report.json", "plan.next.yaml"):
        assert storage.read_report_file(tmp_path, "2026-11-23", file) is None
    assert storage.read_report_file(tmp_path, "2026-11-24", "report.md") is None
    assert storage.read_report_file(tmp_path, "2026-11-23", "report.md") == b"x" * 100
