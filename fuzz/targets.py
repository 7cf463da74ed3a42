# SPDX-License-Identifier: Apache-2.0
"""The fuzzers: what each is made of, and where its inputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple


FUZZ: Final = Path(__file__).resolve().parent
ROOT: Final = FUZZ.parent
NATIVE: Final = FUZZ / "native"
CORPUS: Final = FUZZ / "corpus"
FOUND: Final = FUZZ / "found"
PRODUCT_FOLDERS: Final = ("native", "hostflag", "proxyd", "engine_shim", "refworker")
BUILD: Final = ROOT / "build" / "fuzz"


class Target(NamedTuple):
    """One fuzzer. ``sources``: of fuzz/native and, as libraries do, of native/; empty for one in Python. ``wrap``: of the linker."""

    name: str
    most_bytes: int
    sources: tuple[str, ...] = ()
    wrap: tuple[str, ...] = ()


INCOMING: Final = Target(
    "incoming", 2048, ("incoming.c", "judge.c", "fakezmq.c", "fakeclock.c"), ("hf_now_ns", "ppoll", "getsockopt")
)
SLOTS: Final = Target("slots", 1024, ("slots.c",))
ADOPTION: Final = Target("adoption", 512, ("adoption.c",), ("pthread_create",))
WORKER: Final = Target("worker", 1024)
DOOR: Final = Target("door", 1024)
CONFIG: Final = Target("config", 2048)
IN_C: Final = (INCOMING, SLOTS, ADOPTION)
IN_PYTHON: Final = (WORKER, DOOR, CONFIG)
# Two run at a time: one of each kind.
TARGETS: Final = (INCOMING, WORKER, SLOTS, DOOR, ADOPTION, CONFIG)
BY_NAME: Final = {target.name: target for target in TARGETS}


def inputs(target: Target) -> list[Path]:
    """Return the committed inputs: seeds, and what was found."""
    return sorted(path for folder in (CORPUS, FOUND) for path in (folder / target.name).glob("*"))
