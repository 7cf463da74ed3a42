/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a parked stream does to everything beside it. One JSON line.
 *
 *   park neighbours FORM COUNT parks a stream in this form, with an operation behind it; launches a kernel on each of
 *                          COUNT others: how many get through while it is parked, how fast. FORM: none, wait32, batched,
 *                          wait64, priority (batched, on a stream of the highest priority), graph (a batch node),
 *                          hostfunc (a host function that naps until the release), kernel (one thread that polls the word)
 *   park depth             parks a stream and launches 3,000 kernels behind: how many are taken before the call blocks
 *   park register          registering and unregistering a memfd, and registering beside a parked stream
 */
#include "cu.h"

#include <pthread.h>
#include <string.h>

#define MAX_NEIGHBOURS 128
#define PATIENCE_NS 300000000u
#define DEPTH 3000
#define STALLED_NS 200000000u

struct shared {
    struct word released, behind;
};

struct park {
    struct cu cu;
    struct shared *shared;
    CUstream stream, neighbour[MAX_NEIGHBOURS];
    int neighbours;
    CUfunction spin, poll;
    CUdeviceptr counter;
    _Atomic uint32_t launched;
    uint32_t taken;
};

static const char poll_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry poll(.param .u64 word)\n{\n"
    ".reg .pred %p; .reg .u32 %r; .reg .u64 %a;\n"
    "ld.param.u64 %a, [word];\n"
    "LOOP:\n"
    "ld.volatile.global.u32 %r, [%a]; setp.eq.u32 %p, %r, 0;\n"
    "@%p bra LOOP;\n"
    "ret;\n}\n";

static void open_park(struct park *p)
{
    const struct cu *c = &p->cu;

    p->shared = cu_shared(sizeof(*p->shared));
    cu_open(&p->cu);
    cu_register(c, p->shared, sizeof(*p->shared));
    p->stream = cu_stream(c);
    p->spin = cu_kernel(c, cu_ptx(), "spin");
    p->poll = cu_kernel(c, poll_ptx, "poll");
    CU_DO(c, cuMemAlloc, &p->counter, 64);
    CU_DO(c, cuMemsetD32Async, p->counter, 0, 16, p->stream);
    cu_launch(c, p->spin, p->stream, p->counter, 10);
    for (int i = 0; i < p->neighbours; i++) {
        p->neighbour[i] = cu_stream(c);
        cu_launch(c, p->spin, p->neighbour[i], p->counter, 10);
    }
    CU_DO(c, cuCtxSynchronize, );
}

static void release(struct park *p)
{
    atomic_store_explicit(&p->shared->released.value, 1, memory_order_release);
}

static void CUDA_CB nap_until_released(void *argument)
{
    struct park *p = argument;

    while (!atomic_load_explicit(&p->shared->released.value, memory_order_acquire))
        sleep_ns(20000);
}

static CUstreamBatchMemOpParams wait_op(struct park *p)
{
    CUstreamBatchMemOpParams op = {0};

    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op.waitValue.address = cu_address(&p->shared->released);
    op.waitValue.value = 1;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return op;
}

static void park_in_graph(struct park *p)
{
    const struct cu *c = &p->cu;
    CUstreamBatchMemOpParams op = wait_op(p);
    CUDA_BATCH_MEM_OP_NODE_PARAMS node = {.ctx = c->context, .count = 1, .paramArray = &op};
    CUgraphNode added;
    CUgraph graph;
    CUgraphExec run;

    CU_DO(c, cuGraphCreate, &graph, 0);
    CU_DO(c, cuGraphAddBatchMemOpNode, &added, graph, NULL, 0, &node);
    CU_DO(c, cuGraphInstantiateWithFlags, &run, graph, 0);
    CU_DO(c, cuGraphLaunch, run, p->stream);
}

static void park_in_kernel(struct park *p)
{
    CUdeviceptr word = cu_address(&p->shared->released);
    void *arguments[] = {&word};

    CU_DO(&p->cu, cuLaunchKernel, p->poll, 1, 1, 1, 1, 1, 1, 0, p->stream, arguments, NULL);
}

static void take_priority(struct park *p)
{
    int least, greatest;

    CU_DO(&p->cu, cuCtxGetStreamPriorityRange, &least, &greatest);
    CU_DO(&p->cu, cuStreamCreateWithPriority, &p->stream, CU_STREAM_NON_BLOCKING, greatest);
    cu_launch(&p->cu, p->spin, p->stream, p->counter, 10);
    CU_DO(&p->cu, cuStreamSynchronize, p->stream);
}

/* False where there is no such form. */
static bool park(struct park *p, const char *form)
{
    const struct cu *c = &p->cu;
    CUstreamBatchMemOpParams op = wait_op(p);

    if (!strcmp(form, "none"))
        return true;
    if (!strcmp(form, "priority"))
        take_priority(p);
    if (!strcmp(form, "wait32"))
        CU_DO(c, cuStreamWaitValue32, p->stream, cu_address(&p->shared->released), 1, CU_STREAM_WAIT_VALUE_GEQ);
    else if (!strcmp(form, "wait64"))
        CU_DO(c, cuStreamWaitValue64, p->stream, cu_address(&p->shared->released), 1, CU_STREAM_WAIT_VALUE_GEQ);
    else if (!strcmp(form, "batched") || !strcmp(form, "priority"))
        CU_DO(c, cuStreamBatchMemOp, p->stream, 1, &op, 0);
    else if (!strcmp(form, "graph"))
        park_in_graph(p);
    else if (!strcmp(form, "hostfunc"))
        CU_DO(c, cuLaunchHostFunc, p->stream, nap_until_released, p);
    else if (!strcmp(form, "kernel"))
        park_in_kernel(p);
    else
        return false;
    CU_DO(c, cuStreamWriteValue32, p->stream, cu_address(&p->shared->behind), 1, 0);
    return true;
}

/* Launches on every neighbour, and returns how many were through in time; the slowest of these in us. */
static int pass(struct park *p, double *ret_us)
{
    const struct cu *c = &p->cu;
    uint64_t began = now_ns();
    bool through[MAX_NEIGHBOURS] = {false};
    int count = 0;

    *ret_us = 0;
    for (int i = 0; i < p->neighbours; i++)
        cu_launch(c, p->spin, p->neighbour[i], p->counter, 10);
    while (count < p->neighbours && now_ns() - began < PATIENCE_NS) {
        for (int i = 0; i < p->neighbours; i++) {
            if (through[i] || c->cuStreamQuery(p->neighbour[i]) != CUDA_SUCCESS)
                continue;
            through[i] = true;
            count++;
            *ret_us = (double)(now_ns() - began) / 1e3;
        }
    }
    return count;
}

static int neighbours(struct park *p, const char *form)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    double before_us, us;
    int through;

    pass(p, &before_us);
    if (!park(p, form)) {
        fprintf(stderr, "no such form: %s\n", form);
        return 2;
    }
    sleep_ns(1000000);
    through = pass(p, &us);
    release(p);
    CU_DO(&p->cu, cuCtxSynchronize, );
    printf("{\"form\": \"%s\", \"max_connections\": \"%s\", \"neighbours\": %d, \"through\": %d, \"slowest_us\": %.1f, "
           "\"before_us\": %.1f}\n", form, connections ? connections : "unset", p->neighbours, through, us, before_us);
    return 0;
}

