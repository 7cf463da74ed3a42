# SPDX-License-Identifier: Apache-2.0
"""Fuzzers of every decoder: README.md says what each covers and how to run them."""
