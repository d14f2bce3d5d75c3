/* test_ps_codec.c - pushes with a codec: their bits are those of error feedback by hand, nothing is
 * lost, and they are as short as the codec says. */
#define _GNU_SOURCE
#include "ps_case.h"

#include <stdlib.h>

enum { ROWS = 300, COLS = 8, N = ROWS * COLS, RANKS_MOST = 4 };

static const char *const specs[] = {"qsgd:bits=8", "topk:k=0.05", "f16", "sign", "topk+qsgd:k=0.1"};
enum { SPECS = sizeof specs / sizeof *specs };

/* Return the first row of server k. */
static size_t first_of(size_t k, size_t servers)
{
    return ROWS / servers * k + (k < ROWS % servers ? k : ROWS % servers);
}

static void gradients(int rank, int clock, float *grad, size_t n)
{
    uint64_t state = (uint64_t)(1000 * clock + rank);
    for (size_t k = 0; k < n; k++) {
        grad[k] = (float)((double)(int64_t)ranks_random(&state) / 9e18);
    }
}

/* Do to w what the average of n sums does. */
static void apply(float *w, float (*sums)[N], int n, double lr)
{
    for (size_t k = 0; k < N; k++) {
        float sum = sums[0][k];
        for (int r = 1; r < n; r++) {
            sum += sums[r][k];
        }
        w[k] -= (float)lr * (sum / (float)n);
    }
}

static void same(dcomm_ps *ps, const float *w, const char *what, int clock)
{
    static float got[N];
    RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
    for (size_t k = 0; k < N; k++) {
        PROCS_CHECK(memcmp(&got[k], &w[k], sizeof *w) == 0,
                    "%s, clock %d: element %zu is %.9g, not %.9g", what, clock, k, (double)got[k],
                    (double)w[k]);
    }
}

/* Pushes of all rows have the bits of a dcomm_feedback for each rank. With 2 or 4 ranks an average
 * has the bits of a division. */
static int by_feedback(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static float grad[N], w[N], sent[RANKS_MOST][N];
    static uint8_t wire[8 * N];
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.name = "w", .rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    for (int c = 0; c < SPECS * 2; c++) {
        const size_t servers = c % 2 == 0 ? 1 : (size_t)n;
        const dcomm_ps_opts opts = {
            .servers = (int)servers, .lr = 0.5, .codec = specs[c / 2], .codec_seed = 7};
        dcomm_codec *codec = NULL;
        dcomm_feedback *fb[RANKS_MOST];
        dcomm_ps *ps = NULL;
        RANKS_OK(dcomm_codec_create(specs[c / 2], &codec));
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        for (int r = 0; r < n; r++) {
            RANKS_OK(dcomm_feedback_create(codec, N, &(dcomm_feedback_opts){.seed = 7}, &fb[r]));
        }
        memset(w, 0, sizeof w);
        for (int clock = 0; clock < 5; clock++) {
            for (int r = 0; r < n; r++) {
                gradients(r, clock, grad, N);
                RANKS_OK(r == rank ? dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL) : DCOMM_OK);
                const dcomm_feedback_step step = {.x = grad, .rank = (uint32_t)r};
                RANKS_OK(dcomm_feedback_begin(fb[r], &step));
                for (size_t k = 0; k < servers; k++) {
                    const size_t at = first_of(k, servers) * COLS;
                    const size_t count = first_of(k + 1, servers) * COLS - at;
                    size_t bytes = 0;
                    RANKS_OK(
                        dcomm_feedback_encode(fb[r], at, count, wire, sizeof wire, &bytes, NULL));
                    RANKS_OK(dcomm_decode(codec, wire, bytes, sent[r] + at, count));
                }
                RANKS_OK(dcomm_feedback_commit(fb[r]));
            }
            RANKS_OK(dcomm_ps_clock(ps));
            apply(w, sent, n, opts.lr);
            same(ps, w, opts.codec, clock);
        }
        RANKS_OK(dcomm_ps_destroy(&ps));
        for (int r = 0; r < n; r++) {
            RANKS_OK(dcomm_feedback_destroy(&fb[r]));
        }
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    return ranks_leave(&comm);
}

