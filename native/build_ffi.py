# SPDX-License-Identifier: Apache-2.0
"""
Build the C modules with cffi: one abi3 extension a side, plus the kernels of the rehearsal's stand-in.

setuptools calls the four ``*_ffi`` functions (``cffi_modules``); ``python native/build_ffi.py --inplace`` builds beside the
sources for work on them. What Python sees of the C is what stands between ``cffi:begin`` and ``cffi:end`` in the headers:
there is no second definition.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from pathlib import Path
from typing import Final, NamedTuple


try:
    import cffi
except ImportError:
    sys.exit(
        f"build_ffi: {sys.executable} has no cffi, which writes the glue: pip install cffi (or apt-get install python3-cffi)"
    )


NATIVE: Final = Path(__file__).resolve().parent
ROOT: Final = NATIVE.parent
MARKED: Final = re.compile(r"/\* cffi:begin \*/(.*?)/\* cffi:end \*/", re.DOTALL)
COMPILE_ARGS: Final = [
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    "-pthread",
]
# cffi's generated glue is not ours to keep free of these; our own files are checked with -Werror by `make lint`.
GLUE_ARGS: Final = ["-Wno-unused-parameter", "-Wno-missing-field-initializers"]
REGION: Final = ("layout.c", "region.c", "hostflag.c")


class Module(NamedTuple):  # no dataclass: cffi executes this file as no module that one could look itself up in
    """A C extension: its import name, the headers Python sees, the sources it is made of."""

    name: str
    headers: tuple[str, ...]
    sources: tuple[str, ...]


SHARED: Final = Module(
    "hostflag._hostflag", ("hostflag.h", "wire.h", "echo.h", "shared.h"), (*REGION, "echo.c", "shared.c")
)
ENGINE: Final = Module(
    "engine_shim._engine",
    ("hostflag.h", "softstream.h", "cudadriver.h", "cudastream.h", "engine.h"),
    (
        *REGION,
        "nap.c",
        *("engineregion.c", "engine.c", "submit.c", "gather.c", "syncround.c"),
        *("spare.c", "plan.c", "planbegin.c", "planround.c", "settle.c"),
        *("ring.c", "backlog.c", "watchdog.c", "watch.c", "softstream.c", "softthread.c"),
        *("cudadriver.c", "cudaopen.c", "cudastream.c", "cudamemory.c", "cudacopies.c"),
    ),
)
DAEMON: Final = Module(
    "proxyd._daemon",
    ("hostflag.h", "wire.h", "histogram.h", "roundloop.h", "zmqtransport.h", "echotransport.h", "heap.h"),
    (
        *(*REGION, "nap.c", "histogram.c", "eventring.c", "roundwire.c", "zmqlib.c", "zmqincoming.c", "zmqtransport.c"),
        *("echo.c", "echotransport.c"),
        *(
            "link.c",
            "linkchange.c",
            "patience.c",
            "round.c",
            "breaker.c",
            "roundloop.c",
            "loopstart.c",
            "loopcontrol.c",
            "heap.c",
        ),
    ),
)
STANDIN: Final = Module("dsv41_rehearse._standin", ("standin.h",), ("standin.c",))
MODULES: Final = (SHARED, ENGINE, DAEMON, STANDIN)
# For drills, never installed: daemon and watchdog can be made to stop at named points.
FAILING: Final = tuple(module._replace(sources=(*module.sources, "failpoints.c")) for module in (DAEMON, ENGINE))


class BuildError(Exception):
    """The machine lacks what the build needs; the message says what to install."""


def declarations(header: Path) -> str:
    """Return what a header marks for cffi, without the comments that cffi's parser would trip over."""
    parts = MARKED.findall(header.read_text(encoding="utf-8"))
    if not parts:
        raise BuildError(f"{header}: no cffi:begin ... cffi:end section")
    return re.sub(r"/\*.*?\*/", "", "\n".join(parts), flags=re.DOTALL)


