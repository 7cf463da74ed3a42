# SPDX-License-Identifier: Apache-2.0
"""Links to workers: which endpoint is in use, and the sockets that reach it."""
