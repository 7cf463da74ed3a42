/* SPDX-License-Identifier: Apache-2.0 */
/* Failpoints: a process stops itself, or a thread stalls, where a drill says so. Empty but for test builds. */
#include "failpoints.h"

typedef int hf_failpoints_are_off; /* a file of nothing would not be C */

#ifdef HF_FAILPOINTS
#include "hostflag.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The one thing in this project that is not reached from a handle: the points are in the middle of everything. */
static struct hf_failpoints *points;

/* Before main: no thread races for it. */
__attribute__((constructor)) static void map_points(void)
{
    const char *path = getenv("HF_FAILPOINTS_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map;

    if (fd < 0)
        return;
    map = mmap(NULL, sizeof(*points), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        points = map;
}

void hf_failpoint(const char *name)
{
    uint32_t armed = 1;
    uint64_t stall_ns;

    /* Acquire: pairs with a drill's write, after that of the name. */
    if (!points || atomic_load_explicit(&points->armed, memory_order_acquire) == 0 ||
        strncmp(points->name, name, sizeof(points->name)) != 0)
        return;
    if (!atomic_compare_exchange_strong_explicit(&points->armed, &armed, 0, memory_order_relaxed, memory_order_relaxed))
        return;
    atomic_store_explicit(&points->stopped_ns, hf_now_ns(), memory_order_relaxed);
    stall_ns = atomic_load_explicit(&points->stall_ns, memory_order_relaxed);
    if (stall_ns > 0)
        nanosleep(&(struct timespec){.tv_sec = (time_t)(stall_ns / 1000000000), .tv_nsec = (long)(stall_ns % 1000000000)}, NULL);
    else
        raise(SIGSTOP); /* to this thread: it goes not one instruction further; the others follow */
}

void hf_failpoint_beat(void)
{
    if (points)
        atomic_store_explicit(&points->beat_ns, hf_now_ns(), memory_order_relaxed);
}
#endif
