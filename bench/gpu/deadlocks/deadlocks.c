/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may release a parked stream? One run: deadlocks CALL HELPER SECONDS
 *
 * The engine's thread parks a stream on a word, as a draft round does, and goes on to CALL, which an engine makes at some time:
 *   first-launch    cuLaunchKernel of a kernel that was loaded lazily (a library's), on another stream
 *   runtime-launch  the same through the CUDA runtime, <<< >>>; only where it was built with nvcc
 *   module-load     cuModuleLoadData, as a JIT compiler does
 *   memory-free     cuMemFree
 *   sync-copy       cuMemcpyHtoD
 *   unregister      cuMemHostUnregister
 * HELPER is who stores to the word, 50 ms later, as a network round takes:
 *   cuda     a thread of this process that first copies the reply to the device: the helper that deadlocks
 *   self     the engine's thread, behind CALL: a self-test that launches before it releases
 *   free     a thread of this process that makes no CUDA call
 *   process  another process, which makes none: what dsv41-proxyd is
 *
 * A monitor waits for so many SECONDS; then it says "hung" and stores to the word itself, so that the device is left clean.
 * One JSON line. Exit status 0 whichever way it went; 1, 2 where it could not be tried; 5 where even the monitor did not help.
 */
#include "../bare/cu.h"

#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define NETWORK_NS 50000000u
#define RESCUE_S 20
#define REPLY_BYTES 4096

#ifdef WITH_RUNTIME
int runtime_prepare(void);
int runtime_first_launch(unsigned *counter, void *stream);
#endif

struct shared {
    struct word gathered, released, done;
    unsigned char reply[REPLY_BYTES];
};

enum where { WHERE_OUTSIDE, WHERE_IN_CALL, WHERE_BEHIND };

struct run {
    struct cu cu;
    struct shared *shared;
    const char *call;
    bool helper_calls;
    uint64_t limit_ns, parked_ns;
    CUstream stream, other, helpers;
    CUdeviceptr memory, reply, counter;
    CUkernel lazy;
    void *registered;
    _Atomic int engine, helper;
    _Atomic bool hung;
    bool runtime; /* the CUDA runtime is there */
    double engine_ms, helper_ms, released_ms;
    int engine_then, helper_then; /* where they were when it hung */
};

static double since_ms(uint64_t then)
{
    return (double)(now_ns() - then) / 1e6;
}

/* Acquire and release: whoever sees the word sees what was written before it. */
static uint32_t load(struct word *w)
{
    return atomic_load_explicit(&w->value, memory_order_acquire);
}

static void store(struct word *w)
{
    atomic_store_explicit(&w->value, 1, memory_order_release);
}

static void network_round(struct shared *s)
{
    while (!load(&s->gathered) && !load(&s->done))
        sleep_ns(20000);
    sleep_ns(NETWORK_NS);
}

static void *help(void *argument)
{
    struct run *r = argument;
    const struct cu *c = &r->cu;
    uint64_t began;

    network_round(r->shared);
    if (r->helper_calls) {
        atomic_store(&r->helper, WHERE_IN_CALL);
        began = now_ns();
        CU_DO(c, cuCtxSetCurrent, c->context);
        CU_DO(c, cuMemcpyHtoDAsync, r->reply, r->shared->reply, REPLY_BYTES, r->helpers);
        CU_DO(c, cuStreamSynchronize, r->helpers);
        r->helper_ms = since_ms(began);
    }
    atomic_store(&r->helper, WHERE_BEHIND);
    store(&r->shared->released);
    return NULL;
}

static void *monitor(void *argument)
{
    struct run *r = argument;
    uint64_t began = now_ns();

    while (!load(&r->shared->released) && now_ns() - began < r->limit_ns)
        sleep_ns(100000);
    r->released_ms = since_ms(r->parked_ns);
    if (!load(&r->shared->released)) {
        r->engine_then = atomic_load(&r->engine);
        r->helper_then = atomic_load(&r->helper);
        atomic_store(&r->hung, true);
        store(&r->shared->released);
    }
    for (int i = 0; i < RESCUE_S * 100 && !load(&r->shared->done); i++)
        sleep_ns(10000000);
    if (!load(&r->shared->done)) {
        fprintf(stderr, "the stream did not come back\n");
        _exit(5);
    }
    return NULL;
}

static void prepare(struct run *r)
{
    const struct cu *c = &r->cu;
    static const char name[] = "spin";
    CUlibrary library;
    CUfunction warm;

    cu_register(c, r->shared, sizeof(*r->shared));
    r->registered = cu_shared(1 << 20);
    cu_register(c, r->registered, 1 << 20);
    r->stream = cu_stream(c);
    r->other = cu_stream(c);
    r->helpers = cu_stream(c);
    CU_DO(c, cuMemAlloc, &r->memory, 64 << 20);
    CU_DO(c, cuMemAlloc, &r->reply, REPLY_BYTES);
    CU_DO(c, cuMemAlloc, &r->counter, 64);
    CU_DO(c, cuMemsetD32Async, r->counter, 0, 16, r->other);
    CU_DO(c, cuLibraryLoadData, &library, cu_ptx(), NULL, NULL, 0, NULL, NULL, 0);
    CU_DO(c, cuLibraryGetKernel, &r->lazy, library, name);
#ifdef WITH_RUNTIME
    r->runtime = runtime_prepare() == 0;
#endif
    /* What both threads use besides CALL is warm: nothing but CALL happens for the first time. */
    warm = cu_kernel(c, cu_ptx(), name);
    cu_launch(c, warm, r->other, r->counter, 10);
    CU_DO(c, cuMemcpyHtoDAsync, r->reply, r->shared->reply, REPLY_BYTES, r->helpers);
    CU_DO(c, cuStreamWriteValue32, r->stream, cu_address(&r->shared->done), 0, 0);
    CU_DO(c, cuStreamWaitValue32, r->stream, cu_address(&r->shared->done), 0, CU_STREAM_WAIT_VALUE_GEQ);
    CU_DO(c, cuCtxSynchronize, );
}

static void park(struct run *r)
{
    const struct cu *c = &r->cu;

    CU_DO(c, cuStreamWriteValue32, r->stream, cu_address(&r->shared->gathered), 1, 0);
    CU_DO(c, cuStreamWaitValue32, r->stream, cu_address(&r->shared->released), 1, CU_STREAM_WAIT_VALUE_GEQ);
    r->parked_ns = now_ns();
}

/* Returns false where this build cannot. */
static bool call(struct run *r)
{
    const struct cu *c = &r->cu;
    static const unsigned char bytes[4096];
    CUmodule module;

    if (!strcmp(r->call, "first-launch")) {
        cu_launch(c, (CUfunction)r->lazy, r->other, r->counter, 10);
    } else if (!strcmp(r->call, "module-load")) {
        CU_DO(c, cuModuleLoadData, &module, cu_ptx());
    } else if (!strcmp(r->call, "memory-free")) {
        CU_DO(c, cuMemFree, r->memory);
    } else if (!strcmp(r->call, "sync-copy")) {
        CU_DO(c, cuMemcpyHtoD, r->memory, bytes, sizeof(bytes));
    } else if (!strcmp(r->call, "unregister")) {
        CU_DO(c, cuMemHostUnregister, r->registered);
    } else {
#ifdef WITH_RUNTIME
        return !strcmp(r->call, "runtime-launch") && r->runtime &&
               runtime_first_launch((unsigned *)(uintptr_t)r->counter, r->other) == 0;
#else
        return false;
#endif
    }
    return true;
}

static void engine(struct run *r, bool releases)
{
    const struct cu *c = &r->cu;
    uint64_t began;

    park(r);
    while (!load(&r->shared->gathered))
        relax();
    atomic_store(&r->engine, WHERE_IN_CALL);
    began = now_ns();
    if (!call(r)) {
        fprintf(stderr, "%s: not in this build\n", r->call);
        store(&r->shared->released);
        exit(2);
    }
    r->engine_ms = since_ms(began);
    atomic_store(&r->engine, WHERE_BEHIND);
    if (releases)
        store(&r->shared->released);
    CU_DO(c, cuStreamSynchronize, r->stream);
    CU_DO(c, cuStreamSynchronize, r->other);
}

static const char *where(int place)
{
    return place == WHERE_IN_CALL ? "in its CUDA call" : place == WHERE_BEHIND ? "behind it" : "not in CUDA";
}

static void say(const struct run *r, const char *helper)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");

    printf("{\"call\": \"%s\", \"helper\": \"%s\", \"module_loading\": \"%s\", \"outcome\": \"%s\", \"released_ms\": %.3f, "
           "\"call_ms\": %.3f, \"helper_ms\": %.3f, \"limit_ms\": %.0f",
           r->call, helper, loading ? loading : "default", r->hung ? "hung" : "passed", r->released_ms, r->engine_ms,
           r->helper_ms, (double)r->limit_ns / 1e6);
    if (r->hung)
        printf(", \"engine\": \"%s\", \"helper_was\": \"%s\"", where(r->engine_then), where(r->helper_then));
    printf("}\n");
}