Test(ps_codec, bits_of_feedback, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, by_feedback);
    on(2, RANKS_HOSTS, 25, by_feedback);
    on(4, RANKS_LOCAL, 25, by_feedback);
}

/* The residuals of each rank's codec, as this test keeps them. */
static float dropped[RANKS_MOST][N];

/* Encode rows of one server by hand, add them to `sent`, and keep what is dropped. */
static void by_hand(const dcomm_codec *codec, dcomm_codec_key key, const uint64_t *rows, size_t n,
                    const float *grad, float *sent)
{
    static float kept[N], decoded[N];
    static uint8_t wire[8 * N];
    size_t bytes = 0;
    key.first = rows[0] * COLS;
    for (size_t j = 0; j < n; j++) {
        memcpy(kept + j * COLS, dropped[key.rank] + rows[j] * COLS, COLS * sizeof(float));
    }
    RANKS_OK(dcomm_encode_feedback(codec, grad, kept, kept, n * COLS, &key, wire, sizeof wire,
                                   &bytes, NULL, NULL));
    RANKS_OK(dcomm_decode(codec, wire, bytes, decoded, n * COLS));
    for (size_t j = 0; j < n; j++) {
        memcpy(dropped[key.rank] + rows[j] * COLS, kept + j * COLS, COLS * sizeof(float));
        memcpy(sent + rows[j] * COLS, decoded + j * COLS, COLS * sizeof(float));
    }
}

/* Do the same for ascending rows of all servers. */
static void by_hand_all(const dcomm_codec *codec, dcomm_codec_key key, size_t servers,
                        const uint64_t *rows, size_t n, const float *grad, float *sent)
{
    for (size_t k = 0, at = 0, end; k < servers; k++, at = end) {
        for (end = at; end < n && rows[end] < first_of(k + 1, servers); end++) {
        }
        if (end > at) {
            by_hand(codec, key, rows + at, end - at, grad + at * COLS, sent);
        }
    }
}

/* In each clock a rank pushes a range, and a list of other rows from the last to the first. What is
 * dropped belongs to a row, whichever way it was pushed. */
static int by_rows(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static float grad[N], turned[N], w[N], sent[RANKS_MOST][N];
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.name = "w", .rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    for (int c = 0; c < SPECS; c++) {
        const dcomm_ps_opts opts = {.servers = n, .lr = 1, .codec = specs[c]};
        dcomm_codec *codec = NULL;
        dcomm_ps *ps = NULL;
        RANKS_OK(dcomm_codec_create(specs[c], &codec));
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        memset(w, 0, sizeof w);
        memset(dropped, 0, sizeof dropped);
        for (int clock = 0; clock < 5; clock++) {
            memset(sent, 0, sizeof sent);
            for (int r = 0; r < n; r++) {
                uint64_t list[ROWS], range[ROWS], from_last[ROWS];
                const size_t first = (size_t)(clock * 40 + r * 13), count = 100;
                size_t listed = 0;
                for (size_t row = 0; row < ROWS; row++) {
                    const bool inside = row >= first && row < first + count;
                    range[row < count ? row : 0] = first + (row < count ? row : 0);
                    list[listed] = row;
                    listed += !inside && (row + (size_t)clock) % 3 != 0;
                }
                const dcomm_codec_key key = {.rank = (uint32_t)r, .step = (uint64_t)clock * 2};
                const dcomm_codec_key next = {.rank = (uint32_t)r, .step = key.step + 1};
                gradients(r, clock, grad, N);
                for (size_t j = 0; j < listed; j++) {
                    from_last[j] = list[listed - 1 - j];
                    memcpy(turned + j * COLS, grad + (listed - 1 - j) * COLS, COLS * sizeof *grad);
                }
                if (r == rank) {
                    RANKS_OK(dcomm_ps_push(ps, 0, first, count, grad, NULL));
                    RANKS_OK(dcomm_ps_push_rows(ps, 0, from_last, listed, turned, NULL));
                }
                by_hand_all(codec, key, (size_t)n, range, count, grad, sent[r]);
                by_hand_all(codec, next, (size_t)n, list, listed, grad, sent[r]);
            }
            RANKS_OK(dcomm_ps_clock(ps));
            apply(w, sent, n, opts.lr);
            same(ps, w, opts.codec, clock);
        }
        RANKS_OK(dcomm_ps_destroy(&ps));
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    return ranks_leave(&comm);
}

Test(ps_codec, rows, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, by_rows);
    on(2, RANKS_LOCAL, 25, by_rows);
    on(4, RANKS_PAIRS, 25, by_rows);
}

