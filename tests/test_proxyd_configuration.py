# SPDX-License-Identifier: Apache-2.0
"""The daemon's configuration: which source counts, what each refuses and with which words, what is printed, what the documents say."""

from __future__ import annotations

import re

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hypothesis import given
from hypothesis import strategies as st

from proxyd.config import configfile
from proxyd.config.commandline import parse
from proxyd.config.configuration import Configuration
from proxyd.config.faults import MAX_FAULTS, MAX_REASON, ConfigurationError
from proxyd.config.kinds import Count, Number
from proxyd.config.printout import as_toml
from proxyd.config.settings import TABLE, Setting, Settings


ANOTHER = {  # of each setting a value that is not its default, as text of the environment and as TOML
    "engine.socket": ("/tmp/a 'b' ü.sock", "\"/tmp/a 'b' ü.sock\""),
    "worker.endpoints": ("ipc:///a, tcp://h:1", '["ipc:///a", "tcp://h:1"]'),
    "engine.socket_mode": ("0600", '"0600"'),
    "engine.socket_group": ("0", '"0"'),
    "worker.curve_server_key_file": ("/k/worker.pub", '"/k/worker.pub"'),
    "worker.curve_secret_key_file": ("/k/daemon.key", '"/k/daemon.key"'),
    "security.allowed_users": ("root, 12345", '["root", "12345"]'),
    "security.allowed_groups": ("0", '["0"]'),
    "security.operator_users": ("12345", '["12345"]'),
    "metrics.address": ("off", '"off"'),
    "log.level": ("debug", '"debug"'),
    "log.format": ("json", '"json"'),
}


def other(setting: Setting) -> tuple[str, str]:
    """Return such a value; for a number the least one that is allowed, or else the largest."""
    if isinstance(setting.kind, Number | Count):
        number = str(setting.kind.least if setting.kind.least != setting.default else setting.kind.most)
        return number, number
    return ANOTHER[setting.path]


