/* derive.h - communicators made from the ranks of another one. */
#ifndef DCOMMI_COMM_DERIVE_H
#define DCOMMI_COMM_DERIVE_H

#include "loan.h"

/* Take over the settings of another communicator. */
static void dcommi_comm_inherit(dcomm_comm *comm, const dcomm_comm *parent, int quorum)
{
    comm->timeout_s = parent->timeout_s;
    comm->liveness_s = parent->liveness_s;
    comm->chunk_bytes = parent->chunk_bytes;
    comm->deterministic = parent->deterministic;
    comm->connections = parent->connections;
    comm->quorum = quorum;
    comm->on_error = parent->on_error;
    memcpy(comm->algo, parent->algo, sizeof comm->algo);
}

/* Make a communicator of some ranks of `parent`, in the order given. Every one of them derives the
 * same id from the parent's and `salt`. The engine does not see it yet. */
static dcomm_status dcommi_comm_make(const dcomm_comm *parent, const int *ranks, int size,
                                     uint64_t salt, int quorum, dcomm_comm **new_p)
{
    dcomm_comm *comm = dcommi_comm_new(parent->context);
    if (comm == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->id = dcommi_mix(parent->id, salt);
    comm->size = size;
    comm->rank = -1;
    dcommi_comm_inherit(comm, parent, quorum);
    comm->device_ucx = parent->device_ucx;
    comm->all_connected = parent->all_connected;
    comm->members = dcommi_calloc((size_t)size, sizeof *comm->members);
    comm->groups = dcommi_groups_restrict(parent->groups, ranks, size);
    comm->places = dcommi_calloc((size_t)size, sizeof *comm->places);
    bool bad = comm->members == NULL || comm->groups == NULL || comm->places == NULL ||
               dcommi_comm_chooser(comm, parent->chooser) < 0;
    comm->nhosts = bad ? 0 : comm->groups->count[0];
    for (int i = 0; i < size && !bad; i++) {
        const dcommi_member *from = &parent->members[ranks[i]];
        dcommi_member *m = &comm->members[i];
        m->peer = from->peer;
        comm->places[i] = parent->places[ranks[i]];
        m->hostname = dcommi_strdup(from->hostname);
        bad = m->hostname == NULL;
        if (ranks[i] == parent->rank) {
            comm->rank = i;
        }
    }
    if (bad || dcommi_agreements_open(comm) < 0) {
        dcommi_comm_drop(comm);
        return DCOMM_ERR_NO_MEMORY;
    }
    *new_p = comm;
    return DCOMM_OK;
}

/* Begin to use a communicator that dcommi_comm_make has made. */
static void dcommi_comm_begin(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    for (int i = 0; i < comm->size; i++) {
        if (comm->members[i].peer >= 0) {
            context->peers[comm->members[i].peer].users++;
        }
    }
    dcommi_token_release(context);
    dcommi_comm_enter(comm);
}

typedef struct dcommi_color {
    int32_t color, key, rank;
    int32_t status; /* of making this rank's part */
} dcommi_color;

static int dcommi_color_compare(const void *a, const void *b)
{
    const dcommi_color *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : 1;
}

/* Return the number of the next derivation. All ranks derive in the same order, so it is the same
 * on all. */
static uint64_t dcommi_comm_next_child(dcomm_comm *comm)
{
    dcommi_comm_lock(comm);
    uint64_t n = ++comm->children;
    dcommi_comm_unlock(comm);
    return n;
}

/* The state of a split. */
typedef struct dcommi_split {
    dcommi_color *all;   /* every rank's colour */
    int *ranks, size;    /* those of our colour */
    dcommi_color *fared; /* every rank's, with its status */
} dcommi_split;

/* Exchange colours, make our part, and exchange its status. The second exchange reuses the plan
 * and the memory of the first, so no rank fails in it alone. */
static dcomm_status dcommi_split_make(dcomm_comm *comm, dcommi_split *s, dcommi_color mine,
                                      uint64_t child, dcomm_comm **new_p)
{
    s->all[comm->rank] = mine;
    DCOMMI_TRY(dcomm_allgather(comm, DCOMM_IN_PLACE, s->all, sizeof mine, DCOMM_U8, NULL));
    for (int r = 0; r < comm->size && mine.color >= 0; r++) {
        if (s->all[r].color == mine.color) {
            s->all[s->size++] = s->all[r];
        }
    }
    qsort(s->all, (size_t)s->size, sizeof *s->all, dcommi_color_compare);
    for (int i = 0; i < s->size; i++) {
        s->ranks[i] = s->all[i].rank;
    }
    if (mine.color >= 0) {
        /* A number of ranks that must be left means the ranks of this communicator. */
        const int quorum = s->size == comm->size || comm->quorum < 0 ? comm->quorum : 0;
        mine.status = dcommi_comm_make(comm, s->ranks, s->size,
                                       dcommi_mix(child, (uint64_t)mine.color + 1), quorum, new_p);
    }
    s->fared[comm->rank] = mine;
    DCOMMI_TRY(dcomm_allgather(comm, DCOMM_IN_PLACE, s->fared, sizeof mine, DCOMM_U8, NULL));
    for (int r = 0; r < comm->size; r++) {
        const dcomm_status status = (dcomm_status)s->fared[r].status;
        if (status < 0) {
            return dcommi_fail(status, "rank %d could not make its part of the split: %s", r,
                               dcomm_strerror(status));
        }
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key, dcomm_comm **new_p)
{
    DCOMMI_NEED(new_p);
    *new_p = NULL;
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("split"));
    uint64_t child = dcommi_comm_next_child(comm);
    const size_t n = (size_t)comm->size;
    dcommi_split s = {.all = dcommi_borrow(comm, n, sizeof *s.all),
                      .ranks = dcommi_borrow(comm, n, sizeof *s.ranks),
                      .fared = dcommi_borrow(comm, n, sizeof *s.fared)};
    dcomm_status status = DCOMM_ERR_NO_MEMORY;
    if (s.all != NULL && s.ranks != NULL && s.fared != NULL) {
        status = dcommi_split_make(comm, &s, (dcommi_color){color, key, comm->rank, DCOMM_OK},
                                   child, new_p);
    }
    if (status >= 0 && *new_p != NULL) {
        dcommi_comm_begin(*new_p);
    } else if (*new_p != NULL) {
        dcommi_comm_drop(*new_p);
        *new_p = NULL;
    }
    dcommi_give_back(comm, s.all);
    dcommi_give_back(comm, s.ranks);
    dcommi_give_back(comm, s.fared);
    return status;
}

DCOMM_API dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_NEED(new_p);
    return dcomm_comm_split(comm, 0, comm->rank, new_p);
}

#endif
