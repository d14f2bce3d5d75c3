/* test_rendezvous.c - ids, and ranks that find each other or learn why they cannot. Each rank is a
 * thread. Strangers are plain sockets. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/boot.h"

#include <criterion/criterion.h>
#include <sys/wait.h>

#define LIMIT 15 /* time limit of each test, in seconds */

/* ---- ids ---- */

Test(id, what_goes_in_comes_out)
{
    dcommi_id_parts in = {.port = 4711, .secret = "0123456789abcde", .naddrs = 3}, out;
    dcomm_id id;
    dcommi_addr_literal("10.20.30.40", 0, &in.addrs[0]);
    dcommi_addr_literal("[2001:db8::5]", 0, &in.addrs[1]);
    dcommi_addr_literal("127.0.0.1", 0, &in.addrs[2]);
    dcommi_id_format(&in, &id);
    cr_assert_eq(dcommi_id_parse(&id, &out), DCOMM_OK);
    cr_assert(out.port == 4711 && out.naddrs == 3);
    cr_assert_arr_eq(out.secret, in.secret, DCOMMI_ID_SECRET);
    char text[DCOMMI_SOCK_TEXT];
    dcommi_addr_text(&out.addrs[0], text);
    cr_assert_str_eq(text, "10.20.30.40:4711");
    dcommi_addr_text(&out.addrs[1], text);
    cr_assert_str_eq(text, "[2001:db8::5]:4711");
}

Test(id, damage_is_seen)
{
    dcommi_id_parts in = {.port = 4711, .naddrs = 8}, out;
    dcomm_id id;
    for (int i = 0; i < 8; i++) {
        dcommi_addr_literal("2001:db8::1", 0, &in.addrs[i]); /* more addresses than fit */
    }
    dcommi_id_format(&in, &id);
    cr_assert_eq(dcommi_id_parse(&id, &out), DCOMM_OK);
    cr_assert_eq(out.naddrs, 5);
    for (size_t i = 0; i < DCOMM_ID_BYTES; i++) {
        id.bytes[i] ^= 4;
        cr_assert_eq(dcommi_id_parse(&id, &out), DCOMM_ERR_INVALID, "byte %zu", i);
        id.bytes[i] ^= 4;
    }
    size_t end = DCOMMI_ID_FIRST + 5 * 17; /* the end of the addresses */
    id.bytes[end] = 6;
    dcommi_id_checksum(id.bytes, id.bytes + DCOMMI_ID_CHECK);
    cr_assert_eq(dcommi_id_parse(&id, &out), DCOMM_ERR_INVALID, "an address beyond the end");
    memset(&id, 0, sizeof id);
    cr_assert_eq(dcommi_id_parse(&id, &out), DCOMM_ERR_INVALID);
}

/* ---- frames ---- */

Test(frames, come_once_and_in_order)
{
    uint8_t frame[DCOMMI_RDV_HEADER + DCOMMI_RDV_TAG], key[DCOMMI_RDV_KEY] = "secret";
    dcommi_rdv_header h;
    size_t len = dcommi_rdv_put_tagged(frame, DCOMMI_RDV_READY, 5, NULL, 0, key);
    cr_assert(len == sizeof frame && dcommi_rdv_get_header(frame, &h));
    cr_assert(dcommi_rdv_genuine(frame, &h, 5, key));
    cr_assert_not(dcommi_rdv_genuine(frame, &h, 6, key), "it has come before");
    cr_assert_not(dcommi_rdv_genuine(frame, &h, 4, key), "one before it is missing");
    frame[len - 1] ^= 1;
    cr_assert_not(dcommi_rdv_genuine(frame, &h, 5, key));
}

Test(frames, results_and_reasons)
{
    uint8_t p[32] = {0};
    size_t lens[2], blobs;
    char why[DCOMMI_RDV_REASON_MAX + 1];
    dcommi_put32(p, 2); /* two ranks, and the bytes that each has sent */
    dcommi_put32(p + 4, 3);
    dcommi_put32(p + 8, 2);
    cr_assert(dcommi_rdv_get_result(p, 17, 2, lens, &blobs) && blobs == 12 && lens[1] == 2);
    cr_assert_not(dcommi_rdv_get_result(p, 16, 2, lens, &blobs));
    cr_assert_not(dcommi_rdv_get_result(p, 18, 2, lens, &blobs));
    cr_assert_not(dcommi_rdv_get_result(p, 17, 3, lens, &blobs));
    uint32_t len = dcommi_rdv_put_reason(p, DCOMM_ERR_PEER, "a\x1b[2Jb");
    cr_assert_eq(dcommi_rdv_get_reason(p, len, why), DCOMM_ERR_PEER);
    cr_assert_str_eq(why, "a?[2Jb", "a terminal's commands are left out");
}

