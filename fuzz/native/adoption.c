/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the region that the other side hands over: what the descriptor is, its seals, its size, its header, its words.
 * What is taken for a region must be one: laid out as its geometry says, every byte of it there; and a loop must start on it
 * only where it is at rest at the base. pthread_create is made to fail, so a loop that would start says that.
 */
#include "cursor.h"
#include "roundloop.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (4u << 20) /* larger ones are left small: a file that is not as large as its header says */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define NO_THREAD "no thread for the round loop"

static const struct hf_geometry usual = {.slots = 4, .max_requests = 2, .state_slots = 4, .row_bytes = 16, .window = 8,
                                         .drafts = 2, .vocab = 1000, .ring_bytes = 65536};

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument)
{
    (void)thread, (void)attributes, (void)main, (void)argument;
    return EAGAIN;
}

static int no_memfd(uint8_t which)
{
    int fds[2] = {-1, -1};

    switch (which & 3) {
    case 0:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 1:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case 2:
        MUST(pipe2(fds, O_CLOEXEC) == 0);
        break;
    default:
        MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    }
    close(fds[1]);
    return fds[0];
}

/* The header that fits the geometry, or the usual one's where that is out of bounds; then what the input spoils. */
static size_t header_of(struct cursor *c, uint8_t how, struct hf_header *ret_header)
{
    struct hf_geometry g = usual;
    size_t got;
    const uint8_t *at = cursor_bytes(c, how & 1 ? sizeof(g) : 0, &got);

    memcpy(&g, at, got);
    if (how & 2) { /* near what may be */
        g.slots = 4u << (g.slots & 3);
        g.max_requests = 1 + g.max_requests % 4;
        g.state_slots = g.max_requests + g.state_slots % 4;
        g.row_bytes = 8 + g.row_bytes % 16 * 8;
        g.drafts = 1 + g.drafts % 4;
        g.extra_bytes %= 9;
        g.ring_bytes = (1 + g.ring_bytes % 3) * HF_PART_ALIGN;
    }
    *ret_header = (struct hf_header){.magic = HF_MAGIC, .version = HF_LAYOUT_VERSION, .bytes = sizeof(*ret_header),
                                     .layout_hash = hf_layout_hash(), .geometry = g};
    if (hf_layout_of(&g, &ret_header->layout) < 0)
        MUST(hf_layout_of(&usual, &ret_header->layout) == 0);
    got = ret_header->layout.bytes;
    for (int i = how >> 2 & 3; i > 0; i--) {
        size_t offset = cursor_u16(c) % sizeof(*ret_header), width = 1 + (cursor_u8(c) & 7), n;

        at = cursor_bytes(c, width < sizeof(*ret_header) - offset ? width : sizeof(*ret_header) - offset, &n);
        memcpy((unsigned char *)ret_header + offset, at, n);
    }
    return got;
}

static int make(struct cursor *c, uint8_t how)
{
    static const int seals[] = {SEALS, SEALS, SEALS, SEALS, SEALS, 0, SEALS | F_SEAL_WRITE, SEALS | 0x10 /* FUTURE_WRITE */,
                                F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_GROW | F_SEAL_SEAL};
    uint8_t seal = cursor_u8(c);
    struct hf_header h;
    size_t bytes = header_of(c, how, &h);
    int fd = memfd_create("fuzz", MFD_CLOEXEC | (seal == 255 ? 0 : MFD_ALLOW_SEALING));

    MUST(fd >= 0);
    if (bytes > MOST_BYTES)
        bytes = HF_PART_ALIGN;
    if ((how & 0x30) == 0x30)
        bytes = (size_t)((int64_t)bytes + (int8_t)cursor_u8(c) * (cursor_u8(c) & 1 ? 4096 : 1));
    if ((how & 0x70) == 0x70) /* sparse, but for what is written */
        MUST(ftruncate(fd, (off_t)bytes) == 0);
    else
        MUST(bytes == 0 || fallocate(fd, 0, 0, (off_t)bytes) == 0);
    MUST(pwrite(fd, &h, bytes < sizeof(h) ? bytes : sizeof(h), 0) >= 0);
    if (seal != 255)
        MUST(fcntl(fd, F_ADD_SEALS, seals[seal % (sizeof(seals) / sizeof(seals[0]))]) == 0);
    return fd;
}

