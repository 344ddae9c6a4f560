"""Tokens, passwords and the web configuration file: who is let in, and what is wrong with the files."""

import base64
import subprocess
from pathlib import Path

import bcrypt
import pytest
from web_clients import STATUS, TOKEN, WELL, ask, serving, write_web_file

from agent.config.web import Web, read_web_file
from agent.errors import ConfigError
from agent.http_server import credentials
from agent.http_server.credentials import read_tokens
from agent.http_server.server import WebServer


def hash_password(password: str, rounds: int = 4) -> str:
    """Return the bcrypt hash of a password, as cheap as possible."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds)).decode()


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture(name="server", scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "tokens").write_text(f"# rotated in May\n{TOKEN}\n\nthe-token-that-comes-after-it\n")
    # As htpasswd writes them.
    grace = hash_password("bögen").replace("$2b$", "$2y$")
    users = {"ada": hash_password("engine: 1843"), "grace": grace, "long": hash_password("x" * 72)}
    with serving(bearer_token_file=str(folder / "tokens"), config_file=write_web_file(folder, users)) as server:
        yield server


@pytest.mark.parametrize(
    "authorization",
    [f"Bearer {TOKEN}", f"bearer  {TOKEN}", "Bearer the-token-that-comes-after-it", basic("ada", "engine: 1843"),
     basic("grace", "bögen"), basic("long", "x" * 72), basic("long", "x" * 80)],
)  # fmt: skip
def test_known_credentials_are_let_in(server: WebServer, authorization: str) -> None:
    for _ in range(2):
        assert ask(server, "/runbooks/", Authorization=authorization)[0] == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Token {TOKEN}", f"Bearer {TOKEN}\xff",
     "Bearer # rotated in May", basic("ada", "wrong"), basic("ada", ""), basic("grace", "engine: 1843"), basic("", ""),
     basic("nobody", "engine: 1843"), "Basic", "Basic !!!", "Basic " + base64.b64encode(b"ada").decode(),
     basic("ada", "engine: 1843\0"), "Basic " + base64.b64encode(b"\xff:x").decode(), "Basic \xe9"],
)  # fmt: skip
def test_other_credentials_are_always_refused(server: WebServer, authorization: str) -> None:
    assert ask(server, "/runbooks/", Authorization=basic("ada", "engine: 1843"))[0] == 200
    status, headers, _ = ask(server, "/runbooks/", Authorization=authorization)
    assert status == 401
    assert headers["www-authenticate"].endswith('Bearer realm="sizewatch"')


def test_unknown_name_is_hashed_as_often(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    matches = credentials._matches
    monkeypatch.setattr(credentials, "_matches", lambda *args: counted.append(args[0]) or matches(*args))
    server.reload()
    for name, password in (("ada", "engine: 1843"), ("ada", "engine: 1843"), ("ada", "guess"), ("eve", "guess")):
        ask(server, "/runbooks/", Authorization=basic(name, password))
    assert counted == [b"engine: 1843", b"guess", b"guess"]
    assert b"1843" not in repr(vars(server.pages.gate)).encode()


def test_password_is_of_one_user(tmp_path: Path) -> None:
    with serving(
        config_file=write_web_file(tmp_path, {"ada": hash_password("a"), "bob": hash_password("b")})
    ) as server:
        assert ask(server, "/runbooks/", Authorization=basic("eve", "a"))[0] == 401
        assert ask(server, "/runbooks/", Authorization=basic("ada", "a"))[0] == 200
        assert ask(server, "/runbooks/", Authorization=basic("bob", "a"))[0] == 401
        # A changed password is taken up without a restart, and the one before no longer counts.
        write_web_file(tmp_path, {"ada": hash_password("new")})
        server.reload()
        assert ask(server, "/runbooks/", Authorization=basic("ada", "a"))[0] == 401
        assert ask(server, "/runbooks/", Authorization=basic("ada", "new"))[0] == 200


def test_htpasswd_line_is_let_in(tmp_path: Path) -> None:
    try:
        made = subprocess.run(
            ["htpasswd", "-niBC", "5", "ada"], input="engine", capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("htpasswd is not installed")
    name, _, hashed = made.stdout.strip().partition(":")
    with serving(config_file=write_web_file(tmp_path, {name: hashed})) as server:
        assert ask(server, "/runbooks/", Authorization=basic("ada", "engine"))[0] == 200


def test_unusable_token_file_hides_its_secret(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    unusable = f"{path} must hold tokens of at least 16 ASCII characters without a space, one a line"
    for content, problem in (
        (b"short-secret\n", unusable),
        (b"this one has a space in it", unusable),
        ("a-token-that-is-sound\nt\u00f6kens-are-ascii-only-in-headers\n".encode(), unusable),
        (b"# nothing yet\n", unusable),
        (b"\xff", f"{path} cannot be read: it is no UTF-8 text"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            read_tokens("web.bearer_token_file", str(path))
        assert caught.value.problems == (f"web.bearer_token_file: {problem}",)
    with pytest.raises(ConfigError, match="missing cannot be read: No such file"):
        read_tokens("web.bearer_token_file", str(tmp_path / "missing"))


TLS = "tls_server_config: {cert_file: c, key_file: k"

PROBLEMS: tuple[tuple[str, str], ...] = (
    ("basic_auth_users:\n  ada: a-plain-secret\n", ": basic_auth_users.ada: must be a bcrypt hash"),
    ("basic_auth_users: {ada: $2y$31$" + "a" * 53 + "}", ": basic_auth_users.ada: must be a bcrypt hash"),
    ("basic_auth_users:\n  ada: x\n  ada: y\n", ": basic_auth_users.ada: is given twice"),
    ("http_server_config: {http2: true}", ": http_server_config: is not a key"),
    ("rate_limit: {burst: 1}", ": rate_limit: is not a key"),
    (TLS + ", cipher_suites: [a]}", ": tls_server_config.cipher_suites: is not a key"),
    (TLS + ", client_allowed_sans: [a]}", ": tls_server_config.client_allowed_sans: is not a key"),
    (TLS + ", key: secret}", ": tls_server_config.key: is not a key"),
    (TLS + ", client_auth_type: RequireAnyClientCert}", ": tls_server_config.client_auth_type: must be"),
    (TLS + ", client_auth_type: RequireAndVerifyClientCert}", ": tls_server_config: client_ca_file goes with"),
    (TLS + ", client_ca_file: ca}", ": tls_server_config: client_ca_file goes with"),
    (TLS + ", min_version: TLS10}", ": tls_server_config.min_version: must be"),
    ("tls_server_config: {cert_file: c}", ": tls_server_config.key_file: is missing"),
    ("a secret\n", ": file: must be a mapping"),
    ("{", ": is not YAML"),
)


@pytest.mark.parametrize(("text", "problem"), PROBLEMS, ids=range(len(PROBLEMS)))
def test_web_file_problem_names_its_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        WebServer(Web.model_construct(config_file=str(path)), lambda: STATUS, lambda: WELL)
    assert any(f"{path}{problem}" in found for found in caught.value.problems), caught.value
    assert "secret" not in str(caught.value)


def test_web_files_are_relative_to_it(tmp_path: Path) -> None:
    tls = read_web_file(write_web_file(tmp_path, cert_file="a/c.pem", key_file="/k.pem")).tls_server_config
    assert (tls.cert_file, tls.key_file) == (str(tmp_path / "a" / "c.pem"), "/k.pem")
    with pytest.raises(ConfigError, match=r"missing\.yml: there is no such file"):
        read_web_file(str(tmp_path / "missing.yml"))
