# SPDX-License-Identifier: Apache-2.0
"""
The seeds: ``python -m fuzz.seeds`` writes them into corpus/.

Small programs in each fuzzer's own language, around what the product's encoders make; where those or a fuzzer change, they are
written anew (a test says when).
"""

from __future__ import annotations

import shutil
import struct
import sys

from collections.abc import Mapping
from typing import Final

import msgspec

from fuzz import doorwords
from fuzz.targets import CORPUS
from hostflag._hostflag import ffi, lib
from hostflag.control import Opened, Refused
from hostflag.geometry import to_c
from hostflag.messages import Geometry
from hostflag.wire import Kind, Status, encode_control, encode_header, encode_status


SESSION: Final = 0x5E55_104D  # of the fuzzers in C
BLOCK: Final = 255  # the most that a block's first byte says, and the rest of the input
EVENT, MESSAGE, REPLY, MONITOR, FAIL, PARTS, ROUND, SENDS, TEND = 0, 1, 4, 7, 9, 10, 11, 14, 15
LATER: Final = 0x80  # what the worker sends once it has the round
UP, DOWN, BARRED = bytes([MONITOR, 0]), bytes([MONITOR, 1]), bytes([MONITOR, 5])
TENDED: Final = bytes([TEND, 1])
GOES: Final = bytes([ROUND, 0])


def _raw(message: bytes, *, later: bool = False, more: bool = False) -> bytes:
    return bytes([EVENT | (LATER if later else 0) | (0x40 if more else 0), len(message)]) + message


def _incoming() -> Mapping[str, bytes]:
    opened = _raw(encode_control(SESSION, Opened(worker="worker", drafter="mock")))
    refused = _raw(encode_control(SESSION, Refused(code="model", reason="no such model")))
    start = bytes([0, 0]) + UP + TENDED + opened + TENDED
    reply = bytes([REPLY | LATER, 0])
    opened_already = bytes([8, 0])
    stranger = bytearray(encode_control(SESSION, Refused(code="protocol", reason="update")))
    stranger[4] = 2  # another version
    return {
        "drafts": start + (reply + GOES) * 3,
        "wraps": bytes([9, 1]) + (reply + GOES) * 3,
        "extra-bytes": bytes([0x19, 2]) + (reply + GOES) * 2,
        "refused": bytes([0, 0]) + UP + TENDED + refused + TENDED + GOES,
        "changes-its-mind": start + refused + GOES + opened + TENDED + reply + GOES,
        "foreign": bytes([0, 0]) + UP + TENDED + _raw(bytes(stranger)) + TENDED,
        "says-no": start + _raw(encode_status(SESSION, 6, Status.BUSY), later=True) + GOES,
        "unknown-session": start
        + _raw(encode_status(SESSION, 6, Status.UNKNOWN_SESSION), later=True)
        + GOES
        + opened
        + TENDED,
        "late": opened_already + GOES + bytes([REPLY, 4, 0, 0xFF]) + TENDED + reply + GOES,
        "bad-id": opened_already + bytes([REPLY | LATER, 16, 0, 1]) + GOES + reply + GOES,
        "two-parts": opened_already + bytes([REPLY | LATER, 32, 0]) + GOES,
        "many-parts": start + bytes([PARTS]) + struct.pack("<H", 2000) + TENDED,
        "pong": start + bytes([TEND, 255]) + _raw(encode_header(Kind.PONG, SESSION, 1)) + TENDED,
        "goes-down": start + DOWN + TENDED + UP + opened + TENDED + reply + GOES,
        "large-opened": bytes([4, 0, MESSAGE, 2, 1, 0]) + TENDED,
        "other-session": opened_already + bytes([REPLY | LATER, 128, 0]) + GOES,
        "other-count": opened_already + bytes([REPLY | LATER, 1, 5]) + GOES,
        "cut": opened_already + bytes([REPLY | LATER, 2, 0, 0xF8]) + GOES,
        "barred": bytes([2, 0]) + bytes([MONITOR, 2]) + BARRED + TENDED,
        "fails": start + bytes([FAIL | 0x20]) + TENDED + UP + TENDED,
        "floods": start + bytes([MONITOR, 2, SENDS, 255, 255]) * 3 + TENDED,
        "takes-nothing": start + bytes([SENDS | 0x40, 0, 0]) + GOES + reply + GOES,
    }