/* Nothing is lost: after pushes of zeros, the values are those of exact pushes. Gradients are exact
 * in few bits. With f16, in which they fit, each clock is exact. A small parameter always is. */
static int conserved(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CLOCKS = 3, SMALL = 5 };
    static const char *const cases[] = {"f16", "topk:k=0.05"};
    static float grad[N], w[N], sent[RANKS_MOST][N], got[N];
    dcomm_comm *comm = join(rank, n, s);
    for (int c = 0; c < 2; c++) {
        const dcomm_ps_param params[] = {{.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32},
                                         {.rows = SMALL, .cols = 1, .dtype = DCOMM_F32}};
        const dcomm_ps_opts opts = {.lr = 1, .codec = cases[c]};
        float small[SMALL];
        dcomm_ps *ps = NULL;
        RANKS_OK(dcomm_ps_create(comm, params, 2, &opts, &ps));
        memset(w, 0, sizeof w);
        for (int clock = 0; clock < CLOCKS + (c == 0 ? 0 : 20); clock++) {
            for (int r = 0; r < n; r++) {
                for (size_t k = 0; k < N; k++) {
                    grad[k] = clock < CLOCKS ? ps_gradient(r, clock, 0, k / COLS, k % COLS) : 0;
                }
                memcpy(sent[r], grad, sizeof grad);
                if (r == rank) {
                    RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL));
                    RANKS_OK(dcomm_ps_push(ps, 1, 0, SMALL, grad, NULL));
                }
            }
            RANKS_OK(dcomm_ps_clock(ps));
            apply(w, sent, n, 1);
            if (c == 0) {
                same(ps, w, cases[c], clock);
            }
            RANKS_OK(dcomm_ps_pull(ps, 1, 0, SMALL, small, NULL));
            PROCS_TRUE(memcmp(small, w, sizeof small) == 0);
            RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
            PROCS_TRUE(c == 0 || clock != CLOCKS - 1 || memcmp(got, w, sizeof got) != 0);
        }
        same(ps, w, "after zeros", CLOCKS);
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    return ranks_leave(&comm);
}

Test(ps_codec, conserved, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, conserved);
}

/* Pushes are as long as the codec says. */
static int short_ones(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static const uint64_t rows[] = {7, 250, 0};
    static float grad[N];
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    for (int c = 0; c < 3; c++) {
        const char *spec = c == 0 ? "none" : c == 1 ? "qsgd:bits=4,rounding=nearest" : "f16";
        const dcomm_ps_opts opts = {.servers = 1, .lr = 1, .codec = spec};
        dcomm_codec *codec = NULL;
        dcomm_ps *ps = NULL;
        dcomm_ps_stats stats;
        RANKS_OK(c == 0 ? DCOMM_OK : dcomm_codec_create(spec, &codec));
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL));
        RANKS_OK(dcomm_ps_push_rows(ps, 0, rows, 3, grad, NULL));
        RANKS_OK(dcomm_ps_get_stats(ps, &stats));
        const size_t all = c == 0 ? N * sizeof *grad : dcomm_codec_max_bytes(codec, N);
        const size_t three =
            c == 0 ? 3 * COLS * sizeof *grad : dcomm_codec_max_bytes(codec, (size_t)3 * COLS);
        const uint64_t must = rank == 0 ? 0 : all + sizeof rows + three;
        PROCS_CHECK(stats.bytes_pushed == must, "%s: %d bytes, not %d", spec,
                    (int)stats.bytes_pushed, (int)must);
        PROCS_TRUE(c != 1 || all < N * sizeof *grad / 7);
        RANKS_OK(dcomm_ps_destroy(&ps));
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    return ranks_leave(&comm);
}

