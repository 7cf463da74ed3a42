/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever finds the watchdog at rest rings, also where somebody else is held up between waking it and its bell. */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct hfe_session session;

static uint64_t rings_at(uint32_t at_rest)
{
    uint64_t rings = 0;

    atomic_store(&session.watchdog.at_rest, at_rest);
    hfe_watchdog_wake(&session);
    if (read(session.watchdog.bell, &rings, sizeof(rings)) < 0)
        rings = 0;
    return rings;
}

int main(void)
{
    uint64_t running, resting, again;
    uint32_t left;
    bool trusted;

    session.config.starved_ns = 1;
    session.watchdog.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    running = rings_at(0);
    resting = rings_at(1);
    left = atomic_load(&session.watchdog.at_rest);
    trusted = hfe_watchdog_ready(&session, hf_now_ns() + 1000000000);
    again = rings_at(left);
    printf("{\"running\": %d, \"resting\": %d, \"again\": %d, \"trusted\": %d}\n", (int)running, (int)resting, (int)again, trusted);
    return session.watchdog.bell < 0;
}
