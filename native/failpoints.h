/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named points of the daemon's round loop and of the engine's watchdog, at which a drill can stop the whole process, or stall
 * the thread. Only in test builds (build_ffi.py --failpoints): in the shipped modules a point is nothing at all, and
 * failpoints.c is no part of them.
 */
#ifndef FAILPOINTS_H
#define FAILPOINTS_H

#ifdef HF_FAILPOINTS
#include <stdint.h>

/* What the file that HF_FAILPOINTS_FILE names holds; a drill maps it too. */
struct hf_failpoints {
    _Atomic uint32_t armed;      /* 1: stop at the point of that name; whoever does sets it back */
    char name[28];               /* written before armed */
    _Atomic uint64_t stopped_ns; /* CLOCK_MONOTONIC, just before it stopped */
    _Atomic uint64_t stall_ns;   /* 0: the process stops itself with SIGSTOP; else the thread alone sleeps so long */
    _Atomic uint64_t beat_ns;    /* of the daemon's newest beat */
};

void hf_failpoint(const char *name);
void hf_failpoint_beat(void);

#define HF_FAILPOINT(name) hf_failpoint(#name)
#define HF_FAILPOINT_BEAT() hf_failpoint_beat()
#else
#define HF_FAILPOINT(name)
#define HF_FAILPOINT_BEAT()
#endif

#endif
