"""Access keys: the encryption of their secrets and their users."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from txmsg.errors import MisuseError, Unauthenticated
from txmsg.wire.access.guard import ACCESS_KEY, Guard
from txmsg.wire.access.keys import AccessKey, KeyFile, known_access_key, new_access_key
from txmsg.wire.access.snapshot import AccessSnapshot, User


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "access-keys.key"
    KeyFile.make(path)
    return path


def test_a_sealed_secret_opens_only_with_the_same_file_id_and_user(path: Path, tmp_path: Path) -> None:
    made = new_access_key()
    sealed = KeyFile(path).seal(made, "shop")
    opened = KeyFile(path).open
    assert opened(AccessKey(id=made.id, user="shop", sealed_secret=sealed)) == made.secret.encode()
    assert opened(AccessKey(id=made.id, user="eve", sealed_secret=sealed)) is None
    assert opened(AccessKey(id=new_access_key().id, user="shop", sealed_secret=sealed)) is None
    assert opened(AccessKey(id=made.id, user="shop", sealed_secret=b"short")) is None
    other = tmp_path / "other.key"
    KeyFile.make(other)
    assert KeyFile(other).open(AccessKey(id=made.id, user="shop", sealed_secret=sealed)) is None
    assert made.secret not in repr(made)


def test_the_first_key_encrypts_and_every_key_decrypts(path: Path) -> None:
    old = new_access_key()
    key = AccessKey(id=old.id, user="shop", sealed_secret=KeyFile(path).seal(old, "shop"))
    before = path.read_text()
    path.write_text(f"{b64encode(bytes(32)).decode()}  # the new one\n{before}")
    assert KeyFile(path).open(key) == old.secret.encode()
    new = new_access_key()
    sealed = KeyFile(path).seal(new, "shop")
    path.write_text(before)
    assert KeyFile(path).open(AccessKey(id=new.id, user="shop", sealed_secret=sealed)) is None


def test_a_key_file_is_private_and_never_overwritten(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(MisuseError, match="File exists"):
        KeyFile.make(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "not base64", "AAAA", "\u00e9"])
def test_a_file_without_a_key_is_refused_with_a_remedy(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MisuseError, match="txmsg user access-key file FILE"):
        KeyFile(path)


@pytest.mark.parametrize(
    ("key_id", "secret", "why"),
    [
        ("", "12345678", "access key '' cannot be kept"),
        ("a/b", "12345678", "access key 'a/b' cannot be kept"),
        ("x" * 65, "12345678", "cannot be kept: it has 1 to 64"),
        ("rocketmq2", "1234567", "of 7 characters, cannot be kept: it has 8 to 128"),
        ("rocketmq2", "s" * 129, "of 129 characters"),
        ("rocketmq2", "top secret", "no blanks"),
        ("rocketmq2", "geheim\u00e9\u00e9", "of ASCII"),
    ],
)
def test_an_access_key_that_cannot_be_stored_is_refused_without_its_secret(key_id: str, secret: str, why: str) -> None:
    with pytest.raises(MisuseError) as refused:
        known_access_key(key_id, secret)
    assert why in str(refused.value)
    assert secret not in str(refused.value)


def test_an_access_key_authenticates_its_user_until_it_is_revoked() -> None:
    key = AccessKey(id="a" * 16, user="shop", sealed_secret=b"sealed")
    guard = Guard()
    guard.use_snapshot(AccessSnapshot(version=1, users={"shop": User(name="shop")}, access_keys={key.id: key}))
    principal = guard.authenticate_key(key.id, lambda _: "", "127.0.0.1:1")
    assert (principal.name, principal.credential) == ("shop", f"{ACCESS_KEY}{key.id}")
    assert guard.renewed(principal) == principal
    refused: list[str] = []
    guard.on_refused = lambda _, why: refused.append(why)
    for key_id, why in ((key.id, "the signature is wrong"), ("b" * 16, "")):
        with pytest.raises(Unauthenticated, match="the access key is not valid here"):
            guard.authenticate_key(key_id, lambda _, why=why: why, "127.0.0.1:1")  # type: ignore[misc]
    assert refused == ["the signature is wrong", "it is unknown or was revoked"]
    guard.use_snapshot(AccessSnapshot(version=2, users={"shop": User(name="shop")}))
    with pytest.raises(Unauthenticated):
        guard.renewed(principal)


def test_a_secret_given_in_place_of_its_access_key_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    made = new_access_key()
    guard = Guard()
    guard.use_snapshot(AccessSnapshot(version=1))
    for key_id in (made.id, made.secret):
        with pytest.raises(Unauthenticated):
            guard.authenticate_key(key_id, lambda _: "", "127.0.0.1:1")
    assert made.id in caplog.text
    assert made.secret not in caplog.text
