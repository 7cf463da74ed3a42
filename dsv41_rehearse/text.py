# SPDX-License-Identifier: Apache-2.0
"""The text that is replayed: any UTF-8 file; its bytes are the tokens, so no tokenizer is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final


BUNDLED: Final = Path(__file__).parent / "data" / "headers.txt"
MIN_BYTES: Final = 64
MAX_BYTES: Final = 64 << 20
BYTE_VALUES: Final = 256


class TextError(Exception):
    """The text cannot be replayed; the message says why."""


@dataclass(frozen=True)
class Text:
    """``name`` for people, ``tokens``: one byte a token."""

    name: str
    tokens: bytes

    def __len__(self) -> int:
        return len(self.tokens)


def load(path: Path | None = None) -> Text:
    """
    Return the text of a file, or the bundled one: this project's own C headers and handshake messages.

    Raises TextError where the file cannot be read, is no UTF-8, or is too short or too long to replay.
    """
    path = BUNDLED if path is None else path
    try:
        with path.open("rb") as file:
            tokens = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TextError(f"cannot read the text {path}: {error.strerror}") from error
    if len(tokens) > MAX_BYTES:
        raise TextError(f"{path} is longer than {MAX_BYTES >> 20} MiB: replay a part of it")
    try:
        tokens.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text (byte {error.start}): give a text file") from error
    if len(tokens) < MIN_BYTES:
        raise TextError(
            f"{path} has {len(tokens)} bytes; a request needs a prompt and something to say: {MIN_BYTES} at least"
        )
    return Text(path.name, tokens)
