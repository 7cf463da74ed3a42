# SPDX-License-Identifier: Apache-2.0
"""The seeded faults that the stress program must find: races for the thread sanitizer, broken rules for its own checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stress_build import Change


@dataclass(frozen=True)
class Fault:
    """A change to the product, and who must find it within ``seconds``."""

    name: str
    changes: tuple[Change, ...]
    arguments: tuple[str, ...] = ()
    seconds: int = 20
    long: bool = False  # too rare for every run: only `make stress` looks for it


def relaxed(name: str, file: str, old: str, order: str = "release") -> Fault:
    """Weaken the one order that ``old`` ends with."""
    assert old.endswith(f"memory_order_{order}")
    return Fault(name, (Change(file, old, old.removesuffix(order) + "relaxed"),))


# A relaxed or plain access where an order is needed, and plain memory depends on it. What only atomics depend on (reply, verdict,
# released; the mirror pairs) is no race for a sanitizer: tests/litmus has those.
RACES: Final = (
    relaxed(
        "header-submitted",
        "hostflag.c",
        "atomic_store_explicit(&r->engine->submitted.value, t, memory_order_release",
    ),
    relaxed(
        "rows-gathered",
        "softthread.c",
        "atomic_store_explicit(op->write.word, op->write.value, memory_order_release",
    ),
    relaxed(
        "rows-gathered-load",
        "round.c",
        "atomic_load_explicit(&l->region.engine->gathered.value, memory_order_acquire",
        "acquire",
    ),
    relaxed(
        "rows-retired",
        "round.c",
        "atomic_store_explicit(&l->region.daemon->retired.value, t, memory_order_release",
    ),
    relaxed("event-put", "eventring.c", "atomic_store_explicit(&ring->put, put + 1, memory_order_release"),
    relaxed("operation-enqueued", "softstream.c", "atomic_store_explicit(&s->enqueued, n + 1, memory_order_release"),
    Fault(
        "plain-released",
        (
            Change(
                "hostflag.c",
                "uint32_t now = atomic_load_explicit(released, memory_order_acquire);\n\n    /* A maximum",
                "uint32_t now = *(volatile uint32_t *)released;\n\n    /* A maximum",
            ),
        ),
    ),
)

# What holds threads up where watchdog and daemon most often meet.
RARE: Final = ("-l", "60", "-i", "64")

RULES: Final = (
    Fault(
        "verdict-stored-not-swapped",
        arguments=RARE,
        seconds=60,
        changes=(
            Change(
                "hostflag.c",
                """    return atomic_compare_exchange_strong_explicit(hf_verdict_of(r, t), &open, hf_verdict_pack(t, v),
                                                   memory_order_acq_rel, memory_order_acquire);""",
                """    if (atomic_load_explicit(hf_verdict_of(r, t), memory_order_acquire) != open)
        return false;
    atomic_store_explicit(hf_verdict_of(r, t), hf_verdict_pack(t, v), memory_order_release);
    return true;""",
            ),
        ),
    ),
    Fault(
        "released-stored-not-raised",
        arguments=RARE,
        seconds=60,
        changes=(
            Change(
                "hostflag.c",
                """    while (hf_past(t, now) > 0)
        if (atomic_compare_exchange_weak_explicit(released, &now, t, memory_order_acq_rel, memory_order_acquire))
            break;
""",
                """    if (hf_past(t, now) > 0)
        atomic_store_explicit(released, t, memory_order_release);
