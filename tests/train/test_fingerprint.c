/* test_fingerprint.c - fingerprints of tensors. Each change of one byte, a length, a name or the
 * order changes them; a known one is the same on every machine. Ranks that differ are named. */
#define _GNU_SOURCE
#include "placed.h"

#include <inttypes.h>

enum { LEN = 100 };

static dcomm_fingerprint_tensor of(const char *name, const void *data, size_t bytes)
{
    return (dcomm_fingerprint_tensor){.name = name, .data = data, .bytes = bytes};
}

Test(fingerprint, sees_each_change, .timeout = 10)
{
    unsigned char x[LEN + 1] = {0};
    uint64_t seen[4 * LEN];
    size_t n = 0;
    for (size_t bytes = 0; bytes < LEN; bytes++) { /* zeros of each length */
        const dcomm_fingerprint_tensor t = of("w", x, bytes);
        seen[n++] = dcomm_fingerprint(&t, 1);
    }
    for (size_t i = 0; i < LEN; i++) { /* one byte that is not zero, at each place */
        const dcomm_fingerprint_tensor t = of("w", x, LEN);
        x[i] = 0x80;
        seen[n++] = dcomm_fingerprint(&t, 1);
        x[i] = 0;
    }
    const dcomm_fingerprint_tensor two[] = {of("w", x, 8), of("v", x, 8), of("w", x, 8)};
    const dcomm_fingerprint_tensor other[] = {of("w", x, 16), of("wv", x, 8), of(NULL, x, 8)};
    seen[n++] = dcomm_fingerprint(two, 0);
    seen[n++] = dcomm_fingerprint(two, 2);
    seen[n++] = dcomm_fingerprint(two + 1, 2);
    seen[n++] = dcomm_fingerprint(two, 3);
    seen[n++] = dcomm_fingerprint(other + 1, 1);
    seen[n++] = dcomm_fingerprint(other + 2, 1);
    seen[n++] = dcomm_fingerprint(NULL, 1);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            cr_assert(seen[i] != seen[j], "%zu and %zu: %016" PRIx64, i, j, seen[i]);
        }
    }
    cr_assert_eq(seen[n - 1], 0);
    cr_assert_eq(dcomm_fingerprint(two, 1), dcomm_fingerprint(two + 2, 1));
    cr_assert_eq(dcomm_fingerprint(other, 1), seen[16]);
}

/* Bytes at an odd address have the same fingerprint, and each machine and compiler the same one. It
 * was computed by another program, from the definition. */
Test(fingerprint, known, .timeout = 10)
{
    unsigned char x[LEN + 1];
    for (int i = 0; i < LEN; i++) {
        x[i + 1] = (unsigned char)(i * 7);
    }
    dcomm_fingerprint_tensor t = of("w", x + 1, LEN);
    const uint64_t odd = dcomm_fingerprint(&t, 1);
    memmove(x, x + 1, LEN);
    t.data = x;
    cr_assert_eq(dcomm_fingerprint(&t, 1), odd);
    cr_assert_eq(odd, UINT64_C(0x7864af7cf75fcf16), "%016" PRIx64, odd);
}

/* ---- ranks ---- */

static void expect(dcomm_status status, const dcomm_fingerprint_difference *d, size_t tensor,
                   int rank, int usual, const char *words)
{
    ranks_refused(status, DCOMM_ERR_MISMATCH, words);
    PROCS_CHECK(d->tensor == tensor && d->rank == rank && d->usual == usual,
                "tensor %zu, rank %d, usual %d", d->tensor, d->rank, d->usual);
}

static int compare(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    float w[3][50] = {{0}};
    dcomm_fingerprint_difference d;
    dcomm_fingerprint_tensor t[] = {of("w0", w[0], sizeof w[0]), of(NULL, w[1], sizeof w[1]),
                                    of("w2", w[2], sizeof w[2])};
    RANKS_OK(dcomm_fingerprint_compare(comm, t, 3, &d));
    PROCS_TRUE(d.tensor == 3 && d.rank == -1 && d.usual == -1);
    RANKS_OK(dcomm_fingerprint_compare(comm, NULL, 0, NULL));
    w[2][49] = rank == 2 ? 1e-30f : 0;
    expect(dcomm_fingerprint_compare(comm, t, 3, &d), &d, 2, 2, 0,
           "rank 2 differs from rank 0, first in tensor 2, \"w2\"");
    w[1][7] = rank == 0 ? -0.0f : 0; /* most ranks are right, not the first one */
    expect(dcomm_fingerprint_compare(comm, t, 3, &d), &d, 1, 0, 1,
           "rank 0 differs from rank 1, first in tensor 1");
    t[0].name = rank == 1 ? "v0" : "w0";
    expect(dcomm_fingerprint_compare(comm, t, 3, &d), &d, 0, 1, 0, "rank 1 differs from rank 0");
    ranks_refused(dcomm_fingerprint_compare(comm, t, rank == 1 ? 2 : 3, &d), DCOMM_ERR_INVALID,
                  "rank 0 has 3 tensors, and rank 1 has 2");
    t[2].data = rank == 2 ? NULL : w[2];
    ranks_refused(dcomm_fingerprint_compare(comm, t, 3, NULL), DCOMM_ERR_INVALID,
                  rank == 2 ? "its data is NULL" : "an argument of rank 2");
    ranks_refused(dcomm_fingerprint_compare(NULL, t, 3, &d), DCOMM_ERR_INVALID, "comm");
    w[1][7] = 0;
    RANKS_OK(dcomm_fingerprint_compare(comm, t + 1, 1, &d)); /* the communicator still works */
    return ranks_leave(&comm);
}

Test(fingerprint, compare, .timeout = 30)
{
    on(3, RANKS_LOCAL, 25, compare);
}