Test(ps_codec, bytes, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, short_ones);
}

/* A codec that does not fit is refused by name. */
static int refused(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static const struct {
        const char *spec;
        dcomm_status status;
        const char *words;
    } cases[] = {{"powersgd:rank=2", DCOMM_ERR_UNSUPPORTED, "the same tensor in each step"},
                 {"auto:f16", DCOMM_ERR_UNSUPPORTED, "leave out \"auto\""},
                 {"randk:k=0.01", DCOMM_ERR_INVALID, "residuals of \"w\" would grow"},
                 {"nothing", DCOMM_ERR_INVALID, "nothing"},
                 {"f16", DCOMM_ERR_INVALID, "opts.codec is out of range"},
                 {"bf16", DCOMM_ERR_MISMATCH, "opts.codec is not the same"}};
    dcomm_comm *comm = join(rank, n, s);
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        const bool elastic = cases[c].words[0] == 'o' && cases[c].status == DCOMM_ERR_INVALID;
        const dcomm_ps_param param = {.name = "w", .rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
        const dcomm_ps_opts opts = {
            .lr = 1,
            .rho = 0.5,
            .update = elastic ? DCOMM_PS_ELASTIC : DCOMM_PS_SGD,
            .staleness = elastic,
            .codec = cases[c].status != DCOMM_ERR_MISMATCH || rank > 0 ? cases[c].spec : "f16"};
        dcomm_ps *ps = NULL;
        ranks_refused(dcomm_ps_create(comm, &param, 1, &opts, &ps), cases[c].status,
                      cases[c].words);
    }
    return ranks_leave(&comm);
}

Test(ps_codec, refused, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, refused);
}

/* A replica gets the same bytes: after a server's death, workers see the bits of a run without. */
static int replicas(int rank, int n, procs_shared *s, void *arg)
{
    enum { CLOCKS = 5, LISTED = 3 };
    static float grad[N], seen[2][CLOCKS][N];
    const uint64_t rows[LISTED] = {250, 3, 77};
    _Atomic int *pids = arg;
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.name = "w", .rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    const bool serves = rank == 0 || rank == 2;
    atomic_store(&pids[rank], getpid());
    for (int run = 0; run < 2; run++) {
        const dcomm_ps_opts opts = {.servers = 2,
                                    .dedicated = true,
                                    .replicas = run,
                                    .lr = 0.5,
                                    .codec = "topk+qsgd:k=0.1"};
        dcomm_ps *ps = NULL;
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        for (int clock = 0; clock < CLOCKS && !serves; clock++) {
            gradients(rank, clock, grad, N);
            RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL));
            RANKS_OK(dcomm_ps_push_rows(ps, 0, rows, LISTED, grad, NULL));
            if (run == 1 && clock == 2 && rank == 1) {
                kill(atomic_load(&pids[2]), SIGKILL);
            }
            RANKS_OK(dcomm_ps_clock(ps));
            RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, seen[run][clock], NULL));
        }
        if (serves) {
            RANKS_OK(dcomm_ps_serve(ps));
        }
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    PROCS_CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) == 0, "rank %d: other bits", rank);
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

Test(ps_codec, replicas, .timeout = 60)
{
    void *pids = mmap(NULL, PROCS_MAX * sizeof(int), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(pids != MAP_FAILED);
    ps_on_but(1u << 2, 4, RANKS_LOCAL, 25, replicas, pids, "replicas");
}