def _slots() -> Mapping[str, bytes]:
    usual = b"".join(bytes([1, shape, 5, 6]) for shape in (0x0B, 0xD3, 0x1A))
    header = {"round": 3, "session": SESSION, "n_requests": 1, "n_rows": 2, "ring_bytes": 65536}
    request = {"rows": 2, "flags": lib.HF_REQUEST_DRAFT}
    raw = bytes(ffi.buffer(ffi.new("struct hf_round *", header))) + bytes(
        ffi.buffer(ffi.new("struct hf_request *", request))
    )
    return {
        "decode": bytes([0, 2]) + usual + b"\0",
        "context-only": bytes([0x10, 2]) + usual + b"\0",
        "in-the-ring": bytes([0x20, 1]) + usual + b"\0\x10\0",
        "wraps": bytes([0x81, 3]) + usual + usual,
        "one-request": bytes([2, 0, 0x0B, 0, 0]) + b"\0",
        "raw": bytes([0x40]) + raw,
        "spoiled": bytes([0, 2]) + usual + bytes([3, 4, 36, 0, 255, 255, 255, 255, 0, 8, 0, 7, 8, 16, 0, 1]),
    }


def _adoption() -> Mapping[str, bytes]:
    small = Geometry(slots=8, max_requests=3, state_slots=9, row_bytes=64, drafts=5, vocab=129280, ring_bytes=131072)
    geometry = bytes(ffi.buffer(to_c(small)))
    at_rest = bytes([0, *(0,) * 6]) + struct.pack("<Q", 300)
    patch = struct.pack("<HB", ffi.offsetof("struct hf_header", "layout"), 7) + bytes(range(8))
    return {
        "usual": bytes([0, 0]) + at_rest,
        "other-geometry": bytes([1, 0]) + geometry + at_rest,
        "near": bytes([3, 0]) + geometry + at_rest,
        "wraps": bytes([0, 0, 1]) + at_rest[1:],
        "not-at-rest": bytes([0, 0, 0, 1, 0, 0, 0, 0, 0]),
        "not-sealed": bytes([0, 5]),
        "sealed-against-writing": bytes([0, 6]),
        "cannot-be-sealed": bytes([0, 255]),
        "too-short": bytes([0x30, 0, 0x80, 1]),
        "sparse": bytes([0x70, 0, 0, 0]),
        "other-offsets": bytes([4, 0]) + patch,
        "no-memfd": bytes([255, 2]),
    }


def _worker() -> Mapping[str, bytes]:
    opening = bytes([2, 0, 0, 0, 0, 0, 0, 0])  # kind, session, name, rank, protocol, geometry, as it is, one part
    numbers = bytes([6, 0, 0, 1, 0, 0, 2, 0, 0, 5, 0, 0, 1, 7, 3, 2])
    return {
        "mock": b"\0" + (b"\0" + opening) + (b"\0" + numbers) * 3,
        "prompt-lookup": b"\1" + (b"\0" + opening) + (b"\0" + numbers) * 6,
        "another-connection": b"\0" + (b"\0" + opening) + (b"\1" + numbers) + (b"\1" + opening) + (b"\1" + numbers),
        "four-sessions": b"\0"
        + b"".join(bytes([0, 2, number, number, 0, 0, 0, 0, 0]) for number in range(3))
        + bytes([0, 2, 3, 0, 1, 0, 0, 0, 0]),
        "huge": b"\0\0" + bytes([2, 0, 0, 0, 0, 2, 0, 0, 0, 6, 0, 2, 0, 199]),
        "ping": b"\0\0" + opening + bytes([0, 4, 0, 9, 1, 4, 0, 9]),
        "close": b"\0\0" + opening + b"\0\1\0" + bytes([14]) + b'{"reason":"x"}' + bytes([5, 0]),
        "extra": b"\0\0" + bytes([2, 1, 1, 1, 0, 1, 0, 0]) + b"\0" + bytes([6, 1, 1, 1, 0, 0, 2, 0, 0, 5]),
        "reply": b"\0\0" + bytes([5, 0, 2, 1, 2, 3, 4, 0]),
        "many-parts": b"\0\0" + bytes([0, 0, 3, 1, 65, 1, 66, 1, 67]),
    }


