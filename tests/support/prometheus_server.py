"""A real Prometheus on loopback, filled with recordings and with GPU samples at the times they were scraped."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tools
from loopback import program
from prometheus_client.parser import text_string_to_metric_families
from waiting import free_port

from agent.sources.recording import load, scrapes

Line = tuple[str, tuple[tuple[str, str], ...], float, float]
"""Name, labels, value and unix seconds of one sample."""


def recorded_lines(
    folder: Path, labels: dict[str, dict[str, str]], rename: dict[str, str] | None = None
) -> Iterator[Line]:
    """The samples of a recording, with the labels that a server adds to each replica's; `rename` exchanges parts of names."""
    recording, problems = load(folder)
    assert problems == ()
    for scrape in scrapes(recording, []):
        added = labels.get(recording.targets[scrape.target].replica)
        if scrape.body is None or added is None:
            continue
        body = "\n".join(line for line in scrape.body.decode().splitlines() if _is_asked(line))
        for family in text_string_to_metric_families(f"{body}\n"):
            for sample in family.samples:
                name = sample.name
                for part, other in (rename or {}).items():
                    name = name.replace(part, other)
                yield name, tuple(sorted({**sample.labels, **added}.items())), float(sample.value), scrape.t


def _is_asked(line: str) -> bool:
    """Whether a server is asked for it: of buckets, which are most of a page, those of the TTFT alone are."""
    return "_bucket{" not in line or "time_to_first_token" in line


def _text(lines: Iterable[Line]) -> str:
    rows = sorted(lines, key=lambda line: (line[0], line[1], line[3]))
    quoted = (f"{n}{{{','.join(f'{k}={_quoted(v)}' for k, v in ls)}}} {v:.17g} {t:.3f}" for n, ls, v, t in rows)
    return "\n".join((*quoted, "# EOF", ""))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@contextmanager
def prometheus(folder: Path, lines: Iterable[Line], rule_files: Iterable[Path] = ()) -> Iterator[str]:
    """The address of a server that holds these samples and evaluates these rules; it stops at the end of the block."""
    promtool, data = tools.tool("promtool"), folder / "data"
    server = shutil.which("prometheus")
    if server is None:
        pytest.skip("prometheus is not here, though promtool is: telemetry from a server was NOT checked")
    (folder / "samples.om").write_text(_text(lines))
    blocks = ("tsdb", "create-blocks-from", "--max-block-duration=24h", "openmetrics")
    subprocess.run([promtool, *blocks, folder / "samples.om", data], check=True, capture_output=True)
    (folder / "prometheus.yml").write_text(json.dumps({"rule_files": [str(path.absolute()) for path in rule_files]}))
    port = free_port()
    where = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}")
    how = (f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", "--log.level=error")
    with program([server, *where, *how], f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"
