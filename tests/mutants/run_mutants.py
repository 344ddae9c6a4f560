"""Apply each mutant of mutants.toml alone to a copy of the project, and report which test fails (`make mutants`).

Exit status 1: a mutant survived or gave no result. 2: a row does not fit the code, or a test fails without a mutant.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]

ALL_TESTS = ("tests/rules", "tests/system/test_goldens.py", "--ignore=tests/rules/catalogue")
"""Tests of a mutant that its own tests miss. Those of the catalogue repeat its numbers, which tests no behaviour."""

TIMEOUT_SECONDS = 900.0

FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Row of the list. `table` is the TOML table that `before` is in. `survives` marks a known gap in the tests."""

    name: str
    file: str
    before: str
    after: str
    why: str
    tests: tuple[str, ...]
    table: str = ""
    survives: bool = False

    def mutate(self, root: Path) -> str:
        """Return the text of the file with the mistake. Raise ValueError unless `before` stands in it exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if self.table:
            head, _, rest = text.partition(f"\n[{self.table}]\n")
            body, mark, tail = rest.partition("\n[")
            head, tail = f"{head}\n[{self.table}]\n", mark + tail
        else:
            head, body, tail = "", text, ""
        if body.count(self.before) != 1:
            place = f"{self.file} {self.table}".strip()
            raise ValueError(f"{self.name}: `before` stands {body.count(self.before)} times in {place}, not once")
        return head + body.replace(self.before, self.after) + tail


def read_mutants() -> tuple[Mutant, ...]:
    """Return the rows of the list."""
    listed = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))
    tests = listed["tests"]
    return tuple(Mutant(**{**row, "tests": tuple(row.get("tests") or tests[row["file"]])}) for row in listed["mutant"])


def copy_project(to: Path) -> Path:
    """Copy the files that git tracks or would track, as they are on disk."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


@contextmanager
def apply_mutant(tree: Path, mutant: Mutant) -> Iterator[None]:
    """Apply a mutant to a copy, and take it back at the end."""
    path, original = tree / mutant.file, (tree / mutant.file).read_text(encoding="utf-8")
    try:
        _write(path, mutant.mutate(tree))
        yield
    finally:
        _write(path, original)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    # Python compares byte code by size and whole seconds, which a mutant may leave equal.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def run_tests(tree: Path, tests: Iterable[str], *options: str) -> tuple[str, str]:
    """Return "passed", or "failed" with the first test, or "error" with the end of the output.

    A file that cannot be imported or a fixture that breaks is an error: no test has noticed the mistake.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    command += ["--hypothesis-profile=ci", *options, *tests]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(tree)
    try:
        ended = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return "error", f"no end within {TIMEOUT_SECONDS:.0f} s"
    if ended.returncode == 0:
        return "passed", ""
    failed = FAILED.search(ended.stdout)
    if failed is not None:
        return "failed", failed[1]
    return "error", (ended.stdout + ended.stderr).strip()[-600:]


def run_mutants(trees: Sequence[Path], mutants: Sequence[Mutant], tests: Sequence[str] = ()) -> dict[Mutant, str]:
    """Run the mutants' own tests or `tests`, one mutant in each copy at a time. Return the state of each mutant."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def run(mutant: Mutant) -> str:
        tree, began = free.get(), time.monotonic()
        try:
            with apply_mutant(tree, mutant):
                state, text = run_tests(tree, tests or mutant.tests)
        finally:
            free.put(tree)
        word = {"failed": "caught", "passed": "SURVIVED" if tests else "all tests"}.get(state, "ERROR")
        print(f"{word:9} {mutant.name:34} {time.monotonic() - began:5.1f} s  {text}", flush=True)
        return state

    with ThreadPoolExecutor(len(trees)) as pool:
        return dict(zip(mutants, pool.map(run, mutants), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of mutants (default: all)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="copies (default: cores)")
    options = parser.parse_args()
    mutants = [one for one in read_mutants() if not options.names or one.name in options.names]
    missing = sorted(set(options.names) - {one.name for one in mutants})
    if missing:
        parser.error(f"no such mutant: {', '.join(missing)}")
    try:
        for mutant in mutants:
            mutant.mutate(ROOT)
    except ValueError as error:
        print(error)
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_project(Path(folder) / str(number)) for number in range(min(options.jobs, len(mutants)))]
        states: dict[Mutant, str] = {}
        for tests in ((), ALL_TESTS):
            left = [one for one in mutants if states.get(one, "passed") == "passed"]
            every = tests or sorted({test for one in left for test in one.tests})
            state, text = run_tests(trees[0], every, f"-n{options.jobs}") if left else ("passed", "")
            if state != "passed":
                print(f"without a mutant: {state}: {text}")
                return 2
            states |= run_mutants(trees, left, tests)
    caught = [one for one in mutants if states[one] == "failed"]
    print(f"caught {len(caught)} of {len(mutants)} ({len(caught) / len(mutants):.1%})")
    for one in mutants:
        if one.survives == (one in caught):
            print(
                f"{one.name}: " + ("is caught, take its `survives` away" if one.survives else f"not caught: {one.why}")
            )
    return int(any(one not in caught and not one.survives for one in mutants))


if __name__ == "__main__":
    sys.exit(main())
