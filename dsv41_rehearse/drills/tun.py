# SPDX-License-Identifier: Apache-2.0
"""
A network of two hosts, made of two network namespaces, a TUN device in each and this process between them.

It loses, delays and reorders packets, or lets none through and says nothing: what no kernel without netem can do. The
namespaces are gone with the last process in them.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, final

from dsv41_rehearse.drills import inside
from dsv41_rehearse.stack import Child, Stack, StackError


NEAR, FAR = "10.213.77.1", "10.213.77.2"
MTU: Final = 9000
_QUEUE: Final = 2000  # packets on their way; a full router drops
_SET_IFF: Final = 0x400454CA
_TUN_NO_INFO: Final = 0x1001
_COMMAND_S: Final = 10.0
_WEATHER: Final = struct.Struct("=Qdddd")  # cut off, loss, delay, jitter, reordered
_COUNTS: Final = struct.Struct("=QQQ")  # carried, lost, overtaken


class NoTunError(Exception):
    """There can be none here; the message says why."""


@dataclass(frozen=True)
class Weather:
    """``loss``, ``reordered``: shares of all packets. ``delay_ms``: each way, ``jitter_ms``: up to so much more. ``cut``: nothing passes."""

    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reordered: float = 0.0
    cut: bool = False


@final
class Board:
    """What drill and network show each other: a file that both map."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_WEATHER.size + _COUNTS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _WEATHER.size + _COUNTS.size)

    @property
    def weather(self) -> Weather:
        """How it is now."""
        cut, loss, delay_ms, jitter_ms, reordered = _WEATHER.unpack_from(self._map, 0)
        return Weather(loss, delay_ms, jitter_ms, reordered, bool(cut))

    @weather.setter
    def weather(self, now: Weather) -> None:
        _WEATHER.pack_into(self._map, 0, now.cut, now.loss, now.delay_ms, now.jitter_ms, now.reordered)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Packets so far: carried, lost, overtaken by a later one."""
        carried, lost, overtaken = _COUNTS.unpack_from(self._map, _WEATHER.size)
        return carried, lost, overtaken

    @counts.setter
    def counts(self, now: tuple[int, int, int]) -> None:
        _COUNTS.pack_into(self._map, _WEATHER.size, *now)


class Network:
    """The drill's side: the process, once both hosts are there. ``near``, ``far``: what ``inside`` takes, for each host."""

    def __init__(self, stack: Stack, seed: int) -> None:
        path = stack.directory / "network.board"
        self.board = Board(path)
        self.child: Child = stack.start("network", "dsv41_rehearse.drills.tun", [str(path), str(seed)])
        try:
            ready = self.child.ready()
        except StackError as fault:
            stack.forget(self.child)
            raise NoTunError(str(fault).strip().splitlines()[-1]) from fault
        self.near, self.far = (f"/proc/{self.child.pid}/fd/{ready[host]}" for host in ("near", "far"))


def _host(address: str, other: str) -> tuple[int, int]:
    """Go into a new namespace and put a TUN device there. Returns the device and the namespace. Raises OSError."""
    inside.leave()
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_IFF, struct.pack("16sH22x", b"tun0", _TUN_NO_INFO))
    for command in (
        ["ip", "address", "add", address, "peer", other, "dev", "tun0"],
        ["ip", "link", "set", "tun0", "mtu", str(MTU), "up"],
        ["ip", "link", "set", "lo", "up"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
        if done.returncode != 0:
            raise OSError(done.returncode, f"{' '.join(command)}: {done.stderr.strip()}")
    return device, os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class Carrier:
    """Carries packets between two devices, whose reads and writes do not block."""

    def __init__(self, board: Board, devices: tuple[int, int], seed: int) -> None:
        self._board, self._chance = board, random.Random(seed)
        self._to = dict(zip(devices, reversed(devices), strict=True))
        self._queue: list[tuple[float, int, int, bytes]] = []  # due, number, device, packet
        self._number = self._carried = self._lost = self._overtaken = 0
        self._newest = 0
        self._poll = select.poll()
        for device in devices:
            self._poll.register(device, select.POLLIN)

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Wait for a packet that comes or is due; take and deliver what there is."""
        wait_ms = (self._queue[0][0] - time.monotonic()) * 1e3 if self._queue else 100.0
        for device, _ in self._poll.poll(max(0.0, min(100.0, wait_ms))):
            self._take(device)
        self._deliver()
        self._board.counts = self._carried, self._lost, self._overtaken

    def _take(self, device: int) -> None:
        weather, now = self._board.weather, time.monotonic()
        for _ in range(64):
            try:
                packet = os.read(device, MTU)
            except BlockingIOError:
                return
            if weather.cut or len(self._queue) >= _QUEUE or self._chance.random() < weather.loss:
                self._lost += 1
                continue
            late_ms = weather.delay_ms + self._chance.random() * weather.jitter_ms
            if self._chance.random() < weather.reordered:
                late_ms = 0.0  # overtakes what is on its way
            self._number += 1
            heapq.heappush(self._queue, (now + late_ms / 1e3, self._number, self._to[device], packet))

    def _deliver(self) -> None:
        now, cut = time.monotonic(), self._board.weather.cut
        while self._queue and self._queue[0][0] <= now:
            _, number, device, packet = heapq.heappop(self._queue)
            if cut:
                self._lost += 1
                continue
            self._overtaken += number < self._newest
            self._newest = max(self._newest, number)
            try:
                os.write(device, packet)
                self._carried += 1
            except OSError:  # the device's own queue is full
                self._lost += 1


def main() -> int:
    """``BOARD SEED``: make the two hosts, say so, carry packets until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        near, near_space = _host(NEAR, FAR)
        far, far_space = _host(FAR, NEAR)
    except OSError as fault:
        sys.stderr.write(f"no TUN link: {fault}\n")
        return 1
    now = datetime.now(timezone.utc).isoformat()
    said = {"event": "ready", "timestamp": now, "near": near_space, "far": far_space}
    sys.stderr.write(json.dumps(said) + "\n")
    sys.stderr.flush()
    Carrier(Board(Path(sys.argv[1])), (near, far), int(sys.argv[2])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
