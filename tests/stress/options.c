/* SPDX-License-Identifier: Apache-2.0 */
/* What the stress program is told, and what it says at its end. */
#include "stress.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct stress_options stress_options = {
    .rounds = 10000, .until_ns = UINT64_MAX, .longest_ns = 12 * MS, .patience_ns = 10000 * MS, .deaths = true, .maps = 1};
struct stress_counts stress_counts;
static uint64_t started;

static const char usage[] = "stress [-n ROUNDS] [-s SEED] [-t SECONDS] [-l MS: a session's longest life] [-i N: one in so many points holds a thread up] "
                            "[-p MS: patience with a stuck round] [-d: nobody dies] [-m MAPS] [-e: regions are adopted too early]\n";

static bool take(int option, uint64_t n)
{
    switch (option) {
    case 'n':
        stress_options.rounds = n;
        return true;
    case 's':
        stress_options.seed = n;
        return true;
    case 't':
        stress_options.until_ns = started + n * 1000 * MS;
        return true;
    case 'l':
        stress_options.longest_ns = n * MS;
        return n > 0;
    case 'p':
        stress_options.patience_ns = n * MS;
        return true;
    case 'i':
        stress_options.intensity = (uint32_t)n;
        return n > 0 && (n & (n - 1)) == 0;
    case 'd':
        stress_options.deaths = false;
        return true;
    case 'm':
        stress_options.maps = (int)n;
        return n == 1 || n == 2;
    case 'e':
        stress_options.early = true;
        return true;
    default:
        return false;
    }
}

bool stress_parse(int argc, char **argv)
{
    int option;

    started = hf_now_ns();
    while ((option = getopt(argc, argv, "n:s:t:l:i:p:dm:e")) > 0)
        if (!take(option, optarg ? strtoull(optarg, NULL, 10) : 0)) {
            fputs(usage, stderr);
            return false;
        }
    return true;
}

void stress_report(void)
{
    const struct stress_counts *c = &stress_counts;

    printf("{\"rounds\": %lu, \"ok\": %lu, \"expired\": %lu, \"lost\": %lu, \"timeout\": %lu, \"context_only\": %lu, \"rows\": %lu, ", c->rounds, c->ok,
           c->decided[HF_EXPIRED], c->decided[HF_LOST], c->decided[HF_TIMEOUT], c->context_only, c->rows);
    printf("\"sessions\": %lu, \"adoptions\": %lu, \"regions\": %lu, \"kills\": %lu, \"freezes\": %lu, \"stopped\": %lu, \"failed\": %lu, ", c->sessions,
           c->adoptions, c->regions, c->kills, c->freezes, c->stopped, c->failed);
    printf("\"wraps\": %lu, \"looks\": %lu, \"most_late_ms\": %.1f, \"seconds\": %.1f}\n", c->wraps, c->checks, (double)c->most_late_ns / 1e6,
           (double)(hf_now_ns() - started) / 1e9);
}
