"""Tokens and passwords: what is let in, what is not, and what is wrong with the files that say so."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import CEILING_SECONDS

from agent.errors import ConfigError
from agent.http_server import credentials
from agent.http_server.credentials import Authenticator, PasswordHash, hash_password, read_gate, users_line
from agent.http_server.options import WebOptions

TOKEN = "an-honest-token-of-32-characters"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WebOptions:
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "tokens").write_text(f"# rotated in May\n{TOKEN}\n\nthe-token-that-comes-after-it\n")
    lines = (users_line("ada", b"engine: 1843"), users_line("grace", "bögen".encode()))
    (folder / "users").write_text("\n".join(lines))
    return WebOptions(bearer_token_file=str(folder / "tokens"), basic_auth_users_file=str(folder / "users"))


@pytest.fixture(scope="module")
def gate(files: WebOptions) -> Authenticator:
    return read_gate(files)


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", "Bearer the-token-that-comes-after-it"]
)
def test_a_known_token_is_let_in(gate: Authenticator, authorization: str) -> None:
    assert gate.admits(authorization)


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Token {TOKEN}", "Bearer # rotated in May",
     f"Bearer {TOKEN}\xff", "Bearer \u20ac"],
)  # fmt: skip
def test_any_other_token_is_not(gate: Authenticator, authorization: str) -> None:
    assert not gate.admits(authorization)


def test_a_right_password_is_let_in_the_first_time_and_after_it(gate: Authenticator) -> None:
    for _ in range(2):
        assert gate.admits(basic("ada", "engine: 1843"))
        assert gate.admits(basic("grace", "bögen"))


@pytest.mark.parametrize(
    "authorization",
    [basic("ada", "wrong"), basic("ada", ""), basic("grace", "engine: 1843"), basic("nobody", "engine: 1843"), basic("", ""),
     "Basic", "Basic !!!", "Basic " + base64.b64encode(b"ada").decode(), "Basic " + base64.b64encode(b"\xff:x").decode(),
     "Basic \xe9"],
)  # fmt: skip
def test_a_wrong_password_is_refused_also_after_the_right_one_was_seen(gate: Authenticator, authorization: str) -> None:
    assert gate.admits(basic("ada", "engine: 1843"))
    assert not gate.admits(authorization)


def test_a_password_is_hashed_once_and_an_unknown_name_as_often_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    fits = PasswordHash.fits
    monkeypatch.setattr(PasswordHash, "fits", lambda self, password: counted.append(password) or fits(self, password))
    gate = Authenticator(users={"ada": hash_password(b"secret", b"0123456789abcdef")})
    assert gate.admits(basic("ada", "secret"))
    assert gate.admits(basic("ada", "secret"))
    assert counted == [b"secret"]
    assert not gate.admits(basic("eve", "guess"))
    assert counted == [b"secret", b"guess"]


def test_without_credentials_everybody_is_let_in_and_with_some_nobody_is_by_default() -> None:
    assert read_gate(WebOptions()).admits("")
    assert not Authenticator((TOKEN,)).admits("")
    assert not Authenticator((TOKEN,)).admits(basic("ada", "secret"))


def test_who_brings_nothing_is_told_what_to_bring(gate: Authenticator) -> None:
    assert gate.challenges == ('Basic realm="sizewatch", charset="UTF-8"', 'Bearer realm="sizewatch"')
    assert Authenticator((TOKEN,)).challenges == ('Bearer realm="sizewatch"',)


def test_two_hashes_of_one_password_differ_and_hold_no_part_of_it() -> None:
    first, second = users_line("ada", b"correct horse"), users_line("ada", b"correct horse")
    assert first != second
    assert "horse" not in first
    assert first.startswith("ada:$scrypt$ln=13,r=8,p=10$")


def test_every_problem_of_the_files_is_told_with_its_line_and_without_the_secret(tmp_path: Path) -> None:
    tokens, users = tmp_path / "tokens", tmp_path / "users"
    tokens.write_text("short-secret\nthis one has a space in it\ntökens-are-ascii-only-in-headers\n")
    good = users_line("ada", b"x" * 8)
    users.write_text(f"ada:plain-secret\n{good}\n{good}\neve:{good.split(':')[1].replace('ln=13', 'ln=19')}\n")
    with pytest.raises(ConfigError) as caught:
        read_gate(WebOptions(bearer_token_file=str(tokens), basic_auth_users_file=str(users)))
    assert caught.value.problems == (
        f"web.bearer_token_file: {tokens}:1: a token of fewer than 16 characters can be guessed",
        f"web.bearer_token_file: {tokens}:2: a token holds only ASCII characters and no space",
        f"web.bearer_token_file: {tokens}:3: a token holds only ASCII characters and no space",
        f"web.basic_auth_users_file: {users}:1: is no line that `python -m agent.http_server.credentials NAME` prints",
        f"web.basic_auth_users_file: {users}:3: the same name stands in a line above",
        f"web.basic_auth_users_file: {users}:4: its hash takes more than 64 MiB to check",
    )


def test_files_that_are_missing_or_empty_let_nobody_in(tmp_path: Path) -> None:
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("# nothing yet\n")
    with pytest.raises(ConfigError) as caught:
        read_gate(WebOptions(bearer_token_file=str(empty), basic_auth_users_file=str(missing)))
    assert caught.value.problems == (
        f"web.bearer_token_file: {empty} holds no token",
        f"web.basic_auth_users_file: {missing} cannot be read: No such file or directory",
    )


@pytest.mark.parametrize("name", ["", "a:b", " a", "a\n", "#a"])
def test_a_name_that_the_file_could_not_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a user's name"):
        users_line(name, b"password")


def test_the_command_prints_a_line_that_the_server_takes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent.http_server.credentials", "ada"]
    root = Path(credentials.__file__).parent.parent
    made = subprocess.run(
        command, input="engine\n", capture_output=True, text=True, cwd=root, timeout=CEILING_SECONDS, check=True
    )
    users = tmp_path / "users"
    users.write_text(made.stdout)
    assert read_gate(WebOptions(basic_auth_users_file=str(users))).admits(basic("ada", "engine"))
    nothing = subprocess.run(command, input="", capture_output=True, text=True, cwd=root, timeout=CEILING_SECONDS)
    assert (nothing.returncode, nothing.stdout) == (2, "")


def test_an_unknown_name_takes_as_long_as_a_known_one_whatever_the_users_hashes_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hashes of another tool may be cheaper or dearer than ours; who is told apart by time is known by name."""
    costs: list[int] = []
    fits = PasswordHash.fits
    monkeypatch.setattr(PasswordHash, "fits", lambda self, password: costs.append(self.work) or fits(self, password))
    cheap = PasswordHash(ln=4, r=8, p=1, salt=b"0123456789abcdef", hash=b"x" * 32)
    gate = Authenticator(users={"ada": cheap, "bob": cheap})
    for name in ("ada", "eve", "mallory", "ada"):
        assert not gate.admits(basic(name, "guess"))
    assert costs == [cheap.work] * 4
    # The same unknown name takes the same time each time.
    mixed = Authenticator(users={"ada": cheap, "bob": PasswordHash(ln=5, r=8, p=1, salt=cheap.salt, hash=cheap.hash)})
    for name in ("eve", "mallory", "trent"):
        costs.clear()
        assert not mixed.admits(basic(name, "guess"))
        assert not mixed.admits(basic(name, "other"))
        assert len(set(costs)) == 1


def test_the_stand_in_of_an_unknown_name_lets_nobody_in() -> None:
    gate = Authenticator(users={"ada": hash_password(b"secret", b"0123456789abcdef")})
    assert not gate.admits(basic("eve", "secret"))
    assert gate.admits(basic("ada", "secret"))
    assert not gate.admits(basic("eve", "secret"))


@pytest.mark.parametrize(
    "cost", ["ln=18,r=1,p=64", "ln=12,r=64,p=64", "ln=13,r=8,p=65", "ln=20,r=8,p=1", "ln=0,r=8,p=1"]
)
def test_a_hash_that_would_keep_the_server_busy_is_refused(tmp_path: Path, cost: str) -> None:
    file = tmp_path / "users"
    salted = "$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg"
    file.write_text(f"ada:$scrypt${cost}{salted}\n")
    with pytest.raises(ConfigError, match=r"users:1: (its hash takes|is no line)"):
        read_gate(WebOptions(basic_auth_users_file=str(file)))
    file.write_text(f"ada:$scrypt$ln=15,r=8,p=3{salted}\n")
    assert not read_gate(WebOptions(basic_auth_users_file=str(file))).open
