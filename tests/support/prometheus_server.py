"""Real stores on loopback that hold given samples: a Prometheus filled with blocks, a VictoriaMetrics filled by import."""

import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import tools
from loopback import Program, running
from tools import run_words
from waiting import CEILING_SECONDS, free_port

Sample = tuple[str, Mapping[str, str], float, float]
"""Name, other labels, unix seconds and value; a value may be NaN."""


def prometheus_program(folder: Path, configuration: Mapping[str, Any] | None, *flags: str) -> Program:
    """A Prometheus with this configuration, or with the file that is in the folder; its data are there too."""
    if configuration is not None:
        (folder / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")
    port = free_port()
    words = (
        tools.tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *flags,
    )
    return Program(words, f"http://127.0.0.1:{port}", "/-/ready", folder / "prometheus.log")


@contextmanager
def prometheus_with_blocks(folder: Path, samples: Iterable[Sample], rule_files: Iterable[Path] = ()) -> Iterator[str]:
    """The address of a server that holds these samples, at least one, and evaluates these rules."""
    configuration = {"rule_files": [str(path.absolute()) for path in rule_files]}
    server = prometheus_program(folder, configuration, "--storage.tsdb.retention.time=100y")
    rows = sorted((name, _braces(labels), t, value) for name, labels, t, value in samples)
    lines = [f"{name}{labels} {value:.17g} {t:.3f}" for name, labels, t, value in rows]
    (folder / "samples.om").write_text("\n".join((*lines, "# EOF", "")))
    blocks = ("tsdb", "create-blocks-from", "--max-block-duration=24h", "openmetrics")
    run_words([tools.tool("promtool"), *blocks, folder / "samples.om", folder / "tsdb"], check=True)
    with running(server):
        yield server.url


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
        """Import samples; they can be asked for as soon as this returns."""
        lines = (f"{name}{_braces(labels)} {value:.17g} {round(t * 1000)}\n" for name, labels, t, value in samples)
        self._post("/api/v1/import/prometheus", "".join(lines).encode())
        self._post("/internal/force_flush", b"")

    def _post(self, path: str, body: bytes) -> None:
        request = urllib.request.Request(self.url + path, data=body, method="POST")
        with urllib.request.urlopen(request, timeout=CEILING_SECONDS) as result:
            assert result.status in (200, 204), result.status


def victoria_metrics(folder: Path, *flags: str) -> AbstractContextManager[Victoria]:
    return running(Victoria(folder, *flags))


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in sorted(labels.items())) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def steady(
    name: str, labels: Mapping[str, str], start: float, count: int, step: float, rise: float
) -> Iterator[Sample]:
    """A counter that rises by `rise` every `step` seconds."""
    return ((name, labels, start + place * step, place * rise) for place in range(count))
