/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named points of the round loop at which a drill can stop the whole daemon. Only in a test build (build_ffi.py --failpoints):
 * in the shipped module a point is nothing at all, and failpoints.c is no part of it.
 */
#ifndef FAILPOINTS_H
#define FAILPOINTS_H

#ifdef HFD_FAILPOINTS
#include <stdint.h>

/* What the file that HFD_FAILPOINTS_FILE names holds; a drill maps it too. */
struct hfd_failpoints {
    _Atomic uint32_t armed;      /* 1: stop at the point of that name; the daemon sets it back */
    char name[28];               /* written before armed */
    _Atomic uint64_t stopped_ns; /* CLOCK_MONOTONIC, just before the daemon stopped itself */
    _Atomic uint64_t beat_ns;    /* of the newest beat */
};

void hfd_failpoint(const char *name);
void hfd_failpoint_beat(void);

#define HFD_FAILPOINT(name) hfd_failpoint(#name)
#define HFD_FAILPOINT_BEAT() hfd_failpoint_beat()
#else
#define HFD_FAILPOINT(name)
#define HFD_FAILPOINT_BEAT()
#endif

#endif
