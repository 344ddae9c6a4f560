"""Readouts of GPUs for tests."""

from rules.telemetry.snapshots import GpuReadout

T = 1_800_000_000.0


def readout(gpu: str, index: int | None = None, pids: tuple[int, ...] = (), t: float = T) -> GpuReadout:
    """A GPU that says little."""
    return GpuReadout(
        t=t,
        gpu=gpu,
        index=index,
        product="H",
        counters={"gpu_busy_seconds": 1.0},
        gauges={"gpu_temperature_celsius": 50.0},
        gaps={},
        sampled=frozenset(),
        pids=pids,
    )


def by_uuid(*several: GpuReadout) -> dict[str, GpuReadout]:
    """As `Gpus.latest` holds them."""
    return {r.gpu: r for r in several}
