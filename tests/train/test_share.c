/* test_share.c - work in proportion to speeds, against quotas that are computed here in integers.
 */
#define _GNU_SOURCE
#include "dcomm.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { RANKS = 12, CASES = 3000 };

static uint64_t state = 1;

/* Return a random number below `limit`. */
static uint64_t below(uint64_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
}

typedef struct job {
    size_t total, n;
    uint64_t speeds[RANKS], sum; /* integers, so that quotas are fractions of integers */
    double real[RANKS];
    size_t caps[RANKS], out[RANKS];
} job;

/* Draw a job with speeds below `fastest`, at least one of them above 0. */
static job draw(uint64_t fastest)
{
    job j = {.total = below(1000), .n = 1 + below(RANKS)};
    for (size_t i = 0; i < j.n; i++) {
        j.speeds[i] = below(fastest) + (i == 0);
        j.sum += j.speeds[i];
        j.real[i] = 0.1 * (double)j.speeds[i]; /* the unit does not matter */
        j.caps[i] = below(j.total / j.n * 4 + 2);
    }
    return j;
}

static size_t added(const size_t *out, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += out[i];
    }
    return sum;
}

Test(share, is_the_quota_within_one)
{
    for (int c = 0; c < CASES; c++) {
        job j = draw(c % 2 == 0 ? 6 : 100);
        cr_assert_eq(dcomm_share(j.total, j.real, NULL, j.n, j.out), DCOMM_OK);
        cr_expect_eq(added(j.out, j.n), j.total, "case %d: %zu, not %zu", c, added(j.out, j.n),
                     j.total);
        for (size_t i = 0; i < j.n; i++) { /* |out - total speed / sum| < 1 */
            int64_t off = (int64_t)(j.out[i] * j.sum) - (int64_t)(j.total * j.speeds[i]);
            cr_expect(llabs(off) < (int64_t)j.sum, "case %d: rank %zu has %zu of %zu", c, i,
                      j.out[i], j.total);
            for (size_t k = 0; k < j.n; k++) {
                cr_expect(j.speeds[i] <= j.speeds[k] || j.out[i] >= j.out[k],
                          "case %d: rank %zu is faster than %zu and has less", c, i, k);
                cr_expect(j.speeds[i] != j.speeds[k] || i > k || j.out[i] >= j.out[k],
                          "case %d: of equals, the lower rank has no less", c);
                /* A quota that was rounded up has no smaller fraction than one that was rounded
                 * down. */
                uint64_t up = j.total * j.speeds[i] % j.sum, down = j.total * j.speeds[k] % j.sum;
                bool i_up = j.out[i] * j.sum > j.total * j.speeds[i];
                bool k_down = j.out[k] * j.sum < j.total * j.speeds[k];
                cr_expect(!(i_up && k_down) || up >= down, "case %d: ranks %zu and %zu", c, i, k);
            }
        }
    }
}

Test(share, a_rank_that_becomes_faster_gets_no_less)
{
    for (int c = 0; c < CASES; c++) {
        job j = draw(20);
        size_t more[RANKS], i = below(j.n);
        cr_assert_eq(dcomm_share(j.total, j.real, NULL, j.n, j.out), DCOMM_OK);
        j.real[i] *= 1.3;
        cr_assert_eq(dcomm_share(j.total, j.real, NULL, j.n, more), DCOMM_OK);
        cr_expect(more[i] >= j.out[i], "case %d: rank %zu had %zu and has %zu", c, i, j.out[i],
                  more[i]);
    }
}

Test(share, caps_hold_and_the_rest_is_in_proportion)
{
    int full = 0, refused = 0;
    for (int c = 0; c < CASES; c++) {
        job j = draw(c % 2 == 0 ? 6 : 100);
        size_t room = 0;
        for (size_t i = 0; i < j.n; i++) {
            room += j.speeds[i] > 0 ? j.caps[i] : 0;
            j.out[i] = 4711;
        }
        dcomm_status status = dcomm_share(j.total, j.real, j.caps, j.n, j.out);
        if (room < j.total) {
            cr_expect_eq(status, DCOMM_ERR_INVALID);
            cr_expect_eq(j.out[0], 4711, "nothing is written");
            refused++;
            continue;
        }
        cr_assert_eq(status, DCOMM_OK);
        cr_expect_eq(added(j.out, j.n), j.total);
        for (size_t i = 0; i < j.n; i++) {
            cr_expect(j.out[i] <= j.caps[i] && (j.speeds[i] > 0 || j.out[i] == 0));
            full += j.out[i] == j.caps[i];
            /* Below its cap, no rank has less than the others in proportion to its speed, but for
             * the single items. */
            for (size_t k = 0; k < j.n && j.out[i] < j.caps[i]; k++) {
                cr_expect((j.out[i] + 1) * j.speeds[k] + j.speeds[i] >= j.out[k] * j.speeds[i],
                          "case %d: rank %zu has %zu at speed %zu, rank %zu has %zu at %zu", c, i,
                          j.out[i], (size_t)j.speeds[i], k, j.out[k], (size_t)j.speeds[k]);
            }
        }
    }
    cr_expect(full > 1000 && refused > 100 && refused < CASES / 2, "%d, %d", full, refused);
}

