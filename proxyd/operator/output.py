# SPDX-License-Identifier: Apache-2.0
"""What dsv41-proxyctl says, whatever its standard output and error are."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys


def write(text: str) -> None:
    """Write to standard output. Raises OSError where that is closed or full; a pipe that nobody reads any more is none."""
    if sys.stdout is None:  # Python's, where it was closed
        raise OSError(errno.EBADF, "it is closed")
    try:
        sys.stdout.write(_encodable(text, sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_rest()  # whoever read it has enough (head, jq)
    except OSError:
        _drop_rest()
        raise


def complain(text: str) -> None:
    """Write a line to standard error, as far as that takes it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"dsv41-proxyctl: {text}\n")


def _drop_rest() -> None:
    # Python would complain at exit, when it flushes again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _encodable(text: str, encoding: str) -> str:
    """Return the text, where ``encoding`` has not all its letters with the others as JSON escapes them: JSON stays JSON."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in text)
    return text
