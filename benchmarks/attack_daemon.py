"""The daemon's own surroundings: a huge configuration at SIGHUP, a clock that jumps, a lock file that goes, a new certificate."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trustme
import yaml
from attacks import HERE, Attack, World, health, metrics

YEARS_SECONDS = 10 * 365 * 86_400
WAIT_SECONDS = 20.0
LONG_KEYS = 1_700_000
"""Bytes of a configuration that takes longer to read than a service manager waits for a stop."""

_told: dict[World, str] = {}


def wait_until_up(world: World) -> None:
    while not world.over.wait(0.5) and not metrics(world):
        pass
    world.over.wait(WAIT_SECONDS)


def reload_huge(world: World) -> None:
    """Reload a file of unknown keys, and restore it only in time for the row's stop to meet the reload."""
    wait_until_up(world)
    path = world.folder / "sizewatch.yaml"
    good = path.read_text()
    path.write_text(good + "".join(f"nonsense_key_{n}: {n}\n" for n in range(LONG_KEYS // 28)))
    process = world.process
    assert process is not None
    before = time.monotonic()
    process.send_signal(signal.SIGHUP)
    while not world.over.wait(0.5):
        if metrics(world).get("sizewatch_config_last_reload_successful") == 0.0:
            _told[world] = f"refused after {time.monotonic() - before:.1f} s"
            break


def jump(world: World) -> None:
    """Set the clock ten years ahead."""
    wait_until_up(world)
    (world.folder / "clock").write_text(str(YEARS_SECONDS))


def shim(world: World, config: dict[str, Any]) -> None:
    """Build the shim and preload it into the daemon, which inherits this environment."""
    library = world.folder / "shim.so"
    words = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(HERE / "chaos_shim.c"), "-ldl"]
    subprocess.run(words, check=True)
    (world.folder / "clock").write_text("0")
    os.environ["CHAOS_CLOCK"], os.environ["LD_PRELOAD"] = str(world.folder / "clock"), str(library)


def keep_history(world: World, config: dict[str, Any]) -> None:
    config["data_dir"] = str(world.folder / "data")


def unlock(world: World) -> None:
    """Delete the lock file, and start a second daemon on the same history."""
    wait_until_up(world)
    (world.folder / "data" / "daemon.lock").unlink()
    config = yaml.safe_load((world.folder / "sizewatch.yaml").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config["web"]["listen"] = f"127.0.0.1:{free.getsockname()[1]}"
    (world.folder / "second.yaml").write_text(yaml.safe_dump(config))
    process = world.process
    assert process is not None
    root = Path(f"/proc/{process.pid}/cwd").resolve()
    command = [sys.executable, "-m", "agent", "run", "-c", str(world.folder / "second.yaml"), "--role", "node"]
    with (world.folder / "second.log").open("wb") as log:
        second = subprocess.Popen(command, cwd=root, stdout=log, stderr=log)
        while not world.over.wait(0.5) and world not in _told:
            if second.poll() is not None:
                _told[world] = f"the second ended with {second.returncode}"
            elif "started version=" in (world.folder / "second.log").read_text():
                _told[world] = "two daemons write one history"
        second.kill()
        second.wait()


def certify(world: World, authority: trustme.CA) -> None:
    """Write certificate and key as a Secret is mounted."""
    folder = world.folder / "tls"
    fresh = folder / f"..{time.monotonic_ns()}"
    fresh.mkdir(parents=True)
    made = authority.issue_cert("127.0.0.1", "localhost")
    made.private_key_pem.write_to_path(fresh / "key")
    made.cert_chain_pems[0].write_to_path(fresh / "cert")
    (folder / "..tmp").symlink_to(fresh.name)
    os.replace(folder / "..tmp", folder / "..data")
    for name in ("key", "cert"):
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(Path("..data") / name)


def serve_tls(world: World, config: dict[str, Any]) -> None:
    """Serve the pages over TLS. The harness asks in the clear, so this row's health and turns say nothing."""
    certify(world, trustme.CA())
    config["web"]["tls"] = {
        "cert_file": str(world.folder / "tls" / "cert"),
        "key_file": str(world.folder / "tls" / "key"),
    }


def swap(world: World) -> None:
    """Renew the certificate and time how long the old one is served."""
    until = time.monotonic() + WAIT_SECONDS
    new = trustme.CA()
    context = ssl.create_default_context()
    new.configure_trust(context)
    while time.monotonic() < until + WAIT_SECONDS and not _answers(world):
        time.sleep(0.5)
    certify(world, new)
    before = time.monotonic()
    while not world.over.wait(0.2):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", world.port), 2) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
            _told[world] = f"the new certificate is served after {time.monotonic() - before:.1f} s"
            return
        _told[world] = f"the old certificate is served after {time.monotonic() - before:.0f} s"


def _answers(world: World) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", world.port), 2) as plain:
        context.wrap_socket(plain).close()
        return True
    return False


def say(world: World) -> str:
    return _told.get(world, "nothing within the run")


def say_clock(world: World) -> str:
    """Return what the daemon says of its turns after the jump, and let later rows have the machine's clock."""
    os.environ.pop("LD_PRELOAD", None)
    found = metrics(world)
    status, _ = health(world)
    age = time.time() + YEARS_SECONDS - found.get("sizewatch_last_turn_timestamp_seconds", 0.0)
    return json.dumps({"healthz": status, "turns": found.get("sizewatch_turns_total"), "last turn s ago": round(age)})


ATTACKS = (
    Attack(
        name="config-huge-sighup",
        text="SIGHUP with 1.7 MB of unknown keys, and SIGTERM while it is read",
        act=reload_huge,
        lost=say,
    ),
    Attack(name="clock-ten-years", text="the clock is set ten years ahead", config=shim, act=jump, lost=say_clock),
    Attack(
        name="lock-removed",
        text="daemon.lock is deleted and a second daemon started",
        config=keep_history,
        act=unlock,
        lost=say,
    ),
    Attack(name="certificate-swapped", text="the mounted certificate is renewed", config=serve_tls, act=swap, lost=say),
)
