/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the functions of the libzmq that pyzmq loaded. */
#include "zmqlib.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ZMQ_OLDEST 40300 /* the first with handshake events */
#define ZMQ_ETERM (156384712 + 53)

#define FIND(field, name)                                           \
    do {                                                            \
        void *found_ = dlsym(z->library, name);                     \
        if (!found_)                                                \
            return "no " name " there: not libzmq 4.3 or newer";    \
        memcpy(&z->field, &found_, sizeof(found_));                 \
    } while (0)

static const char *find_functions(struct hfd_zmq *z)
{
    int major, minor, patch;

    FIND(msg_init, "zmq_msg_init");
    FIND(msg_init_size, "zmq_msg_init_size");
    FIND(msg_init_data, "zmq_msg_init_data");
    FIND(msg_data, "zmq_msg_data");
    FIND(msg_size, "zmq_msg_size");
    FIND(msg_more, "zmq_msg_more");
    FIND(msg_close, "zmq_msg_close");
    FIND(msg_send, "zmq_msg_send");
    FIND(msg_recv, "zmq_msg_recv");
    FIND(getsockopt, "zmq_getsockopt");
    FIND(error, "zmq_errno");
    FIND(get_version, "zmq_version");
    z->get_version(&major, &minor, &patch);
    z->version = major * 10000 + minor * 100 + patch;
    if (major != 4 || z->version < ZMQ_OLDEST)
        return "libzmq is older than 4.3, or a major version that this program does not know";
    return NULL;
}

int hfd_zmq_load(const char *path, struct hfd_zmq **ret_zmq, const char **ret_reason)
{
    struct hfd_zmq *z = calloc(1, sizeof(*z));
    int r = 0;

    if (!z) {
        *ret_reason = "out of memory";
        return -ENOMEM;
    }
    /* NOLOAD: a library that is not there yet is none that pyzmq's sockets live in. */
    z->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    z->library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!z->library) {
        *ret_reason = "not a shared object that this process has loaded";
        r = -ENOENT;
        goto out;
    }
    *ret_reason = find_functions(z);
    if (*ret_reason) {
        r = -ENOSYS;
        goto out;
    }
    *ret_zmq = z;
    z = NULL;
out:
    hfd_zmq_free(z);
    return r;
}

int hfd_zmq_version(const struct hfd_zmq *zmq)
{
    return zmq->version;
}

void hfd_zmq_free(struct hfd_zmq *zmq)
{
    if (zmq && zmq->library)
        dlclose(zmq->library);
    if (zmq && zmq->statm >= 0)
        close(zmq->statm);
    free(zmq);
}

int hfd_zmq_error(const struct hfd_zmq *z)
{
    int error = z->error();

    return error == ZMQ_ETERM ? -ESHUTDOWN : -error;
}

const char *hfd_zmq_error_reason(int error)
{
    return error == -ESHUTDOWN ? "the ZMQ context was terminated" : "the ZMQ socket failed";
}
