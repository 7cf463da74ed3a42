/* SPDX-License-Identifier: Apache-2.0 */
/* The region: a sealed memfd, made once, checked before it is mapped, mapped with the rights of a side. */
#include "hostflag.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

/* Without these the other side could shrink the file under a map: SIGBUS, or pages that are nobody's. */
#define REGION_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int create_memfd(void)
{
    int fd = memfd_create("dsv41-region", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("dsv41-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

static int write_header(int fd, const struct hf_geometry *g, const struct hf_layout *l)
{
    struct hf_header h = {
        .magic = HF_MAGIC,
        .version = HF_LAYOUT_VERSION,
        .bytes = sizeof(h),
        .layout_hash = hf_layout_hash(),
        .geometry = *g,
        .layout = *l,
    };

    if (getrandom(h.region_id, sizeof(h.region_id), 0) != (ssize_t)sizeof(h.region_id))
        return -EIO;
    if (pwrite(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h))
        return -EIO;
    return 0;
}

/* A slot that no round has used yet holds the round S before it, decided: nothing is OPEN that nobody opened. */
static int write_verdicts(int fd, const struct hf_geometry *g, const struct hf_layout *l)
{
    for (uint32_t i = 0; i < g->slots; i++) {
        uint64_t value = hf_verdict_pack(i - g->slots, HF_OK);
        uint64_t at = l->shared_words + offsetof(struct hf_shared_words, verdict) + i * sizeof(struct hf_verdict_word);

        if (pwrite(fd, &value, sizeof(value), (off_t)at) != (ssize_t)sizeof(value))
            return -EIO;
    }
    return 0;
}

int hf_region_create(const struct hf_geometry *g)
{
    struct hf_layout l;
    int r, fd;

    r = hf_layout_of(g, &l);
    if (r < 0)
        return r;
    fd = create_memfd();
    if (fd < 0)
        return fd;
    /* Allocated now, so that a lack of memory is an error here and not SIGBUS in the middle of a round. */
    if (fallocate(fd, 0, 0, (off_t)l.bytes) < 0) {
        r = -errno;
        goto fail;
    }
    r = write_header(fd, g, &l);
    if (r < 0)
        goto fail;
    r = write_verdicts(fd, g, &l);
    if (r < 0)
        goto fail;
    if (fcntl(fd, F_ADD_SEALS, REGION_SEALS) < 0) {
        r = -errno;
        goto fail;
    }
    return fd;
fail:
    close(fd);
    return r;
}

static const char *header_fault(const struct hf_header *h, off_t size)
{
    struct hf_layout l;

    if (h->magic != HF_MAGIC)
        return "not a region: wrong magic";
    if (h->version != HF_LAYOUT_VERSION || h->bytes != sizeof(*h))
        return "another layout version: update the older of the two sides";
    if (h->layout_hash != hf_layout_hash())
        return "another layout: the two sides were built from different sources";
    if (hf_layout_of(&h->geometry, &l) < 0)
        return "the header's geometry is out of bounds";
    if (memcmp(&l, &h->layout, sizeof(l)) != 0)
        return "the header's offsets do not follow from its geometry";
    if ((uint64_t)size != l.bytes)
        return "the file is not as large as its header says";
    return NULL;
}

int hf_region_check(int fd, struct hf_header *ret_header, const char **ret_reason)
{
    struct hf_header h;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0) {
        *ret_reason = "not a memfd";
        return -EINVAL;
    }
    if ((seals & REGION_SEALS) != REGION_SEALS) {
        *ret_reason = "not sealed: its size could change under the map";
        return -EPERM;
    }
    if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
        *ret_reason = "sealed against writing";
        return -EPERM;
    }
    if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(h)) {
        *ret_reason = "too small for a header";
        return -EINVAL;
    }
    if ((uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size) {
        *ret_reason = "sparse: a page that is not allocated yet is SIGBUS to whoever touches it where memory is short";
        return -ENOMEM;
    }
    if (pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h)) {
        *ret_reason = "the header cannot be read";
        return -EIO;
    }
    *ret_reason = header_fault(&h, st.st_size);
    if (*ret_reason)
        return -EINVAL;
    *ret_header = h;
    return 0;
}

/* Opens one part for writing within a map that is otherwise read-only. */
static int open_part(unsigned char *base, uint64_t from, uint64_t to)
{
    return mprotect(base + from, to - from, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
}

int hf_region_map(int fd, const struct hf_header *h, enum hf_side side, struct hf_region *ret_region)
{
    const struct hf_layout *l = &h->layout;
    int protection = side == HF_SIDE_ENGINE ? PROT_READ | PROT_WRITE : PROT_READ;
    unsigned char *base;
    int r;

    base = mmap(NULL, l->bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    if (side == HF_SIDE_DAEMON) {
        /* The daemon may write the words it shares, its own words and the replies: a late proxy that still writes
           staged rows is stopped by the MMU, not by good will. */
        r = open_part(base, l->shared_words, l->slots);
        if (r < 0)
            goto fail;
        r = open_part(base, l->replies, l->stats);
        if (r < 0)
            goto fail;
    }
    ret_region->base = base;
    ret_region->geometry = h->geometry;
    ret_region->layout = h->layout;
    ret_region->engine = (struct hf_engine_words *)(base + l->engine_words);
    ret_region->shared = (struct hf_shared_words *)(base + l->shared_words);
    ret_region->daemon = (struct hf_daemon_words *)(base + l->daemon_words);
    ret_region->stats = (struct hf_stats *)(base + l->stats);
    return 0;
fail:
    munmap(base, l->bytes);
    return r;
}

void hf_region_unmap(struct hf_region *r)
{
    if (!r->base)
        return;
    munmap(r->base, r->layout.bytes);
    r->base = NULL;
}

int hf_region_lock(const struct hf_region *r)
{
    return mlock(r->base, r->layout.bytes) < 0 ? -errno : 0;
}

uint32_t hf_word_load(const struct hf_region *r, enum hf_word_id id)
{
    struct hf_word *const words[HF_WORD_MAX] = {
        [HF_WORD_SUBMITTED] = &r->engine->submitted, [HF_WORD_GATHERED] = &r->engine->gathered,
        [HF_WORD_CONSUMED] = &r->engine->consumed,   [HF_WORD_LOST] = &r->engine->lost,
        [HF_WORD_PARKED] = &r->engine->parked,       [HF_WORD_RELEASED] = &r->shared->released,
        [HF_WORD_RETIRED] = &r->daemon->retired,     [HF_WORD_BEAT] = &r->daemon->beat,
        [HF_WORD_PHASE] = &r->daemon->phase,         [HF_WORD_WAITING] = &r->daemon->waiting,
    };

    if ((uint32_t)id >= HF_WORD_MAX)
        return 0;
    /* Acquire: pairs with the release of whoever writes the word. */
    return atomic_load_explicit(&words[id]->value, memory_order_acquire);
}
