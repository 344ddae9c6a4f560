"""Stand-in GPUs for machines that have none: their load follows the recorded engine's, and their name says what they are.

Owns the simulation only. It answers like `agent.gpu.nvml_reader.NvmlReader`, with cumulative sums and without samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rules.telemetry.gpu_readout import GpuReadout

PRODUCT = "stand-in GPU (simulated)"
MEMORY_BYTES = 80e9
IDLE_WATTS, FULL_WATTS = 90.0, 650.0


class StandInGpus:
    """GPUs by name, of a tier each in the recorded demo. `busy` tells how busy each one's engine is now, 0 to 1; `products`
    what they say they are, where that is not PRODUCT.
    """

    def __init__(self, busy: Mapping[str, Callable[[], float]], products: Mapping[str, str] | None = None) -> None:
        self._busy = busy
        self._products = products or {}
        self._last: float | None = None
        self._sums = {
            name: {
                "gpu_busy_seconds": 0.0,
                "gpu_busy_covered_seconds": 0.0,
                "gpu_energy_joules": 0.0,
                "gpu_energy_covered_seconds": 0.0,
            }
            for name in busy
        }

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        """Readouts at `now` (unix seconds)."""
        dt = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        return tuple(self._readout(i, name, now, dt) for i, name in enumerate(self._busy)), ()

    def _readout(self, index: int, name: str, now: float, dt: float) -> GpuReadout:
        share, sums = self._busy[name](), self._sums[name]
        sums["gpu_busy_seconds"] += share * dt
        sums["gpu_energy_joules"] += (IDLE_WATTS + share * (FULL_WATTS - IDLE_WATTS)) * dt
        for covered in ("gpu_busy_covered_seconds", "gpu_energy_covered_seconds"):
            sums[covered] += dt
        gauges = {
            "gpu_memory_used_bytes": 0.88 * MEMORY_BYTES,
            "gpu_memory_total_bytes": MEMORY_BYTES,
            "gpu_temperature_celsius": 35 + 35 * share,
            "gpu_power_limit_watts": 700.0,
        }
        return GpuReadout(
            t=now,
            gpu=f"stand-in-{name}",
            index=index,
            product=self._products.get(name, PRODUCT),
            counters=dict(sums),
            gauges=gauges,
            gaps={},
            sampled=frozenset(),
            pids=(),
        )

    def close(self) -> None:
        """Nothing is held."""
