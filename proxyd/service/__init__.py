# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process: its one waiting place, its sockets and signals, and what a service manager hears."""