def _place_of(name: bytes) -> int:
    """Return which of HELLO's values is that of ``name``."""
    before, _, _ = msgspec.json.encode(doorwords.HELLO).partition(b'"' + name + b'":')
    return len(doorwords.VALUE.findall(before))


def _door() -> Mapping[str, bytes]:
    seeds: dict[str, bytes] = {}
    as_is, no_fds, heard = 7, 0, 0
    say = {type(word).__name__: bytes([no_fds, as_is, number, heard]) for number, word in enumerate(doorwords.WORDS)}
    attach = bytes([0x81]) + say["Attach"][1:]
    seeds["create"] = b"\0\0" + say["Hello"] + say["Create"]
    seeds["attach"] = b"\0\0" + say["Hello"] + attach
    seeds["attach-spoiled"] = (
        b"\0\0" + say["Hello"] + bytes([0x87, 9, 0, 4, 1, 2, 3, 4, 0, 4, 0, 0, 0]) + say["Attach"][1:]
    )
    # Other values in HELLO: places in the order of its JSON, values of the list or the input's own.
    slots, vocab = (_place_of(name) for name in (b"slots", b"vocab"))
    too_many = doorwords.VALUES.index(b"4294967295")
    seeds["geometry-out-of-bounds"] = b"\0\0" + bytes([no_fds, 2, 0, slots, too_many, heard]) + say["Create"]
    seeds["geometry-of-another"] = b"\0\0" + bytes([no_fds, 2, 0, vocab, 200, 2]) + b"99" + bytes([heard]) + attach
    seeds["out-of-order"] = b"\0\0" + say["Create"]
    requests = ("StatusRequest", "Drain", "Resume", "Reload", "SwitchWorker", "DumpRequest")
    seeds["operator"] = b"\0\xff" + say["OperatorHello"] + b"".join(say[name] for name in requests)
    quiet = {name: word[:-1] for name, word in say.items()}
    seeds["engine"] = b"\3" + quiet["Welcome"] + bytes([0x80]) + quiet["Region"][1:] + quiet["Ready"]
    seeds["engine-refused"] = b"\3" + quiet["Refused"]
    seeds["proxyctl"] = b"\4" + quiet["Done"] + quiet["Status"] + quiet["Dump"]
    seeds["http"] = b"\5\0\0"
    seeds["http-head"] = b"\5\1\0"
    seeds["descriptors"] = b"\0\0" + bytes([0x7F, 0, 200]) + say["Hello"][1:]
    seeds["json"] = b"\0\0\0\0" + bytes([BLOCK - 1]) + msgspec.json.encode(doorwords.HELLO)
    return seeds


def _config() -> Mapping[str, bytes]:
    file = b'[engine]\nsocket = "/run/e.sock"\nsocket_mode = "0600"\n[worker]\nendpoints = ["tcp://h:1", "ipc:///w"]\nnetwork_timeout_ms = 10'
    return {
        "file": b"\0" + file,
        "empty-file": b"\0",
        "metrics": b'\0[metrics]\naddress = "[::1]:0"\n[log]\nlevel = "debug"\n[security]\nallowed_users = ["root", "0"]',
        "tables": b"\0[worker.nonsense]\na = 1\n[[log]]\nb = 1979-05-27\n",
        "lines": bytes([3, 3, 3, 1, 1, 3, 2, 10, 9, 60, 13]),
        "environment": bytes([5, 0, 1, 3, 70, 9]) + b"tcp://h:1",
        "config-variable": bytes([5, 255, 0, 255, 64, 9]) + b"/nowhere.",
        "flags": bytes([6, 1, 3, 0, 7, 0, 0, 1]),
        "keys": bytes([7, 1, 0, 0]),
        "two-keys": bytes([7, 2, 0, 200, 1, 10, 0, 0]),
        "open-secret": bytes([7, 1, 0, 255, 0xB4, 1]),
        "shim": bytes([8, 3, 2, 2, 3, 1, 4, 70, 5]) + b"/run/",
        "users": bytes([9, 4]) + b"root",
    }


SEEDS: Final = {
    "incoming": _incoming, "slots": _slots, "adoption": _adoption, "worker": _worker, "door": _door, "config": _config,
}  # fmt: skip


def main() -> int:
    for name, make in SEEDS.items():
        folder = CORPUS / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for seed, data in make().items():
            (folder / seed).write_bytes(data)
        print(f"{name}: {len(make())} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
