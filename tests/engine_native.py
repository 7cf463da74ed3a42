# SPDX-License-Identifier: Apache-2.0
"""The engine's internal C functions, and a daemon's hand on the words, compiled for tests. No test double of either."""

from __future__ import annotations

import functools
import importlib.util
import re
import tempfile

from pathlib import Path
from typing import Any, Final

import cffi


NATIVE: Final = Path(__file__).resolve().parent.parent / "native"
SOURCES: Final = ("layout.c", "region.c", "hostflag.c", "ring.c", "backlog.c", "plan.c", "planbegin.c", "planround.c")
HEADERS: Final = ("ring.h", "backlog.h", "plan.h")

HAND: Final = """
struct hf_region *hft_map(int fd);
void hft_unmap(struct hf_region *r);
uint32_t hft_word(const struct hf_region *r, int id);
void hft_beat(struct hf_region *r);
void hft_phase(struct hf_region *r, uint32_t phase);
void hft_retire(struct hf_region *r, uint32_t t);
void hft_reply(struct hf_region *r, uint32_t t, const int64_t *ids, uint32_t n, uint64_t now);
const struct hf_round *hft_round(const struct hf_region *r, uint32_t t);
const struct hf_request *hft_requests(const struct hf_region *r, uint32_t t);
unsigned char *hft_slot(const struct hf_region *r, uint32_t t);
bool hf_decide(const struct hf_region *r, uint32_t t, int v);
int hf_verdict_load(const struct hf_region *r, uint32_t t);
void hf_release(const struct hf_region *r, uint32_t t);
void hf_ring_span_of(const struct hf_geometry *g, uint32_t n_rows, struct hf_ring_span *ret_span);
"""

HAND_CODE: Final = """
#include <stdlib.h>
#include <string.h>
#include "plan.h"

static struct hf_region *hft_map(int fd)
{
    struct hf_region *r = calloc(1, sizeof(*r));
    struct hf_header h;
    const char *reason;

    if (hf_region_check(fd, &h, &reason) == 0 && hf_region_map(fd, &h, HF_SIDE_DAEMON, r) == 0)
        return r;
    free(r);
    return NULL;
}
static void hft_unmap(struct hf_region *r) { hf_region_unmap(r); free(r); }
static uint32_t hft_word(const struct hf_region *r, int id) { return hf_word_load(r, (enum hf_word_id)id); }
static void hft_beat(struct hf_region *r) { atomic_fetch_add(&r->daemon->beat.value, 1); }
static void hft_phase(struct hf_region *r, uint32_t phase) { atomic_store(&r->daemon->phase.value, phase); }
static void hft_retire(struct hf_region *r, uint32_t t) { atomic_store(&r->daemon->retired.value, t); }
static void hft_reply(struct hf_region *r, uint32_t t, const int64_t *ids, uint32_t n, uint64_t now)
{
    struct hf_timing timing = {.round = t, .seen_ns = now, .send_ns = now, .sent_ns = now, .replied_ns = now, .decided_ns = now};

    memcpy(hf_reply_of(r, t), &timing, sizeof(timing));
    memcpy(hf_reply_of(r, t) + r->layout.reply_ids, ids, n * sizeof(*ids));
}
static const struct hf_round *hft_round(const struct hf_region *r, uint32_t t) { return hf_round_of(r, t); }
static const struct hf_request *hft_requests(const struct hf_region *r, uint32_t t)
{
    return hf_requests_of(hf_round_of(r, t));
}
static unsigned char *hft_slot(const struct hf_region *r, uint32_t t) { return hf_slot_of(r, t); }
"""


def _marked(name: str) -> str:
    text = (NATIVE / name).read_text(encoding="utf-8")
    parts = re.findall(r"/\* cffi:begin \*/(.*?)/\* cffi:end \*/", text, re.DOTALL)
    return re.sub(r"/\*.*?\*/", "", "\n".join(parts), flags=re.DOTALL)


def _internals(name: str) -> str:
    """Return a header's declarations: without comments, preprocessor lines and inline bodies."""
    text = (NATIVE / name).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^static inline.*?^}", "", text, flags=re.DOTALL | re.MULTILINE)


@functools.cache
def native() -> Any:
    """Return the compiled module (``ffi``, ``lib``); made once a test run, and nothing of it stays on disk."""
    ffi = cffi.FFI()
    constants = _marked("hostflag.h") + _marked("engine.h")
    constants = re.sub(r"^\w[\w *]*\bhfe_\w+\([^;]*;", "", constants, flags=re.DOTALL | re.MULTILINE)
    ffi.cdef("struct hfe_session; struct hfs_stream;" + constants)
    ffi.cdef("struct hf_region { struct hf_geometry geometry; struct hf_layout layout; unsigned char *base; ...; };")
    for name in HEADERS:
        ffi.cdef(_internals(name))
    ffi.cdef(HAND)
    ffi.set_source(
        "_engine_testing",
        HAND_CODE,
        sources=[str(NATIVE / name) for name in SOURCES],
        include_dirs=[str(NATIVE)],
        extra_compile_args=["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread"],
    )
    with tempfile.TemporaryDirectory(prefix="dsv41-native") as scratch:
        spec = importlib.util.spec_from_file_location("_engine_testing", ffi.compile(tmpdir=scratch))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
