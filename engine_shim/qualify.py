# SPDX-License-Identifier: Apache-2.0
"""
``python -m engine_shim.qualify``: whether rounds may be parked on this GPU with this image, and what they take.

``dsv41-proxyctl qualify`` starts it as a process of its own: the daemon and its tools never load CUDA.
"""

from __future__ import annotations

import argparse
import os
import sys

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine_shim.cudadriver import shared
from engine_shim.cudastream import CudaStream
from engine_shim.errors import DriverFault, ShimError
from engine_shim.options import SessionOptions
from engine_shim.selftest import Report, SelfTest
from hostflag.defaults import ENGINE_SOCKET
from hostflag.messages import EngineIdentity, Geometry
from hostflag.qualifying import rounds_of


EXIT_REFUSED: Final = 1
EXIT_UNREACHABLE: Final = 3
GEOMETRY: Final = Geometry(row_bytes=30_720, window=128, drafts=5, vocab=129_280)
LIMIT_S: Final = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Do it; print the report. Returns 0 where rounds may be parked, 1 where not, 3 without a driver, or a daemon to its end."""
    options = _parser().parse_args(argv)
    try:
        report = _qualify(options)
    except ShimError as fault:
        sys.stderr.write(f"qualify: {fault}\n")
        return EXIT_UNREACHABLE
    sys.stdout.write(report.text() + "\n")
    sys.stdout.flush()
    if options.json is not None:
        try:
            options.json.write_text(report.json() + "\n", encoding="utf-8")
        except OSError as fault:
            # What was found counts all the same.
            sys.stderr.write(f"qualify: the report is not saved in {options.json}: {fault.strerror}\n")
            sys.stderr.flush()
    if report.stuck:
        # Something of it is stuck in the driver, and would hold up an orderly end.
        os._exit(EXIT_REFUSED)
    return 0 if report.passed else EXIT_REFUSED


def _qualify(options: argparse.Namespace) -> Report:
    driver = shared()
    if not 0 <= options.device < driver.devices:
        raise DriverFault(0, f"there is no device {options.device}: the driver has {driver.devices}")
    driver.use_primary(options.device)
    stream = CudaStream.create(driver=driver, copies=options.copies)
    report = SelfTest(
        stream,
        options.socket,
        geometry=GEOMETRY,
        model="qualify",
        # A name of its own: of two engines of one name the later ends the earlier one's session.
        engine=EngineIdentity(name=f"qualify-{os.getpid()}", pid=os.getpid()),
        rounds=options.rounds,
        timed=options.rounds,
        limit_s=LIMIT_S,
        options=SessionOptions(),
    ).run()
    if not report.stuck:
        stream.close()
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qualify",
        description="Tries the hand-off on this GPU: attributes, registration, patterned echo rounds through the daemon, a module load "
        "while a round is parked. No worker is needed.",
        allow_abbrev=False,
    )
    parser.add_argument("--socket", metavar="PATH", type=Path, default=Path(ENGINE_SOCKET), help="the daemon's socket")
    parser.add_argument("--json", metavar="FILE", type=Path, help="save the report there too")
    parser.add_argument("--device", metavar="N", type=int, default=0, help="which GPU (default: %(default)s)")
    parser.add_argument("--rounds", metavar="N", type=rounds_of, default=1000, help="how many (default: %(default)s)")
    parser.add_argument(
        "--copies",
        type=int,
        choices=(0, 1, 2),
        help="how copies are enqueued: 0 one by one, 1 flat ones together, 2 all together",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
