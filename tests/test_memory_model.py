# SPDX-License-Identifier: Apache-2.0
"""The checker on the litmus tests that everybody knows: what each model is known to allow and to forbid."""

from __future__ import annotations

from typing import Final

import pytest

from memory_model import allowed, parse


SHORT: Final = {"rlx": "relaxed", "acq": "acquire", "rel": "release", "ar": "acq_rel", "sc": "seq_cst"}
YES, NO = True, False

# Threads by ||, statements by ;. Registers are r0, r1, ... in the order of the loads and exchanges of the whole program; the outcome is
# their values. Then: whether C11 allows it, whether Arm does.
KNOWN: Final = {
    "SB": ("W x 1 rlx; R y rlx || W y 1 rlx; R x rlx", "00", YES, YES),
    "SB, release and acquire: ldar stays behind stlr": ("W x 1 rel; R y acq || W y 1 rel; R x acq", "00", YES, NO),
    "SB, seq_cst": ("W x 1 sc; R y sc || W y 1 sc; R x sc", "00", NO, NO),
    "SB, fences": ("W x 1 rlx; F sc; R y rlx || W y 1 rlx; F sc; R x rlx", "00", NO, NO),
    "SB, one fence": ("W x 1 rlx; F sc; R y rlx || W y 1 rlx; R x rlx", "00", YES, YES),
    "SB, fences that are not seq_cst": ("W x 1 rlx; F ar; R y rlx || W y 1 rlx; F ar; R x rlx", "00", YES, NO),
    "SB, exchanges are no fences": ("X x 1 ar; R y rlx || X y 1 ar; R x rlx", "0000", YES, YES),
    "MP": ("W x 1 rlx; W y 1 rlx || R y rlx; R x rlx", "10", YES, YES),
    "MP, release and acquire": ("W x 1 rlx; W y 1 rel || R y acq; R x rlx", "10", NO, NO),
    "MP, release alone": ("W x 1 rlx; W y 1 rel || R y rlx; R x rlx", "10", YES, YES),
    "MP, acquire alone": ("W x 1 rlx; W y 1 rlx || R y acq; R x rlx", "10", YES, YES),
    "MP, fences": ("W x 1 rlx; F rel; W y 1 rlx || R y rlx; F acq; R x rlx", "10", NO, NO),
    "MP, release sequence": ("W x 1 rlx; W y 1 rel || X y 2 rlx || R y acq; R x rlx", "120", NO, NO),
    "MP, another store breaks the sequence": ("W x 1 rlx; W y 1 rel || W y 2 rlx || R y acq; R x rlx", "20", YES, YES),
    "LB": ("R x rlx; W y 1 rlx || R y rlx; W x 1 rlx", "11", NO, YES),
    "LB, release and acquire": ("R x rlx; W y 1 rel || R y acq; W x 1 rlx", "11", NO, NO),
    "CoRR": ("W x 1 rlx; W x 2 rlx || R x rlx; R x rlx", "21", NO, NO),
    "two exchanges": ("X x 1 rlx || X x 2 rlx", "00", NO, NO),
    "WRC": ("W x 1 rlx || R x rlx; W y 1 rlx || R y rlx; R x rlx", "110", YES, YES),
    "WRC, release and acquire": ("W x 1 rel || R x acq; W y 1 rel || R y acq; R x rlx", "110", NO, NO),
    "IRIW": ("W x 1 rlx || W y 1 rlx || R x rlx; R y rlx || R y rlx; R x rlx", "1010", YES, YES),
    "IRIW, acquire: Arm's stores reach all at once": (
        "W x 1 rel || W y 1 rel || R x acq; R y acq || R y acq; R x acq",
        "1010",
        YES,
        NO,
    ),
    "IRIW, seq_cst": ("W x 1 sc || W y 1 sc || R x sc; R y sc || R y sc; R x sc", "1010", NO, NO),
    "RWC, fences": ("W x 1 rlx || R x rlx; F sc; R y rlx || W y 1 rlx; F sc; R x rlx", "100", NO, NO),
}


def source_of(program: str, outcome: str) -> str:
    """Write a program of KNOWN as a litmus test."""
    registers = 0
    wanted = []
    text = "C known (* *) { }\n"
    for thread, body in enumerate(program.split("||")):
        text += f"P{thread} () {{\n"
        for statement in body.split(";"):
            kind, *arguments, order = statement.split()
            order = f"memory_order_{SHORT[order]}"
            if kind in "RX":
                wanted.append(f"{thread}:r{registers}={outcome[registers]}")
                text += f"int r{registers} = "
                registers += 1
            op = {"R": "load_explicit", "W": "store_explicit", "X": "exchange_explicit", "F": "thread_fence"}[kind]
            text += f"atomic_{op}({', '.join([*arguments, order])});\n"
        text += "}\n"
    return text + "exists (" + " /\\ ".join(wanted) + ")"


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known(name: str) -> None:
    program, outcome, c11, arm = KNOWN[name]
    litmus = parse(source_of(program, outcome))
    assert (allowed(litmus, "C11"), allowed(litmus, "AArch64")) == (c11, arm)


def test_an_acquire_that_is_ldapr_can_pass_a_release() -> None:
    litmus = parse(source_of(*KNOWN["SB, release and acquire: ldar stays behind stlr"][:2]))
    assert allowed(litmus, "AArch64, ldapr")
    assert not allowed(parse(source_of(*KNOWN["SB, seq_cst"][:2])), "AArch64, ldapr")
