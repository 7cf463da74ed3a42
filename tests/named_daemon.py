# SPDX-License-Identifier: Apache-2.0
"""
A daemon whose resolver is a file: name to addresses in JSON, null where no answer ever comes. A program: its first argument is the file.

libzmq does not ask it: a name that is left to that stands for nothing here.
"""

from __future__ import annotations

import json
import socket
import sys
import threading

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final


ROOT: Final = Path(__file__).resolve().parent.parent


class Zone:
    """What names stand for, to be changed while the daemon runs."""

    def __init__(self, file: Path, **names: Sequence[str] | None) -> None:
        self.file = file
        self.names: dict[str, Sequence[str] | None] = dict(names)
        self.write()

    def write(self) -> None:
        staged = self.file.with_suffix(".new")
        staged.write_text(json.dumps(self.names), encoding="utf-8")
        staged.replace(self.file)

    def set(self, name: str, addresses: Sequence[str] | None) -> None:
        self.names[name] = addresses
        self.write()

    @property
    def program(self) -> tuple[str, str]:
        """What is run in the place of ``proxyd``, with ``before``."""
        return "named_daemon", str(self.file)

    @property
    def before(self) -> tuple[str, str]:
        return "env", f"PYTHONPATH={ROOT}:{ROOT / 'tests'}"


def main() -> int:
    file = Path(sys.argv[1])

    def getaddrinfo(host: bytes, *_: Any, **__: Any) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        names = json.loads(file.read_text(encoding="utf-8"))
        if (addresses := names.get(host.decode(), ())) is None:
            threading.Event().wait()
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        return [(family, 1, 6, "", (each, 0)) for family, each in zip(families, addresses, strict=True)]

    socket.getaddrinfo = getaddrinfo  # type: ignore[assignment]
    from proxyd.__main__ import main as proxyd

    return proxyd(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
