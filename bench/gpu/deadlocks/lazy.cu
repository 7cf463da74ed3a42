// SPDX-License-Identifier: Apache-2.0
// A kernel as an engine has thousands of: in a module that the CUDA runtime loads when it is first launched.
#include <cuda_runtime.h>

__global__ void never_before(unsigned *counter)
{
    atomicAdd(counter, 1u);
}

extern "C" int runtime_prepare(void)
{
    return (int)cudaFree(0);
}

extern "C" int runtime_first_launch(unsigned *counter, void *stream)
{
    never_before<<<1, 1, 0, (cudaStream_t)stream>>>(counter);
    return (int)cudaGetLastError();
}