@pytest.fixture(autouse=True)
def default_file(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this machine, if it has one, is not these tests' business."""
    path = short_dir / "proxyd.toml"
    monkeypatch.setattr(configfile, "DEFAULT_FILE", path)
    return path


def configured(*argv: str, **environment: str) -> Configuration:
    return Configuration(parse(argv), environment)


def faults(text: str, path: Path, environment: Mapping[str, str] | None = None) -> str:
    """Return what is said of a file with this text."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        Configuration(parse([]), environment or {})
    return str(caught.value)


def read_again(setting: Setting, value: object) -> Any:
    """Return what TOML makes of the value as it is written."""
    return configfile.parsed(Path("x"), f"x = {setting.kind.to_toml(value)}".encode())["x"]


def test_without_anything_the_defaults_count() -> None:
    configuration = configured()
    assert configuration.settings == Settings()
    assert configuration.file is None
    assert set(configuration.origins.values()) == {"default"}


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.path)
def test_a_flag_goes_before_a_variable_before_the_file(setting: Setting, default_file: Path) -> None:
    text, toml = other(setting)
    default = setting.kind.to_toml(setting.default)
    default_text = default.strip('[]"')

    def value(configuration: Configuration) -> tuple[Any, str]:
        return getattr(configuration.settings, setting.name), configuration.origins[setting.name]

    default_file.write_text(f"[{setting.section}]\n{setting.key} = {toml}\n", encoding="utf-8")
    from_file, origin = value(configured())
    assert from_file != setting.default
    assert origin == str(default_file)
    assert value(configured(**{setting.variable: default_text})) == (
        setting.default,
        f"environment {setting.variable}",
    )
    assert value(configured(f"{setting.flag}={default_text}", **{setting.variable: text})) == (
        setting.default,
        f"flag {setting.flag}",
    )
    default_file.write_text(f"[{setting.section}]\n{setting.key} = {default}\n", encoding="utf-8")
    assert value(configured(**{setting.variable: text}))[0] == from_file


def test_what_is_printed_can_be_read_again(default_file: Path) -> None:
    variables = {setting.variable: other(setting)[0] for setting in TABLE}
    first = configured(**variables)
    text = as_toml(first)
    default_file.write_text(text, encoding="utf-8")
    second = configured()
    assert second.settings == first.settings
    assert all(f"# environment {name}\n" in text for name in variables)
    assert all(getattr(first.settings, setting.name) != setting.default for setting in TABLE)


def test_every_field_is_in_the_table_once_and_sections_are_in_one_piece() -> None:
    assert [setting.name for setting in TABLE] == [field.name for field in fields(Settings)]
    for names in ([setting.path for setting in TABLE], [setting.flag for setting in TABLE]):
        assert len(set(names)) == len(names)
    sections = [setting.section for setting in TABLE]
    assert sections == sorted(sections, key=sections.index)


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.path)
def test_names_say_what_they_are(setting: Setting) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", setting.path)
    assert re.fullmatch(r"--[a-z-]+", setting.flag)
    unit = getattr(setting.kind, "unit", None)
    assert unit is None or setting.key.endswith(f"_{unit}")
    assert (
        setting.kind.from_toml(read_again(setting, setting.default)) == setting.default
    )  # a default that nobody could set is a fault


def test_all_faults_are_told_at_once(default_file: Path) -> None:
    text = '[worker]\nendpoint = "x"\nnetwork_timeout_ms = "fast"\n[loop]\nnap_us = 0\n'
    said = faults(text, default_file, {"DSV41_PROXYD_LOG_LEVEL": "loud", "DSV41_PROXYD_LOG_FORMT": "secret"})
    assert said.splitlines() == [
        f"{default_file}: worker.endpoint: unknown key; did you mean worker.endpoints?",
        f"{default_file}: worker.network_timeout_ms = 'fast': not a number; allowed: a number from 1 to 60000 ms",
        f"{default_file}: loop.nap_us = 0: out of bounds; allowed: a number from 1 to 10000 us",
        "environment: DSV41_PROXYD_LOG_LEVEL = 'loud': no such choice; allowed: one of debug, info, warning, error",
        "environment: DSV41_PROXYD_LOG_FORMT: unknown variable; did you mean DSV41_PROXYD_LOG_FORMAT?",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[wrker]\nspin_us = 1", "wrker.spin_us: unknown key; did you mean loop.spin_us?"),
        ("[worker]\nspin_us = 1", "worker.spin_us: unknown key; did you mean loop.spin_us?"),
        ("spin_us = 1", "spin_us: stands in no [section]; did you mean loop.spin_us?"),
        ("log_level = 'info'", "log_level: stands in no [section]; did you mean log.level?"),
        ("metrics = 'off'", "metrics: stands in no [section]; did you mean metrics.address?"),
        ('"loop.spin_us" = 1', "loop.spin_us: stands in no [section]; did you mean loop.spin_us?"),
        ("[engin]", "engin: unknown section; did you mean [engine]?"),
        ("[[log]]", "log: stands in no [section]; did you mean [log]?"),
        ("worker = 3", "worker: stands in no [section]; did you mean worker.endpoints?"),
        ("[zzz]\nqqqqqq = 1", "zzz.qqqqqq: unknown key"),
        ("[loop.spin_us]\na = 1", "loop.spin_us = a table: not a number"),
        ("[loop]\nspin_us = true", "loop.spin_us = True: not a number"),
        ("[loop]\nspin_us = nan", "loop.spin_us = nan: out of bounds"),
        ("[loop]\nspin_us = inf", "loop.spin_us = inf: out of bounds"),
        ("[loop]\nspin_us = -0.1", "loop.spin_us = -0.1: out of bounds"),
        ("[loop]\nspin_us = 1979-05-27", "not a number"),
        (f"[loop]\nspin_us = 0x{'f' * 9000}", "loop.spin_us = something very large: out of bounds"),
        ("[loop]\nspin_us = 1e999", "loop.spin_us = inf: out of bounds"),
        (f"[loop]\nspin_us = {'9' * 400}", "out of bounds"),
        ("[worker]\nbreaker_failures = 1.0", "breaker_failures = 1.0: not a whole number"),
        ("[worker]\nbreaker_failures = false", "breaker_failures = False: not a whole number"),
        ("[worker]\nbreaker_failures = -1", "breaker_failures = -1: out of bounds"),
        ("[worker]\nendpoints = 'ipc:///a'", "not an array of strings"),
        ("[worker]\nendpoints = ['ipc:///a', 1]", "not an array of strings"),
        ("[worker]\nendpoints = []", "1 to 8"),
        ("[worker]\nendpoints = ['ipc:///a', 'ipc:///a']", "ipc:///a is named twice"),
        ('[worker]\nendpoints = ["ipc:///a\\u0007"]', "control characters"),
        ("[engine]\nsocket = 'run/e.sock'", "not absolute"),
        ("[worker]\nendpoints = ['tcp://h:1', 'ipc://rel']", "'ipc://rel' is not absolute"),
        ("[engine]\nsocket = ''", "a socket needs a path"),
        ("[engine]\nsocket = '/'", "a directory, not a socket's path"),
        ("[engine]\nsocket = '/tmp/'", "a directory, not a socket's path"),
        ("[engine]\nsocket = '/tmp/..'", "a directory, not a socket's path"),
        ('[engine]\nsocket = "/a\\u0000b"', "not printable"),
        ("[log]\nlevel = 3", "log.level = 3: not a string"),
        ("[metrics]\naddress = 9741", "metrics.address = 9741: not a string"),
        ("[metrics]\naddress = 'metrics.example:1'", "the host must be an address"),
    ],
)
def test_what_a_file_may_not_say(text: str, words: str, default_file: Path) -> None:
    said = faults(text, default_file)
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_file_of_nonsense_is_told_in_short(default_file: Path) -> None:
    said = faults("".join(f'k{n}."{"x" * 40}\\n" = 1\n' for n in range(300)), default_file)
    assert len(said.splitlines()) == MAX_FAULTS + 1
    assert said.endswith("\nand 280 more")
    assert faults(f'[worker]\nendpoints = ["{"x" * 15000}"]', default_file).count("x") < MAX_REASON * 2


def test_values_of_what_is_unknown_are_not_told(default_file: Path) -> None:
    said = faults('[worker]\npassword = "hunter2"', default_file, {"DSV41_PROXYD_TOKEN": "hunter2"})
    assert "password" in said
    assert "TOKEN" in said
    assert "hunter2" not in said


def test_other_variables_do_not_matter() -> None:
    environment = {
        "DSV41_PROXYD_SERVICE_HOST": "10.0.0.1",
        "DSV41_PROXYD_SERVICE_PORT": "9741",
        "DSV41_PROXYD_SERVICE_PORT_METRICS": "9741",
        "DSV41_PROXYD_PORT": "tcp://10.0.0.1:9741",
        "DSV41_PROXYD_PORT_9741_TCP": "tcp://10.0.0.1:9741",
        "DSV41_PROXYD_PORT_9741_TCP_ADDR": "10.0.0.1",
        "dsv41_proxyd_log_level": "loud",
        "DSV41_LOG_LEVEL": "loud",
        "X\udcff": "\udcff",
    }
    assert configured(**environment).settings == Settings()


JUNK = [(setting, text) for setting in TABLE for text in ("\udcff", "a\nb", "\x00", "\x1b[2J")] + [
    (setting, text)
    for setting in TABLE
    if isinstance(setting.kind, Number | Count)
    for text in ("", " ", "inf", "nan", "1_0 0", "1" * 5000, "0x10", "\u0663,5")
]


@pytest.mark.parametrize(("setting", "text"), JUNK, ids=lambda value: getattr(value, "path", None) or ascii(value)[:12])
def test_junk_in_variables_is_refused(setting: Setting, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"environment: {setting.variable} = .*allowed: ") as caught:
        configured(**{setting.variable: text})
    assert str(caught.value).isprintable()


def test_the_file_can_be_named_by_a_variable_and_a_flag_goes_before(short_dir: Path) -> None:
    for name in "ab":
        (short_dir / name).write_text(f'[engine]\nsocket = "/{name}"\n', encoding="utf-8")
    variable = {"DSV41_PROXYD_CONFIG": str(short_dir / "a")}
    assert configured(**variable).settings.socket == Path("/a")
    assert configured(f"--config={short_dir}/b", **variable).settings.socket == Path("/b")
    for argv, environment in (([f"--config={short_dir}/c"], {}), ([], {"DSV41_PROXYD_CONFIG": f"{short_dir}/c"})):
        with pytest.raises(ConfigurationError, match="/c: there is no such file"):
            Configuration(parse(argv), environment)


TOML_VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


@given(value=TOML_VALUES)
def test_no_value_does_anything_but_count_or_be_refused(value: object) -> None:
    for setting in TABLE:
        try:
            taken = setting.kind.from_toml(value)
        except ValueError:
            continue
        assert setting.kind.from_toml(read_again(setting, taken)) == taken


@given(text=st.text())
def test_no_text_does_anything_but_count_or_be_refused(text: str) -> None:
    for setting in TABLE:
        try:
            taken = setting.kind.from_outside(text)
        except ValueError:
            continue
        assert setting.kind.from_toml(read_again(setting, taken)) == taken
