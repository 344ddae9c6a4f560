"""What every fuzz target has, and what must hold of every case: declared errors only, in time, in memory, in few words.

Owns the record, the limits and the judgement of one case. What is read and what must be true of it stands in `fuzz_pages`,
`fuzz_documents` and `fuzz_answers`; a new target is a `Target` in one of them.
"""

from __future__ import annotations

import math
import resource
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agent.errors import SizewatchError

MOST_INPUT_BYTES = 64 * 1024
CPU_SECONDS = 2.0
"""Of one case: the slowest sound one (YAML of 64 KiB, by the parser in Python) takes a quarter of it on one old core."""
HANG_SECONDS = 10.0

MEMORY_BYTES = 32 * 1024 * 1024
MEMORY_FACTOR = 256
"""Peak of what Python allocates in one case: so much, and so much a byte of it."""

MESSAGE_CHARACTERS = 1_500
"""Of one problem: what a person reads in a log line. Every target quotes less than this of what it was given."""

PROBLEMS = 2_000


class Hang(BaseException):
    """A case took longer than HANG_SECONDS of CPU; no `except Exception` may swallow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader of foreign bytes. `run` reads them and asserts what must be true; `seeds` are sound inputs to begin with;
    `words` are worth putting in; `place` must stand in every declared error, where it is given."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    declared: tuple[type[Exception], ...] = (SizewatchError,)
    words: tuple[bytes, ...] = ()
    place: str = ""
    told: bool = True
    """Whether anybody is shown the words of its errors."""
    reads: tuple[str, ...] = ()
    """The modules that read it: how much of them is reached, `benchmarks/fuzz_reached.py` tells."""


def case(target: Target, data: bytes, *, memory: bool = False) -> str:
    """Runs one case; what is wrong in one line that begins with its kind, empty where nothing is."""
    started = time.process_time()
    try:
        with _limited(), _measured(len(data), memory):
            target.run(data)
    except target.declared as error:
        return _of_the_message(target, error) if target.told else ""
    except Hang:
        return f"hang: more than {HANG_SECONDS:.0f} s of CPU"
    except AssertionError as error:
        return f"broken: {' '.join(str(error).split())[:300]}"
    except MemoryError:
        return "memory: none was left"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"crash: {_where(error)}: {type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - started
    return f"slow: {seconds:.1f} s of CPU" if seconds > CPU_SECONDS and not memory else ""


def accepted(target: Target, data: bytes) -> bool:
    """Whether an input is read to its end: one that is refused reaches little."""
    try:
        target.run(data)
    except target.declared:
        return False
    return True


def _of_the_message(target: Target, error: Exception) -> str:
    problems = getattr(error, "problems", None) or (str(error),)
    wrong = message_trouble(problems)
    told = [one for one in problems if not one.endswith("further problems are not told")]
    if not wrong and target.place and not all(target.place in one for one in told):
        wrong = "message: does not name the place"
    return wrong


def message_trouble(problems: Iterable[str]) -> str:
    """What is wrong with the words of problems: too long, too many, or unprintable; empty where nothing is."""
    several = tuple(problems)
    if len(several) > PROBLEMS:
        return f"message: {len(several)} problems"
    for one in several:
        if len(one) > MESSAGE_CHARACTERS:
            return f"message: {len(one)} characters, {one[:60]!r}"
        if not one.isprintable():
            return f"message: not printable: {one[:200]!r}"
    return ""


def _where(error: BaseException) -> str:
    """The innermost place of ours that the error passed."""
    found, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/agent/" in name or "/rules/" in name or not found:
            found = f"{'/'.join(name.split('/')[-3:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextmanager
def _limited() -> Iterator[None]:
    def hang(signum: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _measured(size: int, memory: bool) -> Iterator[None]:
    if not memory:
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    allowed = MEMORY_BYTES + MEMORY_FACTOR * size
    assert peak <= allowed, f"memory: a peak of {peak >> 20} MiB for {size} bytes"


def limit_memory(most_bytes: int = 6 * 1024**3) -> None:
    """Of this process for good: a case that wants more gets a MemoryError instead of this machine."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))


def sound(values: Mapping[str, float], what: str) -> None:
    """Every value is a finite number from 0 on."""
    for name, value in values.items():
        assert 0 <= value < math.inf, f"{what} {name[:60]} is {value}"


def bounded_words(problems: Iterable[str]) -> None:
    """What was told beside the result is as bounded as an error."""
    assert not (wrong := message_trouble(problems)), wrong