/* Independent of layout.c: parts in order, aligned, none in another, and what is in them fits. */
static void judge_header(int fd, const struct hf_header *h)
{
    const struct hf_geometry *g = &h->geometry;
    const struct hf_layout *l = &h->layout;
    const uint64_t at[] = {sizeof(*h), l->engine_words, l->engine_words + sizeof(struct hf_engine_words), l->shared_words,
                           l->shared_words + sizeof(struct hf_shared_words), l->daemon_words,
                           l->daemon_words + sizeof(struct hf_daemon_words), l->slots, l->slots + g->slots * l->slot_stride,
                           l->replies, l->replies + g->slots * l->reply_stride, l->stats, l->stats + sizeof(struct hf_stats),
                           l->rows, l->rows + g->ring_bytes, l->bytes};
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    MUST(fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= l->bytes);
    for (size_t i = 1; i < sizeof(at) / sizeof(at[0]); i++)
        MUST(at[i - 1] <= at[i]);
    MUST((l->engine_words | l->shared_words | l->daemon_words | l->slots | l->replies | l->stats | l->rows) % HF_PART_ALIGN == 0);
    MUST(l->bytes == (uint64_t)lseek(fd, 0, SEEK_END) && (seals & SEALS) == SEALS && !(seals & F_SEAL_WRITE));
    MUST(g->slots >= 4 && g->slots <= HF_MAX_SLOTS && (g->slots & (g->slots - 1)) == 0 && g->vocab >= 1 && g->vocab <= INT32_MAX);
    MUST(g->max_requests >= 1 && g->max_requests <= g->state_slots);
    MUST(sizeof(struct hf_round) + g->max_requests * sizeof(struct hf_request) <= l->gpu_header);
    MUST(l->num_sampled + g->max_requests * 4 <= l->num_rejected && l->num_rejected + g->max_requests * 4 <= l->last_sampled);
    MUST(l->last_sampled + g->state_slots * 8 <= l->next_prefill && l->next_prefill + g->state_slots * 4 <= l->slot_stride);
    MUST(l->reply_ids + (uint64_t)g->max_requests * g->drafts * 8 <= l->reply_extra);
    MUST(l->reply_extra + (uint64_t)g->max_requests * g->extra_bytes <= l->reply_stride);
}

static void judge_view(int fd)
{
    static struct hf_record records[HF_RECORDS];
    const char *reason = NULL;
    struct hfp_view *view;

    MUST(hfp_view_open(fd, &view, &reason) == 0);
    for (int id = -1; id <= HF_WORD_MAX; id++)
        (void)hfp_view_word(view, id);
    for (uint32_t slot = 0; slot < 2 * HF_MAX_SLOTS; slot++)
        (void)hfp_view_verdict(view, slot);
    MUST(hfp_view_records(view, 1000, records) <= HF_RECORDS);
    hfp_view_close(view);
}

/* The words as the engine left them; a loop starts where they stand still at the base, and nowhere else. */
static void judge_start(struct cursor *c, int fd, const struct hf_header *h)
{
    struct hfd_config config = {.session = 1, .network_timeout_ns = 1, .nap_ns = 1, .open_limit_ns = 1, .socket = -1,
                                .event_fd = -1, .base = cursor_u8(c) & 1 ? 0xffffffff : 2};
    uint32_t base = config.base, words[6];
    struct hf_region r;
    struct hfd_loop *loop = NULL;
    const char *reason = NULL;
    bool rest;

    MUST(hf_region_map(fd, h, HF_SIDE_ENGINE, &r) == 0);
    for (int i = 0; i < 6; i++) {
        uint8_t shift = cursor_u8(c);

        words[i] = shift == 128 ? cursor_u32(c) : i == 3 ? shift & 1 : base + (uint32_t)(int8_t)(shift & 0x81);
    }
    atomic_store(&r.engine->submitted.value, words[0]);
    atomic_store(&r.engine->gathered.value, words[1]);
    atomic_store(&r.engine->consumed.value, words[2]);
    atomic_store(&r.engine->lost.value, words[3]);
    atomic_store(&r.shared->released.value, words[4]);
    atomic_store(&r.daemon->retired.value, words[5]);
    atomic_store(&r.stats->records, cursor_number(c, 8));
    rest = words[0] == base && words[1] == base && words[2] == base && words[3] == 0 && (int32_t)(words[4] - base) <= 0 &&
           (int32_t)(words[5] - base) <= 0;
    MUST(hfd_loop_start(fd, &config, &loop, &reason) < 0 && reason && !loop);
    MUST(rest == (strcmp(reason, NO_THREAD) == 0));
    judge_view(fd);
    hf_region_unmap(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct cursor c = {data, data + bytes};
    uint8_t how = cursor_u8(&c);
    int fd = how == 255 ? no_memfd(cursor_u8(&c)) : make(&c, how);
    const char *reason = NULL;
    struct hf_header h;
    int r = hf_region_check(fd, &h, &reason);

    if (r < 0) {
        MUST(reason && reason[0]);
    } else {
        MUST(!reason && how != 255);
        judge_header(fd, &h);
        judge_start(&c, fd, &h);
    }
    close(fd);
    return 0;
}
