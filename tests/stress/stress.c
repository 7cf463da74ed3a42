/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: one session after the other, each with a round loop of its own, over few regions. A session ends because its daemon
 * dies at some point, stands still, is stopped, or the engine gives it up; the next one adopts a region whose owner is gone.
 * stress_parse says how it is used.
 */
#include "stress.h"

#include "shared.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIMIT_NS (60000 * MS) /* of whatever must end by itself */

static const struct hf_geometry geometry = {
    .slots = 4, .max_requests = REQUESTS, .state_slots = REQUESTS, .row_bytes = ROW_BYTES, .window = 16, .drafts = DRAFTS,
    .vocab = VOCAB, .ring_bytes = HF_PART_ALIGN,
};

/* A region and whoever has it or had it last. */
struct place {
    struct hfe_region *region;
    struct hfe_session *session;
    struct stress_daemon *daemon;
    int ours, loss_fd; /* our end of the session's socket, or -1 */
};
static struct place places[3];
static struct stress_engine engine;
static const struct hfe_stream *checked;

static bool over(void)
{
    return atomic_load(&stress_counts.rounds) >= stress_options.rounds || hf_now_ns() > stress_options.until_ns;
}

static void expect(bool true_of, const char *what)
{
    if (!true_of)
        stress_violation("the keeper: %s", what);
}

static void open_region(struct place *p)
{
    /* The counter wraps soon: within 60 rounds in every other region, the first one among them. */
    uint32_t base = (uint32_t)(20 + stress_random() % (atomic_load(&stress_counts.regions) % 2 ? 800 : 40)) * UINT32_MAX;
    const char *reason = "no memfd";
    int fd = hf_region_create(&geometry);

    stress_private_map = true;
    expect(fd >= 0 && hfp_region_rebase(fd, base, &reason) == 0, "no region");
    stress_private_map = false;
    expect(hfe_region_open(fd, checked, 40, &p->region, &reason) == 0, "a region cannot be opened");
    close(fd);
    atomic_fetch_add(&stress_counts.regions, 1);
}

/* Never used again, once a submit failed half-way on it. */
static void close_region(struct place *p)
{
    expect(hfs_wait(engine.stream, hfs_marker(engine.stream), LIMIT_NS) == 0, "the stream is stuck");
    expect(hfe_region_close(p->region) == 0, "a region cannot be closed");
    p->region = NULL;
}

/* Returned links are closed, wanted ones given. */
static void hear(struct stress_daemon *d)
{
    struct hfd_event event;

    while (hfd_loop_event(d->loop, &event)) {
        if (event.kind == HFD_EVENT_FAULT || event.kind == HFD_EVENT_BAD_GATHER)
            stress_violation("the daemon says: %s", event.reason);
        if (event.kind == HFD_EVENT_LINK_RETURNED)
            stress_link_returned(d, event.tag);
        if (event.kind == HFD_EVENT_LINK_WANTED)
            stress_link_give(d);
    }
}

static void start_daemon(struct place *p, uint32_t base, int theirs)
{
    struct stress_daemon *d = p->daemon;
    struct hfd_config config = {
        .session = d->session, .base = base, .socket = theirs, .network_timeout_ns = 2 * MS, .spin_ns = 5000, .nap_ns = 5000,
        .open_limit_ns = 1000 * MS, .breaker_failures = 4, .breaker_cool_ns = 3 * MS,
    };
    const char *reason;

    config.event_fd = d->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    stress_starting(d);
    if (hfd_loop_start(hfe_region_fd(p->region), &config, &d->loop, &reason) < 0)
        stress_violation("no round loop: %s", reason);
    stress_started();
    if (stress_options.maps == 1)
        expect(d->loop->region.base == stress_regions[0].map.base || stress_region_at(d->loop->region.base), "the daemon has a map of its own");
    stress_link_give(d);
}

/* After its socket said that it is gone. */
static void end_daemon(struct place *p)
{
    struct stress_daemon *d = p->daemon;

    expect(hfd_loop_join(d->loop, LIMIT_NS) == 0, "a round loop does not end");
    if (atomic_load(&d->dead))
        stress_links_free(d);
    else
        hear(d);
    expect(d->links == NULL, "a link was not returned");
    expect(hfd_loop_free(d->loop) == 0, "a round loop cannot be freed");
    close(d->event_fd);
    free(d);
    close(p->ours);
    p->ours = -1;
}

static bool gone(const struct place *p)
{
    struct pollfd fd = {.fd = p->ours};

    return p->ours < 0 || (poll(&fd, 1, 0) == 1 && (fd.revents & POLLHUP));
}

static void begin_session(struct place *p)
{
    /* The first is shorter than the network timeout: watchdog and daemon decide the same rounds at about the same time. */
    static const uint64_t deadlines_ms[] = {1, 4, 30};
    static uint64_t sessions;
    struct hfe_config config = {
        .session = ++sessions, .deadline_ns = deadlines_ms[stress_random() % 3] * MS, .tick_ns = MS / 4, .starved_ns = 500 * MS,
        .beat_limit_ns = 10000 * MS, .expiries_limit = 3, .unbatched = stress_random() % 4 == 0, .stream_limit_ns = LIMIT_NS,
    };
    const char *reason = NULL;
    uint32_t base;
    int ends[2];

    expect(hfe_region_rest(p->region, &base) == 0, "a region is not at rest");
    hfe_region_mark(p->region, 0);
    expect(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "no socket");
    p->daemon = calloc(1, sizeof(*p->daemon));
    p->daemon->session = sessions;
    start_daemon(p, base, ends[1]);
    config.socket = p->ours = ends[0];
    config.loss_fd = p->loss_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hfe_open(p->region, &config, &p->session, &reason) < 0)
        stress_violation("no session: %s", reason);
    atomic_store(&engine.sync, stress_random() % 8 == 0);
    atomic_store(&engine.offered, p->session);
    atomic_fetch_add(&stress_counts.sessions, 1);
}

