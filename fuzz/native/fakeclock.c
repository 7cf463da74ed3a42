/* SPDX-License-Identifier: Apache-2.0 */
#include "fakeclock.h"

#include "fakezmq.h"

#include <poll.h>
#include <signal.h>
#include <time.h>

uint64_t fake_now_ns;

uint64_t __wrap_hf_now_ns(void);
uint64_t __wrap_hf_now_ns(void)
{
    return fake_now_ns += 1000;
}

/* The link's descriptors are ready where something is queued; else the time passes at once. */
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
    bool ready = n > 2 && fake_waiting(&fake.dealer) + fake_waiting(&fake.monitor) > 0;

    (void)mask;
    for (nfds_t i = 0; i < n; i++)
        fds[i].revents = i >= 2 && ready ? POLLIN : 0;
    if (!ready)
        fake_now_ns += (uint64_t)timeout->tv_sec * 1000000000 + (uint64_t)timeout->tv_nsec;
    return ready;
}
