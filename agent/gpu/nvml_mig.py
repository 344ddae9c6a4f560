"""MIG: one instance of a GPU as a GPU of its own, and which instances a GPU has.

Owns what an instance can be asked: its memory and processes by its own handle, its activity of the whole GPU with the
instance's number. Must not repeat the whole GPU's power, temperature or throttling for each of its instances: those are
gaps, because nobody could add them up. What an instance lacks is a row of ``WHOLE``.

Two compute instances may share one GPU instance; they then share its memory and its activity, and both say the same.
A fault that concerns the whole GPU struck each of its instances and is counted by each.
"""

from collections.abc import Callable
from typing import Any

from agent.gpu.nvml_activity import GpmActivity
from agent.gpu.nvml_device import NvmlDevice, ReadoutBuilder
from agent.gpu.nvml_errors import ABSENT, NvmlErrorKind, NvmlRefusedError, ask
from agent.gpu.nvml_faults import add_faults
from agent.gpu.nvml_gpu import BUSY, ENERGY, NvmlGpu
from agent.gpu.nvml_health import ERRORS, THROTTLING
from agent.gpu.nvml_sums import FaultSum
from rules.telemetry.gpu_readout import GpuReadout

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