/* The engine thread is not in a call on it any more. */
static void withdraw(struct place *p)
{
    atomic_store(&engine.offered, NULL);
    while (atomic_load(&engine.taken) == p->session)
        hf_sleep_ns(20000);
}

static void disturb(struct place *p)
{
    struct stress_daemon *d = p->daemon;
    uint64_t chance = stress_random() % 100;

    if (chance < 40) {
        atomic_fetch_add(&stress_counts.kills, 1);
        atomic_store(&d->killing, 1 + (int)(stress_random() % 60));
    } else if (chance < 48) {
        atomic_fetch_add(&stress_counts.freezes, 1);
        atomic_store(&d->freeze_ns, (20 + stress_random() % 60) * MS);
        hf_sleep_ns(30 * MS); /* three rounds expire, or it goes on */
        hfe_give_up(p->session, HF_LOSS_BEAT);
    } else if (chance < 75) {
        hfd_loop_drain(d->loop);
        hf_sleep_ns(stress_random() % MS);
        (void)hfd_loop_stop(d->loop, NULL, 0);
        atomic_fetch_add(&stress_counts.stopped, 1);
    } else if (chance < 80 && atomic_load(&stress_counts.regions) < REGIONS - 8) {
        atomic_store(&engine.fail, 1);
        hf_sleep_ns(2 * MS);
        atomic_store(&engine.fail, 0);
        hfe_give_up(p->session, HF_LOSS_BEAT);
    } else if (chance < 90) {
        withdraw(p); /* a clean end: the daemon still runs */
        expect(hfe_end(p->session, LIMIT_NS) == 0, "a session does not end");
        hfe_region_mark(p->region, 1);
    } else {
        hfe_give_up(p->session, HF_LOSS_CLOSED);
    }
}

/* From the offer to the end of the watchdog. */
static void live(struct place *p)
{
    uint64_t until = hf_now_ns() + (stress_options.deaths ? stress_random() % stress_options.longest_ns : LIMIT_NS);
    bool disturbed = false;

    while (!hfe_ended(p->session)) {
        struct pollfd fds[2] = {{.fd = p->daemon->event_fd, .events = POLLIN}, {.fd = p->loss_fd, .events = POLLIN}};
        eventfd_t n;

        (void)poll(fds, 2, 1);
        if (eventfd_read(p->daemon->event_fd, &n) == 0)
            hear(p->daemon);
        if (!disturbed && (over() || hf_now_ns() > until)) {
            disturbed = true;
            if (stress_options.deaths)
                disturb(p);
            else
                (void)hfd_loop_stop(p->daemon->loop, NULL, 0);
        }
    }
    withdraw(p);
    expect(hfe_end(p->session, 0) == 0, "an ended session does not end");
    close(p->loss_fd);
}

/* A region that can be had: at rest, its owner gone. A new one where those that are known cannot. */
static struct place *pick(void)
{
    for (;;) {
        for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
            struct place *p = &places[i];

            if (p->region && !gone(p) && !stress_options.early) {
                hear(p->daemon);
                continue;
            }
            if (p->ours >= 0 && !stress_options.early)
                end_daemon(p);
            if (p->region && hfe_region_poisoned(p->region))
                close_region(p);
            if (!p->region)
                open_region(p);
            else
                atomic_fetch_add(&stress_counts.adoptions, 1);
            return p;
        }
        hf_sleep_ns(100000);
    }
}

static void run(void)
{
    static const uint32_t intensities[] = {32, 256, 4096};
    struct hfe_session *before = NULL;

    while (!over()) {
        struct place *p = pick();

        stress_intensity(stress_options.intensity ? stress_options.intensity : intensities[stress_random() % 3]);
        begin_session(p);
        if (before) {
            while (atomic_load(&engine.taken) != p->session)
                hf_sleep_ns(20000);
            hfe_free(before);
        }
        live(p);
        before = p->session;
    }
    stress_intensity(0);
    atomic_store(&engine.over, 1);
}

int main(int argc, char **argv)
{
    static _Atomic int stop;
    pthread_t engine_thread, monitor;

    if (!stress_parse(argc, argv))
        return 2;
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
        places[i].ours = -1;
    expect(hfs_open(&engine.stream) == 0, "no stream");
    checked = stress_stream(engine.stream);
    expect(hfe_spare_open(checked, &geometry, &engine.spare) == 0, "no spare");
    pthread_create(&monitor, NULL, stress_monitor, &stop);
    pthread_create(&engine_thread, NULL, stress_engine_thread, &engine);
    run();
    pthread_join(engine_thread, NULL);
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
        if (places[i].ours >= 0)
            end_daemon(&places[i]);
    atomic_store(&stop, 1);
    pthread_join(monitor, NULL);
    stress_report();
    return 0;
}
