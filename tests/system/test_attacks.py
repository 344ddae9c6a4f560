"""Role `node` under a flood of wrong passwords, within the memory that the manifest ships."""

from __future__ import annotations

import base64
import itertools
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import bcrypt
import yaml
from daemon_runs import configuration, process, write
from engine_server import engines
from paths import ROOT
from waiting import free_port, wait_for

TOKEN = "a-token-of-the-harness"
GUESSERS = 16
REFUSED = 200


def shipped_limit_mib() -> int:
    values = yaml.safe_load((ROOT / "deploy/chart/sizewatch/values.yaml").read_text())
    return int(values["node"]["resources"]["limits"]["memory"].removesuffix("Mi"))


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def test_password_flood_keeps_to_memory_limit(tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "web.yml").write_text(yaml.safe_dump({"basic_auth_users": {"user": hashed}}))
    url, over, statuses = f"http://127.0.0.1:{free_port()}", threading.Event(), list[int]()
    web = {
        "listen": url.removeprefix("http://"),
        "config_file": str(tmp_path / "web.yml"),
        "bearer_token_file": str(tmp_path / "token"),
    }

    def status(path: str, authorization: str) -> int:
        request = urllib.request.Request(url + path, headers={"Authorization": authorization})
        try:
            with urllib.request.urlopen(request, timeout=10) as result:
                return int(result.status)
        except urllib.error.HTTPError as error:
            return error.code

    def guess() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            login = base64.b64encode(f"user:guess{number}".encode()).decode()
            with suppress(OSError):
                statuses.append(status("/runbooks/", f"Basic {login}"))

    def is_up() -> bool:
        with suppress(OSError):
            return status("/metrics", f"Bearer {TOKEN}") == 200
        return False

    with engines(4) as served:
        path = write(tmp_path, configuration(served, role="node", web=web))
        with process("run", "-c", str(path)) as daemon:
            assert wait_for(lambda: is_up() or daemon.poll() is not None)
            for _ in range(GUESSERS):
                threading.Thread(target=guess, daemon=True).start()
            scraped = [len(engine.asked) for engine in served]
            assert wait_for(lambda: len(statuses) >= REFUSED, every=0.1)
            assert wait_for(lambda: all(len(e.asked) > n + 2 for e, n in zip(served, scraped, strict=True)), every=0.1)
            assert status("/healthz", "") == 200
            assert peak_mib(daemon.pid) < shipped_limit_mib()
            over.set()
            daemon.terminate()
            _, errors = daemon.communicate(timeout=60)
    assert set(statuses) == {401}
    assert daemon.returncode == 0
    assert "Traceback" not in errors
