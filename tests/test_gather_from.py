# SPDX-License-Identifier: Apache-2.0
"""What the daemon counts the time to gathered from: native/loopstate.h."""

from __future__ import annotations

import ctypes
import subprocess

from pathlib import Path

import pytest


CODE = """
#include "loopstate.h"
unsigned long gather_from(unsigned long released, unsigned long submitted, unsigned long taken)
{
    static struct hfd_loop loop;
    loop.released_ns = released;
    return hfd_gather_from(&loop, submitted, taken);
}
"""


@pytest.fixture(scope="module")
def gather_from(tmp_path_factory: pytest.TempPathFactory) -> ctypes._NamedFuncPointer:
    directory = tmp_path_factory.mktemp("from")
    source, built = directory / "from.c", directory / "from.so"
    source.write_text(CODE)
    native = Path(__file__).resolve().parent.parent / "native"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{native}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(built)], check=True)
    function = ctypes.CDLL(str(built)).gather_from
    function.restype = ctypes.c_ulong
    function.argtypes = [ctypes.c_ulong] * 3
    return function


@pytest.mark.parametrize(
    ("released", "submitted", "taken", "counted_from"),
    [
        (0, 100, 110, 100),  # the first round
        (
            90,
            100,
            110,
            100,
        ),  # submitted once the one before was released: a synchronous engine, or one that was at rest
        (105, 100, 110, 105),  # submitted while the one before was parked: the worker's time is not the stream's
    ],
)
def test_time_to_gathered_is_the_streams_own(
    gather_from: ctypes._NamedFuncPointer, released: int, submitted: int, taken: int, counted_from: int
) -> None:
    assert gather_from(released, submitted, taken) == counted_from
