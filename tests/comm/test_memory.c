/* test_memory.c - registered memory: its properties, refusals and lifetime. Peers read it in
 * place, whatever becomes of it, of communicators and of its owner. */
#define _GNU_SOURCE
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { COUNT = 100000, PAGE = 4096 };

typedef struct at_place {
    ranks_place place;
} at_place;

static void on(int n, ranks_place place, procs_fn fn)
{
    int ended[PROCS_MAX];
    at_place arg = {place};
    cr_assert_eq(procs_run(n, 50, fn, &arg, ended), 0, "%d ranks, %s", n, ranks_place_name(place));
}

static void *allocate(dcomm_comm *comm, size_t bytes)
{
    void *p = NULL;
    RANKS_OK(dcomm_mem_alloc(dcomm_comm_context(comm), bytes, &p));
    return p;
}

/* Sum values made from `salt` over ranks, in place. Return the bytes that were read in place. */
static uint64_t all_reduce(dcomm_comm *comm, float *data, size_t count, int salt, const char *algo)
{
    int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    dcomm_coll_opts opts = {.algo = algo};
    dcomm_stats before, after;
    for (size_t i = 0; i < count; i++) {
        data[i] = (float)(rank + 1) * (float)((i + (size_t)salt) % 101);
    }
    RANKS_OK(dcomm_comm_get_stats(comm, &before));
    RANKS_OK(dcomm_allreduce(comm, data, data, count, DCOMM_F32, DCOMM_SUM, &opts));
    RANKS_OK(dcomm_comm_get_stats(comm, &after));
    for (size_t i = 0; i < count; i++) {
        float want = (float)(n * (n + 1) / 2) * (float)((i + (size_t)salt) % 101);
        PROCS_CHECK(data[i] == want, "salt %d: element %zu is %g, not %g", salt, i, (double)data[i],
                    (double)want);
    }
    return after.bytes_mapped - before.bytes_mapped;
}

/* Sum three times with each algorithm: peers learn of the memory, read it, then map it. Check that
 * the last sum was read in place. */
static void expect_mapped(dcomm_comm *comm, float *data, size_t count, bool mapped)
{
    static const char *const algos[] = {"two_shot", "ring"};
    bool apart = dcomm_comm_host(comm, dcomm_comm_size(comm) - 1) > 0;
    for (int a = 0; a < (apart ? 1 : 2); a++) { /* a ring's neighbour may be on another host */
        uint64_t bytes = 0;
        for (int i = 0; i < 3; i++) {
            bytes = all_reduce(comm, data, count, i, algos[a]);
        }
        PROCS_CHECK((bytes > 0) == mapped, "%s: %lu bytes were read in place", algos[a],
                    (unsigned long)bytes);
    }
}

/* Count this process's mappings of shared memory of at least `bytes`, or those that it can write.
 */
static int segments_that(size_t bytes, bool written)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;
    PROCS_TRUE(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long from, to;
        char kind[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, kind) == 3 && kind[3] == 's') {
            n += to - from >= bytes && (!written || kind[1] == 'w');
        }
    }
    fclose(file);
    return n;
}

static int segments(size_t bytes)
{
    return segments_that(bytes, false);
}

/* ---- the calls ---- */

