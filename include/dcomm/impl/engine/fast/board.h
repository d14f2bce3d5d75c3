/* board.h - what a rank has to say to all others at once. On one host it writes that to memory of
 * its own which they read, once for all instead of into the fifo of each: with many ranks on few
 * cores most of the time of a short collective goes into such messages. Four ranks on two cores
 * took 3.1 us for an all-reduce of 4 bytes through fifos, bare loops in such memory 1.8.
 *
 * A board belongs to a communicator. It has some cells, which take turns; one is written anew when
 * all ranks have completed the operation of its message before, as their headers say. Where they
 * have not yet, or are not known to look at the board, the message goes through the fifos: readers
 * look at both, and find it by its operation. */
#ifndef DCOMMI_BOARD_H
#define DCOMMI_BOARD_H

#include "../engine.h"

#define DCOMMI_BOARDS 8 /* of a process */
#define DCOMMI_BOARD_CELLS 4
#define DCOMMI_BOARD_LINE 64

typedef struct dcommi_cell {
    /* Turn (32 bits, one more than the number of the message), payload length (16), header length.
     */
    _Alignas(DCOMMI_BOARD_LINE) _Atomic uint64_t word;
    unsigned char bytes[sizeof(dcommi_header) + DCOMMI_BOARD_PAYLOAD]; /* header, payload */
} dcommi_cell;

/* In shared memory. The readers trust none of it. */
typedef struct dcommi_board {
    _Alignas(DCOMMI_BOARD_LINE) _Atomic uint64_t comm; /* whose it is; 0: free */
    _Atomic uint64_t readers;                          /* bit r: rank r looks at it */
    dcommi_cell cell[DCOMMI_BOARD_CELLS];
} dcommi_board;

_Static_assert(DCOMMI_BOARDS * sizeof(dcommi_board) <= DCOMMI_COMMON_BYTES, "boards find room");

/* A rank's own. */
struct dcommi_posts {
    dcommi_board *board;
    uint64_t count; /* messages so far */
    uint64_t
        until[DCOMMI_BOARD_CELLS]; /* a cell is free when all have completed so many operations */
    uint64_t others;               /* bits of the other ranks */
    bool open;                     /* all of them look at it */
};

/* ---- coming and leaving ---- */

static dcommi_board *dcommi_boards_of(const dcomm_context *context, int peer)
{
    dcommi_transport *local = context->local;
    void *boards = NULL;
    return local->call->common != NULL && local->call->common(local, peer, &boards) == DCOMM_OK
               ? boards
               : NULL;
}

#define DCOMMI_BOARD_LOOKED_AT UINT64_MAX /* in place of a communicator's id */

/* Nobody's, and nobody looks at it any more. */
static bool dcommi_board_free(dcommi_board *board)
{
    uint64_t whose = atomic_load_explicit(&board->comm, memory_order_relaxed);
    return whose == 0 || (whose == DCOMMI_BOARD_LOOKED_AT && atomic_load(&board->readers) == 0);
}

/* Take a board for a communicator, if it can use one. With the token. */
static void dcommi_board_open(dcomm_comm *comm)
{
    const dcomm_context *context = comm->context;
    bool fit = dcommi_groups_post(comm->groups, comm->size);
    for (int r = 0; r < comm->size && fit; r++) {
        int peer = comm->members[r].peer;
        fit = peer < 0 || context->peers[peer].transport == context->local;
    }
    dcommi_board *boards = fit ? dcommi_boards_of(context, -1) : NULL;
    for (int i = 0; i < DCOMMI_BOARDS && boards != NULL && comm->posts == NULL; i++) {
        dcommi_board *board = &boards[i];
        if (!dcommi_board_free(board)) {
            continue;
        }
        comm->posts = dcommi_alloc(sizeof *comm->posts);
        if (comm->posts == NULL) {
            return;
        }
        comm->posts->board = board;
        comm->posts->others = ((uint64_t)1 << comm->size) - 1 - ((uint64_t)1 << comm->rank);
        for (int k = 0; k < DCOMMI_BOARD_CELLS; k++) {
            atomic_store_explicit(&board->cell[k].word, 0, memory_order_relaxed);
        }
        atomic_store_explicit(&board->readers, 0, memory_order_relaxed);
        atomic_store_explicit(&board->comm, comm->id, memory_order_release);
    }
}

static void dcommi_board_let_go(const dcomm_comm *comm, dcommi_board *board)
{
    atomic_fetch_and(&board->readers, ~((uint64_t)1 << comm->rank));
}

