# SPDX-License-Identifier: Apache-2.0
"""
CURVE keys in files: a line begins with 40 letters of Z85; after a space anything may follow, such as whose key it is.

Empty lines do not count, nor lines that begin with "# ": a # alone can begin a key.

Nothing here puts a key, or what stands in a secret key's file, into a message.
"""

from __future__ import annotations

import os
import stat
import struct

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zmq

from zmq.utils import z85


KEY_LETTERS: Final = 40
MAX_FILE_BYTES: Final = 1 << 20
MAX_KEYS: Final = 4096
CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"  # systemd's LoadCredential=


class KeyFault(Exception):
    """A key cannot be had from its file; the message says why, and what to do."""


class SecretKey:
    """One's own key pair. It never shows its secret half."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.public = zmq.curve_public(secret)

    def __repr__(self) -> str:
        return f"SecretKey(public={self.public.decode()})"

    def use(self, socket: zmq.Socket[bytes]) -> None:
        """Have ``socket``, not bound or connected yet, use this pair."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)


def read_secret(path: Path) -> SecretKey:
    """Return the secret key in a file that only its owner, this user or root, can read. Raises KeyFault."""
    return SecretKey(_one(path, _text(path, secret=True)))


def read_public(path: Path) -> bytes:
    """Return the public key in a file, in Z85. Raises KeyFault."""
    return _one(path, _text(path))


def read_allowed(path: Path) -> frozenset[bytes]:
    """Return the public keys in a file as libzmq hands them to a ZAP handler: 32 bytes each. Raises KeyFault."""
    keys = frozenset(z85.decode(key) for key in _keys(path, _text(path)))
    if not keys:
        raise KeyFault(f"{path} allows nobody: put in the public key of each daemon, one a line")
    return keys


def write_pair(directory: Path, name: str) -> tuple[Path, Path]:
    """
    Make a pair: ``name``.key (mode 0600, the secret key) and ``name``.pub in ``directory``. Returns their paths.

    Raises KeyFault where one of them is there already, or cannot be written; then none is left.
    """
    public, secret = zmq.curve_keypair()
    paths = directory / f"{name}.key", directory / f"{name}.pub"
    _write(paths[0], secret, 0o600)
    try:
        _write(paths[1], public, 0o644)
    except BaseException:
        paths[0].unlink()
        raise
    return paths


def _write(path: Path, key: bytes, mode: int) -> None:
    try:
        # Never through a link, and never over a key that somebody may still need.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except FileExistsError as error:
        raise KeyFault(f"{path} is there already and is left alone: remove it, or choose another directory") from error
    except OSError as error:
        raise KeyFault(f"cannot write {path}: {error.strerror}") from error
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            os.fchmod(fd, mode)  # whatever the umask
            file.write(key + b"\n")
    except BaseException as error:
        path.unlink()  # a key in part, or none: it would be in the way of the next try
        if isinstance(error, OSError):
            raise KeyFault(f"cannot write {path}: {error.strerror}") from error
        raise


def _text(path: Path, *, secret: bool = False) -> str:
    try:
        # Not to hang on a FIFO: what it is, is looked at first.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyFault(f"cannot read {path}: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFault(f"{path} is no regular file")
        if secret:
            _check_rights(path, status)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise KeyFault(f"{path} is larger than {MAX_FILE_BYTES} bytes: no file of keys")
    return data.decode("latin-1")


def _check_rights(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in {0, os.geteuid()}:
        raise KeyFault(f"{path} belongs to uid {status.st_uid}: a secret key must belong to root or to this user")
    # systemd hands a credential over by an ACL, which shows as a right of the group; its directory is closed to others.
    others = stat.S_IRWXO if _is_credential(path) else stat.S_IRWXO | stat.S_IRWXG
    if status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        raise KeyFault(f"{path} has mode {mode:04o}: a secret key must not be open to others (chmod 600 {path})")


def _is_credential(path: Path) -> bool:
    directory = os.environ.get(CREDENTIALS)
    return bool(directory) and path.resolve().parent == Path(str(directory)).resolve()


def _one(path: Path, text: str) -> bytes:
    keys = list(_keys(path, text))
    if len(keys) != 1:
        raise KeyFault(f"{path} holds {len(keys)} keys, not one")
    return keys[0]


def _keys(path: Path, text: str) -> Iterator[bytes]:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and line.split()[0] != "#"]
    if len(lines) > MAX_KEYS:
        raise KeyFault(f"{path} holds more than {MAX_KEYS} keys")
    for number, line in lines:
        key = line.split()[0].encode("latin-1")
        if len(key) != KEY_LETTERS or not _is_z85(key):
            raise KeyFault(
                f"{path}, line {number}: no key of {KEY_LETTERS} letters of Z85 (dsv41-proxyctl keygen makes keys)"
            )
        yield key


def _is_z85(key: bytes) -> bool:
    try:
        z85.decode(key)
    except (ValueError, KeyError, struct.error):
        return False
    return True