static int calls(int rank, int n, procs_shared *s, void *arg)
{
    (void)rank, (void)n, (void)s, (void)arg;
    dcomm_context *context = NULL;
    dcomm_mem_info info;
    void *p = &info, *q = NULL;
    RANKS_OK(dcomm_context_create(NULL, &context));
    int before = segments(PAGE);
    ranks_refused(dcomm_mem_alloc(NULL, 100, &p), DCOMM_ERR_INVALID, "context");
    PROCS_TRUE(p == NULL);
    ranks_refused(dcomm_mem_alloc(context, 100, NULL), DCOMM_ERR_INVALID, "ptr_p");
    ranks_refused(dcomm_mem_alloc(context, SIZE_MAX, &p), DCOMM_ERR_SYSTEM, "bytes");
    ranks_refused(dcomm_mem_alloc(context, (size_t)1 << 45, &p), DCOMM_ERR_SYSTEM, "bytes");
    PROCS_TRUE(p == NULL);
    RANKS_OK(dcomm_mem_alloc(context, 0, &p));
    PROCS_TRUE(p == NULL);
    RANKS_OK(dcomm_mem_free(&p));
    RANKS_OK(dcomm_mem_free(NULL));
    ranks_refused(dcomm_mem_get_info(&info, NULL), DCOMM_ERR_INVALID, "info");
    ranks_refused(dcomm_mem_get_info(&info, &info), DCOMM_ERR_INVALID, "dcomm_mem_alloc");

    static const size_t sizes[] = {1, 4096, 4097, 262143, 262144, 5000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t grain = sizes[i] < 262144 ? PAGE : (size_t)2 << 20;
        RANKS_OK(dcomm_mem_alloc(context, sizes[i], &p));
        PROCS_TRUE((uintptr_t)p % grain == 0);
        for (size_t k = 0; k < sizes[i]; k++) {
            PROCS_TRUE(((char *)p)[k] == 0);
        }
        memset(p, 1, sizes[i]);
        RANKS_OK(dcomm_mem_get_info((char *)p + sizes[i] - 1, &info));
        PROCS_TRUE(info.base == p && info.bytes >= sizes[i] && info.bytes % grain == 0);
        PROCS_TRUE(info.shared && info.huge_bytes <= info.bytes);
        ranks_refused(dcomm_mem_get_info((char *)p + info.bytes, &info), DCOMM_ERR_INVALID,
                      "lies in no");
        q = (char *)p + 1;
        ranks_refused(dcomm_mem_free(&q), DCOMM_ERR_INVALID, "not from");
        q = p;
        RANKS_OK(dcomm_mem_free(&p));
        PROCS_TRUE(p == NULL);
        ranks_refused(dcomm_mem_free(&q), DCOMM_ERR_INVALID, "free already");
    }
    PROCS_TRUE(segments(PAGE) == before);
    RANKS_OK(dcomm_context_destroy(&context));
    return 0;
}

Test(memory, calls, .timeout = 60)
{
    on(1, RANKS_LOCAL, calls);
}

static int lines_of_huge_pages;

static void hear(int level, const char *message, void *user)
{
    (void)user;
    lines_of_huge_pages += level == 1 && strstr(message, "huge pages") != NULL;
}