/* ---- ranks as threads ---- */

typedef struct rank_run {
    dcomm_comm_opts opts;
    double timeout_s;
    size_t blob; /* bytes; rank r sends r more */
    int rounds;
    bool vanish; /* close the connection instead of gathering */
    const _Atomic int *cancel;
    pthread_t thread;
    dcomm_status status;
    double seconds;
    char why[DCOMMI_MESSAGE_MAX];
} rank_run;

static dcomm_status run_rounds(rank_run *r, dcommi_boot *boot)
{
    for (int round = 0; round < r->rounds; round++) {
        size_t len = r->blob + (size_t)boot->rank, *lens = NULL;
        uint8_t *mine = calloc(len + 1, 1);
        void *all = NULL;
        memset(mine, boot->rank * 16 + round, len);
        dcomm_status status = dcommi_boot_allgather(boot, mine, len, &all, &lens);
        free(mine);
        DCOMMI_TRY(status);
        const uint8_t *at = all;
        for (int peer = 0; peer < boot->size; peer++) {
            cr_assert_eq(lens[peer], r->blob + (size_t)peer);
            for (size_t i = 0; i < lens[peer]; i++) {
                cr_assert_eq(at[i], peer * 16 + round);
            }
            at += lens[peer];
        }
        dcommi_free(all);
        dcommi_free(lens);
    }
    return DCOMM_OK;
}

static void *rank_main(void *argument)
{
    rank_run *r = argument;
    dcommi_boot boot;
    double start = dcommi_now();
    r->status = dcommi_boot_open(&r->opts, r->timeout_s, r->cancel, &boot);
    if (r->status == DCOMM_OK && r->vanish) {
        dcommi_rdv_drop(&boot.client);
    } else if (r->status == DCOMM_OK) {
        r->status = run_rounds(r, &boot);
    }
    memcpy(r->why, dcommi_message, sizeof r->why);
    r->seconds = dcommi_now() - start;
    dcommi_boot_close(&boot, DCOMM_OK);
    return NULL;
}

static void prepare(rank_run *r, const dcomm_id *id, int rank, int size, double timeout_s)
{
    memset(r, 0, sizeof *r);
    r->opts.boot = DCOMM_BOOT_ID;
    r->opts.id = *id;
    r->opts.rank = rank;
    r->opts.size = size;
    r->timeout_s = timeout_s;
    r->rounds = 2;
    r->blob = 100;
}

static void start_rank(rank_run *r)
{
    cr_assert_eq(pthread_create(&r->thread, NULL, rank_main, r), 0);
}

static void join_ranks(rank_run *r, int n)
{
    for (int i = 0; i < n; i++) {
        pthread_join(r[i].thread, NULL);
    }
}

static void expect(const rank_run *r, dcomm_status status, const char *word, double within)
{
    cr_assert_eq(r->status, status, "rank %d: status %d, \"%s\"", r->opts.rank, r->status, r->why);
    cr_assert(word == NULL || strstr(r->why, word) != NULL, "\"%s\" should say \"%s\"", r->why,
              word);
    cr_assert_lt(r->seconds, within, "rank %d took %.2f s", r->opts.rank, r->seconds);
}

static void meet(int n, size_t blob)
{
    dcomm_id id;
    rank_run r[9];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int i = 0; i < n; i++) {
        prepare(&r[i], &id, i, n, 10);
        r[i].blob = blob;
        start_rank(&r[i]);
    }
    join_ranks(r, n);
    for (int i = 0; i < n; i++) {
        expect(&r[i], DCOMM_OK, NULL, 8);
    }
}

Test(rendezvous, one_to_nine_ranks, .timeout = LIMIT)
{
    for (int n = 1; n <= 9; n++) {
        meet(n, 0);
        meet(n, 1000);
    }
}

Test(rendezvous, long_blobs, .timeout = LIMIT)
{
    meet(3, DCOMMI_RDV_BLOB_MAX - 8);
    rank_run r;
    dcomm_id id;
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    prepare(&r, &id, 0, 1, 5);
    r.blob = DCOMMI_RDV_BLOB_MAX + 1;
    rank_main(&r);
    expect(&r, DCOMM_ERR_UNSUPPORTED, "bytes", 2);
}