static void *watch(void *argument)
{
    struct park *p = argument;
    uint32_t last = 0;
    uint64_t since = now_ns();

    while (now_ns() - since < STALLED_NS) {
        uint32_t now = atomic_load(&p->launched);

        if (now != last)
            since = now_ns();
        last = now;
        sleep_ns(1000000);
    }
    p->taken = last;
    release(p);
    return NULL;
}

static int depth(struct park *p)
{
    const struct cu *c = &p->cu;
    pthread_t watching;
    uint64_t began;
    double behind_ms;

    park(p, "batched");
    pthread_create(&watching, NULL, watch, p);
    began = now_ns();
    for (int i = 0; i < DEPTH; i++) {
        cu_launch(c, p->spin, p->stream, p->counter, 10);
        atomic_fetch_add(&p->launched, 1);
    }
    behind_ms = (double)(now_ns() - began) / 1e6;
    pthread_join(watching, NULL);
    CU_DO(c, cuCtxSynchronize, );
    printf("{\"launches\": %d, \"taken_while_parked\": %u, \"launching_ms\": %.1f, \"blocked_until_release\": %s}\n", DEPTH,
           p->taken, behind_ms, p->taken < DEPTH ? "true" : "false");
    return 0;
}

static double registering(struct park *p, void *memory, size_t bytes)
{
    uint64_t began = now_ns();

    cu_register(&p->cu, memory, bytes);
    return (double)(now_ns() - began) / 1e6;
}

static int registrations(struct park *p)
{
    static const size_t mib[] = {1, 4, 16, 64};
    double parked_ms, out_ms;
    void *memory;
    uint64_t began;

    printf("{\"sizes\": [");
    for (int i = 0; i < 4; i++) {
        memory = cu_shared(mib[i] << 20);
        double in_ms = registering(p, memory, mib[i] << 20);

        began = now_ns();
        CU_DO(&p->cu, cuMemHostUnregister, memory);
        out_ms = (double)(now_ns() - began) / 1e6;
        printf("%s{\"mib\": %zu, \"register_ms\": %.3f, \"unregister_ms\": %.3f}", i ? ", " : "", mib[i], in_ms, out_ms);
    }
    memory = cu_shared(16 << 20);
    park(p, "batched");
    parked_ms = registering(p, memory, 16 << 20);
    release(p);
    CU_DO(&p->cu, cuCtxSynchronize, );
    printf("], \"register_16_parked_ms\": %.3f}\n", parked_ms);
    return 0;
}

int main(int argc, char **argv)
{
    static struct park p;

    if (argc < 2) {
        fprintf(stderr, "usage: %s neighbours FORM COUNT | depth | register\n", argv[0]);
        return 2;
    }
    if (argc == 4)
        p.neighbours = atoi(argv[3]) > MAX_NEIGHBOURS ? MAX_NEIGHBOURS : atoi(argv[3]);
    open_park(&p);
    if (!strcmp(argv[1], "neighbours") && argc == 4)
        return neighbours(&p, argv[2]);
    if (!strcmp(argv[1], "depth"))
        return depth(&p);
    return registrations(&p);
}
