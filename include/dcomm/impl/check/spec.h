/* spec.h - the promise of each collective: where its inputs lie, and what its results are. */
#ifndef DCOMMI_CHECK_SPEC_H
#define DCOMMI_CHECK_SPEC_H

#include "state.h"

/* Bytes of a buffer that hold input bytes [src, src+len) folded over the ranks in mask. */
typedef struct dcommi_check_part {
    int64_t at, len, src;
    uint64_t mask;
} dcommi_check_part;

/* One rank's buffers. */
typedef struct dcommi_check_layout {
    int64_t in_bytes, out_bytes;
    int64_t in_place_at; /* offset in OUT of an in-place input; -1: the input is in IN */
    int64_t input_bytes; /* bytes of input in OUT */
    dcommi_check_part part[DCOMMI_CHECK_RANKS];
    int nparts;
} dcommi_check_layout;

typedef struct dcommi_check_shape {
    int64_t length[DCOMMI_CHECK_RANKS], at[DCOMMI_CHECK_RANKS]; /* v: each rank's block, bytes */
    int64_t total;                                              /* end of the last block */
} dcommi_check_shape;

static bool dcommi_check_is_v(dcomm_coll coll)
{
    return coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV ||
           coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

/* Return the bytes of `count` elements, or -1 if a plan cannot express so many. */
static int64_t dcommi_check_bytes(const dcommi_check *c, size_t count)
{
    int64_t bytes;
    if (__builtin_mul_overflow(count, c->element, &bytes) || bytes > INT64_MAX / 128) {
        return -1;
    }
    return bytes;
}

/* Find the ranks' blocks. In collectives without "v" they are all `count` elements long. */
static dcomm_status dcommi_check_shape_of(const dcommi_check *c, dcommi_check_shape *shape)
{
    const dcomm_check_spec *spec = c->spec;
    bool v = dcommi_check_is_v(spec->coll);
    memset(shape, 0, sizeof *shape);
    int64_t packed = 0;
    for (int i = 0; i < c->n; i++) {
        int64_t length = dcommi_check_bytes(c, v ? spec->counts[i] : spec->count);
        int64_t at = v && spec->displs != NULL ? dcommi_check_bytes(c, spec->displs[i]) : packed;
        if (length < 0 || at < 0) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_plan_check: a count or displacement of the spec is 2^56 "
                               "bytes or more");
        }
        shape->length[i] = length;
        shape->at[i] = at;
        packed += length;
        shape->total = dcommi_max64(shape->total, at + length);
    }
    return DCOMM_OK;
}

static void dcommi_check_expect(dcommi_check_layout *l, int64_t at, int64_t len, uint64_t mask,
                                int64_t src)
{
    dcommi_check_part part = {at, len, src, mask};
    l->part[l->nparts++] = part;
}

static dcomm_status dcommi_check_alltoallv(const dcommi_check *c, int rank, dcommi_check_layout *l)
{
    const size_t *counts = c->spec->counts;
    for (int p = 0; p < c->n; p++) {
        int64_t src = 0;
        for (int q = 0; q < rank; q++) {
            src += dcommi_check_bytes(c, counts[p * c->n + q]);
        }
        int64_t out = dcommi_check_bytes(c, counts[rank * c->n + p]);
        int64_t len = dcommi_check_bytes(c, counts[p * c->n + rank]);
        if (out < 0 || len < 0) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_plan_check: a count of the spec is 2^56 bytes or more");
        }
        dcommi_check_expect(l, l->out_bytes, len, (uint64_t)1 << p, src);
        l->out_bytes += len;
        l->in_bytes += out;
    }
    return DCOMM_OK;
}

/* Find where the input of `rank` lies and what its output must be. */
static dcomm_status dcommi_check_layout_of(const dcommi_check *c, int rank, dcommi_check_layout *l)
{
    const dcomm_check_spec *spec = c->spec;
    dcommi_check_shape s;
    bool root = rank == spec->root, here = spec->in_place;
    memset(l, 0, sizeof *l);
    l->in_place_at = -1;
    if (spec->coll == DCOMM_COLL_ALLTOALLV) {
        return dcommi_check_alltoallv(c, rank, l);
    }
    DCOMMI_TRY(dcommi_check_shape_of(c, &s));
    int64_t mine = s.length[rank], at = s.at[rank];
    switch (spec->coll) {
    case DCOMM_COLL_ALLREDUCE:
    case DCOMM_COLL_REDUCE:
        l->in_bytes = l->out_bytes = mine;
        if (spec->coll == DCOMM_COLL_ALLREDUCE || root) {
            dcommi_check_expect(l, 0, mine, c->all, 0);
        } else if (!here) {
            l->out_bytes = 0;
        }
        l->in_place_at = here ? 0 : -1;
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_REDUCE_SCATTERV:
        l->in_bytes = s.total;
        l->out_bytes = here ? s.total : mine;
        l->in_place_at = here ? 0 : -1;
        dcommi_check_expect(l, here ? at : 0, mine, c->all, at);
        break;
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_ALLGATHERV:
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_GATHERV: {
        bool all = spec->coll == DCOMM_COLL_ALLGATHER || spec->coll == DCOMM_COLL_ALLGATHERV;
        l->in_bytes = mine;
        l->out_bytes = all || root ? s.total : 0;
        l->in_place_at = here && (all || root) ? at : -1;
        for (int p = 0; p < c->n && (all || root); p++) {
            dcommi_check_expect(l, s.at[p], s.length[p], (uint64_t)1 << p, 0);
        }
        break;
    }
    case DCOMM_COLL_BROADCAST:
        l->in_bytes = root ? mine : 0;
        l->out_bytes = mine;
        l->in_place_at = here && root ? 0 : -1;
        dcommi_check_expect(l, 0, mine, (uint64_t)1 << spec->root, 0);
        break;
    case DCOMM_COLL_SCATTER:
    case DCOMM_COLL_SCATTERV:
        l->in_bytes = root ? s.total : 0;
        l->out_bytes = here && root ? s.total : mine;
        l->in_place_at = here && root ? 0 : -1;
        dcommi_check_expect(l, here && root ? at : 0, mine, (uint64_t)1 << spec->root, at);
        break;
    case DCOMM_COLL_ALLTOALL:
        l->in_bytes = l->out_bytes = s.total;
        l->in_place_at = here ? 0 : -1;
        for (int p = 0; p < c->n; p++) {
            dcommi_check_expect(l, s.at[p], s.length[p], (uint64_t)1 << p, at);
        }
        break;
    case DCOMM_COLL_BARRIER:
        break;
    default: /* send, recv, a caller's plan: the plans themselves say which bytes they touch */
        l->in_bytes = c->rank[rank].plan->in_bytes;
        l->out_bytes = c->rank[rank].plan->out_bytes;
        l->in_place_at = here ? 0 : -1;
        break;
    }
    l->input_bytes = l->in_place_at < 0 ? 0 : l->in_bytes;
    if (l->in_place_at >= 0) {
        l->input_bytes = dcommi_min64(l->in_bytes, l->out_bytes - l->in_place_at);
    }
    return DCOMM_OK;
}

