# SPDX-License-Identifier: Apache-2.0
"""
Write what follows from the table of settings: the tables in docs/CONFIGURATION.md, and the example systemd/proxyd.toml.

``document_settings.py`` writes them, ``document_settings.py --check`` only says (status 1) which are out of date.
"""

from __future__ import annotations

import itertools
import sys

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final


ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from proxyd.config.configfile import DEFAULT_FILE  # noqa: E402 - the path had to be set
from proxyd.config.settings import TABLE, Setting  # noqa: E402


DOCUMENT: Final = ROOT / "docs" / "CONFIGURATION.md"
EXAMPLE: Final = ROOT / "systemd" / "proxyd.toml"
BEGIN: Final = "<!-- settings: written by scripts/document_settings.py -->\n"
END: Final = "<!-- /settings -->\n"


def sections() -> Iterator[tuple[str, list[Setting]]]:
    """Yield each section with its settings, in the table's order."""
    for section, settings in itertools.groupby(TABLE, key=lambda setting: setting.section):
        yield section, list(settings)


def default(setting: Setting) -> str:
    """Return the default as it would be written in the file."""
    return setting.kind.to_toml(setting.default)


def tables() -> Iterator[str]:
    """Yield the lines of the tables for people."""
    for section, settings in sections():
        yield from (
            "",
            f"### [{section}]",
            "",
            "| key | default | allowed | a change counts | flag |",
            "|---|---|---|---|---|",
        )
        for each in settings:
            cells = (f"`{each.key}`", f"`{default(each)}`", each.kind.allowed, each.effect.value, f"`{each.flag}`")
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""
        yield from (f"- `{each.key}`: {each.help}." for each in settings)
    yield ""


def example() -> Iterator[str]:
    """Yield the lines of a file that says everything, and changes nothing."""
    yield "# SPDX-License-Identifier: Apache-2.0"
    yield f"# {DEFAULT_FILE}: every setting of dsv41-proxyd, with its default. Take the # away from what you change."
    yield "# dsv41-proxyd --check-config says what is wrong; systemctl reload dsv41-proxyd takes over what can be (docs/CONFIGURATION.md)."
    for section, settings in sections():
        yield from ("", f"[{section}]")
        for each in settings:
            yield f"# {each.help}"
            yield f"#   allowed: {each.kind.allowed}; a change counts {each.effect.value}"
            yield f"#{each.key} = {default(each)}"


def wanted() -> Iterator[tuple[Path, str]]:
    """Yield each file with what should be in it."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    yield DOCUMENT, before + BEGIN + "".join(f"{line}\n" for line in tables()) + END + after
    yield EXAMPLE, "".join(f"{line}\n" for line in example())


def main(argv: Sequence[str]) -> int:
    """Write, or check."""
    stale = [(path, text) for path, text in wanted() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if "--check" in argv:
            print(
                f"{path.relative_to(ROOT)} does not say what proxyd/config/settings.py does: run scripts/document_settings.py"
            )
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
