/* SPDX-License-Identifier: Apache-2.0 */
#include "cudadriver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { R, O, E, F };

struct symbol {
    const char *name, *symbol;
    enum kind kind;
};

static const struct symbol symbols[HFC_FUNCTION_MAX] = {
#define SYMBOL(name, symbol, kind, arguments) {#name, #symbol, kind},
    HFC_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

/* The table as an array: its members are pointers to functions and nothing else. */
typedef void (*entry)(void);
_Static_assert(sizeof(((struct hfc_driver *)0)->table) == HFC_FUNCTION_MAX * sizeof(entry), "the table is an array of entries");

static entry *entry_of(struct hfc_driver *d, uint32_t function)
{
    return (entry *)(void *)&d->table + function;
}

static bool needed(enum kind kind)
{
    return kind == R || kind == E;
}

static bool enqueues(enum kind kind)
{
    return kind == E || kind == F;
}

static int load(struct hfc_driver *d, const char *library, char *reason, uint32_t bytes)
{
    d->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!d->library) {
        snprintf(reason, bytes, "the CUDA driver cannot be opened: %s", dlerror());
        return -ENOENT;
    }
    for (uint32_t i = 0; i < HFC_FUNCTION_MAX; i++) {
        *(void **)entry_of(d, i) = dlsym(d->library, symbols[i].symbol);
        if (!*entry_of(d, i) && needed(symbols[i].kind)) {
            snprintf(reason, bytes, "%s has no %s: a driver too old, or none", library, symbols[i].symbol);
            return -ENOSYS;
        }
    }
    return 0;
}

int hfc_driver_open(const char *library, struct hfc_driver **ret_driver, char *reason, uint32_t bytes)
{
    struct hfc_driver *d = calloc(1, sizeof(*d));
    int length, r;

    if (!d) {
        snprintf(reason, bytes, "out of memory");
        return -ENOMEM;
    }
    r = load(d, library, reason, bytes);
    if (r < 0)
        goto fail;
    r = HFC_CALL(d, cuInit, 0);
    if (r < 0) {
        length = snprintf(reason, bytes, "the CUDA driver does not start: ");
        if (length >= 0 && (uint32_t)length < bytes)
            hfc_fault(d, reason + length, bytes - (uint32_t)length);
        goto fail;
    }
    *ret_driver = d;
    return 0;
fail:
    free(d);
    return r;
}

void hfc_driver_close(struct hfc_driver *d)
{
    free(d);
}

int hfc_driver_version(struct hfc_driver *d)
{
    int version = 0;
    int r = HFC_CALL(d, cuDriverGetVersion, &version);

    return r < 0 ? r : version;
}

/* ---- the table ---- */

const char *hfc_function_name(uint32_t function)
{
    return function < HFC_FUNCTION_MAX ? symbols[function].name : NULL;
}

int hfc_function_there(const struct hfc_driver *d, uint32_t function)
{
    return function < HFC_FUNCTION_MAX && *entry_of((struct hfc_driver *)d, function) != NULL;
}

uint64_t hfc_calls(const struct hfc_driver *d, uint32_t function)
{
    return function < HFC_FUNCTION_MAX ? atomic_load_explicit(&d->calls[function], memory_order_relaxed) : 0;
}

void *hfc_replace(struct hfc_driver *d, uint32_t function, void *other)
{
    void *before;

    if (function >= HFC_FUNCTION_MAX)
        return NULL;
    before = *(void **)entry_of(d, function);
    *(void **)entry_of(d, function) = other;
    return before;
}

void hfc_fail_nth(struct hfc_driver *d, int function, uint32_t n, int error, bool onwards)
{
    atomic_store_explicit(&d->fail_in, 0, memory_order_relaxed);
    d->fail_function = function;
    d->fail_error = error;
    d->fail_onwards = onwards;
    /* Release: whoever counts down finds the rest of the order. */
    atomic_store_explicit(&d->fail_in, n, memory_order_release);
}