/* Refuse a spec that is invalid. */
static dcomm_status dcommi_check_spec_valid(const dcomm_check_spec *spec, int nranks)
{
    bool rooted = spec->coll == DCOMM_COLL_BROADCAST || spec->coll == DCOMM_COLL_REDUCE ||
                  spec->coll == DCOMM_COLL_GATHER || spec->coll == DCOMM_COLL_SCATTER ||
                  spec->coll == DCOMM_COLL_GATHERV || spec->coll == DCOMM_COLL_SCATTERV;
    if ((unsigned)spec->coll >= DCOMM_COLL_COUNT || dcomm_dtype_size(spec->dtype) == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_plan_check: spec->coll is %d and spec->dtype is %d, and one of "
                           "the two is unknown",
                           (int)spec->coll, (int)spec->dtype);
    }
    if (rooted && (spec->root < 0 || spec->root >= nranks)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_plan_check: spec->root is %d, which is no rank of %d", spec->root,
                           nranks);
    }
    if ((dcommi_check_is_v(spec->coll) || spec->coll == DCOMM_COLL_ALLTOALLV) &&
        spec->counts == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_check: spec->counts is NULL");
    }
    if (spec->coll == DCOMM_COLL_ALLTOALLV && spec->in_place) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_check: spec->in_place is set, but "
                                              "all-to-all-v is never in place");
    }
    return DCOMM_OK;
}

/* Compare a rank's OUT with the expected contents. */
static dcomm_status dcommi_check_results(dcommi_check *c, int rank)
{
    static const char *const refusal = "rank %d: OUT bytes %" PRId64 " to %" PRId64 " %s";
    dcommi_check_layout l;
    DCOMMI_TRY(dcommi_check_layout_of(c, rank, &l));
    const dcommi_check_mem *out = c->rank[rank].mem[DCOMM_SPACE_OUT];
    for (int i = 0; i < l.nparts; i++) {
        const dcommi_check_part *part = &l.part[i];
        dcommi_check_runs *runs = &c->merged;
        int64_t at = part->at, src = part->src;
        runs->n = 0;
        DCOMMI_TRY(dcommi_check_peek(out, part->at, part->len, runs));
        for (size_t k = 0; k < runs->n; k++) {
            const dcommi_check_value *v = &runs->run[k].v;
            int64_t end = at + runs->run[k].len;
            char text[192] = "";
            if (v->kind == DCOMMI_CHECK_UNDEF) {
                snprintf(text, sizeof text, "are never written");
            } else if (v->kind != DCOMMI_CHECK_SUM) {
                snprintf(text, sizeof text, "hold no contribution of any rank");
            } else if (v->mask != part->mask) {
                snprintf(text, sizeof text,
                         "hold the ranks 0x%" PRIx64 ", but should hold 0x%" PRIx64, v->mask,
                         part->mask);
            } else if (v->src != src) {
                snprintf(text, sizeof text,
                         "hold input from byte %" PRId64 ", but should hold it from byte %" PRId64,
                         v->src, src);
            } else if (c->averages && (v->flags & DCOMMI_CHECK_DIVIDED) == 0) {
                snprintf(text, sizeof text, "are no average: no FINAL fold has completed them");
            } else if (c->reduces && c->spec->rank_order &&
                       (v->flags & DCOMMI_CHECK_ORDERED) == 0) {
                snprintf(text, sizeof text, "were not folded in rank order%s",
                         c->element == 2 ? " in one step, as 16-bit sums must be" : "");
            }
            if (text[0] != '\0') {
                return dcommi_fail(DCOMM_ERR_PLAN, refusal, rank, at, end, text);
            }
            src += runs->run[k].len;
            at = end;
        }
    }
    return DCOMM_OK;
}

#endif