/* A process that gets no huge pages works all the same, and gets one warning. */
static int no_huge_pages(int rank, int n, procs_shared *s, void *arg)
{
    enum { BYTES = 5 << 20 };
    dcomm_mem_info info;
    void *p[2] = {NULL, NULL};
    dcomm_set_logger(hear, NULL);
    PROCS_TRUE(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
    ranks_settle(rank, n, ((at_place *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    for (int i = 0; i < 2; i++) {
        p[i] = allocate(comm, BYTES);
        RANKS_OK(dcomm_mem_get_info(p[i], &info));
        PROCS_TRUE(info.shared && info.bytes >= BYTES && info.huge_bytes == 0);
    }
    PROCS_CHECK(lines_of_huge_pages == 1, "%d lines", lines_of_huge_pages);
    expect_mapped(comm, p[1], COUNT, true);
    RANKS_OK(dcomm_mem_free(&p[0]));
    RANKS_OK(dcomm_mem_free(&p[1]));
    return ranks_leave(&comm);
}

Test(memory, no_huge_pages, .timeout = 60)
{
    on(2, RANKS_LOCAL, no_huge_pages);
}

/* ---- lifetime ---- */

/* Free memory and allocate it again, at addresses that were registered, or ordinary, memory
 * before. */
static int again(int rank, int n, procs_shared *s, void *arg)
{
    enum { LIVE = 4, BYTES = COUNT * sizeof(float) };
    ranks_settle(rank, n, ((at_place *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    uint64_t state = 5;
    float *ordinary = malloc(BYTES);
    PROCS_TRUE(all_reduce(comm, ordinary, COUNT, 0, "two_shot") == 0);
    free(ordinary);
    int before = segments(BYTES);
    void *live[LIVE] = {0};
    for (int i = 0; i < (test_full() ? 60 : 24); i++) {
        int k = (int)(ranks_random(&state) % LIVE); /* the same k on all ranks */
        size_t bytes = BYTES + PAGE * (size_t)(ranks_random(&state) % 3);
        if (live[k] != NULL && i % 3 == 0) {
            size_t len;
            dcomm_mem_info info;
            RANKS_OK(dcomm_mem_get_info(live[k], &info));
            len = info.bytes;
            void *at = live[k];
            RANKS_OK(dcomm_mem_free(&live[k]));
            /* Other memory at the same address must not be taken for the freed region. */
            void *other = mmap(at, len, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            PROCS_TRUE(other == at);
            all_reduce(comm, other, COUNT, i, i % 2 ? "two_shot" : "ring");
            RANKS_OK(dcomm_barrier(comm, NULL));
            munmap(other, len);
        } else if (live[k] != NULL) {
            RANKS_OK(dcomm_mem_free(&live[k]));
        }
        if (live[k] == NULL) {
            live[k] = allocate(comm, bytes);
        }
        for (int round = 0; round < 2; round++) {
            all_reduce(comm, live[k], COUNT, i, i % 4 < 2 ? "one_shot" : "halving_doubling");
        }
    }
    expect_mapped(comm, live[0] != NULL ? live[0] : live[1], COUNT, true);
    for (int k = 0; k < LIVE; k++) {
        RANKS_OK(dcomm_mem_free(&live[k]));
    }
    for (int i = 0; i < 3; i++) { /* peers learn of the frees */
        RANKS_OK(dcomm_barrier(comm, NULL));
    }
    PROCS_CHECK(segments(BYTES) == before, "%d mappings are left", segments(BYTES) - before);
    return ranks_leave(&comm);
}

Test(memory, freed_and_made_again, .timeout = 60)
{
    on(2, RANKS_LOCAL, again);
    on(3, RANKS_MESSAGE, again);
}

/* A region outlives its communicator. Another communicator of the same context maps it again. */
static int outlives(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, ((at_place *)arg)->place);
    dcomm_context *context = NULL;
    RANKS_OK(dcomm_context_create(NULL, &context));
    dcomm_comm_opts opts = {.context = context};
    dcomm_comm *comm = ranks_join(rank, n, s, &opts), *second = NULL;
    float *data = allocate(comm, COUNT * sizeof *data);
    void *p = data;
    expect_mapped(comm, data, COUNT, true);
    PROCS_TRUE(segments(COUNT * sizeof *data) ==
               n); /* all ranks' memory, and only its own to write */
    PROCS_TRUE(segments_that(COUNT * sizeof *data, true) == 1);
    RANKS_OK(dcomm_comm_dup(comm, &second));
    expect_mapped(second, data, COUNT, true);
    RANKS_OK(dcomm_comm_destroy(&comm));
    expect_mapped(second, data, COUNT, true);
    RANKS_OK(dcomm_comm_destroy(&second));
    RANKS_OK(dcomm_context_destroy(&context)); /* the memory keeps the context */
    data[COUNT - 1] = 7;
    RANKS_OK(dcomm_mem_free(&p));
    PROCS_TRUE(segments(COUNT * sizeof *data) == 0);
    return ranks_leave(&comm);
}

Test(memory, outlives_its_communicator, .timeout = 60)
{
    on(3, RANKS_LOCAL, outlives);
}

/* World and its parts use one region. Peers have other ranks in the parts. */
static int split(int rank, int n, procs_shared *s, void *arg)
{
    ranks_place place = ((at_place *)arg)->place;
    ranks_settle(rank, n, place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL), *part = NULL;
    float *data = allocate(comm, 2 * COUNT * sizeof *data);
    void *p = data;
    RANKS_OK(dcomm_comm_split(comm, rank % 2, -rank, &part));
    bool near = place == RANKS_LOCAL; /* in pairs, a colour spans hosts */
    for (int i = 0; i < 2; i++) {
        expect_mapped(part, data, COUNT, near);
        expect_mapped(comm, data + COUNT / 2 + 1, COUNT, place != RANKS_HOSTS);
    }
    RANKS_OK(dcomm_comm_destroy(&part));
    RANKS_OK(dcomm_mem_free(&p));
    return ranks_leave(&comm);
}

Test(memory, split, .timeout = 60)
{
    on(4, RANKS_LOCAL, split);
    on(4, RANKS_PAIRS, split);
    on(4, RANKS_HOSTS, split);
}

/* Point to point messages, long and short, from the middle of a region. */
static int sends(int rank, int n, procs_shared *s, void *arg)
{
    enum { OFFSET = 1001 };
    ranks_settle(rank, n, ((at_place *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    unsigned char *data = allocate(comm, 2 * COUNT), *got = malloc(COUNT);
    void *p = data;
    dcomm_stats stats;
    for (int i = 0; i < 12; i++) {
        size_t len = i % 3 == 2 ? 100 : COUNT;
        memset(data + OFFSET, 10 * i + rank, len);
        dcomm_request *requests[2];
        RANKS_OK(dcomm_isend(comm, data + OFFSET, len, DCOMM_U8, 1 - rank, NULL, &requests[0]));
        RANKS_OK(dcomm_irecv(comm, got, len, DCOMM_U8, 1 - rank, NULL, &requests[1]));
        RANKS_OK(dcomm_wait_all(requests, 2));
        for (size_t k = 0; k < len; k++) {
            PROCS_CHECK(got[k] == 10 * i + 1 - rank, "message %d, byte %zu is %d", i, k, got[k]);
        }
    }
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    PROCS_TRUE(stats.bytes_mapped >= 4 * COUNT);
    RANKS_OK(dcomm_mem_free(&p));
    free(got);
    return ranks_leave(&comm);
}

Test(memory, sends, .timeout = 60)
{
    on(2, RANKS_LOCAL, sends);
    on(2, RANKS_MESSAGE, sends);
}

/* A separate thread allocates and frees many regions while collectives run. */
static _Atomic bool churning;

static void *churn(void *context)
{
    void *p[8] = {0};
    for (int i = 0; atomic_load(&churning); i++) {
        RANKS_OK(dcomm_mem_free(&p[i % 8]));
        RANKS_OK(dcomm_mem_alloc(context, (size_t)PAGE << i % 5, &p[i % 8]));
    }
    for (int i = 0; i < 8; i++) {
        RANKS_OK(dcomm_mem_free(&p[i]));
    }
    return NULL;
}

static int threads(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, ((at_place *)arg)->place);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    void *p = allocate(comm, COUNT * sizeof(float));
    pthread_t thread;
    atomic_store(&churning, true);
    PROCS_TRUE(pthread_create(&thread, NULL, churn, dcomm_comm_context(comm)) == 0);
    for (int i = 0; i < 100; i++) {
        all_reduce(comm, p, COUNT, i, NULL);
    }
    atomic_store(&churning, false);
    pthread_join(thread, NULL);
    RANKS_OK(dcomm_mem_free(&p));
    return ranks_leave(&comm);
}

Test(memory, threads, .timeout = 60)
{
    on(2, RANKS_LOCAL, threads);
}

/* ---- death ---- */

enum { RANKS = 4, VICTIM = 2 };

/* The owner of mapped memory is killed in the middle of operations on it. */
static int killed(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 8);
    size_t len = (size_t)COUNT * sizeof(float);
    void *p = allocate(f.comm, len);
    expect_mapped(f.comm, p, COUNT, true);
    fault_meet(&f, -1);
    pthread_t thread;
    if (rank == VICTIM) {
        PROCS_TRUE(pthread_create(&thread, NULL, procs_die_soon, NULL) == 0);
    }
    dcomm_status status = DCOMM_OK;
    static const char *const algos[] = {"one_shot", "ring", "two_shot", "halving_doubling"};
    memset(p, 0, len);
    for (int i = 0; status == DCOMM_OK; i++) {
        dcomm_coll_opts opts = {.algo = algos[i % 4]};
        status = dcomm_allreduce(f.comm, p, p, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    }
    static const char *const words[] = {"rank 2", NULL};
    fault_expect(&f, status, DCOMM_ERR_PEER, words);
    memset(p, 1, len); /* the memory is still ours */
    fault_recover(&f, VICTIM);
    expect_mapped(f.comm, p, COUNT, true);
    RANKS_OK(dcomm_mem_free(&p));
    return fault_leave(&f);
}

static void run_killed(fault_place place)
{
    int ended[PROCS_MAX];
    procs_run(RANKS, 30, killed, &place, ended);
    for (int r = 0; r < RANKS; r++) {
        int want = r == VICTIM ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "rank %d ended with %d, not %d", r, ended[r], want);
    }
}

Test(memory, owner_killed, .timeout = 100)
{
    run_killed(LOCAL);
}

Test(memory, owner_killed_by_message, .timeout = 100)
{
    run_killed(MESSAGE);
}

/* ---- a kernel that forbids reading other processes ---- */

/* Make a system call with this first argument (-1: any) fail in this process from now on, as in
 * many containers. */
static void forbid(unsigned call, int first, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | (first < 0 ? BPF_JGE : BPF_JEQ) | BPF_K, first < 0 ? 0 : (unsigned)first,
                 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    PROCS_TRUE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    PROCS_TRUE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    PROCS_TRUE(syscall((long)call, first, NULL, 0, NULL, 0, 0) == -1 && errno == (int)error);
}

typedef struct forbidden {
    int among; /* one in so many ranks is forbidden */
    unsigned error;
} forbidden;

/* The results are right, by whatever path, and no warning appears. */
static int forbidden_ranks(int rank, int n, procs_shared *s, void *arg)
{
    const forbidden *f = arg;
    if (rank % f->among == f->among - 1) {
        forbid(SYS_process_vm_readv, -1, f->error);
    }
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    static const char *const algos[] = {"one_shot", "two_shot", "ring", "halving_doubling", NULL};
    float *plain = malloc(COUNT * sizeof *plain), *all = malloc((size_t)n * COUNT * sizeof *all);
    void *p = allocate(comm, COUNT * sizeof(float));
    for (size_t a = 0; a < sizeof algos / sizeof *algos; a++) {
        for (int i = 0; i < 3; i++) {
            all_reduce(comm, plain, COUNT, i, algos[a]);
            all_reduce(comm, p, COUNT, i, algos[a]);
        }
    }
    for (size_t i = 0; i < COUNT; i++) {
        plain[i] = (float)rank + (float)(i % 50);
    }
    static const char *const gathers[] = {"direct", "ring"};
    for (int g = 0; g < 2; g++) {
        dcomm_coll_opts opts = {.algo = gathers[g]};
        RANKS_OK(dcomm_allgather(comm, plain, all, COUNT, DCOMM_F32, &opts));
        for (size_t i = 0; i < (size_t)n * COUNT; i++) {
            PROCS_TRUE(all[i] == (float)(i / COUNT) + (float)(i % COUNT % 50));
        }
    }
    PROCS_CHECK(strcmp(dcomm_last_error(), "") == 0, "%s", dcomm_last_error());
    RANKS_OK(dcomm_mem_free(&p));
    free(plain);
    free(all);
    return ranks_leave(&comm);
}

Test(memory, reading_is_forbidden, .timeout = 100)
{
    int ended[PROCS_MAX];
    for (int among = 1; among <= 2; among++) {
        for (int n = 2; n <= 3; n++) {
            if ((n + among) % 2 == 0 && !test_full()) {
                continue;
            }
            forbidden arg = {among, among == 1 ? EPERM : ENOSYS};
            cr_assert_eq(procs_run(n, 50, forbidden_ranks, &arg, ended), 0, "%d ranks, 1 of %d", n,
                         among);
        }
    }
}

/* ---- ranks that cannot hand each other memory ---- */

static procs_shared *warned;

static void count_warnings(int level, const char *message, void *user)
{
    (void)level, (void)user;
    atomic_fetch_add(&warned->words[0], strstr(message, "cannot share memory") != NULL);
}

typedef struct apart {
    unsigned forbidden; /* this system call ... */
    int first;          /* ... with this argument */
    int rank;           /* ... to this rank */
} apart;

/* Ranks that cannot share memory talk over the network, and one of them gives a warning. */
static int kept_apart(int rank, int n, procs_shared *s, void *arg)
{
    const apart *a = arg;
    float *data = malloc(COUNT * sizeof *data);
    if (rank == a->rank) {
        forbid(a->forbidden, a->first, EPERM);
    }
    warned = s;
    dcomm_set_logger(count_warnings, NULL);
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    for (int r = 0; r < n; r++) {
        bool together = r == rank || (r != a->rank && rank != a->rank);
        PROCS_TRUE((dcomm_comm_host(comm, r) == dcomm_comm_host(comm, rank)) == together);
    }
    void *p = allocate(comm, COUNT * sizeof(float));
    for (int i = 0; i < 3; i++) {
        all_reduce(comm, data, COUNT, i, NULL);
        all_reduce(comm, p, COUNT, i, NULL);
    }
    PROCS_CHECK(atomic_load(&s->words[0]) == 1, "%ld warnings", atomic_load(&s->words[0]));
    RANKS_OK(dcomm_mem_free(&p));
    free(data);
    return ranks_leave(&comm);
}

Test(memory, ranks_that_cannot_share, .timeout = 100)
{
    int ended[PROCS_MAX];
    apart no_memory = {SYS_memfd_create, -1, 1}, no_socket = {SYS_socket, AF_UNIX, 0};
    cr_assert_eq(procs_run(3, 45, kept_apart, &no_memory, ended), 0);
    cr_assert_eq(procs_run(2, 45, kept_apart, &no_socket, ended), 0);
}

/* Count this process's mappings with a name that outlives it. */
static int named(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;
    PROCS_TRUE(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        n += strstr(line, "/SYSV") != NULL || strstr(line, "/dev/shm/") != NULL;
    }
    fclose(file);
    return n;
}

/* Memory without a name cannot be left behind, whenever a process is killed. */
static int nameless(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    int before = named();
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    float *p = allocate(comm, COUNT * sizeof *p);
    expect_mapped(comm, p, COUNT, true);
    PROCS_CHECK(named() == before, "%d names of shared memory", named() - before);
    void *freed = p;
    RANKS_OK(dcomm_mem_free(&freed));
    return ranks_leave(&comm);
}

Test(memory, has_no_name, .timeout = 60)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(2, 50, nameless, NULL, ended), 0);
}