CUresult hfc_injected(struct hfc_driver *d, enum hfc_function f)
{
    /* Acquire: pairs with hfc_fail_nth. */
    uint32_t left = atomic_load_explicit(&d->fail_in, memory_order_acquire);

    if (left == 0 || (d->fail_function < 0 ? !enqueues(symbols[f].kind) : d->fail_function != (int)f))
        return CUDA_SUCCESS;
    if (left > 1 || !d->fail_onwards)
        atomic_store_explicit(&d->fail_in, left - 1, memory_order_relaxed);
    return left == 1 ? d->fail_error : CUDA_SUCCESS;
}

/* ---- failures ---- */

int hfc_errno(struct hfc_driver *d, enum hfc_function f, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    atomic_store_explicit(&d->fault, (uint64_t)f << 32 | (uint32_t)result, memory_order_relaxed);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return -ENOMEM;
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return -ENOTSUP;
    if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_CAPTURED_EVENT)
        return -EBUSY;
    return -EIO;
}

int hfc_describe(struct hfc_driver *d, int result, char *text, uint32_t bytes)
{
    const char *name = NULL, *meaning = NULL;

    if (HFC_RAW(d, cuGetErrorName, result, &name) != CUDA_SUCCESS || !name)
        return snprintf(text, bytes, "CUDA error %d", result);
    if (HFC_RAW(d, cuGetErrorString, result, &meaning) != CUDA_SUCCESS || !meaning)
        return snprintf(text, bytes, "%s", name);
    return snprintf(text, bytes, "%s: %s", name, meaning);
}

int hfc_fault(struct hfc_driver *d, char *text, uint32_t bytes)
{
    uint64_t fault = atomic_load_explicit(&d->fault, memory_order_relaxed);
    char what[160];

    if (fault == 0)
        return snprintf(text, bytes, "%s", "");
    hfc_describe(d, (int)(uint32_t)fault, what, sizeof(what));
    return snprintf(text, bytes, "%s: %s", symbols[fault >> 32].name, what);
}

/* ---- devices ---- */

int hfc_device_count(struct hfc_driver *d)
{
    int count = 0;
    int r = HFC_CALL(d, cuDeviceGetCount, &count);

    return r < 0 ? r : count;
}

int hfc_device_name(struct hfc_driver *d, int ordinal, char *text, uint32_t bytes)
{
    CUdevice device;
    int r = HFC_CALL(d, cuDeviceGet, &device, ordinal);

    return r < 0 ? r : HFC_CALL(d, cuDeviceGetName, text, (int)bytes, device);
}

int hfc_device_attribute(struct hfc_driver *d, int ordinal, int attribute, int *ret_value)
{
    CUdevice device;
    int r = HFC_CALL(d, cuDeviceGet, &device, ordinal);

    return r < 0 ? r : HFC_CALL(d, cuDeviceGetAttribute, ret_value, attribute, device);
}

int hfc_current_device(struct hfc_driver *d)
{
    CUdevice mine, device;
    int count, r;

    r = HFC_CALL(d, cuCtxGetDevice, &mine);
    if (r < 0)
        return r;
    count = hfc_device_count(d);
    for (int i = 0; i < count; i++)
        if (HFC_CALL(d, cuDeviceGet, &device, i) == 0 && device == mine)
            return i;
    return count < 0 ? count : -ENODEV;
}

int hfc_use_primary(struct hfc_driver *d, int ordinal)
{
    CUcontext context;
    CUdevice device;
    int r;

    r = HFC_CALL(d, cuDeviceGet, &device, ordinal);
    if (r < 0)
        return r;
    r = HFC_CALL(d, cuDevicePrimaryCtxRetain, &context, device);
    return r < 0 ? r : HFC_CALL(d, cuCtxSetCurrent, context);
}

int hfc_stream_create(struct hfc_driver *d, uint64_t *ret_handle)
{
    CUstream stream;
    int r = HFC_CALL(d, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);

    if (r == 0)
        *ret_handle = (uintptr_t)stream;
    return r;
}

int hfc_stream_destroy(struct hfc_driver *d, uint64_t handle)
{
    return HFC_CALL(d, cuStreamDestroy, (CUstream)(uintptr_t)handle);
}
