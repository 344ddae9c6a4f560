"""Real stores on loopback that hold given samples: a Prometheus filled with blocks, a VictoriaMetrics filled by import.

    with prometheus_with_blocks(tmp_path, samples) as url: ...
    with victoria_metrics(tmp_path) as store:
        store.write(samples)

Only what was started here is stopped. A test that needs one for several tests makes it a fixture of its module.
"""

import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import tools
from loopback import Program, running
from prometheus_server import prometheus
from waiting import CEILING_SECONDS, free_port

Sample = tuple[str, Mapping[str, str], float, float]
"""Name, other labels, unix seconds and value; a value may be NaN."""


class Victoria(Program):
    """A VictoriaMetrics whose data outlive its stops."""

    def __init__(self, folder: Path, *flags: str) -> None:
        port = free_port()
        command = (
            tools.tool("victoria-metrics"),
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={folder / 'vm'}",
            "-retentionPeriod=100y",
            "-memory.allowedBytes=128MB",
            # By default the newest 30 s are hidden.
            "-search.latencyOffset=0s",
            "-loggerLevel=ERROR",
            *flags,
        )
        super().__init__(command, f"http://127.0.0.1:{port}", "/health")

    def write(self, samples: Iterable[Sample]) -> None:
        """Can be asked for as soon as this returns."""
        write_vm(self.url, samples)


def victoria_metrics(folder: Path, *flags: str) -> AbstractContextManager[Victoria]:
    """A VictoriaMetrics without samples."""
    return running(Victoria(folder, *flags))


def prometheus_with_blocks(
    folder: Path, samples: Iterable[Sample], rule_files: Iterable[Path] = ()
) -> AbstractContextManager[str]:
    """The address of a Prometheus that holds these samples. There must be at least one."""
    lines = [(name, tuple(sorted(labels.items())), value, t) for name, labels, t, value in samples]
    return prometheus(folder, lines, rule_files)


def write_vm(url: str, samples: Iterable[Sample]) -> None:
    """Imports samples into a VictoriaMetrics; they can be asked for as soon as this returns."""
    lines = (f"{name}{_braces(labels)} {value:.17g} {round(t * 1000)}\n" for name, labels, t, value in samples)
    body = "".join(lines).encode()
    _post(f"{url}/api/v1/import/prometheus", body)
    _post(f"{url}/internal/force_flush", b"")


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in sorted(labels.items())) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(url, data=body, method="POST"), timeout=CEILING_SECONDS
    ) as result:
        assert result.status in (200, 204), result.status


def steady(
    name: str, labels: Mapping[str, str], start: float, count: int, step: float, rise: float
) -> Iterator[Sample]:
    """A counter that rises by `rise` every `step` seconds."""
    return ((name, labels, start + place * step, place * rise) for place in range(count))
