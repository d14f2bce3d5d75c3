/* share.h - work divided in proportion to speeds, by the method of largest remainders. */
#ifndef DCOMMI_TRAIN_SHARE_H
#define DCOMMI_TRAIN_SHARE_H

#include "../../share.h"
#include "../base/util.h"
#include "../../../../kernels/math.h"

#define DCOMMI_DIVIDE_MOST ((uint64_t)1 << 53) /* a double has every integer up to here */

/* A division under way. A rank is open if it can get more. */
typedef struct dcommi_division {
    const double *speeds;
    const size_t *caps;
    size_t n, *out;
    size_t left;  /* items for the open ranks */
    double first; /* the highest speed of an open rank */
    double sum;   /* of the open ranks' speeds, in units of `first`, so that it is finite */
} dcommi_division;

static bool dcommi_divide_open(const dcommi_division *s, size_t i)
{
    return s->speeds[i] > 0 && (s->caps == NULL || s->out[i] < s->caps[i]);
}

static void dcommi_divide_weigh(dcommi_division *s)
{
    s->first = s->sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        s->first = dcommi_divide_open(s, i) && s->speeds[i] > s->first ? s->speeds[i] : s->first;
    }
    for (size_t i = 0; i < s->n; i++) {
        s->sum += dcommi_divide_open(s, i) ? s->speeds[i] / s->first : 0;
    }
}

/* Return an open rank's quota of `items`. A compiler that contracts expressions finds none here,
 * so all have the same bits. */
static double dcommi_divide_quota(const dcommi_division *s, size_t i, size_t items)
{
    return (double)items * (s->speeds[i] / s->first) / s->sum;
}

/* Give ranks their caps whose quotas reach them, until no quota does. */
static void dcommi_divide_fill(dcommi_division *s)
{
    for (bool again = true; again;) {
        size_t items = s->left;
        again = false;
        dcommi_divide_weigh(s);
        for (size_t i = 0; i < s->n && s->caps != NULL; i++) {
            if (dcommi_divide_open(s, i) &&
                dcommi_divide_quota(s, i, items) >= (double)s->caps[i]) {
                s->out[i] = s->caps[i] < s->left ? s->caps[i] : s->left;
                s->left -= s->out[i];
                again = true;
            }
        }
    }
}

/* Give the open ranks their quotas without fractions, then single items to the largest ones. */
static void dcommi_divide_deal(dcommi_division *s)
{
    size_t items = s->left;
    for (size_t i = 0; i < s->n && items > 0; i++) {
        if (dcommi_divide_open(s, i)) {
            size_t whole = (size_t)dcommi_divide_quota(s, i, items);
            s->out[i] = whole < s->left ? whole : s->left;
            s->left -= s->out[i];
        }
    }
    for (; s->left > 0; s->left--) {
        size_t best = s->n;
        double largest = 0;
        for (size_t i = 0; i < s->n; i++) {
            if (dcommi_divide_open(s, i)) {
                double rest = dcommi_divide_quota(s, i, items) - (double)s->out[i];
                if (best == s->n || rest > largest) {
                    best = i;
                    largest = rest;
                }
            }
        }
        s->out[best]++;
    }
}

/* Return a sentence about what is wrong with the speeds and caps; NULL: nothing. */
static const char *dcommi_divide_wrong(size_t total, const double *speeds, const size_t *caps,
                                       size_t n)
{
    uint64_t room = 0;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = dcommi_f64_bits(speeds[i]);
        if (bits >= 0x7ff0000000000000u && bits != 0x8000000000000000u) { /* -0 is a zero */
            return "a speed is negative or not finite";
        }
        if (speeds[i] > 0) {
            uint64_t most = caps != NULL && caps[i] < total ? caps[i] : total;
            room += most < total - room ? most : total - room;
            any = true;
        }
    }
    return !any ? "all speeds are 0" : room < total ? "the caps are together below total" : NULL;
}

DCOMM_API dcomm_status dcomm_share(size_t total, const double *speeds, const size_t *caps, size_t n,
                                   size_t *out)
{
    const char *wrong = speeds == NULL || out == NULL          ? "speeds or out is NULL"
                        : n == 0                               ? "n is 0"
                        : (uint64_t)total > DCOMMI_DIVIDE_MOST ? "total is above 2^53"
                                                               : NULL;
    wrong = wrong != NULL ? wrong : dcommi_divide_wrong(total, speeds, caps, n);
    if (wrong != NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_share: %s", wrong);
    }
    dcommi_division s = {.speeds = speeds, .caps = caps, .n = n, .out = out, .left = total};
    for (size_t i = 0; i < n; i++) {
        out[i] = 0;
    }
    dcommi_divide_fill(&s);
    dcommi_divide_deal(&s);
    return DCOMM_OK;
}

#endif
