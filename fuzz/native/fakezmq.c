/* SPDX-License-Identifier: Apache-2.0 */
#include "fakezmq.h"

#include "cursor.h"
#include "wire.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define MISALIGNED 3
#define ETERM 156384765

struct fake_message {
    unsigned char *block, *data;
    size_t bytes;
    int more;
    void (*give_back)(void *data, void *hint); /* NULL: data lies in block */
    void *hint;
};

struct fake_zmq fake;
static int last_error;

static struct fake_message *of(const union hfd_zmq_message *m)
{
    return (struct fake_message *)(uintptr_t)m->bytes;
}

static int message_init(union hfd_zmq_message *m)
{
    *of(m) = (struct fake_message){0};
    return 0;
}

static int message_init_size(union hfd_zmq_message *m, size_t bytes)
{
    struct fake_message *message = of(m);

    *message = (struct fake_message){.block = malloc(bytes + MISALIGNED), .bytes = bytes};
    MUST(message->block);
    message->data = message->block + MISALIGNED;
    fake.live++;
    return 0;
}

static int message_init_data(union hfd_zmq_message *m, void *data, size_t bytes, void (*give_back)(void *data, void *hint), void *hint)
{
    *of(m) = (struct fake_message){.data = data, .bytes = bytes, .give_back = give_back, .hint = hint};
    fake.live++;
    return 0;
}

static int message_close(union hfd_zmq_message *m)
{
    if (of(m)->block || of(m)->give_back)
        fake.live--;
    if (of(m)->give_back)
        of(m)->give_back(of(m)->data, of(m)->hint);
    free(of(m)->block);
    return message_init(m);
}

static void *message_data(union hfd_zmq_message *m)
{
    return of(m)->data;
}

static size_t message_size(const union hfd_zmq_message *m)
{
    return of(m)->bytes;
}

static int message_more(const union hfd_zmq_message *m)
{
    return of(m)->more;
}

static int fail(int error)
{
    last_error = error;
    return -1;
}

static int message_receive(union hfd_zmq_message *m, void *socket, int flags)
{
    struct fake_queue *q = socket;
    static const struct fake_part last; /* of a message that has no end: libzmq hands out whole ones only */
    const struct fake_part *part = q->taken < q->n ? &q->part[q->taken] : NULL;
    bool first = !q->in_message;

    MUST(flags & ZMQ_DONTWAIT);
    if (q->in_message && (!part || part->error)) {
        part = &last;
    } else {
        if (!part)
            return fail(EAGAIN);
        q->taken++;
        if (part->error)
            return fail(part->error);
    }
    q->in_message = part->more;
    message_close(m);
    message_init_size(m, part->bytes);
    if (part->bytes)
        memcpy(of(m)->data, part->data, part->bytes);
    of(m)->more = part->more;
    if (q == &fake.dealer && first && fake.on_message)
        fake.on_message(part->data, part->bytes);
    return (int)part->bytes;
}

static void answer_round(void)
{
    for (size_t i = 0; i < fake.later.n; i++) {
        const struct fake_part *part = &fake.later.part[i];

        fake_put(&fake.dealer, part->data, part->bytes, part->more, part->error);
    }
    fake.later.n = 0;
    if (fake.on_round)
        fake.on_round();
}

static int message_send(union hfd_zmq_message *m, void *socket, int flags)
{
    static bool in_message; /* a first part was sent whose second is due */
    struct hw_header head;

    MUST(socket == &fake.dealer && flags & ZMQ_DONTWAIT);
    if (fake.broken_sends)
        return in_message = false, fail(ETERM);
    if (fake.refused_sends && !in_message) {
        fake.refused_sends--;
        return fail(EAGAIN);
    }
    if (!in_message) {
        MUST(of(m)->bytes >= sizeof(head));
        memcpy(&head, of(m)->data, sizeof(head));
        MUST(head.magic == HW_MAGIC && head.body_bytes == of(m)->bytes - sizeof(head));
        MUST((head.type == HW_ROUND) == !!(flags & 2));
    }
    if (in_message)
        answer_round();
    in_message = flags & 2;
    message_close(m);
    return 0;
}

static int socket_option(void *socket, int option, void *value, size_t *size)
{
    (void)socket;
    MUST(*size == sizeof(int) && (option == 14 || option == 15)); /* FD, EVENTS */
    *(int *)value = option == 14 ? 1000 : fake.refused_sends ? 1 : 3;
    return 0;
}

static int error_of(void)
{
    return last_error;
}

struct hfd_zmq fake_library = {
    .statm = -1,
    .msg_init = message_init,
    .msg_init_size = message_init_size,
    .msg_init_data = message_init_data,
    .msg_data = message_data,
    .msg_size = message_size,
    .msg_more = message_more,
    .msg_close = message_close,
    .msg_send = message_send,
    .msg_recv = message_receive,
    .getsockopt = socket_option,
    .error = error_of,
};

/* The kernel's socket under the DEALER: only asked for its name and its TCP_INFO. */
int __wrap_getsockopt(int connection, int level, int option, void *value, socklen_t *size);
int __wrap_getsockopt(int connection, int level, int option, void *value, socklen_t *size)
{
    struct tcp_info info = {.tcpi_bytes_received = fake.kernel_bytes};

    if (level == SOL_SOCKET && option == SO_COOKIE) {
        MUST(*size == sizeof(uint64_t));
        memcpy(value, &(uint64_t){(uint64_t)connection + 1}, sizeof(uint64_t));
        return 0;
    }
    MUST(level == IPPROTO_TCP && option == TCP_INFO && *size >= sizeof(info));
    memcpy(value, &info, sizeof(info));
    return 0;
}

void fake_reset(void)
{
    fake.dealer.n = fake.dealer.taken = fake.monitor.n = fake.monitor.taken = fake.later.n = 0;
    fake.dealer.in_message = fake.monitor.in_message = false;
    fake.refused_sends = 0;
    fake.broken_sends = false;
    fake.kernel_bytes = 0;
}

bool fake_put(struct fake_queue *q, const uint8_t *data, size_t bytes, bool more, int error)
{
    if (q->n == FAKE_PARTS)
        return false;
    q->part[q->n++] = (struct fake_part){.data = data, .bytes = bytes, .more = more, .error = error};
    return true;
}

size_t fake_waiting(const struct fake_queue *q)
{
    return q->n - q->taken;
}
