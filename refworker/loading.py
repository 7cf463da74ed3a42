# SPDX-License-Identifier: Apache-2.0
"""A drafter by its name: one of those here, or ``module:Class``."""

from __future__ import annotations

import importlib
import sys

from pathlib import Path
from typing import Final

from refworker.drafter import Drafter
from refworker.mock import Mock
from refworker.prompt_lookup import PromptLookup


BUILT_IN: Final[dict[str, type[Drafter]]] = {"mock": Mock, "prompt-lookup": PromptLookup}


class LoadFault(Exception):
    """There is no such drafter; the text says why."""


def drafter_class(name: str) -> type[Drafter]:
    """
    Return the class that ``--drafter`` names. A module is looked for in the current directory too.

    Raises LoadFault.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, separator, class_name = name.partition(":")
    if not (separator and module_name and class_name):
        raise LoadFault(f"{name!r} is no drafter: give {', '.join(BUILT_IN)} or module:Class")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise LoadFault(f"{name}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise LoadFault(f"{name} is no subclass of refworker.drafter.Drafter")
    if lacking := sorted(found.__abstractmethods__):
        raise LoadFault(f"{name} lacks {', '.join(lacking)} (docs/DRAFTERS.md)")
    return found
