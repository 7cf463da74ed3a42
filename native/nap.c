/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to look for gathered again. A GPU does not wake anybody, so the loop must look; each look costs CPU, each missed
 * moment costs latency. The nap learns the time from submitted to gathered and its expected error: it sleeps through
 * what surely is too early, then naps as long as the estimate is uncertain, and spins only where it is not.
 *
 * Expected is the median of the last few rounds: another pace (a batch that grows, the first round after warming up) is
 * learned once most of them have it, and one odd round moves nothing. A running mean took some thirty rounds for that.
 */
#include "hostflag.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#define NAP_EARLY 2.5        /* start looking this many expected errors before the expected time */
#define NAP_SHARE 0.0625     /* a nap is this share of the expected error: about as many naps whatever the error is */
#define NAP_OVERDUE 0.03125  /* past the expected time: this share of how much later it is */
#define NAP_FAR_NS 4000000   /* the longest sleep through what is too early: what a round that comes early can lose */
#define NAP_WAKE_NS 30000    /* what a sleeping thread needs to run again, asked for in advance */

void hf_nap_init(struct hf_nap *n, uint64_t spin_ns, uint64_t min_nap_ns)
{
    *n = (struct hf_nap){.spin_ns = spin_ns, .min_nap_ns = min_nap_ns, .max_nap_ns = 1000000};
}

uint64_t hf_nap_next(const struct hf_nap *n, uint64_t elapsed_ns)
{
    double elapsed = (double)elapsed_ns;
    double early = n->expected_ns - NAP_EARLY * n->error_ns - (double)n->spin_ns - NAP_WAKE_NS;
    double nap;

    if (n->learned == 0) /* nothing known: short naps, growing with the time already spent */
        nap = elapsed * NAP_OVERDUE;
    else if (elapsed < early)
        return early - elapsed > NAP_FAR_NS ? NAP_FAR_NS : (uint64_t)(early - elapsed) + 1;
    else if (elapsed < n->expected_ns + NAP_EARLY * n->error_ns)
        nap = n->error_ns * NAP_SHARE;
    else
        nap = n->error_ns * NAP_SHARE + (elapsed - n->expected_ns) * NAP_OVERDUE;
    /* A nap shorter than what a sleep itself costs is a spin; but no longer than spin_ns in one go. */
    if (nap < (double)n->min_nap_ns)
        return elapsed < n->expected_ns + (double)n->spin_ns ? 0 : n->min_nap_ns;
    return nap > (double)n->max_nap_ns ? n->max_nap_ns : (uint64_t)nap;
}

static void insert_sorted(double *values, uint32_t count, double value)
{
    uint32_t at = count;

    for (; at > 0 && values[at - 1] > value; at--)
        values[at] = values[at - 1];
    values[at] = value;
}

void hf_nap_learn(struct hf_nap *n, uint64_t elapsed_ns)
{
    double sorted[HF_NAP_WINDOW] = {0}, sum = 0, largest = 0;
    uint32_t count;

    n->recent_ns[n->learned++ % HF_NAP_WINDOW] = (double)elapsed_ns;
    count = n->learned < HF_NAP_WINDOW ? n->learned : HF_NAP_WINDOW;
    for (uint32_t i = 0; i < count; i++)
        insert_sorted(sorted, i, n->recent_ns[i]);
    n->expected_ns = sorted[count / 2];
    for (uint32_t i = 0; i < count; i++) {
        double error = sorted[i] < n->expected_ns ? n->expected_ns - sorted[i] : sorted[i] - n->expected_ns;

        sum += error;
        largest = error > largest ? error : largest;
    }
    /* Two rounds say nothing yet of the error once the odd one is left out. */
    n->error_ns = count < 3 ? n->expected_ns / 2 : (sum - largest) / (count - 1);
}

int hf_nap_precise(void)
{
    return prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) < 0 ? -errno : 0;
}

void hf_sleep_ns(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

    nanosleep(&ts, NULL);
}
