# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.failing MODULE ...``: the daemon, but with this build of its C module, which has failpoints."""

from __future__ import annotations

import importlib.util
import sys

from typing import Final


NAME: Final = "proxyd._daemon"


def main() -> int:
    """Put the module where the daemon's own would be, and become the daemon. The installed one is never loaded."""
    path, *arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    from proxyd.__main__ import main as daemon  # noqa: PLC0415 only now: it imports the module

    return daemon(arguments)


if __name__ == "__main__":
    sys.exit(main())
