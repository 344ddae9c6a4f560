"""One GPU in its slot: read as a whole, or, where MIG is on, as the instances that it has now.

Owns the question which of the two it is, asked again every minute and after every refusal, because instances come and
go while sizewatch runs. Must not open the library: that is ``nvml``; what is asked of a GPU or an instance is
``nvml_gpu``'s and ``nvml_mig``'s business. A GPU with MIG on is itself no GPU: nothing can run on it.

MIG: one instance of a GPU as a GPU of its own, and which instances a GPU has.

Owns what an instance can be asked: its memory and processes by its own handle, its activity of the whole GPU with the
instance's number. Must not repeat the whole GPU's power, temperature or throttling for each of its instances: those are
gaps, because nobody could add them up. What an instance lacks is a row of ``WHOLE``.

Two compute instances may share one GPU instance; they then share its memory and its activity, and both say the same.
A fault that concerns the whole GPU struck each of its instances and is counted by each.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from agent.gpu.nvml_activity import GpmActivity
from agent.gpu.nvml_device import (
    ABSENT,
    CAPABILITY,
    NvmlDevice,
    NvmlErrorKind,
    NvmlRefusedError,
    ReadoutBuilder,
    address,
    ask,
)
from agent.gpu.nvml_faults import FaultEvents, XidFault, add_faults
from agent.gpu.nvml_gpu import BUSY, ENERGY, NvmlGpu
from agent.gpu.nvml_health import ERRORS, THROTTLING
from agent.gpu.nvml_sums import FaultSum
from rules.telemetry.snapshots import GpuReadout

WHOLE = (*ENERGY, *THROTTLING, *ERRORS, "gpu_temperature_celsius", "gpu_power_limit_watts")
"""What only the whole GPU has."""

GAPS = dict.fromkeys(BUSY, "not measured where MIG is on; gpu_gr_engine_active is") | dict.fromkeys(
    WHOLE, "measured for the whole GPU, not for an instance"
)

NO_INSTANCE = frozenset({NvmlErrorKind.NOTHING, NvmlErrorKind.BUG})
"""A place without an instance: not found by most drivers, invalid argument by some."""


class MigInstance(NvmlDevice):
    """One MIG instance. Every method may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, *, uuid: str, product: str, driver: str, instance: int) -> None:
        super().__init__(uuid=uuid, product=product, driver=driver)
        self.instance = instance
        """Number of its GPU instance; the driver gives it to another one after this."""
        self.faults = FaultSum()
        self._activity = GpmActivity(instance)

    @property
    def label(self) -> str:
        """How problems name it."""
        return f"MIG instance {self.uuid} ({self.product})"

    def interrupt(self) -> None:
        """It was out of reach; its next turn begins anew."""
        self._activity.interrupt()

    def free(self) -> None:
        """Give back what NVML lent; to be done before the library is closed, and when the instance is gone."""
        self._activity.free()

    def read(self, whole: NvmlGpu, clock: Callable[[], float], unix_offset: float, no_faults: str) -> GpuReadout:
        """Ask for everything that changes; arguments as of ``NvmlGpu.read``, and the GPU that it is an instance of."""
        self.renew(clock())
        answers = ReadoutBuilder(gaps=dict(GAPS))
        t = unix_offset + clock()
        self.read_memory(answers)
        pids = self.read_pids(answers)
        add_faults(answers, self.faults, no_faults)
        self._activity.read(self, whole, answers, clock())
        return self.readout(t, answers, pids)


def instances(whole: NvmlGpu, known: dict[str, MigInstance]) -> dict[str, MigInstance]:
    """The instances that the GPU has now, by UUID; one of ``known`` that is still there goes on."""
    found: dict[str, MigInstance] = {}
    for place in range(whole.ask("nvmlDeviceGetMaxMigDeviceCount")):
        handle = _handle(whole, place)
        if handle is None:
            continue
        uuid = str(ask("nvmlDeviceGetUUID", handle))
        number = int(ask("nvmlDeviceGetGpuInstanceId", handle))
        one = known.get(uuid)
        if one is None or one.instance != number:
            one = MigInstance(uuid=uuid, product=_product(handle, whole), driver=whole.driver, instance=number)
        one.handle = handle
        found[uuid] = one
    return found


