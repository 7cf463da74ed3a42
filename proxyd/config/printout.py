# SPDX-License-Identifier: Apache-2.0
"""The configuration as TOML that the daemon would read again, with where each value comes from."""

from __future__ import annotations

import itertools

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hostflag.version import VERSION
from proxyd.config.configfile import DEFAULT_FILE
from proxyd.config.faults import cleaned
from proxyd.config.settings import TABLE


if TYPE_CHECKING:
    from proxyd.config.configuration import Configuration


MAX_ORIGIN: Final = 4096  # a path may be so long


def as_toml(configuration: Configuration) -> str:
    """Return the text of a file; keys and certificates are in it as paths only, as in the configuration."""
    return "".join(f"{line}\n" for line in _lines(configuration))


def _lines(configuration: Configuration) -> Iterator[str]:
    yield f"# dsv41-proxyd {VERSION}; {_file(configuration)}"
    for section, settings in itertools.groupby(TABLE, key=lambda setting: setting.section):
        yield ""
        yield f"[{section}]"
        for setting in settings:
            value = setting.kind.to_toml(getattr(configuration.settings, setting.name))
            yield f"{setting.key} = {value}  # {cleaned(configuration.origins[setting.name], MAX_ORIGIN)}"


def _file(configuration: Configuration) -> str:
    if configuration.file is None:
        return f"without a file: there is no {DEFAULT_FILE}"
    return f"file: {cleaned(str(configuration.file), MAX_ORIGIN)}"
