# SPDX-License-Identifier: Apache-2.0
"""An engine stand-in that replays real text through the whole way of a round, on a machine without a GPU."""