Test(rendezvous, by_the_launcher_over_ipv6, .timeout = LIMIT)
{
    /* Threads share the environment, so each rank is a process. Run twice, to see the port
     * reused. */
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            char rank[16];
            snprintf(rank, sizeof rank, "%d", i);
            setenv("RANK", rank, 1);
            setenv("WORLD_SIZE", "4", 1);
            setenv("MASTER_ADDR", "::1", 1);
            setenv("MASTER_PORT", "29873", 1);
            setenv("DCOMM_SECRET", "for the test", 1);
            usleep(i == 0 ? 200000 : 0); /* the others connect before rank 0 listens */
            for (int k = 0; k < 2; k++) {
                dcommi_boot boot;
                rank_run r = {.blob = 10, .rounds = 2};
                if (dcommi_boot_open(NULL, 10, NULL, &boot) < 0 || run_rounds(&r, &boot) < 0) {
                    _exit(1);
                }
                dcommi_boot_close(&boot, DCOMM_OK);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        cr_assert_eq(status, 0, "rank %d", i);
    }
}

/* ---- by the caller's function ---- */

static pthread_barrier_t caller_barrier;
static uint8_t caller_memory[4 << 20];
static _Thread_local size_t caller_rank;

static int caller_gather(const void *mine, size_t bytes, void *all, void *user)
{
    memcpy(caller_memory + caller_rank * bytes, mine, bytes);
    pthread_barrier_wait(&caller_barrier);
    memcpy(all, caller_memory, 3 * bytes);
    pthread_barrier_wait(&caller_barrier);
    return *(int *)user;
}

static void *caller_main(void *argument)
{
    caller_rank = (size_t)((rank_run *)argument)->opts.rank;
    return rank_main(argument);
}

Test(rendezvous, by_the_callers_allgather, .timeout = LIMIT)
{
    pthread_barrier_init(&caller_barrier, NULL, 3);
    for (int result = 0; result <= 1; result++) {
        rank_run r[3];
        for (int i = 0; i < 3; i++) {
            prepare(&r[i], &(dcomm_id){{0}}, i, 3, 5);
            r[i].opts.boot = DCOMM_BOOT_ALLGATHER;
            r[i].opts.allgather = caller_gather;
            r[i].opts.allgather_user = &result;
            pthread_create(&r[i].thread, NULL, caller_main, &r[i]);
        }
        join_ranks(r, 3);
        for (int i = 0; i < 3; i++) {
            expect(&r[i], result == 0 ? DCOMM_OK : DCOMM_ERR_RENDEZVOUS, NULL, 5);
        }
    }
}

/* ---- faults ---- */

static int knock(const dcomm_id *id)
{
    dcommi_id_parts parts;
    dcommi_addr a;
    int fd, error;
    cr_assert_eq(dcommi_id_parse(id, &parts), DCOMM_OK);
    dcommi_addr_literal("127.0.0.1", parts.port, &a);
    cr_assert_eq(dcommi_sock_connect(&a, dcommi_now() + 5, NULL, &fd, &error), DCOMM_OK);
    return fd;
}

Test(faults, a_rank_never_comes, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r[4];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int i = 0; i < 3; i++) {
        prepare(&r[i], &id, i == 2 ? 4 : i, 5, 1);
        start_rank(&r[i]);
    }
    join_ranks(r, 3);
    for (int i = 0; i < 3; i++) {
        expect(&r[i], DCOMM_ERR_TIMEOUT, "2-3", 2.5);
    }
}

Test(faults, a_rank_comes_but_does_not_gather, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r[3];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int i = 0; i < 3; i++) {
        prepare(&r[i], &id, i, 3, 5);
        r[i].vanish = i == 1;
        start_rank(&r[i]);
    }
    join_ranks(r, 3);
    expect(&r[0], DCOMM_ERR_PEER, "rank 1", 3);
    expect(&r[2], DCOMM_ERR_PEER, "rank 1", 3);
}

