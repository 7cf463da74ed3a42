# SPDX-License-Identifier: Apache-2.0
"""Whatever the path of a configuration leads to: the daemon says what is wrong with it, and neither waits nor grows."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypothesis import example, given
from hypothesis import strategies as st
from proxyd_harness import PATIENCE_S

from proxyd.config.configfile import MAX_BYTES, FileFault, parsed, read
from proxyd.config.settings import TABLE


PLAIN = b"[worker]\nnetwork_timeout_ms = 200.0\n"


def refused(path: Path) -> str:
    with pytest.raises(FileFault) as caught:
        read(path)
    assert caught.value.fault.source == str(path)
    return str(caught.value)


def test_a_file_is_read(short_dir: Path) -> None:
    path = short_dir / "f"
    path.write_bytes(PLAIN)
    (short_dir / "link").symlink_to("f")
    assert read(path) == read(short_dir / "link") == {"worker": {"network_timeout_ms": 200.0}}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"[worker\n", "at line 1, column 8"),
        (b"[worker]\nendpoints = [", "is not TOML"),
        (b'[log]\nlevel = "in', "is not TOML"),
        (b"[log]\nlevel = 'info'\nlevel = 'debug'\n", "Cannot overwrite a value (at line 3"),
        (b"[log]\n[log]\n", "Cannot declare ('log',) twice"),
        (b"\x7fELF\x02\x01\x01" + bytes(57), "is not TOML"),
        (b"\xff\xfe[\x00l\x00", "is not UTF-8 at byte 0"),
        (b"[log]\n# \xe9t\xe9", "is not UTF-8 at byte 8"),
        (PLAIN + bytes(1), "is not TOML"),
        (b"a = " + b"[" * 16000, "too deep"),
        (b"a = " + b"{a = " * 3000, "too deep"),
        (b"a = " + b"9" * 16000, "is not TOML: "),
        (b"a = 2026-02-30", "is not TOML"),
        (PLAIN + b"#" * MAX_BYTES, f"larger than {MAX_BYTES} bytes"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_no_file_may_hold(short_dir: Path, raw: bytes, words: str) -> None:
    path = short_dir / "f"
    path.write_bytes(raw)
    assert words in refused(path)


def test_the_largest_file_is_read_and_one_byte_more_is_not(short_dir: Path) -> None:
    path = short_dir / "f"
    path.write_bytes(PLAIN + b"#" * (MAX_BYTES - len(PLAIN)))
    assert read(path)
    path.write_bytes(path.read_bytes() + b"#")
    assert "larger" in refused(path)


def test_a_sparse_file_of_any_size_costs_nothing(short_dir: Path) -> None:
    path = short_dir / "f"
    path.touch()
    os.truncate(path, 1 << 40)
    assert "larger" in refused(path)


@contextlib.contextmanager
def bound(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        yield


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "is a directory"),
        (os.mkfifo, "is a FIFO"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device"),
        (lambda path: path.symlink_to("/dev/null"), "is a device"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("nowhere"), "leads to nowhere, which does not exist"),
    ],
    ids=["directory", "fifo", "endless", "null", "loop", "dangling"],
)
def test_what_is_no_file(short_dir: Path, make: Callable[[Path], object], words: str) -> None:
    make(short_dir / "f")
    assert words in refused(short_dir / "f")


def test_sockets_and_names_that_cannot_be(short_dir: Path) -> None:
    with bound(short_dir / "s"):
        assert "socket" in refused(short_dir / "s")
    assert "null" in refused(Path("/etc/a\0b"))
    assert "too long" in refused(Path("/" + "x" * 300))
    (short_dir / "f").touch()
    assert "Not a directory" in refused(short_dir / "f" / "f")
    with pytest.raises(FileNotFoundError):
        read(short_dir / "none")


def test_a_file_that_may_not_be_read_says_who_may_not(short_dir: Path) -> None:
    """Root may read everything, so root gives that up first."""
    path = short_dir / "f"
    path.write_bytes(PLAIN)
    path.chmod(0)
    short_dir.chmod(0o755)
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        assert f"cannot be read by uid {os.geteuid()}: Permission denied" in refused(path)
    finally:
        os.seteuid(own)


@pytest.mark.parametrize("name", ["dots", "names", "tables"])
def test_a_file_made_to_take_long_is_over_soon(name: str) -> None:
    raw = {
        "dots": b"a" + b".a" * (MAX_BYTES // 2 - 2) + b"=1",
        "names": b"".join(b"k%d=1\n" % number for number in range(MAX_BYTES // 9)),
        "tables": b"".join(b"[a.b%d]\n" % number for number in range(MAX_BYTES // 12)),
    }[name]
    assert len(raw) <= MAX_BYTES
    began = time.process_time()
    with contextlib.suppress(FileFault):  # newer parsers have bounds of their own
        parsed(Path("f"), raw)
    assert time.process_time() - began < 15  # some 0.8 s; at four times the size, 13 s


@given(raw=st.binary(max_size=200))
@example(raw=b"")
@example(raw=b"\xef\xbb\xbf" + PLAIN)
def test_no_bytes_do_anything_but_count_or_be_refused(raw: bytes) -> None:
    with contextlib.suppress(FileFault):
        assert isinstance(parsed(Path("f"), raw), dict)


@given(cut=st.integers(0, len(PLAIN)), junk=st.text(max_size=5))
def test_no_damage_does_anything_but_count_or_be_refused(cut: int, junk: str) -> None:
    with contextlib.suppress(FileFault):
        assert isinstance(parsed(Path("f"), PLAIN[:cut] + junk.encode() + PLAIN[cut:]), dict)


def run(root: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxyd", *argv]
    return subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("action", ["--check-config", "--print-config", "--log-format=json"])
def test_a_wrong_file_ends_the_daemon_with_78(short_dir: Path, root: Path, action: str) -> None:
    os.mkfifo(short_dir / "f")
    ended = run(root, f"--config={short_dir}/f", action, f"--socket={short_dir}/e.sock", DSV41_PROXYD_LOG_LEVEL="loud")
    assert (ended.returncode, ended.stdout) == (78, "")
    first, *faults = ended.stderr.splitlines()
    assert first == "dsv41-proxyd: cannot start with this configuration:"
    assert [fault.partition(":")[0] for fault in faults] == [f"{short_dir}/f", "environment"]
    assert not (short_dir / "e.sock").exists()


def test_a_right_file_is_ok_and_printed(short_dir: Path, root: Path) -> None:
    path = short_dir / "ü.toml"
    path.write_bytes(PLAIN)
    checked = run(root, f"--config={path}", "--check-config")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "ok\n", "")
    printed = run(root, f"--config={path}", "--print-config", PYTHONUTF8="1", LC_ALL="C")
    assert printed.returncode == 0
    assert f"network_timeout_ms = 200.0  # {path}\n" in printed.stdout


def test_what_cannot_be_printed_is_said(root: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "proxyd", "--print-config"]
        ended = subprocess.run(command, cwd=root, stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert ended.stderr == b"dsv41-proxyd: cannot write to standard output: No space left on device\n"


def test_flags_that_are_wrong_are_told_together_with_2(root: Path) -> None:
    ended = run(root, "--nap-us=x", "--log-level=loud", "--config=/nowhere")
    assert ended.returncode == 2
    assert "argument --nap-us: 'x': not such a number; allowed: a number from 1 to 10000 us" in ended.stderr
    assert "argument --log-level: 'loud': no such choice; allowed: one of" in ended.stderr


def test_documents_say_what_the_table_says(root: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "scripts/document_settings.py", "--check"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_example_changes_nothing_and_says_everything(root: Path) -> None:
    text = (root / "systemd" / "proxyd.toml").read_text(encoding="utf-8")
    assert not any(read(root / "systemd" / "proxyd.toml").values())
    lines = [line.removeprefix("#") if line[1:2].isalpha() else line for line in text.splitlines()]
    document = parsed(Path("example"), "\n".join(lines).encode())
    assert {(section, key) for section, keys in document.items() for key in keys} == {
        (setting.section, setting.key) for setting in TABLE
    }
    for setting in TABLE:
        assert setting.kind.from_toml(document[setting.section][setting.key]) == setting.default