""",
            ),
        ),
    ),
    Fault(
        "released-read-for-each-round",  # two reads: the one that the loop starts from, and another for each round
        (
            Change(
                "watch.c", "uint32_t t = released + i + 1;", "uint32_t t = hf_word_load(r, HF_WORD_RELEASED) + i + 1;"
            ),
        ),
    ),
    Fault(
        "released-read-twice",  # the model's M_TWICE: as many rounds as were found decided, from where released is by then
        (
            Change(
                "watch.c",
                "        hf_release(r, top);",
                "        hf_release(r, hf_word_load(r, HF_WORD_RELEASED) + (top - released));",
            ),
        ),
    ),
    Fault(
        "ungathered-released",
        (
            Change(
                "watch.c",
                "uint32_t gathered = atomic_load_explicit(&r->engine->gathered.value, memory_order_acquire);",
                "uint32_t gathered = hf_word_load(r, HF_WORD_SUBMITTED);",
            ),
        ),
    ),
    Fault(
        "watchdog-ends-without-bracket",
        (
            Change(
                "watchdog.c",
                "    if (atomic_load_explicit(&e->bracket, memory_order_seq_cst))\n        return false;\n",
                "",
            ),
        ),
        arguments=("-l", "3", "-i", "16", "-p", "2000"),
    ),
    Fault(
        "bracket-read-last",  # rare: the gap between the two reads is held open
        (
            Change(
                "watchdog.c",
                "    if (atomic_load_explicit(&e->bracket, memory_order_seq_cst))\n        return false;\n",
                "",
            ),
            Change(
                "watchdog.c",
                "    return hfe_lost(e) != HF_LOSS_NONE || !hfe_in_flight(e);\n",
                "    hf_sleep_ns(500000);\n"
                "    if (atomic_load_explicit(&e->bracket, memory_order_seq_cst))\n        return false;\n"
                "    return hfe_lost(e) != HF_LOSS_NONE || !hfe_in_flight(e);\n",
            ),
        ),
        arguments=("-l", "3", "-i", "16", "-p", "2000"),
        seconds=120,
        long=True,
    ),
    Fault(
        "loss-read-before-bracket",
        (
            Change(
                "submit.c",
                "    atomic_store_explicit(&e->bracket, 1, memory_order_seq_cst);\n    hfe_settle_inside(e);\n    plan_step(e, b);",
                "    plan_step(e, b);\n    atomic_store_explicit(&e->bracket, 1, memory_order_seq_cst);\n    hfe_settle_inside(e);",
            ),
        ),
        arguments=("-l", "3", "-i", "16", "-p", "2000"),
        seconds=120,
        long=True,
    ),
    Fault(
        "reply-after-verdict",
        (
            Change(
                "round.c",
                "        hfd_wire_store_reply(&l->wire, body);\n        f->verdict = HF_OK;",
                "        l->fault = body;\n        f->verdict = HF_OK;",
            ),
            Change(
                "round.c",
                "    /* Whoever decided: a released that is there already stays. */\n",
                "    if (l->fault)\n        hfd_wire_store_reply(&l->wire, l->fault);\n    l->fault = NULL;\n",
            ),
        ),
    ),
    Fault(
        "released-before-verdict",
        (
            Change(
                "round.c",
                "    if (!hf_decide(&l->region, t, verdict)) {",
                "    hf_release(&l->region, t);\n    if (!hf_decide(&l->region, t, verdict)) {",
            ),
        ),
    ),
    Fault(
        "retired-before-last-read",
        (
            Change(
                "round.c",
                "    verdict = carry(l);\n",
                "    atomic_store_explicit(&l->region.daemon->retired.value, t, memory_order_release);\n"
                "    verdict = carry(l);\n",
            ),
        ),
    ),
    Fault(
        "slot-reused-before-retired",
        (
            Change("submit.c", "    if (unretired > taken)\n        taken = unretired;\n", "    (void)unretired;\n"),
            Change(
                "submit.c",
                "hfe_ring_free(&e->ring, retired);",
                "hfe_ring_free(&e->ring, atomic_load_explicit(&e->region.engine->consumed.value, memory_order_acquire));",
            ),
        ),
    ),
    Fault(
        "ring-freed-on-consumed",
        (
            Change(
                "submit.c",
                "hfe_ring_free(&e->ring, retired);",
                "hfe_ring_free(&e->ring, atomic_load_explicit(&e->region.engine->consumed.value, memory_order_acquire));",
            ),
        ),
    ),
    Fault(
        "slot-reused-before-consumed",
        (  # what is not booked is not free either, and only what is consumed is booked
            Change("submit.c", "    if (unconsumed > taken)\n        taken = unconsumed;\n", "    (void)unconsumed;\n"),
            Change("submit.c", "taken = hf_past(attempted, e->settled);", "taken = 0;"),
        ),
    ),
    Fault("adopted-before-gone", (), arguments=("-e",)),
)
