# SPDX-License-Identifier: Apache-2.0
"""dsv41-proxyd's control plane: engine sessions, worker links, metrics. The rounds themselves run in C."""
