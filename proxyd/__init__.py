# SPDX-License-Identifier: Apache-2.0
"""dsv41-proxyd's control plane: engine sessions, worker links, metrics. The rounds themselves run in C."""

from __future__ import annotations

import importlib
import sys


if not {"rich", "structlog"} & sys.modules.keys():
    # structlog imports rich wherever it finds it: 3 MiB and 40 ms, for a daemon that draws nothing.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
