/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hand-off in bare C: what a round costs with nothing of the product. Reads commands, one a line, and answers each
 * with a JSON line of samples in ns; a responder process spins on the words while a command runs, and naps otherwise.
 *
 *   CASE ROUNDS REQUESTS PAUSE     REQUESTS is heeded by the cases with rows; the responder takes PAUSE us for each round
 *     empty       write and wait in one call, write: the words alone
 *     unbatched   write, wait, write
 *     chain       so many empty rounds back to back in the stream; total is of one of them
 *     hostfunc    cuLaunchHostFunc in the place of write and wait
 *     event       event, wait for it spinning, write: the engine's thread does the round
 *     blocking    the same, asleep while it waits
 *     calls       as `round`, but no rows: 4 header copies, write and wait, reply copy, write
 *     round       4 header copies, positions, tokens, rows from 3 arrays, write and wait, reply copy, write
 *     calls-together, round-together   the same with the flat copies in one call, CUDA 13: what the product enqueues
 *
 * submit: until the last call has returned. total: until the CPU sees the stream's last write. Both from before the first call.
 */
#include "floor.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define WARM 200

static void pause_until(uint64_t ns)
{
    while (now_ns() < ns)
        relax();
}

static void respond(struct shared *s)
{
    uint32_t seen = 0;

    for (;;) {
        uint32_t t;

        if (!atomic_load_explicit(&s->active.value, memory_order_relaxed)) {
            sleep_ns(50000);
            continue;
        }
        /* Acquire, release: as the daemon reads rows and writes a reply in between. */
        t = atomic_load_explicit(&s->gathered.value, memory_order_acquire);
        if (t == seen) {
            relax();
            continue;
        }
        seen = t;
        pause_until(now_ns() + atomic_load_explicit(&s->pause_ns, memory_order_relaxed));
        atomic_store_explicit(&s->released.value, t, memory_order_release);
    }
}

static void await(struct floor *f, uint32_t t)
{
    while (atomic_load_explicit(&f->shared->consumed.value, memory_order_acquire) != t)
        relax();
}

static void print(const char *name, const uint64_t *samples, uint32_t count)
{
    printf("\"%s\": [", name);
    for (uint32_t i = 0; i < count; i++)
        printf(i ? ",%lu" : "%lu", (unsigned long)samples[i]);
    printf("]");
}

static void measure(struct floor *f, round_fn fn, uint32_t rounds)
{
    uint64_t *submit = calloc(rounds, sizeof(*submit)), *total = calloc(rounds, sizeof(*total));

    for (uint32_t i = 0; i < WARM + rounds; i++) {
        uint32_t t = ++f->round;
        uint64_t began = now_ns(), submitted;

        fn(f, t);
        submitted = now_ns();
        await(f, t);
        if (i >= WARM) {
            total[i - WARM] = now_ns() - began;
            submit[i - WARM] = submitted - began;
        }
    }
    printf("{");
    print("submit_ns", submit, rounds);
    printf(", ");
    print("total_ns", total, rounds);
    printf("}\n");
    free(submit);
    free(total);
}

/* The stream is held back until all of them are enqueued. */
static void chain(struct floor *f, uint32_t rounds)
{
    uint32_t first = f->round + 1;
    uint64_t began;

    atomic_store(&f->shared->active.value, 0);
    sleep_ns(1000000);
    for (uint32_t i = 0; i < rounds; i++)
        floor_empty(f, ++f->round);
    began = now_ns();
    atomic_store(&f->shared->active.value, 1);
    while ((int32_t)(atomic_load(&f->shared->consumed.value) - first) < 0) {
        relax();
        began = now_ns();
    }
    await(f, f->round);
    printf("{\"submit_ns\": [], \"total_ns\": [%lu]}\n", (unsigned long)((now_ns() - began) / (rounds - 1)));
}

static void obey(struct floor *f, const char *name, uint32_t rounds, uint32_t pause_us)
{
    round_fn fn = floor_round(name);

    atomic_store(&f->shared->pause_ns, (uint64_t)pause_us * 1000);
    atomic_store(&f->shared->active.value, 1);
    if (fn)
        measure(f, fn, rounds);
    else if (!strcmp(name, "chain"))
        chain(f, rounds > 300 ? 300 : rounds); /* what a stream takes without blocking us */
    else
        printf("{\"error\": \"no such case\"}\n");
    atomic_store(&f->shared->active.value, 0);
    fflush(stdout);
}

static void open_floor(struct floor *f)
{
    const struct cu *c = &f->cu;
    size_t bytes[] = {sizeof(f->shared->header), sizeof(f->shared->positions), sizeof(f->shared->tokens), sizeof(f->shared->reply)};
    CUdeviceptr *to[] = {&f->headers, &f->positions, &f->tokens, &f->drafts};

    cu_open(&f->cu);
    cu_register(c, f->shared, sizeof(*f->shared));
    f->stream = cu_stream(c);
    CU_DO(c, cuEventCreate, &f->spinning, CU_EVENT_DISABLE_TIMING);
    CU_DO(c, cuEventCreate, &f->blocking, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    for (int i = 0; i < 4; i++)
        CU_DO(c, cuMemAlloc, to[i], bytes[i]);
    for (int i = 0; i < SOURCES; i++)
        CU_DO(c, cuMemAlloc, &f->source[i], (size_t)MAX_ROWS * WIDTH);
    CU_DO(c, cuCtxSynchronize, );
}

int main(void)
{
    static struct floor f;
    char name[32];
    unsigned rounds, requests, pause_us;
    pid_t child;

    f.shared = cu_shared(sizeof(*f.shared));
    child = fork(); /* before CUDA is opened: nothing of it is in the responder */
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        respond(f.shared);
    }
    open_floor(&f);
    while (scanf("%31s %u %u %u", name, &rounds, &requests, &pause_us) == 4) {
        f.requests = requests < 1 ? 1 : requests > MAX_REQUESTS ? MAX_REQUESTS : requests;
        obey(&f, name, rounds < 2 ? 2 : rounds, pause_us);
    }
    kill(child, SIGKILL);
    return 0;
}
