"""Every GPU of this machine, read through NVML once a turn.

Owns the life of the library (open, back off, open again), the list of GPUs and the deadline of a turn. Must not know
what is asked of a GPU: that is ``nvml_gpu``; whether it is read whole or as MIG instances is ``nvml_board``'s question;
what a refusal means is in ``nvml_errors``, the sums in ``nvml_sums``.

Cost of a turn for a GPU that supports everything: 9 calls of the binding, 11 of the library (samples and processes
take two each; an idle one's processes take one), and one for the machine as a whole (faults). For a MIG instance 4 and
5. Memory errors come with the fields that are asked for anyway, every 60 s; MIG mode is asked every 60 s (and, where it
is on, the list of instances), name, UUID, driver and handle once, the power limit and what was refused for good again
every 300 s.
"""

import contextlib
import logging
import time
from collections.abc import Callable

from agent.gpu.deadline import DeadlineThread, NotAnsweringError
from agent.gpu.nvml_board import GpuSlot
from agent.gpu.nvml_device import ABSENT, NvmlErrorKind, NvmlRefusedError, ask
from agent.gpu.nvml_faults import FaultEvents
from agent.gpu.nvml_gpu import NvmlGpu
from rules.telemetry.snapshots import GpuReadout

FIRST_RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 300.0

Turn = tuple[tuple[GpuReadout, ...], tuple[str, ...]]

_log = logging.getLogger(__name__)


class NvmlReader:
    """Reads all GPUs; whatever NVML does, a turn ends within the deadline and says what was wrong in words.

    ``clock`` measures stretches of time (covered seconds, back-off) in seconds; it need not be unix time.
    """

    def __init__(self, *, deadline_seconds: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline = deadline_seconds
        self._thread = DeadlineThread("nvml", deadline_seconds)
        self._machine = _Machine(clock)

    def read(self, now: float) -> Turn:
        """One turn: (a readout for each GPU that answered, problems in words). ``now`` is unix seconds.

        A readout's ``t`` is ``now`` plus the time the turn took until that GPU's counters were read. A GPU that
        refuses costs its own readout of this turn; a library that refuses costs the GPUs not yet read; one that hangs
        costs the whole turn, and later turns until it comes back.
        """
        try:
            return self._thread.run(lambda: self._machine.turn(now))
        except NotAnsweringError as hung:
            if hung.just_started:
                return (), (f"NVML did not answer within {self._deadline:g} s",)
            return (), (f"NVML has not answered for {hung.seconds:.0f} s; waiting for the same call",)

    def close(self) -> None:
        """Give the library back; a second call does nothing. A library that hangs is left to its daemon thread."""
        if self._thread.stopped:
            return
        with contextlib.suppress(NotAnsweringError):
            self._thread.run(self._machine.close)
        self._thread.stop()


class _Machine:
    """The library and its GPUs. Lives in the reader's thread alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open = False
        self._driver = "unknown"
        self._boards: dict[str, GpuSlot] = {}
        self._faults = FaultEvents()
        self._register_again = False
        self._unidentified: list[int] = []
        self._retry_at = float("-inf")
        self._retry_delay = 0.0
        self._why_closed = ""

    def turn(self, now: float) -> Turn:
        offset = now - self._clock()
        readouts: list[GpuReadout] = []
        problems: list[str] = []
        try:
            if not self._reopen(problems):
                return (), tuple(problems)
            self._identify(problems)
            self._collect_faults(problems)
            for board in sorted(self._boards.values(), key=lambda board: (board.whole.index or 0, board.whole.uuid)):
                self._read(board, offset, readouts, problems)
        except NvmlRefusedError as refused:
            problems.append(f"NVML: {refused}; GPUs not read this turn, opened again next turn")
            self.close()
        return tuple(readouts), tuple(problems)

    def _reopen(self, problems: list[str]) -> bool:
        if self._open:
            return True
        if self._clock() < self._retry_at:
            problems.append(self._why_closed)
            return False
        try:
            ask("nvmlInit")
            self._open = True
            self._unidentified = list(range(ask("nvmlDeviceGetCount")))
            self._driver = _driver_version()
        except NvmlRefusedError as refused:
            self.close()
            self._back_off(refused)
            problems.append(self._why_closed)
            return False
        if not self._unidentified:
            # A driver without a GPU is no error to NVML; look again, but not every turn.
            self.close()
            self._back_off("the driver runs but shows no GPU")
            problems.append(self._why_closed)
            return False
        self._retry_delay = 0.0
        return True

    def _back_off(self, why: object) -> None:
        self._retry_delay = min(max(2 * self._retry_delay, FIRST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)
        self._retry_at = self._clock() + self._retry_delay
        self._why_closed = f"NVML: {why}; no GPU is read, next try after {self._retry_delay:.0f} s"

    def _identify(self, problems: list[str]) -> None:
        """Give every index of the driver its GPU; one that was known before keeps its sums."""
        left = []
        for index in self._unidentified:
            try:
                handle = ask("nvmlDeviceGetHandleByIndex", index)
                uuid = ask("nvmlDeviceGetUUID", handle)
                board = self._boards.get(uuid) or GpuSlot(
                    NvmlGpu(uuid=uuid, product=_product(handle), driver=self._driver)
                )
            except NvmlRefusedError as refused:
                if refused.kind is NvmlErrorKind.LIBRARY:
                    raise
                left.append(index)
                problems.append(f"GPU {index}: {refused}; tried again next turn")
                continue
            board.acquire(handle, index=index, driver=self._driver)
            self._boards[uuid] = board
        self._unidentified = left

    def _collect_faults(self, problems: list[str]) -> None:
        faults, trouble = self._faults.collect()
        problems.extend(filter(None, (trouble,)))
        for board in self._boards.values():
            board.note(faults)
        if self._register_again:
            # A GPU that is back may not be the one that was registered; nothing waits in the set now.
            self._faults.free()
            self._register_again = False

    def _read(self, board: GpuSlot, offset: float, readouts: list[GpuReadout], problems: list[str]) -> None:
        try:
            if not board.present:
                board.acquire(ask("nvmlDeviceGetHandleByUUID", board.whole.uuid))
                self._register_again = True
            found, trouble = board.read(self._faults, self._clock, offset)
        except NvmlRefusedError as refused:
            board.lose()
            if refused.kind is NvmlErrorKind.LIBRARY:
                raise
            problems.append(f"{board.whole.label}: {refused}; tried again next turn")
            return
        readouts.extend(found)
        problems.extend(trouble)

    def close(self) -> None:
        """Shut the library down, so that opening it again starts from nothing. The GPUs keep their sums."""
        for board in self._boards.values():
            board.lose()
        if not self._open:
            return
        self._open = False
        for board in self._boards.values():
            board.free()
        self._faults.free()
        self._faults = FaultEvents()
        try:
            ask("nvmlShutdown")
        except NvmlRefusedError as refused:
            _log.info("NVML did not shut down cleanly: %s", refused)


def _driver_version() -> str:
    try:
        return str(ask("nvmlSystemGetDriverVersion"))
    except NvmlRefusedError as refused:
        if refused.kind not in ABSENT:
            raise
        return "of unknown version"


def _product(handle: object) -> str:
    try:
        return str(ask("nvmlDeviceGetName", handle))
    except NvmlRefusedError as refused:
        if refused.kind not in ABSENT:
            raise
        return ""
