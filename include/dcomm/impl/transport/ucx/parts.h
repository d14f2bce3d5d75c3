/* parts.h - sends a long message in parts, each over a connection of its own. The sender cuts it,
 * and the receiver gathers the parts. */
#ifndef DCOMMI_UCX_PARTS_H
#define DCOMMI_UCX_PARTS_H

#include "ask.h"

#define DCOMMI_UCX_PART_MIN 32768 /* least bytes of a part */
#define DCOMMI_UCX_PART_GRAIN 4096
/* Most messages of a peer that wait for parts: 1 GiB or more. A peer with more is not a dcomm of
 * ours. */
#define DCOMMI_UCX_INCOMPLETE_MAX 16384

/* ---- where to cut ---- */

static int dcommi_ucx_parts_of(const dcommi_ucx_peer *p, size_t len)
{
    size_t most = len / DCOMMI_UCX_PART_MIN;
    int n = p->connections;
    return most < 2 ? 1 : most < (size_t)n ? (int)most : n;
}

/* Return the offset of part `i` in bytes: the end if i = parts. Both ends compute it. */
static size_t dcommi_ucx_part_at(size_t total, int parts, int i)
{
    size_t grain = DCOMMI_UCX_PART_GRAIN, n = (size_t)parts;
    size_t each = (total / n + (total % n != 0) + grain - 1) / grain * grain;
    return i == parts || each * (size_t)i > total ? total : each * (size_t)i;
}

/* ---- one op for all parts ---- */

static void dcommi_ucx_joint_put(dcommi_ucx_joint *j)
{
    j->next = j->ucx->spare_joint;
    j->ucx->spare_joint = j;
}

static void dcommi_ucx_joint_done(dcommi_op *part, dcomm_status status)
{
    dcommi_ucx_joint *j = (dcommi_ucx_joint *)part;
    j->status = status < 0 && j->status >= 0 ? status : j->status;
    if (--j->left == 0) {
        dcommi_op *op = j->op;
        status = j->status;
        dcommi_ucx_joint_put(j);
        op->handle = NULL;
        op->done(op, status);
    }
}

/* Make one op for all parts. Count one part more until dcommi_ucx_joint_launched, so that `op` is
 * not done before. */
static dcommi_ucx_joint *dcommi_ucx_joint_make(dcommi_ucx *u, dcommi_op *op, int parts)
{
    if (u->spare_joint == NULL && !dcommi_ucx_refill(u)) {
        return NULL;
    }
    dcommi_ucx_joint *j = u->spare_joint;
    u->spare_joint = j->next;
    j->part = (dcommi_op){.done = dcommi_ucx_joint_done};
    j->op = op;
    j->left = parts + 1;
    j->status = DCOMM_OK;
    return j;
}

/* Note the status of a started part. Return false if the other parts need not be tried. */
static bool dcommi_ucx_joint_part(dcommi_ucx_joint *j, dcomm_status status)
{
    if (status != DCOMM_IN_PROGRESS) {
        j->left--;
        j->status = status < 0 && j->status >= 0 ? status : j->status;
    }
    return status >= 0;
}

/* End the start of all parts but `rest`. Return the status of the whole message. */
static dcomm_status dcommi_ucx_joint_launched(dcommi_ucx_joint *j, int rest)
{
    j->left -= rest + 1;
    if (j->left > 0) {
        return DCOMM_IN_PROGRESS;
    }
    dcomm_status status = j->status;
    dcommi_ucx_joint_put(j);
    return status;
}

/* ---- receiving ---- */

/* Drop a single message, but not the parts that it leads. */
static void dcommi_ucx_drop(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    if (k->arriving) { /* UCX still holds it, and drops it when its callback says so */
        k->dropped = true;
        return;
    }
    if (k->data != NULL) {
        ucp_am_data_release(u->worker, k->data);
    } else {
        dcommi_ucx_decline(u, &k->tail);
    }
    dcommi_ucx_kept_put(u, k);
}

static void dcommi_ucx_drop_all(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    bool direct = u->direct;
    u->direct = false;
    while (k != NULL) {
        dcommi_ucx_kept *more = k->more;
        dcommi_ucx_drop(u, k);
        k = more;
    }
    u->direct = direct;
}

/* Drop the incomplete messages of a lost peer. */
static void dcommi_ucx_forget_parts(dcommi_ucx *u, dcommi_ucx_peer *p)
{
    p->incomplete = 0;
    for (dcommi_ucx_kept **at = &u->incomplete; *at != NULL;) {
        dcommi_ucx_kept *k = *at;
        if (k->tail.id != p->id) {
            at = &k->incomplete;
            continue;
        }
        *at = k->incomplete;
        dcommi_ucx_drop_all(u, k);
    }
}

static size_t dcommi_ucx_part_len(const dcommi_ucx_tail *t)
{
    return dcommi_ucx_part_at(t->total, t->parts, t->part + 1) -
           dcommi_ucx_part_at(t->total, t->parts, t->part);
}

/* Return true if a tail can be. `len` is the bytes of the payload, or SIZE_MAX if only the tail
 * tells. */
static bool dcommi_ucx_tail_valid(const dcommi_ucx_tail *t, size_t len)
{
    return t->connection < DCOMM_CONNECTIONS_MAX && t->parts >= 1 &&
           t->parts <= DCOMM_CONNECTIONS_MAX && t->part < t->parts &&
           (len == SIZE_MAX ? t->total > 0 : len == dcommi_ucx_part_len(t)) &&
           (t->parts == 1 || dcommi_ucx_part_len(t) > 0);
}

/* Take in a part of a known peer. Return the leader of its message once the message is complete,
 * else NULL. *good is false if the part does not fit those that came before. */
static dcommi_ucx_kept *dcommi_ucx_gather(dcommi_ucx *u, dcommi_ucx_kept *k, bool *good)
{
    const dcommi_ucx_tail *t = &k->tail;
    dcommi_ucx_kept **at = &u->incomplete;
    *good = true;
    while (*at != NULL && ((*at)->tail.id != t->id || (*at)->tail.number != t->number)) {
        at = &(*at)->incomplete;
    }
    dcommi_ucx_kept *leader = *at;
    uint32_t bit = UINT32_C(1) << t->part, all = (UINT32_C(1) << t->parts) - 1;
    if (leader == NULL) {
        k->incomplete = NULL;
        k->there = bit;
        *at = k;
        if (++k->peer->incomplete > DCOMMI_UCX_INCOMPLETE_MAX) {
            dcommi_ucx_lose(&u->base, k->peer->index, "it does not complete its messages");
        }
        return NULL;
    }
    if (leader->tail.total != t->total || leader->tail.parts != t->parts ||
        (leader->there & bit) != 0) {
        *good = false;
        return NULL;
    }
    k->more = leader->more;
    leader->more = k;
    leader->there |= bit;
    if (leader->there != all) {
        return NULL;
    }
    *at = leader->incomplete;
    k->peer->incomplete--;
    return leader;
}

#endif
