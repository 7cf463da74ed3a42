# SPDX-License-Identifier: Apache-2.0
"""Runs a Python fuzzer under atheris: ``python -m fuzz.drive TARGET [flags and folders of libFuzzer]``."""

from __future__ import annotations

import importlib
import logging
import sys

from typing import Final


INSTRUMENTED: Final = ["hostflag", "proxyd", "engine_shim", "refworker", "tomllib"]


def main(argv: list[str]) -> int:
    atheris = importlib.import_module("atheris")  # only there where its wheel is; and it has no types
    logging.disable(logging.CRITICAL)
    name, flags = argv[0], argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = importlib.import_module(f"fuzz.{name}")
    atheris.Setup([name, *flags], target.one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