def _handle(whole: NvmlGpu, place: int) -> Any:
    try:
        return ask("nvmlDeviceGetMigDeviceHandleByIndex", whole.handle, place)
    except NvmlRefusedError as refused:
        if refused.kind not in NO_INSTANCE:
            raise
        return None


def _product(handle: object, whole: NvmlGpu) -> str:
    """Such as "NVIDIA H100 80GB HBM3 MIG 3g.40gb"; where the driver does not tell, at least that it is an instance."""
    try:
        return str(ask("nvmlDeviceGetName", handle))
    except NvmlRefusedError as refused:
        if refused.kind not in ABSENT:
            raise
        return f"{whole.product} MIG"


MIG_SECONDS = 60.0
"""How long the list of instances is believed."""

_log = logging.getLogger(__name__)


class GpuSlot:
    """One physical GPU. Every method but ``note`` may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, whole: NvmlGpu) -> None:
        self.whole = whole
        self._instances: dict[str, MigInstance] | None = None
        self._listed_at: float | None = None
        self._address = 0

    @property
    def present(self) -> bool:
        """Return whether there is a handle to ask."""
        return self.whole.handle is not None

    def acquire(self, handle: Any, *, index: int | None = None, driver: str | None = None) -> None:
        """Take a fresh handle; instances are listed anew, sums go on."""
        self.whole.acquire(handle, index=index, driver=driver)
        self._address = address(handle)
        self._listed_at = None

    def lose(self) -> None:
        """Drop the handle; time until it is back is covered by nothing."""
        self.whole.lose()
        for one in self._parts():
            one.interrupt()

    def free(self) -> None:
        """Give back what NVML lent; to be done before the library is closed."""
        self.whole.free()
        for one in self._parts():
            one.free()

    def _parts(self) -> tuple[MigInstance, ...]:
        return tuple((self._instances or {}).values())

    def note(self, faults: Sequence[XidFault]) -> None:
        """Count those faults that are this GPU's, each where it struck."""
        own = [fault for fault in faults if fault.gpu == self._address]
        for fault, count in Counter(own).items():
            where = "" if fault.instance is None else f" in GPU instance {fault.instance}"
            _log.warning("%s: the driver reported XID %d%s (%d x)", self.whole.label, fault.xid, where, count)
        if self._instances is None:
            self.whole.faults.add([fault.xid for fault in own])
        for one in self._parts():
            one.faults.add([fault.xid for fault in own if fault.instance in (None, one.instance)])

    def read(
        self, faults: FaultEvents, clock: Callable[[], float], unix_offset: float
    ) -> tuple[list[GpuReadout], list[str]]:
        """Readouts of what is to be read of it, and in words what was wrong with single instances."""
        self.whole.renew(clock())
        self._list(clock())
        no_faults = self._watch(faults)
        if self._instances is None:
            return [self.whole.read(clock, unix_offset, no_faults)], []
        if not self._instances:
            return [], [f"{self.whole.label}: MIG is on and there is no instance, so there is nothing to read"]
        readouts: list[GpuReadout] = []
        problems: list[str] = []
        for one in self._parts():
            try:
                readouts.append(one.read(self.whole, clock, unix_offset, no_faults))
            except NvmlRefusedError as refused:
                if refused.kind is NvmlErrorKind.LIBRARY:
                    raise
                problems.append(f"{one.label}: {refused}; looked for again next turn")
        if problems:
            self.lose()
        return readouts, problems

    def _watch(self, faults: FaultEvents) -> str:
        """Have its faults collected; why that cannot be, in words."""
        try:
            faults.watch(self.whole)
        except NvmlRefusedError as refused:
            if refused.kind not in CAPABILITY:
                raise
            return f"{refused.words} by {self.whole.product} (driver {self.whole.driver})"
        return ""

    def _list(self, at: float) -> None:
        if self._listed_at is not None and at - self._listed_at < MIG_SECONDS:
            return
        before = self._parts()
        now = instances(self.whole, self._instances or {}) if self._mig_is_on() else None
        if now is not None and self._instances is None:
            self.whole.interrupt()
        kept = set((now or {}).values())
        for one in (one for one in before if one not in kept):
            _log.info('MIG instance removed instance="%s"', one.label)
            one.free()
        self._instances, self._listed_at = now, at

    def _mig_is_on(self) -> bool:
        try:
            current, _ = self.whole.ask("nvmlDeviceGetMigMode")
        except NvmlRefusedError as refused:
            if refused.kind not in CAPABILITY:
                raise
            return False
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