static pid_t start_process(struct shared *s)
{
    pid_t child = fork();

    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        network_round(s);
        store(&s->released);
        _exit(0);
    }
    return child;
}

int main(int argc, char **argv)
{
    static struct run r;
    pthread_t helper, watch;
    bool threaded, self;
    pid_t child = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: %s CALL cuda|self|free|process SECONDS\n", argv[0]);
        return 2;
    }
    r.call = argv[1];
    r.helper_calls = !strcmp(argv[2], "cuda");
    self = !strcmp(argv[2], "self");
    threaded = r.helper_calls || !strcmp(argv[2], "free");
    r.limit_ns = (uint64_t)(atof(argv[3]) * 1e9);
    r.shared = cu_shared(sizeof(*r.shared));
    if (!threaded && !self)
        child = start_process(r.shared); /* before CUDA is opened: nothing of it is in the child */
    cu_open(&r.cu);
    prepare(&r);
    if (threaded)
        pthread_create(&helper, NULL, help, &r);
    pthread_create(&watch, NULL, monitor, &r);
    engine(&r, self);
    if (threaded)
        pthread_join(helper, NULL);
    store(&r.shared->done);
    pthread_join(watch, NULL);
    if (child > 0)
        waitpid(child, NULL, 0);
    say(&r, argv[2]);
    return 0;
}
