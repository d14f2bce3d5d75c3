/* overlap.h - refuse a call whose buffers overlap. It would read what it has already written, and
 * give wrong numbers that differ by rank. */
#ifndef DCOMMI_OVERLAP_H
#define DCOMMI_OVERLAP_H

#include "call.h"

/* Return true if two ranges of memory share a byte. */
static inline bool dcommi_overlaps(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    const uintptr_t behind = (uintptr_t)b - (uintptr_t)a;
    return a_bytes > 0 && b_bytes > 0 &&
           (behind < (uintptr_t)a_bytes || (uintptr_t)0 - behind < (uintptr_t)b_bytes);
}

/* The blocks of a buffer, one per rank; counts NULL: one block of all of it. */
typedef struct dcommi_extent {
    const char *name; /* of the argument */
    const void *base;
    int64_t bytes; /* from base to the end of the last block */
    const size_t *counts, *displs;
} dcommi_extent;

static int dcommi_extent_n(const dcommi_shape *s, const dcommi_extent *b)
{
    return b->counts != NULL ? s->nranks : 1;
}

static const void *dcommi_extent_part(const dcommi_shape *s, const dcommi_extent *b, int r,
                                      int64_t *bytes)
{
    *bytes = b->counts != NULL ? dcommi_shape_bytes(s, b->counts[r]) : b->bytes;
    return (const char *)b->base +
           (b->counts != NULL && *bytes > 0 ? dcommi_shape_bytes(s, b->displs[r]) : 0);
}

/* Write the name of a block, such as "the block of rank 3 in recvbuf (120 bytes)". */
static void dcommi_extent_text(const dcommi_shape *s, const dcommi_extent *b, int r, char *text,
                               size_t len)
{
    int64_t bytes;
    char of[40] = "";
    dcommi_extent_part(s, b, r, &bytes);
    if (b->counts != NULL) {
        snprintf(of, sizeof of, "the block of rank %d in ", r);
    }
    snprintf(text, len, "%s%s (%" PRId64 " bytes)", of, b->name, bytes);
}

static dcomm_status dcommi_overlap_fail(const dcommi_shape *s, const dcommi_extent *a, int i,
                                        const dcommi_extent *b, int j)
{
    int64_t bytes;
    char first[96], second[96];
    const void *at = dcommi_extent_part(s, a, i, &bytes);
    const int64_t behind =
        (int64_t)((uintptr_t)dcommi_extent_part(s, b, j, &bytes) - (uintptr_t)at);
    dcommi_extent_text(s, a, i, first, sizeof first);
    dcommi_extent_text(s, b, j, second, sizeof second);
    return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s begins %" PRId64 " bytes %s %s and overlaps it",
                       dcomm_coll_name(s->coll), second, behind < 0 ? -behind : behind,
                       behind < 0 ? "before" : "behind", first);
}

/* Check that nothing is written that is also read. Compare the blocks only if the buffers as a
 * whole overlap: one may lie in a gap of the other. */
static dcomm_status dcommi_check_disjoint(const dcommi_shape *s, const dcommi_extent *in,
                                          const dcommi_extent *out)
{
    if (DCOMMI_LIKELY(!dcommi_overlaps(in->base, in->bytes, out->base, out->bytes))) {
        return DCOMM_OK;
    }
    for (int i = 0; i < dcommi_extent_n(s, in); i++) {
        for (int j = 0; j < dcommi_extent_n(s, out); j++) {
            int64_t a_bytes, b_bytes;
            const void *a = dcommi_extent_part(s, in, i, &a_bytes);
            const void *b = dcommi_extent_part(s, out, j, &b_bytes);
            if (dcommi_overlaps(a, a_bytes, b, b_bytes)) {
                return dcommi_overlap_fail(s, in, i, out, j);
            }
        }
    }
    return DCOMM_OK;
}

/* Check that the blocks of a buffer that is written do not overlap. Blocks in ascending order, the
 * usual case, need one pass only. */
static dcomm_status dcommi_check_extent(const dcommi_shape *s, const dcommi_extent *b)
{
    bool ascending = true;
    size_t end = 0;
    for (int r = 0; r < dcommi_extent_n(s, b) && b->counts != NULL; r++) {
        if (b->counts[r] > 0) {
            ascending = ascending && b->displs[r] >= end;
            end = b->displs[r] + b->counts[r];
        }
    }
    for (int i = 0; i < dcommi_extent_n(s, b) && !ascending; i++) {
        for (int j = 0; j < i; j++) {
            int64_t a_bytes, b_bytes;
            const void *x = dcommi_extent_part(s, b, j, &a_bytes),
                       *y = dcommi_extent_part(s, b, i, &b_bytes);
            if (dcommi_overlaps(x, a_bytes, y, b_bytes)) {
                return dcommi_overlap_fail(s, b, j, b, i);
            }
        }
    }
    return DCOMM_OK;
}

/* Check the buffers of a call. For a call in place in_bytes is 0. */
static dcomm_status dcommi_check_overlap(const dcommi_shape *s, const void *in, int64_t in_bytes,
                                         const void *out, int64_t out_bytes)
{
    const bool sends = s->coll == DCOMM_COLL_SCATTERV || s->coll == DCOMM_COLL_ALLTOALLV;
    const bool receives = s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_GATHERV ||
                          s->coll == DCOMM_COLL_ALLTOALLV;
    const bool own = s->send_counts != NULL;
    dcommi_extent read = {"sendbuf", in, in_bytes, NULL, NULL};
    dcommi_extent written = {"recvbuf", out, out_bytes, NULL, NULL};
    if (sends && in_bytes > 0) {
        read.counts = own ? s->send_counts : s->counts;
        read.displs = own ? s->send_displs : s->displs;
    }
    if (receives && out_bytes > 0) {
        written.counts = s->counts;
        written.displs = s->displs;
    }
    DCOMMI_TRY(dcommi_check_extent(s, &written));
    return dcommi_check_disjoint(s, &read, &written);
}

#endif