/* Tell the owner of a board that it is looked at, unless it ends meanwhile. */
static bool dcommi_board_look(const dcomm_comm *comm, dcommi_board *board)
{
    if (atomic_load_explicit(&board->comm, memory_order_acquire) != comm->id) {
        return false;
    }
    atomic_fetch_or(&board->readers, (uint64_t)1 << comm->rank);
    if (atomic_load(&board->comm) != comm->id) {
        dcommi_board_let_go(comm, board);
        return false;
    }
    return true;
}

/* Find the other ranks' boards. */
static void dcommi_board_find(dcomm_comm *comm)
{
    bool all = true;
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer < 0 || m->board != NULL) {
            continue;
        }
        dcommi_board *boards = dcommi_boards_of(comm->context, m->peer);
        for (int i = 0; i < DCOMMI_BOARDS && boards != NULL && m->board == NULL; i++) {
            if (dcommi_board_look(comm, &boards[i])) {
                m->board = &boards[i];
                m->board_read = 0;
            }
        }
        all = all && m->board != NULL;
    }
    comm->attached = all;
}

/* The same until all are found. With the token. */
static inline void dcommi_board_attach(dcomm_comm *comm)
{
    if (DCOMMI_UNLIKELY(comm->posts != NULL && !comm->attached)) {
        dcommi_board_find(comm);
    }
}

/* The communicator ends: its board may be another's, unless some rank may still look at it, which
 * has neither said goodbye nor let go of it. */
static void dcommi_board_close(dcomm_comm *comm)
{
    if (comm->posts == NULL) {
        return;
    }
    dcommi_board *board = comm->posts->board;
    atomic_store(&board->comm, DCOMMI_BOARD_LOOKED_AT);
    uint64_t readers = atomic_load(&board->readers);
    for (int r = 0; r < comm->size; r++) {
        const dcommi_member *m = &comm->members[r];
        if (m->peer < 0 || m->gone || comm->context->peers[m->peer].lost) {
            readers &= ~((uint64_t)1 << r);
        }
    }
    if (readers == 0) {
        atomic_store_explicit(&board->comm, 0, memory_order_release);
    }
}

/* ---- writing ---- */

/* A message to all other ranks. False: it has to be sent to each. With the token. */
static inline bool dcommi_board_post(dcomm_comm *comm, const dcommi_header *header,
                                     size_t header_len, const void *data, size_t len)
{
    struct dcommi_posts *p = comm->posts;
    if (p == NULL || len > DCOMMI_BOARD_PAYLOAD) {
        return false;
    }
    if (DCOMMI_UNLIKELY(!p->open)) {
        p->open = atomic_load_explicit(&p->board->readers, memory_order_acquire) == p->others;
        if (!p->open) {
            return false;
        }
    }
    size_t at = p->count % DCOMMI_BOARD_CELLS;
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer >= 0 && m->done < p->until[at]) {
            return false;
        }
    }
    dcommi_cell *cell = &p->board->cell[at];
    if (len > 0) {
        memcpy(cell->bytes + header_len, data, len);
    }
    memcpy(cell->bytes, header, header_len);
    p->until[at] = header->seq + 1;
    p->count++;
    atomic_store_explicit(&cell->word,
                          (uint64_t)(uint32_t)p->count << 32 | (uint64_t)len << 16 | header_len,
                          memory_order_release);
    for (int r = 0; r < comm->size; r++) {
        comm->members[r].told = comm->done;
        comm->members[r].addressed = true;
    }
    return true;
}

/* ---- reading ---- */

/* The next message on a rank's board. It stays until it is passed, and its bytes until this rank
 * completes its operation. */
static inline bool dcommi_board_peek(const dcommi_member *m, dcommi_arrival *arrival)
{
    if (m->board == NULL) {
        return false;
    }
    const dcommi_cell *cell = &m->board->cell[m->board_read % DCOMMI_BOARD_CELLS];
    uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
    if ((uint32_t)(word >> 32) != (uint32_t)(m->board_read + 1)) {
        return false;
    }
    size_t header_len = word & UINT16_MAX, len = (uint16_t)(word >> 16);
    bool sound = header_len <= sizeof(dcommi_header) && len <= DCOMMI_BOARD_PAYLOAD;
    *arrival = (dcommi_arrival){.peer = m->peer,
                                .header = cell->bytes,
                                .header_len = sound ? header_len : 0,
                                .data = cell->bytes + header_len,
                                .len = sound ? len : 0,
                                .stays = true};
    return true;
}

static inline void dcommi_board_pass(dcommi_member *m)
{
    m->board_read++;
}

#endif
