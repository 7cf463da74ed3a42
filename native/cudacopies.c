/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies to the region, put together into one call of the driver (CUDA 13). They have no order among each other, and need none; what
 * is enqueued behind them comes behind all of them.
 */
#include "cudainside.h"

#include <errno.h>
#include <string.h>

int hfc_gather_copies(struct hfc_stream *s, int how)
{
    if (how < 0 || how > 2)
        return -ENOTSUP;
    if ((how == 1 && !s->driver->table.cuMemcpyBatchAsync) || (how == 2 && !s->driver->table.cuMemcpy3DBatchAsync))
        return -ENOTSUP;
    s->gather = how;
    return 0;
}

static void take_flat(struct hfc_stream *s, void *to, const void *from, uint64_t bytes)
{
    s->to[s->n_flat] = (CUdeviceptr)(uintptr_t)to;
    s->from[s->n_flat] = (CUdeviceptr)(uintptr_t)from;
    s->bytes[s->n_flat++] = bytes;
}

static void take_rows(struct hfc_stream *s, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
                      uint64_t height)
{
    CUDA_MEMCPY3D_BATCH_OP *op = &s->rows[s->n_rows++];

    memset(op, 0, sizeof(*op));
    op->src.type = op->dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op->src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)from;
    op->src.op.ptr.rowLength = height == 1 ? width : from_pitch;
    op->src.op.ptr.layerHeight = height;
    op->dst.op.ptr.ptr = (CUdeviceptr)(uintptr_t)to;
    op->dst.op.ptr.rowLength = height == 1 ? width : to_pitch;
    op->dst.op.ptr.layerHeight = height;
    op->width = width;
    op->height = height;
    op->depth = 1;
    op->srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
}

bool hfc_copies_take(struct hfc_stream *s, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
                     uint64_t height)
{
    if (s->n_flat == HFC_COPIES || s->n_rows == HFC_COPIES)
        return false;
    if (s->gather == 2)
        take_rows(s, to, to_pitch, from, from_pitch, width, height);
    else if (height == 1)
        take_flat(s, to, from, width);
    else
        return false;
    return true;
}

int hfc_copies_flush(struct hfc_stream *s)
{
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    uint32_t flat = s->n_flat, rows = s->n_rows;
    size_t first = 0;
    int r = 0;

    /* Also where they fail: they are this submit's, which fails with them. */
    s->n_flat = s->n_rows = 0;
    if (flat)
        r = HFC_CALL(s->driver, cuMemcpyBatchAsync, s->to, s->from, s->bytes, flat, &attributes, &first, 1, s->stream);
    if (rows && r == 0)
        r = HFC_CALL(s->driver, cuMemcpy3DBatchAsync, rows, s->rows, 0, s->stream);
    return r;
}
