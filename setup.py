# SPDX-License-Identifier: Apache-2.0
"""
The part of the build that pyproject.toml cannot say: the native modules, and one wheel for every Python from 3.10 on.

native/build_ffi.py is loaded by path: the build front end does not put the project's root on sys.path.
"""

from __future__ import annotations

import runpy

from pathlib import Path

from setuptools import setup


BUILD_FFI = Path("native", "build_ffi.py")

setup(
    cffi_modules=[f"{BUILD_FFI}:{name}" for name in runpy.run_path(str(BUILD_FFI))["MODULES"]],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
