# SPDX-License-Identifier: Apache-2.0
"""The environment's names: what each means, and that a bad value is refused with its name, itself and what is allowed."""

from __future__ import annotations

import logging

from pathlib import Path

import pytest

from engine_shim import Mode, ShimOptions, _engine


P = "VLLM_DSPARK_REMOTE"


def test_nothing_set_is_the_synchronous_way() -> None:
    assert ShimOptions.from_environment({}) == ShimOptions(mode=Mode.SYNC)
    empty = {
        f"{P}_{name}": ""
        for name in ("ASYNC", "ASYNC_PROXY", "ASYNC_SPIN_US", "ASYNC_RESPAWNS", "SOCKET", "STRICT_START")
    }
    assert ShimOptions.from_environment(empty) == ShimOptions(mode=Mode.SYNC)


def test_everything_set() -> None:
    options = ShimOptions.from_environment(
        {
            f"{P}_ASYNC": "1",
            f"{P}_ASYNC_PROXY": "daemon",
            f"{P}_ASYNC_SPIN_US": "30",
            f"{P}_ASYNC_NAP_US": "12.5",
            f"{P}_ASYNC_RESPAWNS": "7",
            f"{P}_ASYNC_RESPAWN_RESET_S": "60",
            f"{P}_HOSTFLAG_LIB": str(_engine.__file__),
            f"{P}_SOCKET": "/tmp/e.sock",
            f"{P}_STRICT_START": "1",
        }
    )
    assert options == ShimOptions(
        mode=Mode.ASYNC, spin_us=30.0, nap_us=12.5, respawns=7, respawn_reset_s=60.0,
        socket=Path("/tmp/e.sock"), strict=True,
    )  # fmt: skip


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{P}_ASYNC", "1")
    monkeypatch.setenv(f"{P}_ASYNC_RESPAWNS", "0")
    options = ShimOptions.from_environment()
    assert (options.mode, options.respawns) == (Mode.ASYNC, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ASYNC", "yes"),
        ("ASYNC", "2"),
        ("ASYNC_PROXY", "thread"),
        ("ASYNC_PROXY", "fork"),
        ("ASYNC_SPIN_US", "-1"),
        ("ASYNC_SPIN_US", "nan"),
        ("ASYNC_SPIN_US", "20000"),
        ("ASYNC_NAP_US", "0"),
        ("ASYNC_NAP_US", "fast"),
        ("ASYNC_RESPAWNS", "-1"),
        ("ASYNC_RESPAWNS", "1.5"),
        ("ASYNC_RESPAWNS", "٣"),
        ("ASYNC_RESPAWNS", "9" * 5000),
        ("DAEMON_USERS", "9" * 5000),
        ("ASYNC_RESPAWN_RESET_S", "0"),
        ("ASYNC_RESPAWN_RESET_S", "inf"),
        ("SOCKET", "relative.sock"),
        ("SOCKET", "/" + "x" * 107),
        ("STRICT_START", "true"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="allowed is") as refused:
        ShimOptions.from_environment({f"{P}_{name}": value})
    assert f"{P}_{name}={value!r}" in str(refused.value)


def test_a_library_of_the_seeds_is_ignored_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert ShimOptions.from_environment({f"{P}_HOSTFLAG_LIB": "/opt/libhostflag.so"}).mode is Mode.SYNC
    assert "/opt/libhostflag.so" in caplog.text
    caplog.clear()
    ShimOptions.from_environment({f"{P}_HOSTFLAG_LIB": str(_engine.__file__)})
    assert not caplog.records
