"""Says which share of its reader the inputs of each fuzz target reach, line by line.

    python benchmarks/fuzz_reached.py                               # by the seeds and the kept inputs
    python benchmarks/fuzz_reached.py --target page --inputs build/fuzz/inputs --lines
    python benchmarks/fuzz_reached.py --inputs build/fuzz/inputs --keep tests/fuzz_corpus

A target names its reader's modules (`Target.reads`). Counted are the lines inside functions; what only runs at import is not.
Lines that no input of a target may reach (a file that cannot be opened, a kubelet that is not there) count as well, so that
no share is 100 %: what is missing is told with --lines, to be looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

MOST_KEPT_BYTES = 8_192

Place = tuple[str, int]
"""A file and a line."""


def lines_of(module: str) -> frozenset[Place]:
    """Every line inside a function of a module."""
    file = importlib.import_module(module).__file__
    assert file is not None
    code = compile(Path(file).read_bytes(), file, "exec")
    return frozenset((file, line) for one in _functions(code, inside=False) for line in _lines(one))


def _functions(code: CodeType, *, inside: bool) -> Iterator[CodeType]:
    # What is optimised (CO_OPTIMIZED) is a function; a module and a class are not.
    function = bool(code.co_flags & 1)
    if function or inside:
        yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _functions(one, inside=function or inside)


def _lines(code: CodeType) -> Iterator[int]:
    return (line for _, _, line in code.co_lines() if line and line != code.co_firstlineno)


class Reached:
    """Lines run of some files, in every thread."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self.places: set[Place] = set()

    def begin(self) -> None:
        import threading

        threading.settrace(self._call)
        sys.settrace(self._call)

    def end(self) -> None:
        import threading

        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.places.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def reached(name: str, inputs: Iterable[bytes], seconds: float) -> tuple[dict[str, tuple[int, int]], set[Place]]:
    """By module how many lines were reached of how many, and the lines that were not."""
    from fuzz_answers import close
    from fuzz_target import case
    from fuzz_targets import TARGETS

    # Threads that run already are not seen.
    close()
    target = TARGETS[name]
    wanted = {module: lines_of(module) for module in target.reads}
    seen, until = Reached({file for lines in wanted.values() for file, _ in lines}), time.monotonic() + seconds
    for data in inputs:
        seen.begin()
        try:
            case(target, data)
        finally:
            seen.end()
        if time.monotonic() > until:
            break
    found = {module: (len(lines & seen.places), len(lines)) for module, lines in wanted.items()}
    return found, {place for lines in wanted.values() for place in lines} - seen.places


def kept(name: str, inputs: Sequence[bytes], further: Sequence[bytes], seconds: float) -> list[bytes]:
    """Of further inputs the smallest ones that reach lines which neither the inputs nor one before them does."""
    from fuzz_answers import close
    from fuzz_target import case
    from fuzz_targets import TARGETS

    close()
    target = TARGETS[name]
    wanted = frozenset(line for module in target.reads for line in lines_of(module))
    seen, until = Reached({file for file, _ in wanted}), time.monotonic() + seconds
    found: list[bytes] = []
    for data in (*inputs, *sorted((one for one in further if len(one) <= MOST_KEPT_BYTES), key=len)):
        before = len(wanted & seen.places)
        seen.begin()
        try:
            wrong = case(target, data)
        finally:
            seen.end()
        if data not in inputs and not wrong and len(wanted & seen.places) > before:
            found.append(data)
        if time.monotonic() > until:
            break
    return found


def main() -> int:
    from fuzz import corpus
    from fuzz_answers import close
    from fuzz_targets import TARGETS

    options = argparse.ArgumentParser(description="how much of its reader each fuzz target reaches")
    options.add_argument("--target", action="append", choices=sorted(TARGETS))
    options.add_argument("--inputs", type=Path, help="folder of further inputs, as a run leaves it")
    options.add_argument("--seconds", type=float, default=30.0, help="at most so long for a target")
    options.add_argument("--lines", action="store_true", help="tell the lines that are not reached")
    options.add_argument("--keep", type=Path, help="folder to put inputs into that reach what no seed does")
    given = options.parse_args()
    if given.keep is not None and (ROOT.parent / "shared").is_dir():
        options.error(
            "--keep: inputs may stem from ../shared, which is not ours to keep: run fuzz.py and this where it is not"
        )
    for name in given.target or TARGETS:
        further = sorted((given.inputs / name).glob("*")) if given.inputs else []
        inputs = [*TARGETS[name].seeds(), *corpus(name)]
        others = [path.read_bytes() for path in further]
        for data in kept(name, inputs, others, given.seconds) if given.keep else ():
            (given.keep / name).mkdir(parents=True, exist_ok=True)
            (given.keep / name / f"reached-{hashlib.sha256(data).hexdigest()[:8]}").write_bytes(data)
        inputs += others
        found, missing = reached(name, inputs, given.seconds)
        hit, lines = (sum(numbers) for numbers in zip(*found.values(), strict=True))
        print(f"{name:14}{len(inputs):>6} inputs  {hit / lines:>4.0%} of {lines} lines", flush=True)
        for module, (of_it, several) in found.items() if given.lines else ():
            file = importlib.import_module(module).__file__
            gone = sorted(line for at, line in missing if at == file)
            print(f"    {module:40}{of_it / max(several, 1):>5.0%}  not: {' '.join(map(str, gone)) or 'none'}")
    close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
