"""Slot of one physical GPU, read as a whole or as its MIG instances.

MIG mode and instances are read again every minute and after every error, because they change at run time. A GPU with
MIG on is no GPU itself: nothing can run on it. Power, temperature and throttling of the whole GPU are gaps of an
instance, because their sum would be wrong. Add a value that an instance lacks to ``WHOLE``.

Two compute instances may share one GPU instance, and then its memory and activity. A fault of the whole GPU is counted
by each instance.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from agent.gpu.nvml_device import (
    INVALID_ARGUMENT,
    NO_DATA,
    NvmlDevice,
    NvmlError,
    ReadoutBuilder,
    address,
    ask,
    ask_text,
)
from agent.gpu.nvml_faults import FaultEvents, XidFault, add_faults
from agent.gpu.nvml_gpu import BUSY, ENERGY, GpmActivity, NvmlGpu
from agent.gpu.nvml_health import ERRORS, THROTTLING
from rules.telemetry.snapshots import GpuReadout

WHOLE = (*ENERGY, *THROTTLING, *ERRORS, "gpu_temperature_celsius", "gpu_power_limit_watts")
"""Values of the whole GPU only."""

GAPS = dict.fromkeys(BUSY, "not measured where MIG is on; gpu_gr_engine_active is") | dict.fromkeys(
    WHOLE, "measured for the whole GPU, not for an instance"
)

NO_INSTANCE = NO_DATA | {INVALID_ARGUMENT}
"""Codes of a place without an instance: `not found` of most drivers, `invalid argument` of some."""

MIG_SECONDS = 60.0
"""Lifetime of the list of instances."""

_log = logging.getLogger(__name__)


class MigInstance(NvmlDevice):
    """MIG instance. Every method may raise an NvmlError that is not absent."""

    def __init__(self, *, uuid: str, product: str, driver: str, instance: int) -> None:
        super().__init__(uuid=uuid, product=product, driver=driver)
        self.instance = instance
        """Number of its GPU instance. The driver reuses it."""
        self.faults = Counter[int]()
        self._activity = GpmActivity(instance)

    @property
    def label(self) -> str:
        """Return its name in problems."""
        return f"MIG instance {self.uuid} ({self.product})"

    def interrupt(self) -> None:
        """Start again: the time without access is not covered."""
        self._activity.interrupt()

    def free(self) -> None:
        """Free the samples before the library is closed, and after the instance is removed."""
        self._activity.free()

    def read(self, whole: NvmlGpu, clock: Callable[[], float], unix_offset: float, no_faults: str) -> GpuReadout:
        """Read all changing values. ``whole`` is the GPU of the instance; see ``NvmlGpu.read``."""
        builder = ReadoutBuilder(gaps=dict(GAPS))
        t = unix_offset + clock()
        self.read_memory(builder)
        pids = self.read_pids(builder)
        add_faults(builder, self.faults, no_faults)
        self._activity.read(self, whole, builder, clock())
        return self.readout(t, builder, pids)


def instances(whole: NvmlGpu, known: dict[str, MigInstance]) -> dict[str, MigInstance]:
    """Return the present instances of a GPU by UUID. Instances of ``known`` are kept."""
    present: dict[str, MigInstance] = {}
    for place in range(whole.ask("nvmlDeviceGetMaxMigDeviceCount")):
        try:
            handle = whole.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
        except NvmlError as error:
            if error.code not in NO_INSTANCE:
                raise
            continue
        uuid = str(ask("nvmlDeviceGetUUID", handle))
        number = int(ask("nvmlDeviceGetGpuInstanceId", handle))
        instance = known.get(uuid)
        if instance is None or instance.instance != number:
            product = ask_text(f"{whole.product} MIG", "nvmlDeviceGetName", handle)
            instance = MigInstance(uuid=uuid, product=product, driver=whole.driver, instance=number)
        instance.handle = handle
        present[uuid] = instance
    return present


class GpuSlot:
    """Physical GPU. Every method but ``note`` may raise an NvmlError that is not absent."""

    def __init__(self, whole: NvmlGpu) -> None:
        self.whole = whole
        self._instances: dict[str, MigInstance] | None = None
        self._listed_at: float | None = None
        self._address = 0

    @property
    def present(self) -> bool:
        """Return whether it has a handle."""
        return self.whole.handle is not None

    def acquire(self, handle: Any, *, index: int | None = None, driver: str | None = None) -> None:
        """Set a new handle. Instances are listed again; sums continue."""
        self.whole.acquire(handle, index=index, driver=driver)
        self._address = address(handle)
        self._listed_at = None

    def lose(self) -> None:
        """Drop the handle. The time until the next one is not covered."""
        self.whole.lose()
        for part in self._parts():
            part.interrupt()

    def free(self) -> None:
        """Free the samples before the library is closed."""
        self.whole.free()
        for part in self._parts():
            part.free()

    def _parts(self) -> tuple[MigInstance, ...]:
        return tuple((self._instances or {}).values())

    def note(self, faults: Sequence[XidFault]) -> None:
        """Count the faults of this GPU, per instance if they name one."""
        own = [fault for fault in faults if fault.gpu == self._address]
        for fault, count in Counter(own).items():
            where = "" if fault.instance is None else f" in GPU instance {fault.instance}"
            _log.warning("%s: the driver reported XID %d%s (%d x)", self.whole.label, fault.xid, where, count)
        if self._instances is None:
            self.whole.faults.update([fault.xid for fault in own])
        for part in self._parts():
            part.faults.update([fault.xid for fault in own if fault.instance in (None, part.instance)])

    def read(
        self, faults: FaultEvents, clock: Callable[[], float], unix_offset: float
    ) -> tuple[list[GpuReadout], list[str]]:
        """Return the readouts of the GPU or its instances, and problems of single instances as texts."""
        self._list(clock())
        no_faults = faults.watch(self.whole)
        if self._instances is None:
            return [self.whole.read(clock, unix_offset, no_faults)], []
        if not self._instances:
            return [], [f"{self.whole.label}: MIG is on and there is no instance, so there is nothing to read"]
        readouts: list[GpuReadout] = []
        problems: list[str] = []
        for part in self._parts():
            try:
                readouts.append(part.read(self.whole, clock, unix_offset, no_faults))
            except NvmlError as error:
                if error.is_library_lost:
                    raise
                problems.append(f"{part.label}: {error}; looked for again next cycle")
        if problems:
            self.lose()
        return readouts, problems

    def _list(self, at: float) -> None:
        if self._listed_at is not None and at - self._listed_at < MIG_SECONDS:
            return
        before = self._parts()
        now = instances(self.whole, self._instances or {}) if self._mig_is_on() else None
        if now is not None and self._instances is None:
            self.whole.interrupt()
        kept = set((now or {}).values())
        for part in (part for part in before if part not in kept):
            _log.info('MIG instance removed instance="%s"', part.label)
            part.free()
        self._instances, self._listed_at = now, at

    def _mig_is_on(self) -> bool:
        try:
            current, _ = self.whole.ask("nvmlDeviceGetMigMode")
        except NvmlError as error:
            if not error.is_unsupported:
                raise
            return False
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
