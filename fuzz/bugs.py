# SPDX-License-Identifier: Apache-2.0
"""Bugs to be seeded into a copy of the product: a check each, taken out. A fuzzer that does not find its own finds nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

from fuzz.targets import ADOPTION, CONFIG, DOOR, INCOMING, SLOTS, WORKER, Target


class Bug(NamedTuple):
    """In ``file`` the only ``before`` becomes ``after``; ``name`` says what is missing then."""

    target: Target
    name: str
    file: str
    before: str
    after: str


_WIRE: Final = "native/roundwire.c"
_REGION: Final = "native/region.c"
_START: Final = "native/loopstart.c"

BUGS: Final = (
    Bug(INCOMING, "ids not below vocab", _WIRE, "if (id < 0 || id >= g->vocab)", "if (id < 0)"),
    Bug(INCOMING, "negative ids", _WIRE, "if (id < 0 || id >= g->vocab)", "if (id >= g->vocab)"),
    Bug(
        INCOMING, "the size of a reply", _WIRE,
        "if (bytes != sizeof(reply) + n_ids * sizeof(int64_t) + (size_t)reply.n_requests * g->extra_bytes)", "if (false)",
    ),
    Bug(INCOMING, "the count of a reply", _WIRE, "if (reply.n_requests != w->round.n_requests || ", "if ("),
    Bug(
        INCOMING, "the length that a header says", _WIRE,
        "ret_header->version == HW_VERSION &&\n           ret_header->body_bytes == bytes - sizeof(*ret_header);",
        "ret_header->version == HW_VERSION;",
    ),
    Bug(
        INCOMING, "a header's own length", _WIRE,
        "bool hfd_wire_header(const void *data, size_t bytes, struct hw_header *ret_header)\n{\n    if (bytes < sizeof(*ret_header))",
        "bool hfd_wire_header(const void *data, size_t bytes, struct hw_header *ret_header)\n{\n    if (bytes < 4)",
    ),
    Bug(INCOMING, "the round of a reply", "native/round.c", "round != f->timing.round ||", "(round != f->timing.round && false) ||"),
    Bug(INCOMING, "parts after a reply", "native/round.c", "whole ? hfd_wire_check_reply", "whole || true ? hfd_wire_check_reply"),
    Bug(
        INCOMING, "the most bytes of a control message", "native/link.c",
        "if (!whole || h.body_bytes > HW_MAX_CONTROL_BYTES)", "if (!whole)",
    ),
    Bug(INCOMING, "another session's messages", "native/link.c", "if (h.session != l->config.session)\n", "if (false)\n"),
    Bug(INCOMING, "the size of a monitor's event", "native/zmqincoming.c", "!= sizeof(event) + sizeof(value)", "> 6"),
    Bug(SLOTS, "more requests than there may be", _WIRE, "if (round->n_requests > g->max_requests)", "if (false)"),
    Bug(SLOTS, "an empty round with rows", _WIRE, "if (round->n_requests == 0 && (round->n_rows > 0 ||", "if (round->n_requests == 0 && (false ||"),
    Bug(SLOTS, "rows outside the ring", _WIRE, "round->ring_bytes > g->ring_bytes || round->ring_offset > g->ring_bytes - round->ring_bytes", "false"),
    Bug(SLOTS, "more rows than the ring's piece holds", _WIRE, "if (span.bytes > round->ring_bytes)", "if (false)"),
    Bug(SLOTS, "slots not below state_slots", _WIRE, "if (q->request_slot >= g->state_slots)", "if (false)"),
    Bug(SLOTS, "batch indices not below max_requests", _WIRE, "if (q->batch_index >= g->max_requests)", "if (false)"),
    Bug(SLOTS, "rows that overlap", _WIRE, "if (q->first_row < rows)", "if (false)"),
    Bug(SLOTS, "rows that wrap around", _WIRE, "rows = (uint64_t)q->first_row + q->rows;", "rows = q->first_row + q->rows;"),
    Bug(SLOTS, "more rows rejected than there are", _WIRE, "rejected < 0 || (uint32_t)rejected > q->rows", "rejected < 0"),
    Bug(SLOTS, "anchors not below vocab", _WIRE, "ret_out->anchor >= g->vocab", "ret_out->anchor > g->vocab"),
    Bug(
        SLOTS, "a header that is read twice", _WIRE,
        "for (uint32_t i = 0; i < w->round.n_requests; i++) {\n        fault = build",
        "for (uint32_t i = 0; i < hf_round_of(w->region, w->round.round)->n_requests; i++) {\n        fault = build",
    ),
    Bug(ADOPTION, "seals", _REGION, "if ((seals & REGION_SEALS) != REGION_SEALS)", "if (!(seals & F_SEAL_SEAL))"),
    Bug(ADOPTION, "offsets", _REGION, "if (memcmp(&l, &h->layout, sizeof(l)) != 0)", "if (false)"),
    Bug(ADOPTION, "the file's size", _REGION, "if ((uint64_t)size != l.bytes)", "if ((uint64_t)size > l.bytes)"),
    Bug(ADOPTION, "pages that are not there", _REGION, "(uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size", "false"),
    Bug(ADOPTION, "slots that are no power of two", "native/layout.c", " || (g->slots & (g->slots - 1)) != 0", ""),
    Bug(ADOPTION, "state_slots below max_requests", "native/layout.c", "g->state_slots < g->max_requests || ", ""),
    Bug(ADOPTION, "a region that is marked lost", _START, "&r->engine->lost.value, memory_order_acquire) != 0", "&r->engine->lost.value, memory_order_acquire) > 1"),
    Bug(ADOPTION, "a region that is not at rest", _START, "&r->engine->consumed.value, memory_order_acquire) != base", "&r->engine->consumed.value, memory_order_acquire) > base"),
    Bug(WORKER, "tokens not below vocab", "hostflag/wire.py", " or max(tokens) >= geometry.vocab", ""),
    Bug(WORKER, "rows that do not add up", "hostflag/wire.py", "if first_row != n_rows:", "if first_row > n_rows:"),
    Bug(WORKER, "replies that fit no part", "hostflag/control.py", "if reply > lib.HW_MAX_PART_BYTES:", "if reply > 1 << 40:"),
    Bug(WORKER, "too many sessions", "refworker/sessions.py", "if len(self._sessions) >= self._limit and", "if len(self._sessions) > self._limit and"),
    Bug(WORKER, "another connection's session", "refworker/sessions.py", " and session.identity == identity else None", " else None"),
    Bug(DOOR, "nested packets", "hostflag/channel.py", "UnicodeDecodeError, RecursionError)", "UnicodeDecodeError)"),
    Bug(DOOR, "descriptors of a bad message", "hostflag/channel.py", "            if received is None:\n", "            if False:\n"),
    Bug(DOOR, "descriptors of a message that takes none", "proxyd/sessions/handshake.py", "            received.close_fds()\n\n    def _greet", "            pass\n\n    def _greet"),
    Bug(DOOR, "geometries out of bounds", "proxyd/sessions/handshake.py", "if fault := geometries.fault(hello.geometry):", "if (fault := None):"),
    Bug(DOOR, "a geometry that is not HELLO's", "proxyd/sessions/region.py", "if header.geometry != geometry:", "if False:"),
    Bug(CONFIG, "nested tables", "proxyd/config/configfile.py", "except RecursionError as fault:", "except RuntimeWarning as fault:"),
    Bug(CONFIG, "letters that fit no terminal", "proxyd/config/faults.py", 'letter if letter.isprintable() else "?"', "letter"),
    Bug(CONFIG, "numbers without end", "proxyd/config/faults.py", "except (ValueError, RecursionError):", "except RecursionError:"),
    Bug(CONFIG, "files without end", "hostflag/keys.py", "if len(key) != KEY_LETTERS or not _is_z85(key):", "if not _is_z85(key):"),
)  # fmt: skip
