"""What no module of ours does: run text as code, start a shell, make objects of bytes, believe any certificate, leave its room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest
from paths import ROOT

ROOMS = ("agent", "exporters", "forecast", "rules")

MODULES = {
    "pickle": "agent/history/service.py",
    "multiprocessing": "agent/worker/process.py",
    "marshal": "",
    "shelve": "",
    "dill": "",
    "code": "",
    "pty": "",
    "telnetlib": "",
    "ftplib": "",
    "xml": "",
    "xmlrpc": "",
    # Its functions for proxies of the environment alone.
    "urllib.request": "",
    "http.cookiejar": "",
}
"""A module, and where it may be imported. The pickle stays in memory, of minutes that wait. `multiprocessing` pickles what goes
between the daemon and its own child, by a pipe that nobody else can open."""

CALLS = frozenset(
    {
        "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.spawnl", "os.execv", "os.execvp", "yaml.load",
        "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader",
        "tempfile.mktemp", "ssl._create_unverified_context", "requests.get", "requests.post", "requests.request", "random.seed",
        "hashlib.md5", "hashlib.sha1", "pandas.read_pickle", "pd.read_pickle", "np.load", "numpy.load", "pickle.load",
    }
)  # fmt: skip


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    found = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(found) > 300
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))) for path in found)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@cache
def imports() -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((path, frozenset(imported(tree))) for path, tree in trees())


@pytest.mark.parametrize("module", MODULES)
def test_unsafe_module_is_imported_in_one_place(module: str) -> None:
    where = {path for path, found in imports() if any(m == module or m.startswith(f"{module}.") for m in found)}
    assert where == set(MODULES[module].split())


def test_no_unsafe_call() -> None:
    found = [
        f"{path}:{node.lineno}: {dotted(node.func)}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func) in CALLS
    ]
    assert found == []


def test_no_process_is_started_by_name() -> None:
    """multiprocessing starts an interpreter."""
    starts = [
        path
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).startswith("subprocess.")
    ]
    assert starts == []


def test_certificates_are_checked_unless_configured() -> None:
    """`insecure_skip_verify` is the one place; everywhere else the library's own checks stand."""
    found = {
        path
        for path, tree in trees()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "CERT_NONE")
        or (
            isinstance(node, ast.keyword)
            and node.arg == "verify"
            and isinstance(node.value, ast.Constant)
            and not node.value.value
        )
    }
    assert found == {"agent/http_client/credentials.py"}


def test_secrets_are_compared_in_constant_time() -> None:
    """Every comparison of a token, password or hash in the web server's own gate is `hmac.compare_digest`."""
    (tree,) = (tree for path, tree in trees() if path == "agent/http_server/credentials.py")
    suspects = {"token", "digest", "proof", "hash", "password", "found"}
    compared = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)
        and suspects & {dotted(side).rpartition(".")[2] for side in (node.left, *node.comparators)}
    ]
    assert compared == []
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node.func) == "hmac.compare_digest"
    ]
    assert len(calls) >= 2