Test(share, written_by_hand)
{
    size_t out[4];
    cr_assert_eq(dcomm_share(64, (double[]){120, 120, 40}, NULL, 3, out), DCOMM_OK);
    cr_expect(out[0] == 28 && out[1] == 27 && out[2] == 9);
    cr_assert_eq(dcomm_share(10, (double[]){1, 0, 1, 1}, NULL, 4, out), DCOMM_OK);
    cr_expect(out[0] == 4 && out[1] == 0 && out[2] == 3 && out[3] == 3);
    /* 20 : 5 : 5, of which the first may have 12: the others share 18. Then the second one's cap
     * of 7 holds, too. */
    cr_assert_eq(dcomm_share(30, (double[]){4, 1, 1}, (size_t[]){12, 7, 30}, 3, out), DCOMM_OK);
    cr_expect(out[0] == 12 && out[1] == 7 && out[2] == 11);
    cr_assert_eq(dcomm_share(0, (double[]){1, 2}, (size_t[]){0, 0}, 2, out), DCOMM_OK);
    cr_expect(out[0] == 0 && out[1] == 0);
    cr_assert_eq(dcomm_share(5, (double[]){-0.0, 2}, NULL, 2, out), DCOMM_OK);
    cr_expect(out[0] == 0 && out[1] == 5);
}

/* Speeds of any size, and the largest total: quotas are rounded, and the sum still holds. */
Test(share, extreme_numbers)
{
    static double speeds[1000];
    static size_t out[1000];
    const size_t most = (size_t)1 << 53;
    for (size_t i = 0; i < 1000; i++) {
        speeds[i] = 1e308 / (double)(1 + below(1000));
    }
    cr_assert_eq(dcomm_share(most, speeds, NULL, 1000, out), DCOMM_OK);
    cr_expect_eq(added(out, 1000), most);
    for (size_t i = 0; i < 1000; i++) {
        speeds[i] = 1 / (double)(1 + below(1000)) / 3;
    }
    cr_assert_eq(dcomm_share(most - 1, speeds, NULL, 1000, out), DCOMM_OK);
    cr_expect_eq(added(out, 1000), most - 1);
    cr_assert_eq(dcomm_share(9, (double[]){1e308, 4.9e-324, 4.9e-324}, (size_t[]){3, 5, 5}, 3, out),
                 DCOMM_OK, "those that have room get it");
    cr_expect(out[0] == 3 && out[1] == 3 && out[2] == 3);
}

Test(share, refuses_bad_arguments)
{
    size_t out[2] = {7, 7};
    static const double bad[] = {-1, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 4; i++) {
        cr_expect_eq(dcomm_share(4, (double[]){1, bad[i]}, NULL, 2, out), DCOMM_ERR_INVALID);
    }
    cr_expect_eq(dcomm_share(4, (double[]){0, 0}, NULL, 2, out), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_share(4, (double[]){1, 1}, (size_t[]){1, 2}, 2, out), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_share(4, (double[]){1, 0}, (size_t[]){3, 9}, 2, out), DCOMM_ERR_INVALID,
                 "a rank without speed has no room");
    cr_expect_eq(dcomm_share(4, (double[]){1, 1}, (size_t[]){SIZE_MAX, 1}, 2, out), DCOMM_OK);
    cr_expect(out[0] == 3 && out[1] == 1);
    out[0] = out[1] = 7;
    cr_expect_eq(dcomm_share(4, NULL, NULL, 2, out), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_share(4, (double[]){1}, NULL, 1, NULL), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_share(4, (double[]){1}, NULL, 0, out), DCOMM_ERR_INVALID);
    cr_expect_eq(dcomm_share(((size_t)1 << 53) + 1, (double[]){1}, NULL, 1, out),
                 DCOMM_ERR_INVALID);
    cr_expect(out[0] == 7 && out[1] == 7, "nothing is written");
}
