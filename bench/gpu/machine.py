# SPDX-License-Identifier: Apache-2.0
"""Where a result comes from: machine, driver, date, command; and the file it goes to."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys

from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from engine_shim.cudadriver import CudaDriver
from hostflag.version import VERSION


SAYS: Final = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES")  # changes what is measured


def origin() -> dict[str, Any]:
    """Return what every report begins with. Opens the driver; raises DriverFault where there is none."""
    driver = CudaDriver()
    version = driver.version
    gpu = driver.device_name(0)
    return {
        "version": VERSION,
        "machine": f"{gpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "gpu": gpu,
        "driver": _kernel_driver(),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "python": platform.python_version(),
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "command": shlex.join(["python", *_module(), *map(_short, sys.argv[1:])]),
        "environment": {name: value for name, value in os.environ.items() if name in SAYS},
    }


def write(path: Path | None, report: dict[str, Any]) -> None:
    """Write a report; a half that is there already is better than none, so this is called after each part of a run."""
    if path is None:
        return
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    staged.replace(path)


def _kernel_driver() -> str:
    """Return the version of the driver's kernel module, as it says itself."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    return next((word for word in text.split() if word[:1].isdigit() and "." in word), "unknown")


def _module() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return [sys.argv[0]] if spec is None else ["-m", spec.name.removesuffix(".__main__")]


def _short(argument: str) -> str:
    """Return a file's name without its folder: where the results lie on that machine repeats nothing elsewhere."""
    return Path(argument).name if argument.startswith("/") else argument
