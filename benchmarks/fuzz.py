"""Fuzzes everything that reads foreign bytes, each target in a process of its own, and writes what fails to a file.

    python benchmarks/fuzz.py                      # every target, 60 s in all
    python benchmarks/fuzz.py --target page --seconds 300 --seed 7
    python benchmarks/fuzz.py --reproduce build/fuzz/page-1f0c2b7a.bin

Targets and what must be true of them are in tests/support/fuzz_*.py, how inputs are changed in fuzz_mutating.py. Which inputs are
worth keeping is told by coverage: by Atheris (libFuzzer) where it is installed, else by lines seen through sys.settrace,
which is slower and knows no comparisons. A run without Atheris is repeated by its seed; one of Atheris nearly so.
Exit code 1: something failed, and where its input lies is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

from fuzz_mutating import mutated

CORPUS = ROOT / "tests" / "fuzz_corpus"
FOUND = ROOT / "build" / "fuzz"
OURS = tuple(str(ROOT / room) for room in ("agent", "rules", "exporters", "forecast"))
MEMORY_EVERY = 50
"""Every so many cases one is run with its memory measured, which takes three times as long."""

LEAST_FOR_ATHERIS = 20.0
"""Seconds for one target. It instruments every module that is imported, which takes as long."""

_NOISE = re.compile(r"'.*|[0-9]{4,}.*|/tmp/.*|(?<![:\w])[0-9]+")
"""What differs from one input to the next of the same failure."""

Fails = dict[str, str]
"""By what went wrong the file of the smallest input that does it."""


class Failures:
    """Writes each failure once, and a smaller input for it when one comes."""

    def __init__(self, target: str, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._smallest: dict[str, int] = {}
        self.files: Fails = {}

    def take(self, wrong: str, data: bytes) -> None:
        key = _NOISE.sub("#", wrong.split(" is ")[0])[:80]
        if len(data) >= self._smallest.get(key, 1 << 60):
            return
        self._smallest[key] = len(data)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._target}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.bin"
        path.write_bytes(data)
        self.files[key] = str(path)


class Lines:
    """The lines of ours that were ever run, by sys.settrace, in every thread."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()
        self._grown = False

    def begin(self) -> None:
        self._grown = False
        threading.settrace(self._call)
        sys.settrace(self._call)

    def end(self) -> bool:
        """Whether a line was run for the first time."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        return self._grown

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        place = (id(frame.f_code), frame.f_lineno)
        if place not in self.seen:
            self.seen.add(place)
            self._grown = True
        return self._line


def corpus(name: str) -> list[bytes]:
    """The inputs that were kept for a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def traced(name: str, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """One target in this process, guided by lines."""
    from fuzz_target import MOST_INPUT_BYTES, case, limit_memory
    from fuzz_targets import TARGETS

    limit_memory()
    target, chance, lines = TARGETS[name], random.Random(f"{name} {seed}"), Lines()
    failures, kept, runs = Failures(name, folder), list[bytes](), 0
    begun = time.monotonic()

    def tried(data: bytes) -> None:
        nonlocal runs
        runs += 1
        lines.begin()
        try:
            wrong = case(target, data, memory=runs % MEMORY_EVERY == 0)
        finally:
            new = lines.end()
        if wrong.startswith(("slow", "hang")):
            # It is the tracing that is slow: once more without it.
            wrong = case(target, data)
        if wrong:
            failures.take(wrong, data)
        if new:
            kept.append(data)

    seeds = [one for one in (*target.seeds(), *corpus(name)) if len(one) <= MOST_INPUT_BYTES]
    for data in seeds:
        tried(data)
        if time.monotonic() - begun > seconds / 2:
            break
    first = len(lines.seen)
    while time.monotonic() - begun < seconds:
        pool = kept if kept and chance.random() < 0.8 else seeds
        tried(mutated(chance, chance.choice(pool), chance.choice(seeds), target.words, MOST_INPUT_BYTES))
    spent = time.monotonic() - begun
    told = f"{first} lines by the seeds, {len(lines.seen) - first} more"
    return {
        "runs": runs,
        "seconds": spent,
        "coverage": told,
        "failures": failures.files,
        "kept": keep(kept, folder, name),
    }


def guided(name: str, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """One target in this process, guided by Atheris; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["agent", "rules", "exporters"]):
        from fuzz_target import MOST_INPUT_BYTES, case, limit_memory
        from fuzz_targets import TARGETS
    limit_memory(16 * 1024**3)
    target, failures = TARGETS[name], Failures(name, folder)
    seeds = [one for one in (*target.seeds(), *corpus(name)) if len(one) <= MOST_INPUT_BYTES]
    begun, runs = time.monotonic(), 0

    def one(data: bytes) -> None:
        nonlocal runs
        runs += 1
        wrong = case(target, data, memory=runs % MEMORY_EVERY == 0)
        if wrong:
            failures.take(wrong, data)
        if runs % 64 == 0 or wrong:
            so_far = {"runs": runs, "seconds": time.monotonic() - begun, "failures": failures.files, "kept": ""}
            (folder / f"{name}.json").write_text(json.dumps(so_far), encoding="utf-8")

    def change(data: bytes, most: int, drawn: int) -> bytes:
        chance = random.Random(drawn)
        if chance.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return mutated(chance, data, chance.choice(seeds), target.words, most)

    inputs = folder / "inputs" / name
    inputs.mkdir(parents=True, exist_ok=True)
    for place, data in enumerate(seeds):
        (inputs / f"seed-{place}").write_bytes(data)
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed or 1}", f"-max_len={MOST_INPUT_BYTES}"]
    limits = [
        "-rss_limit_mb=6000",
        "-timeout=60",
        "-print_final_stats=1",
        "-verbosity=1",
        f"-artifact_prefix={folder}/{name}-",
    ]
    atheris.Setup([sys.argv[0], *options, *limits, str(inputs)], one, custom_mutator=change)
    atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


def keep(inputs: list[bytes], folder: Path, name: str) -> str:
    """Writes the inputs that reached new lines beside the failures, to be looked at."""
    there = folder / "inputs" / name
    there.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (there / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    return str(there)


def in_a_process(name: str, seconds: float, seed: int, folder: Path, engine: str) -> dict[str, Any]:
    """What a child found; a child that died is a failure of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds), "--seed", str(seed)]
    log = folder / f"{name}.log"
    with log.open("wb") as said:
        done = subprocess.run(
            [*command, "--engine", engine, "--folder", str(folder)],
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=seconds + 120.0,
        )
    found: dict[str, Any] = {"runs": 0, "seconds": seconds, "coverage": "", "failures": {}}
    if result.exists():
        found |= json.loads(result.read_text(encoding="utf-8"))
    if engine == "atheris":
        found["coverage"] = _of_libfuzzer(log.read_text(encoding="utf-8", errors="replace"))
    if done.returncode:
        found["failures"][f"the process ended with {done.returncode}"] = str(log)
    return found


