# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.failing NAME=FILE MODULE ...``: MODULE, but with FILE, a build with failpoints, as NAME."""

from __future__ import annotations

import importlib.util
import runpy
import sys


def main() -> None:
    """Put the build where the installed one would be, which is never loaded, and become the program."""
    what, program, *arguments = sys.argv[1:]
    name, _, path = what.partition("=")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
