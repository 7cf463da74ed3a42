# SPDX-License-Identifier: Apache-2.0
"""The engine socket's place in the file system: one daemon a path, no stale socket in the way, nothing of others removed."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from pathlib import Path
from typing import Final

from hostflag import pathlock
from hostflag.users import gid_of
from proxyd.errors import NotNowError, StartError


MODE: Final = 0o660
OWNER_ONLY: Final = 0o600
DIRECTORY_MODE: Final = 0o755  # as systemd/tmpfiles.conf has it
PROBE_TIMEOUT_S: Final = 1.0


class SocketFile:
    """
    A bound SOCK_SEQPACKET socket at ``path``, and the lock that keeps a second daemon from taking the path away.

    Raises StartError with what to do: where another daemon serves the path, where something else lies there, where the directory
    is missing or not ours to write. With ``make_directory`` the last directory of ``path`` is made where it is missing, and stays.
    """

    def __init__(self, path: Path, mode: int = MODE, group: str | None = None, *, make_directory: bool = False) -> None:
        self._path = path
        self._mode = mode
        self._group = group
        try:
            if make_directory:
                _make_directory(path.parent)
            self._lock = self._take_lock()
            try:
                self._remove_stale()
                self.listening = self._bind()
            except BaseException:
                pathlock.drop(self._path, self._lock)
                raise
        except OSError as fault:
            raise NotNowError(f"cannot make the socket {path}: {_advice(fault, path)}") from fault
        self._identity = self._identify()

    def close(self) -> None:
        """Remove the socket where it is still ours, then the lock. The caller has closed, or handed over, ``listening``."""
        with contextlib.suppress(FileNotFoundError):
            if self._identify() == self._identity:
                self._path.unlink()
        pathlock.drop(self._path, self._lock)

    def _take_lock(self) -> int:
        try:
            return pathlock.take(self._path)
        except BlockingIOError:
            raise NotNowError(
                f"another daemon serves {self._path}: stop it, or give this one another --socket"
            ) from None

    def _remove_stale(self) -> None:
        if not is_there(self._path):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            answer = probe.connect_ex(str(self._path))
        if answer == errno.ECONNREFUSED:
            self._path.unlink()
        elif answer != errno.ENOENT:
            raise NotNowError(
                f"somebody listens on {self._path} already: stop it, or give this daemon another --socket"
            )

    def _bind(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The mode has to be right from the first moment: after a bind with a wider one anybody could have connected. With a group
        # to be set the socket is nobody else's until it has that.
        before = os.umask(0o777 & ~(self._mode if self._group is None else OWNER_ONLY))
        try:
            listening.bind(str(self._path))
            if self._group is not None:
                self._give(gid_of(self._group))
        except BaseException:
            listening.close()  # what lies there then is stale, or not ours: the next start finds out
            raise
        finally:
            os.umask(before)
        return listening

    def _give(self, group: int) -> None:
        # By a descriptor of what was just bound: whoever may write in the directory cannot have another file meant.
        fd = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise NotNowError(
                    f"{self._path} was replaced while it was made: who else writes in {self._path.parent}?"
                )
            os.chown(f"/proc/self/fd/{fd}", -1, group)
            Path(f"/proc/self/fd/{fd}").chmod(self._mode)
        finally:
            os.close(fd)

    def _identify(self) -> tuple[int, int]:
        found = self._path.lstat()
        return found.st_dev, found.st_ino


def _make_directory(directory: Path) -> None:
    """
    Make ``directory`` as tmpfiles.d does, mode 0755, where nothing has that name: what is there already is used as ever.

    Raises NotNowError where somebody else puts something there meanwhile, OSError.
    """
    try:
        directory.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        return
    # By a descriptor of what was just made: whoever may write beside it cannot have another one meant.
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022 or os.listdir(fd):  # noqa: PTH208 - of a descriptor
            raise NotNowError(f"{directory} was replaced while it was made: who else writes in {directory.parent}?")
        os.fchmod(fd, DIRECTORY_MODE)  # whatever the umask
    finally:
        os.close(fd)


def is_there(path: Path) -> bool:
    """Return whether a socket, served or stale, has this path. Raises StartError where something else has it, OSError."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(kind):
        raise StartError(f"{path} is there and is no socket: it is left alone; remove it, or give another --socket")
    return True


def check_place(path: Path) -> None:
    """Raise StartError where no daemon could ever have its socket at ``path`` as that is now."""
    with contextlib.suppress(OSError):  # what is not there yet, or not to be seen by us, may be by the start
        is_there(path)


def _advice(fault: OSError, path: Path) -> str:
    if fault.errno == errno.ENOENT:
        return f"there is no directory {path.parent}: make it, or give another --socket"
    if fault.errno == errno.EPERM:
        return "this user may not give it to that group: make the user a member (engine.socket_group)"
    if fault.errno == errno.EACCES and _is_missing(path.parent):
        return (
            f"no right to make the directory {path.parent}: have root make it, or give --socket, such as "
            "$XDG_RUNTIME_DIR/dsv41-engine.sock, to this and to dsv41-proxyctl, and engines VLLM_DSPARK_REMOTE_SOCKET"
        )
    if fault.errno == errno.EACCES:
        return f"no right to write in {path.parent}: give this user the right, or give another --socket"
    return fault.strerror or str(fault)


def _is_missing(path: Path) -> bool:
    """Whether nothing is there. False where that cannot be seen: a directory above it is closed to this user."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
