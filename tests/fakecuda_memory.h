/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of the driver's functions: host memory, copies, words, modules. Included by fakecuda_api.h alone. */
#ifndef FAKECUDA_MEMORY_H
#define FAKECUDA_MEMORY_H

EXPORT CUresult cuMemHostAlloc(void **ret, size_t bytes, unsigned int flags)
{
    (void)flags;
    *ret = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return take_place(*ret, bytes, 1);
}

EXPORT CUresult cuMemFreeHost(void *memory)
{
    CUresult r = leave_place(memory);

    if (r == CUDA_SUCCESS)
        free(memory);
    return r;
}

EXPORT CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    (void)flags;
    return take_place(memory, bytes, 0);
}

EXPORT CUresult cuMemHostUnregister(void *memory)
{
    return leave_place(memory);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ret, void *memory, unsigned int flags)
{
    (void)flags;
    *ret = (uintptr_t)memory;
    return place_of(memory) < 0 ? INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream s)
{
    return enqueue(s, (struct op){.kind = FILL, .to = POINTER(memory), .value = value, .width = bytes});
}

EXPORT CUresult cuModuleLoadData(CUmodule *ret, const void *image)
{
    wait_for_release();
    *ret = NULL;
    return strncmp(image, ".version", 8) == 0 ? CUDA_SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    return copy(s, to, bytes, POINTER(from), bytes, bytes, 1);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    return copy(s, POINTER(to), bytes, from, bytes, bytes, 1);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    return copy(s, POINTER(to), bytes, POINTER(from), bytes, bytes, 1);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s)
{
    const void *from = c->srcMemoryType == CU_MEMORYTYPE_HOST ? c->srcHost : POINTER(c->srcDevice);
    const void *to = c->dstMemoryType == CU_MEMORYTYPE_HOST ? c->dstHost : POINTER(c->dstDevice);

    return copy(s, to, c->dstPitch, from, c->srcPitch, c->WidthInBytes, c->Height);
}

EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                                      size_t *indices, size_t n_attributes, CUstream s)
{
    CUresult r = CUDA_SUCCESS;

    if (n_attributes != 1 || indices[0] != 0 || attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return INVALID_VALUE;
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = copy(s, POINTER(to[i]), bytes[i], POINTER(from[i]), bytes[i], bytes[i], 1);
    return r;
}

EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s)
{
    CUresult r = flags ? INVALID_VALUE : CUDA_SUCCESS;

    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = copy(s, POINTER(ops[i].dst.op.ptr.ptr), ops[i].dst.op.ptr.rowLength, POINTER(ops[i].src.op.ptr.ptr),
                 ops[i].src.op.ptr.rowLength, ops[i].width, ops[i].height);
    return r;
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr word, uint32_t value, unsigned int flags)
{
    return flags ? INVALID_VALUE : word_op(s, WRITE, word, value);
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr word, uint32_t value, unsigned int flags)
{
    return flags ? INVALID_VALUE : word_op(s, WAIT, word, value);
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream s, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)
{
    CUresult r = flags ? INVALID_VALUE : CUDA_SUCCESS;

    for (unsigned int i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = word_op(s, ops[i].value.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? WAIT : WRITE, ops[i].value.address,
                    (uint32_t)ops[i].value.value);
    return r;
}

#endif
