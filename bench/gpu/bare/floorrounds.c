/* SPDX-License-Identifier: Apache-2.0 */
#include "floor.h"

#include <string.h>

static void write_wait(struct floor *f, uint32_t t)
{
    CUstreamBatchMemOpParams ops[2] = {0};

    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = cu_address(&f->shared->gathered);
    ops[0].writeValue.value = t;
    ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = cu_address(&f->shared->released);
    ops[1].waitValue.value = t;
    ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    CU_DO(&f->cu, cuStreamBatchMemOp, f->stream, 2, ops, 0);
}

static void consume(struct floor *f, uint32_t t)
{
    CU_DO(&f->cu, cuStreamWriteValue32, f->stream, cu_address(&f->shared->consumed), t, 0);
}

void floor_empty(struct floor *f, uint32_t t)
{
    write_wait(f, t);
    consume(f, t);
}

static void unbatched(struct floor *f, uint32_t t)
{
    CU_DO(&f->cu, cuStreamWriteValue32, f->stream, cu_address(&f->shared->gathered), t, 0);
    CU_DO(&f->cu, cuStreamWaitValue32, f->stream, cu_address(&f->shared->released), t, CU_STREAM_WAIT_VALUE_GEQ);
    consume(f, t);
}

static void CUDA_CB host_function(void *argument)
{
    (void)argument;
}

static void hostfunc(struct floor *f, uint32_t t)
{
    CU_DO(&f->cu, cuLaunchHostFunc, f->stream, host_function, NULL);
    consume(f, t);
}

static void event(struct floor *f, uint32_t t)
{
    CU_DO(&f->cu, cuEventRecord, f->spinning, f->stream);
    CU_DO(&f->cu, cuEventSynchronize, f->spinning);
    consume(f, t);
}

static void blocking(struct floor *f, uint32_t t)
{
    CU_DO(&f->cu, cuEventRecord, f->blocking, f->stream);
    CU_DO(&f->cu, cuEventSynchronize, f->blocking);
    consume(f, t);
}

static void headers(struct floor *f)
{
    size_t bytes[4] = {f->requests * sizeof(int32_t), f->requests * sizeof(int32_t), STATE_SLOTS * 8, STATE_SLOTS * 4};

    for (int i = 0; i < 4; i++)
        CU_DO(&f->cu, cuMemcpyDtoHAsync, f->shared->header[i], f->headers + (CUdeviceptr)i * sizeof(f->shared->header[0]), bytes[i], f->stream);
}

static void park_and_take(struct floor *f, uint32_t t)
{
    write_wait(f, t);
    CU_DO(&f->cu, cuMemcpyHtoDAsync, f->drafts, f->shared->reply, f->requests * DRAFTS * sizeof(int64_t), f->stream);
    consume(f, t);
}

static void calls(struct floor *f, uint32_t t)
{
    headers(f);
    park_and_take(f, t);
}

static void rows(struct floor *f)
{
    for (int i = 0; i < SOURCES; i++) {
        CUDA_MEMCPY2D copy = {
            .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = f->source[i], .srcPitch = WIDTH,
            .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = f->shared->rows + i * WIDTH, .dstPitch = ROW_BYTES,
            .WidthInBytes = WIDTH, .Height = (size_t)f->requests * ROWS,
        };
        CU_DO(&f->cu, cuMemcpy2DAsync, &copy, f->stream);
    }
}

static void whole(struct floor *f, uint32_t t)
{
    headers(f);
    CU_DO(&f->cu, cuMemcpyDtoHAsync, f->shared->positions, f->positions, f->requests * ROWS * sizeof(int64_t), f->stream);
    CU_DO(&f->cu, cuMemcpyDtoHAsync, f->shared->tokens, f->tokens, f->requests * ROWS * sizeof(int32_t), f->stream);
    rows(f);
    park_and_take(f, t);
}

#if CUDA_VERSION >= 13000
/* The flat copies of a round in one call, as the product enqueues them. */
static void together(struct floor *f, int rows)
{
    CUdeviceptr to[6], from[6];
    size_t bytes[6] = {f->requests * sizeof(int32_t), f->requests * sizeof(int32_t), STATE_SLOTS * 8, STATE_SLOTS * 4,
                       f->requests * ROWS * sizeof(int64_t), f->requests * ROWS * sizeof(int32_t)};
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t first = 0;

    for (int i = 0; i < 4; i++) {
        to[i] = cu_address(f->shared->header[i]);
        from[i] = f->headers + (CUdeviceptr)i * sizeof(f->shared->header[0]);
    }
    to[4] = cu_address(f->shared->positions);
    from[4] = f->positions;
    to[5] = cu_address(f->shared->tokens);
    from[5] = f->tokens;
    CU_DO(&f->cu, cuMemcpyBatchAsync, to, from, bytes, rows ? 6 : 4, &attributes, &first, 1, f->stream);
}

static void calls_together(struct floor *f, uint32_t t)
{
    together(f, 0);
    park_and_take(f, t);
}

static void whole_together(struct floor *f, uint32_t t)
{
    together(f, 1);
    rows(f);
    park_and_take(f, t);
}
#endif

static const struct {
    const char *name;
    round_fn fn;
} cases[] = {
    {"empty", floor_empty}, {"unbatched", unbatched}, {"hostfunc", hostfunc}, {"event", event}, {"blocking", blocking}, {"calls", calls}, {"round", whole},
#if CUDA_VERSION >= 13000
    {"calls-together", calls_together}, {"round-together", whole_together},
#endif
};

round_fn floor_round(const char *name)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (!strcmp(cases[i].name, name))
            return cases[i].fn;
    return NULL;
}
