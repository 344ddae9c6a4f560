"""A history's folder belongs to one daemon at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from agent.errors import ConfigError
from agent.files import LOCK_FILE, DataDir

NAMED = Path("/etc/sizewatch/sizewatch.yaml")


def test_a_folder_is_made_for_its_owner_alone_and_can_be_taken_again_after_it_was_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    DataDir(folder, NAMED).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    ours = DataDir(folder, NAMED)
    assert (folder / LOCK_FILE).read_text() == str(os.getpid())
    ours.close()


def test_a_folder_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    ours = DataDir(tmp_path, NAMED)
    expected = rf"^{NAMED}: data_dir: {tmp_path} is in use by another sizewatch \(process {os.getpid()}\)"
    with pytest.raises(ConfigError, match=expected):
        DataDir(tmp_path, NAMED)
    ours.close()


def test_a_process_that_was_killed_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from agent.files import DataDir\n"
        f"DataDir(Path({str(tmp_path)!r}), Path('x')); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = ROOT
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == -9
    DataDir(tmp_path, NAMED).close()


@pytest.mark.parametrize("name", ["file", "file/x"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"data_dir: .*/{name} is, or lies in, a file; name a folder"):
        DataDir(tmp_path / name, NAMED)


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match=r"data_dir: /proc/x cannot be written \(.*\); make it writable, or name another"
    ):
        DataDir(Path("/proc/x"), NAMED)