Test(faults, a_wrong_secret_disturbs_nobody, .timeout = LIMIT)
{
    dcomm_id id, wrong;
    rank_run r[3];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    dcommi_id_parts parts;
    cr_assert_eq(dcommi_id_parse(&id, &parts), DCOMM_OK);
    parts.secret[3] ^= 1;
    dcommi_id_format(&parts, &wrong);
    prepare(&r[0], &id, 0, 2, 8);
    start_rank(&r[0]);
    prepare(&r[2], &wrong, 1, 2, 8);
    start_rank(&r[2]);
    pthread_join(r[2].thread, NULL);
    expect(&r[2], DCOMM_ERR_AUTH, "secret", 4);
    prepare(&r[1], &id, 1, 2, 8);
    start_rank(&r[1]);
    join_ranks(r, 2);
    expect(&r[0], DCOMM_OK, NULL, 8);
    expect(&r[1], DCOMM_OK, NULL, 4);
}

Test(faults, two_are_the_same_rank, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r[3];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int i = 0; i < 3; i++) {
        prepare(&r[i], &id, i == 0 ? 0 : 1, 3, 8);
        start_rank(&r[i]);
    }
    join_ranks(r, 3);
    for (int i = 0; i < 3; i++) {
        /* A rank that comes after the serving rank has left finds nobody. */
        expect(&r[i], DCOMM_ERR_RENDEZVOUS, NULL, 5);
    }
    cr_assert(strstr(r[0].why, "two processes") != NULL, "%s", r[0].why);
}

/* Wait until `n` ranks have joined the rendezvous that this process serves. */
static void await_joined(uint32_t n)
{
    for (uint32_t joined = 0; joined < n; usleep(1000)) {
        pthread_mutex_lock(&dcommi_rdv_lock);
        joined = dcommi_rdv_servers != NULL ? dcommi_rdv_servers->core.njoined : n;
        pthread_mutex_unlock(&dcommi_rdv_lock);
    }
}

Test(faults, sizes_differ, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r[3];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int i = 0; i < 2; i++) {
        prepare(&r[i], &id, i, 3, 8);
        start_rank(&r[i]);
    }
    await_joined(2);
    prepare(&r[2], &id, 2, 4, 8);
    start_rank(&r[2]);
    join_ranks(r, 3);
    for (int i = 0; i < 3; i++) {
        expect(&r[i], DCOMM_ERR_MISMATCH, "rank 2 says that there are 4 ranks", 5);
    }
}

Test(faults, an_id_serves_once, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r[2];
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 2; i++) {
            prepare(&r[i], &id, i, 2, 8);
            start_rank(&r[i]);
        }
        join_ranks(r, 2);
        for (int i = 0; i < 2; i++) {
            expect(&r[i], turn == 0 ? DCOMM_OK : DCOMM_ERR_RENDEZVOUS,
                   turn == 0 ? NULL : "an id serves one communicator", 6);
        }
    }
}

Test(faults, cancelled_while_waiting, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r[2];
    _Atomic int cancel = 0;
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    for (int i = 0; i < 2; i++) {
        prepare(&r[i], &id, i, 3, 60);
        r[i].cancel = i == 1 ? &cancel : NULL;
        start_rank(&r[i]);
    }
    usleep(200000);
    cancel = 1;
    join_ranks(r, 2);
    expect(&r[1], DCOMM_ERR_ABORTED, "cancelled", 2.5);
    /* The cancelled rank might have come back. If it does not, the others learn that it was
     * there. */
    expect(&r[0], DCOMM_ERR_PEER, "rank 1", 6);
}

/* A peer that knows the secret but runs another version is refused. */
Test(faults, versions_differ, .timeout = LIMIT)
{
    dcomm_id id;
    rank_run r;
    dcommi_id_parts parts;
    uint8_t challenge[DCOMMI_RDV_CHALLENGE_FRAME], hello[DCOMMI_RDV_HELLO_FRAME];
    uint8_t key[DCOMMI_RDV_KEY], nonce[DCOMMI_RDV_NONCE] = {0};
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    cr_assert_eq(dcommi_id_parse(&id, &parts), DCOMM_OK);
    dcommi_id_key(&parts, key);
    prepare(&r, &id, 0, 2, 8);
    start_rank(&r);
    usleep(100000);
    int fd = knock(&id);
    dcommi_rdv_hello h = {.rank = 1, .size = 2, .wire = 1, .lib = 0x090807, .timeout_ms = 1000};
    cr_assert_eq(dcommi_sock_read(fd, challenge, sizeof challenge, dcommi_now() + 5, NULL),
                 DCOMM_OK);
    size_t len = dcommi_rdv_put_hello(hello, &h, nonce, challenge, key);
    cr_assert_eq(send(fd, hello, len, MSG_NOSIGNAL), (ssize_t)len);
    pthread_join(r.thread, NULL);
    expect(&r, DCOMM_ERR_MISMATCH, "rank 1 runs dcomm 9.8.7", 3);
    close(fd);
}

