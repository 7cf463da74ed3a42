# SPDX-License-Identifier: Apache-2.0
"""An operator's end of the daemon's socket."""

from __future__ import annotations

import socket

from pathlib import Path
from types import TracebackType
from typing import Final

from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout, operator_end
from hostflag.messages import PROTOCOL_VERSION, Done, Message, OperatorHello, Refused, ToOperator
from proxyd.sessions.peer import peer_of


LISTENS_S: Final = 2.0  # by then a daemon that runs has said hello


class Failed(Exception):
    """What was asked for did not happen; the message says why."""


class Unreachable(Failed):
    """No daemon could be asked."""


class Silent(Unreachable):
    """Somebody holds the socket and says nothing: process ``pid``, 0 where this process's namespace does not show it."""

    def __init__(self, reason: str, pid: int) -> None:
        super().__init__(reason)
        self.pid = pid


class Client:
    """
    Connects to the daemon at ``path`` and is admitted. A context manager.

    Raises Unreachable, or Failed where the daemon refuses.
    """

    def __init__(self, path: Path, listens_s: float = LISTENS_S) -> None:
        self._path = path
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(listens_s)
            connection.connect(str(path))
            # Of the process that listens, as of its listen(): also where it was stopped since.
            self._pid = peer_of(connection).pid
        except OSError as fault:
            connection.close()
            raise Unreachable(_unreachable(path, fault)) from fault
        self._channel: Channel[ToOperator] = operator_end(connection)
        try:
            self.ask(OperatorHello(protocol=PROTOCOL_VERSION), listens_s)
        except BaseException:
            self._channel.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def ask(self, request: Message, timeout_s: float) -> ToOperator:
        """Return the daemon's answer. Raises Failed where it refuses, Unreachable where it does not answer."""
        try:
            self._channel.send(request)
            received = self._channel.receive(timeout_s)
        except ChannelTimeout as fault:
            raise Silent(f"the daemon at {self._path} does not answer within {timeout_s:g} s", self._pid) from fault
        except ChannelClosed as fault:
            raise Unreachable(f"the daemon at {self._path} hung up: {fault}") from fault
        except BadMessage as fault:
            raise Failed(
                f"the daemon at {self._path} answers what this version does not know ({fault}): update the older"
            ) from fault
        received.close_fds()
        if isinstance(received.message, Refused):
            raise Failed(f"refused ({received.message.code}): {received.message.reason}")
        return received.message

    def do(self, request: Message, timeout_s: float) -> str:
        """Have something done; return what the daemon says of it."""
        answer = self.ask(request, timeout_s)
        if not isinstance(answer, Done):
            raise Failed(f"the daemon answered {type(answer).__name__}")
        return answer.text


def _unreachable(path: Path, fault: OSError) -> str:
    if isinstance(fault, FileNotFoundError):
        return f"no daemon at {path}: there is no such socket; start dsv41-proxyd, or give --socket"
    if isinstance(fault, ConnectionRefusedError) and not path.is_socket():
        return f"no daemon at {path}: it is no socket; start dsv41-proxyd, or give --socket"
    if isinstance(fault, ConnectionRefusedError):
        return f"no daemon at {path}: a socket is there, but nobody listens; start dsv41-proxyd, or give --socket"
    if isinstance(fault, PermissionError):
        return f"no right to connect to {path}: use sudo, or be of the group that owns it"
    if isinstance(fault, (BlockingIOError, TimeoutError)):
        return f"the daemon at {path} accepts no connections: as many as may wait wait already"
    return f"no daemon at {path}: {fault.strerror or fault}; start dsv41-proxyd, or give --socket"
