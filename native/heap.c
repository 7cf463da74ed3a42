/* SPDX-License-Identifier: Apache-2.0 */
/* glibc gives each thread a heap of its own, and once a large message was freed it keeps twice as much of each for good. */
#include "heap.h"

#include <errno.h>
#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

int hfd_heap_bound(void)
{
#ifdef __GLIBC__
    /* The thresholds are set together: to set one alone would end the other's adaptation at 128 KiB, where every round's
       message would be mapped, faulted in and unmapped again. */
    if (mallopt(M_ARENA_MAX, HFD_HEAPS) && mallopt(M_MMAP_THRESHOLD, HFD_HEAP_KEEP) && mallopt(M_TRIM_THRESHOLD, HFD_HEAP_KEEP))
        return 0;
#endif
    return -ENOTSUP;
}
