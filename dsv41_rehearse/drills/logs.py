# SPDX-License-Identifier: Apache-2.0
"""What a process of the stage has said."""

from __future__ import annotations

import json

from typing import Any

from dsv41_rehearse.stack import Child


def events(child: Child, name: str, **fields: str) -> list[dict[str, Any]]:
    """Return its log lines with this event and these fields, oldest first."""
    with child.log.open("rb") as log:
        log.seek(child.log_from)
        lines = log.read().decode(errors="replace").splitlines()
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == name and fields.items() <= event.items():
            found.append(event)
    return found