/* ---- strangers ---- */

/* Return this process's open descriptors; they include the server's. */
static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 2000; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/* Strangers do all that they can to the server; ranks meet meanwhile. */
Test(strangers, disturb_nobody, .timeout = LIMIT)
{
    enum { MANY = 300 };
    dcomm_id id;
    rank_run r[3];
    int fds[MANY], before = open_descriptors();
    cr_assert_eq(dcomm_id_create(&id), DCOMM_OK);
    prepare(&r[0], &id, 0, 3, 10);
    start_rank(&r[0]);
    for (int i = 0; i < MANY; i++) {
        uint8_t junk[256];
        fds[i] = knock(&id);
        dcommi_random_bytes(junk, sizeof junk);
        if (i % 5 == 1) { /* garbage; i % 5 == 0 sends nothing */
            (void)!send(fds[i], junk, sizeof junk, MSG_NOSIGNAL);
        } else if (i % 5 == 2) { /* half a handshake */
            dcommi_rdv_put_header(junk, DCOMMI_RDV_HELLO, 0, DCOMMI_RDV_HELLO_LEN);
            (void)!send(fds[i], junk, 40, MSG_NOSIGNAL);
        } else if (i % 5 == 3) { /* a frame that only ranks may send, with a huge length */
            dcommi_rdv_put_header(junk, DCOMMI_RDV_GATHER, 0, UINT32_MAX);
            (void)!send(fds[i], junk, sizeof junk, MSG_NOSIGNAL);
        } else if (i % 5 == 4) { /* a handshake with a wrong proof is rejected, and stays open */
            uint8_t challenge[DCOMMI_RDV_CHALLENGE_FRAME], hello[DCOMMI_RDV_HELLO_FRAME];
            uint8_t key[DCOMMI_RDV_KEY] = {0}, answer[DCOMMI_RDV_HEADER];
            dcommi_rdv_hello h = {.rank = 1, .size = 3, .wire = 1, .lib = DCOMMI_RDV_LIB_VERSION};
            dcommi_rdv_header header;
            double until = dcommi_now() + 5;
            cr_assert_eq(dcommi_sock_read(fds[i], challenge, sizeof challenge, until, NULL),
                         DCOMM_OK);
            size_t len = dcommi_rdv_put_hello(hello, &h, junk, challenge, key);
            (void)!send(fds[i], hello, len, MSG_NOSIGNAL);
            cr_assert_eq(dcommi_sock_read(fds[i], answer, sizeof answer, until, NULL), DCOMM_OK);
            cr_assert(dcommi_rdv_get_header(answer, &header));
            cr_assert_eq(header.type, DCOMMI_RDV_REJECT);
        }
    }
    cr_assert_lt(open_descriptors(), before + MANY + 80, "strangers pile up");
    for (int i = 1; i < 3; i++) {
        prepare(&r[i], &id, i, 3, 10);
        start_rank(&r[i]);
    }
    join_ranks(r, 3);
    for (int i = 0; i < 3; i++) {
        expect(&r[i], DCOMM_OK, NULL, 8);
    }
    for (int i = 0; i < MANY; i++) {
        close(fds[i]);
    }
}

/* The peer that answers is no rendezvous, or sends nothing. */
Test(strangers, as_servers, .timeout = LIMIT)
{
    for (int mute = 0; mute <= 1; mute++) {
        dcommi_addr a;
        socklen_t len = sizeof a;
        dcommi_addr_literal("127.0.0.1", 0, &a);
        int fd = dcommi_sock_listen(&a, false);
        cr_assert(fd >= 0 && getsockname(fd, &a.any, &len) == 0);
        dcommi_id_parts parts = {.port = ntohs(a.v4.sin_port), .naddrs = 1, .addrs = {a}};
        dcomm_id id;
        dcommi_id_format(&parts, &id);
        rank_run r;
        prepare(&r, &id, 0, 2, 1);
        start_rank(&r);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, 2000);
        int peer = accept(fd, NULL, NULL);
        if (!mute) {
            (void)!send(peer, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
        }
        pthread_join(r.thread, NULL);
        expect(&r, DCOMM_ERR_TIMEOUT, NULL, 2);
        close(peer);
        close(fd);
    }
}