def require_tools() -> None:
    """Raise BuildError where the C compiler, the C library's headers or Python.h is missing."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise BuildError(
            f"no C compiler ({compiler!r} is not on PATH): apt-get install gcc libc6-dev, or name yours in CC"
        )
    probe = "#include <stdio.h>\n#include <linux/futex.h>\n"
    if subprocess.run([compiler, "-E", "-"], input=probe, text=True, capture_output=True, check=False).returncode:
        raise BuildError(f"{compiler!r} finds no C library headers: apt-get install libc6-dev")
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BuildError(f"no Python.h in {include}: apt-get install python{version}-dev (or python3-dev)")


def builder(module: Module, native: str = "native", defines: tuple[str, ...] = ()) -> cffi.FFI:
    """Return the FFI of a module, ready to compile. ``native`` is relative to the project's root, as setuptools asks."""
    require_tools()
    ffi = cffi.FFI()
    for name in module.headers:
        ffi.cdef(declarations(NATIVE / name))
    includes = "".join(f'#include "{name}"\n' for name in module.headers)
    ffi.set_source(
        module.name,
        includes,
        sources=[f"{native}/{name}" for name in module.sources],
        depends=[f"{native}/{path.name}" for path in sorted(NATIVE.glob("*.h"))],
        include_dirs=[native],
        extra_compile_args=[*COMPILE_ARGS, *GLUE_ARGS, *(f"-D{name}" for name in defines)],
        libraries=["pthread", "dl"],
        py_limited_api=True,
    )
    return ffi


def shared_ffi() -> cffi.FFI:
    """Both sides: layout, region, wire constants."""
    return builder(SHARED)


def engine_ffi() -> cffi.FFI:
    """The engine side: submit, watchdog, soft stream."""
    return builder(ENGINE)


def daemon_ffi() -> cffi.FFI:
    """The daemon side: round loop, transports."""
    return builder(DAEMON)


def standin_ffi() -> cffi.FFI:
    """The rehearsal's kernels."""
    return builder(STANDIN)


def extension_path(module: Module) -> Path:
    """Where a module built in place lies."""
    return ROOT / Path(*module.name.split(".")).with_suffix(".abi3.so")


def stale(module: Module) -> bool:
    """Whether the built extension is missing or older than anything it is made from."""
    target = extension_path(module)
    made_from = [*NATIVE.glob("*.h"), *(NATIVE / name for name in module.sources), Path(__file__)]
    return not target.exists() or any(path.stat().st_mtime > target.stat().st_mtime for path in made_from)


def build_in_place(module: Module) -> None:
    """Compile one module into the source tree."""
    missing = [name for name in (*module.headers, *module.sources) if not (NATIVE / name).exists()]
    if missing:
        raise BuildError(f"{module.name}: missing in native/: {', '.join(missing)}")
    if not stale(module):
        return
    print(f"building {module.name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dsv41-build-") as scratch:
        # cffi builds in the current directory, and would read the project's own pyproject.toml there.
        os.chdir(scratch)
        built = Path(builder(module, str(NATIVE)).compile(tmpdir=scratch, verbose=False))
        target = extension_path(module)
        # Renamed into place: a process that has the old one mapped keeps it.
        staged = target.with_suffix(".new")
        shutil.copy2(built, staged)
        staged.rename(target)
        os.chdir(ROOT)


def build_failing(module: Module, directory: Path) -> None:
    """Compile a module with its failpoints into a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="dsv41-build-") as scratch:
        os.chdir(scratch)
        built = Path(builder(module, str(NATIVE), ("HF_FAILPOINTS",)).compile(tmpdir=scratch, verbose=False))
        directory.mkdir(parents=True, exist_ok=True)
        staged = directory / f".{built.name}.{os.getpid()}"
        shutil.copy2(built, staged)
        staged.rename(directory / built.name)
        os.chdir(ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--inplace", action="store_true", help="build beside the Python sources")
    where.add_argument("--failpoints", type=Path, metavar="DIR", help="the modules with failpoints, for drills")
    parser.add_argument("module", nargs="*", help="import names of the modules to build (default: all)")
    arguments = parser.parse_args()
    failed = False
    if arguments.failpoints is not None:
        try:
            for module in FAILING:
                build_failing(module, arguments.failpoints.absolute())
        except (BuildError, cffi.VerificationError) as error:
            print(f"build_ffi: {error}", file=sys.stderr)
            return 1
        return 0
    for module in MODULES:
        if arguments.module and module.name not in arguments.module:
            continue
        try:
            build_in_place(module)
        except (BuildError, cffi.VerificationError) as error:
            print(f"build_ffi: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