def _of_libfuzzer(log: str) -> str:
    words = [line.split("cov: ")[1].split()[0] for line in log.splitlines() if "cov: " in line]
    first = next(
        (line.split("cov: ")[1].split()[0] for line in log.splitlines() if "INITED" in line and "cov: " in line), "0"
    )
    return f"{first} edges by the seeds, {int(words[-1]) - int(first)} more" if words else "none"


def reproduced(path: Path) -> int:
    """Runs one kept input again and says what is wrong with it."""
    from fuzz_target import case
    from fuzz_targets import TARGETS

    path = path.resolve()
    target = TARGETS[path.parent.name if path.parent.parent == CORPUS else path.name.rpartition("-")[0]]
    wrong = case(target, path.read_bytes()) or case(target, path.read_bytes(), memory=True)
    print(wrong or "nothing is wrong")
    return 1 if wrong else 0


def chosen(asked: str, seconds: float) -> tuple[str, str]:
    """What guides a run of so many seconds for each target, and why, where that is not what one would like."""
    if asked != "auto":
        return asked, ""
    if importlib.util.find_spec("atheris") is None:
        return "lines", ": Atheris is not installed"
    if seconds < LEAST_FOR_ATHERIS:
        return "lines", f": Atheris is worth its start from {LEAST_FOR_ATHERIS:g} s a target on"
    return "atheris", ""


def main() -> int:
    from fuzz_targets import TARGETS

    options = argparse.ArgumentParser(description="fuzz what reads foreign bytes")
    options.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    options.add_argument("--target", action="append", choices=sorted(TARGETS))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--engine", choices=("auto", "atheris", "lines"), default="auto")
    options.add_argument("--folder", type=Path, default=FOUND)
    options.add_argument("--reproduce", type=Path)
    given = options.parse_args()
    if given.reproduce:
        return reproduced(given.reproduce)
    wanted = given.target or list(TARGETS)
    engine, why = chosen(given.engine, given.seconds / len(wanted))
    print(f"{len(wanted)} targets, {given.seconds:g} s in all, seed {given.seed}, guided by {engine}{why}", flush=True)
    runs = failed = 0
    for name in wanted:
        found = in_a_process(name, given.seconds / len(wanted), given.seed, given.folder, engine)
        runs += found["runs"]
        failed += len(found["failures"])
        rate = found["runs"] / max(found["seconds"], 0.1)
        print(f"{name:14}{found['runs']:>9} runs {rate:>8.0f}/s  {found['coverage']}", flush=True)
        for wrong, path in found["failures"].items():
            print(f"    {wrong}\n      python benchmarks/fuzz.py --reproduce {path}", flush=True)
    print(f"{runs} runs, {failed} failures", flush=True)
    return 1 if failed else 0


def child(name: str, seconds: float, seed: int, engine: str, folder: Path) -> None:
    """One target, in this process."""
    if engine == "atheris":
        guided(name, seconds, seed, folder)
    from fuzz_answers import close

    found = traced(name, seconds, seed, folder)
    (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _, _, name_, _, seconds_, _, seed_, _, engine_, _, folder_ = sys.argv
        child(name_, float(seconds_), int(seed_), engine_, Path(folder_))
    else:
        sys.exit(main())
