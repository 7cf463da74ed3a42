# SPDX-License-Identifier: Apache-2.0
"""The part of the build that pyproject.toml cannot say: the native modules, and one wheel for every Python from 3.10 on."""

from __future__ import annotations

from setuptools import setup


setup(
    cffi_modules=[f"native/build_ffi.py:{side}_ffi" for side in ("shared", "engine", "daemon", "standin")],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
