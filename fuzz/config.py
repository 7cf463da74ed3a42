# SPDX-License-Identifier: Apache-2.0
"""
What people write: the configuration's file, its environment, its flags; files of keys; the engine side's environment.

Nonsense is refused with reasons that fit a terminal; what is taken, is taken again from what ``--print-config`` says of it.
"""

from __future__ import annotations

import contextlib
import io
import os

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine_shim import environment
from engine_shim.shimoptions import ShimOptions
from fuzz.cursor import Cursor
from fuzz.watch import begin, end, must
from hostflag import keys, users
from hostflag.keys import KeyFault
from proxyd.config import commandline, printout
from proxyd.config.commandline import CommandLine
from proxyd.config.configuration import Configuration
from proxyd.config.faults import MAX_FAULTS, ConfigurationError
from proxyd.config.settings import ENVIRONMENT_PREFIX, TABLE


TOLD: Final = 8  # letters of a key in a row that are no coincidence
MOST_REASON_LETTERS: Final = 2000  # a line that says what is wrong, whatever was found
BAD_FLAGS: Final = 2
SHIM_VARIABLES: Final = tuple(
    value for value in vars(environment).values() if isinstance(value, str) and value.startswith(environment.PREFIX)
)
NAMES: Final = (*(setting.path for setting in TABLE), "worker.nonsense", "nonsense.key", "log", "")


def one_input(data: bytes) -> None:
    """Raise whatever is wrong with what is made of this input."""
    cursor = Cursor(data)
    begin()
    cursor.one_of((_file, _file, _file, _lines, _lines, _environment, _everything, _keys, _shim, _users))(cursor)
    end()


@contextlib.contextmanager
def _written(text: bytes, mode: int = 0o600) -> Iterator[Path]:
    """Give a path to a file that only this process can see."""
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC)
    try:
        os.write(fd, text)
        os.fchmod(fd, mode)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _check(line: CommandLine, variables: dict[str, str]) -> None:
    try:
        configuration = Configuration(line, variables)
    except ConfigurationError as error:
        lines = str(error).split("\n")
        must(1 <= len(lines) <= MAX_FAULTS + 1 and error.count >= 1, "a configuration that is wrong for no reason")
        for text in lines:
            must(
                text.isprintable() and len(text) < MOST_REASON_LETTERS,
                f"a reason that fits no terminal: {text[:200]!r}",
            )
        return
    for setting in TABLE:
        must(setting.name in configuration.origins, "a value from nowhere")
    with _written(printout.as_toml(configuration).encode()) as path:
        again = Configuration(CommandLine(config=path), {})
    must(again.settings == configuration.settings, "a configuration that is another once it was printed and read")


def _file(cursor: Cursor) -> None:
    with _written(cursor.rest()) as path:
        _check(CommandLine(config=path), {})


def _lines(cursor: Cursor) -> None:
    """A file that is nearly right: real sections and keys, values as the input has them."""
    with _written(_document(cursor)) as path:
        _check(CommandLine(config=path), {})


def _document(cursor: Cursor) -> bytes:
    text = b""
    for _ in range(cursor.byte() % 8):
        section, _, key = cursor.one_of(NAMES).partition(".")
        text += f"[{section}]\n{key} = ".encode() + _value(cursor) + b"\n"
    return text


def _value(cursor: Cursor) -> bytes:
    choices: tuple[bytes, ...] = (
        b"1", b"-1", b"1e999", b"nan", b"9" * 5000, b"0x" + b"f" * 9000, b'"off"', b'"127.0.0.1:0"', b'"tcp://h:1"', b"[]",
        b'["tcp://h:1", "ipc:///w"]', b'["root"]', b"[1]", b"{}", b"[" * 3000, b'"/a"', b"1979-05-27T07:32:00Z", b"true", b'"0660"',
    )  # fmt: skip
    return cursor.block() if (choice := cursor.byte()) >= 96 else choices[choice % len(choices)]


def _environment(cursor: Cursor) -> None:
    names_a_file = cursor.byte() >= 200
    with _written(b"") as path:
        _check(CommandLine(config=None if names_a_file else path), _variables(cursor))


def _variables(cursor: Cursor) -> dict[str, str]:
    names = (*(setting.variable for setting in TABLE), f"{ENVIRONMENT_PREFIX}NONSENSE", f"{ENVIRONMENT_PREFIX}CONFIG")
    return {cursor.one_of(names): _word(cursor) for _ in range(1 + cursor.byte() % 4)}


def _word(cursor: Cursor) -> str:
    words = (
        "",
        "1",
        "1.5",
        "0660",
        "off",
        "root",
        "root,0",
        "tcp://h:1,ipc://w",
        "[::1]:1",
        "info",
        "9" * 5000,
        "x" * 5000,
    )
    return cursor.text() if (choice := cursor.byte()) >= 64 else words[choice % len(words)]


def _everything(cursor: Cursor) -> None:
    """Flags as argparse sees them, over the environment, over a file."""
    arguments = []
    for _ in range(1 + cursor.byte() % 3):
        flag = cursor.one_of((*(setting.flag for setting in TABLE), "--check-config", "--nonsense", "", "--config"))
        arguments += [f"{flag}={_word(cursor)}"] if cursor.byte() < 200 else [flag, _word(cursor)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            line = commandline.parse(arguments)
    except SystemExit as leaving:
        must(leaving.code in {0, BAD_FLAGS} and "Traceback" not in said.getvalue(), "flags that end in another way")
        must(bool(said.getvalue()), "flags that are wrong for no reason")
        return
    variables = _variables(cursor)
    with _written(_document(cursor)) as path:
        _check(CommandLine(action=line.action, config=line.config or path, flags=line.flags), variables)


def _keys(cursor: Cursor) -> None:
    known = b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    text = b"".join(known if cursor.byte() < 64 else cursor.block() for _ in range(cursor.byte() % 4))
    mode = 0o600 if cursor.byte() < 200 else cursor.number(2) & 0o777
    secret = text.decode("latin-1").split()
    for read in (keys.read_public, keys.read_allowed, keys.read_secret):
        with _written(text, mode) as path:
            try:
                result = read(path)
            except KeyFault as fault:
                must(bool(str(fault)), "a file of keys that is refused for no reason")
                must(not any(len(word) > 20 and word in str(fault) for word in secret), "a fault that tells a key")
                continue
        must(not isinstance(result, frozenset) or all(len(key) == 32 for key in result), "a key of another size")
        must(not isinstance(result, bytes) or len(result) == keys.KEY_LETTERS, "a public key of another size")
        must(not isinstance(result, keys.SecretKey) or not _tells(repr(result), secret), "a secret told")


def _tells(said: str, words: list[str]) -> bool:
    """Whether a text holds a part of a key. Words of another length are no keys: a file's comments may say what they like."""
    parts = [
        word[at : at + TOLD] for word in words if len(word) == keys.KEY_LETTERS for at in range(len(word) - TOLD + 1)
    ]
    return any(part in said for part in parts)


def _shim(cursor: Cursor) -> None:
    variables = {cursor.one_of(SHIM_VARIABLES): _word(cursor) for _ in range(1 + cursor.byte() % 5)}
    try:
        ShimOptions.from_environment(variables)
    except ValueError as fault:
        must(any(name in str(fault) for name in variables), f"a fault that names no variable: {fault}")


def _users(cursor: Cursor) -> None:
    text = cursor.text()
    for find in (users.uid_of, users.gid_of):
        with contextlib.suppress(ValueError):
            must(0 <= find(text) <= users.MOST, "a number that no user has")
