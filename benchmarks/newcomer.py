"""The first minutes of a newcomer, timed: from a clone to a watched engine, an alert in Alertmanager and a report on disk.

    .venv/bin/python benchmarks/newcomer.py            # some minutes; needs pip's index, and ports 8000, 9093 and 19095 free

The engine is the recording of a real vLLM that runs into a KV cache cascade, played at life's pace on vLLM's port. The
Alertmanager is Debian's. Every command is one that README.md shows; none is given a file that was edited.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALERTMANAGER = "http://127.0.0.1:9093"
LONGEST_SECONDS = 900.0
CONFIGURATION = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


def wait_for(what: str, found: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < end:
        with suppress(OSError, ValueError):
            if found():
                return
        time.sleep(0.5)
    sys.exit(f"{what}: not within {LONGEST_SECONDS:.0f} s")


def answer(url: str) -> object:
    with urllib.request.urlopen(url, timeout=5) as told:
        return json.load(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the Python to install into a fresh environment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder = Path(name)
        (folder / "alertmanager.yml").write_text(CONFIGURATION)
        words = [
            "prometheus-alertmanager",
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder}/am",
        ]
        words += ["--web.listen-address=127.0.0.1:9093", "--cluster.listen-address=", "--log.level=error"]
        processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
        processes.append(subprocess.Popen([sys.executable, str(ROOT / "examples" / "compose" / "engine.py")]))
        try:
            return steps(options.python, folder, processes)
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(60)


def steps(python: str, folder: Path, processes: list[subprocess.Popen[bytes]]) -> int:
    start = last = time.monotonic()

    def step(what: str) -> None:
        nonlocal last
        now = time.monotonic()
        print(f"{now - last:7.1f} s  {what}", flush=True)
        last = now

    clone, out = folder / "sizewatch", folder / "here"
    out.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    step("git clone")
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    install = [str(folder / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", "."]
    subprocess.run(install, cwd=clone, check=True)
    step("1  pip install .   (into a new environment)")
    sizewatch = str(folder / "venv/bin/sizewatch")
    with (folder / "run.log").open("wb") as log:
        processes.append(subprocess.Popen([sizewatch, "init", "--run"], cwd=out, stdout=log, stderr=log))
    wait_for("the status page", lambda: bool(answer("http://127.0.0.1:19095/api/status")))
    step("2  sizewatch init --run   the status page answers")
    wait_for("an alert", lambda: bool(answer(f"{ALERTMANAGER}/api/v2/alerts")))
    held = answer(f"{ALERTMANAGER}/api/v2/alerts")
    assert isinstance(held, list)
    step(f"   an alert in Alertmanager: {', '.join(sorted(one['labels']['alertname'] for one in held))}")
    written = subprocess.run([sizewatch, "report", "--since", "1h", "--out", "weekly"], cwd=out, check=False)
    assert (out / "weekly" / "report.html").is_file(), f"no report, exit code {written.returncode}"
    step("3  sizewatch report --since 1h --out weekly   report.html is on disk")
    print(f"{time.monotonic() - start:7.1f} s  in all: 3 commands after the clone, 0 files edited")
    shutil.copy(folder / "run.log", ROOT / "build" / "newcomer.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
