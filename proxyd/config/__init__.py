# SPDX-License-Identifier: Apache-2.0
"""The configuration: one table of settings, and where their values come from."""
