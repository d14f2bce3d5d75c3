/* pull.h - COPY and REDUCE with operands in peers' memory. How a peer is read follows from what it
 * is to us: memory of a process on this host is read directly, any other is asked for by message.
 * The plan does not know. */
#ifndef DCOMMI_PULL_H
#define DCOMMI_PULL_H

#include "moves.h"

/* One source of the fold: our own memory, or a rank's. */
typedef struct dcommi_piece {
    const uint8_t *local; /* NULL: the rank's */
    int rank;
    uint16_t slot;
    bool by_message;
    uint32_t region;  /* of that rank's; 0: none */
    uint64_t address; /* in that rank's process */
    uint64_t offset;  /* in what it exposed */
} dcommi_piece;

/* A step under way that reads at least one peer by message. */
struct dcommi_pull {
    struct dcommi_pull *next; /* in run->pulls, which owns it */
    dcommi_lane *lane;
    dcommi_run *run;
    bool async, final, fold;
    uint8_t *dst;
    size_t len, at, block; /* at: start of the block whose pieces are under way */
    size_t npieces;
    unsigned outstanding;
    uint8_t *staging; /* one block per piece; NULL when reading straight into dst */
    dcommi_piece *pieces;
};

static void dcommi_pull_block(dcommi_pull *pull);

static void dcommi_pull_free(dcommi_pull *pull)
{
    for (dcommi_pull **at = &pull->run->pulls; *at != NULL; at = &(*at)->next) {
        if (*at == pull) {
            *at = pull->next;
            break;
        }
    }
    dcommi_free(pull->staging);
    dcommi_free(pull->pieces);
    dcommi_free(pull);
}

static dcomm_status dcommi_fold_pieces(dcommi_lane *lane, uint8_t *dst, const void *const *src,
                                       size_t nsrc, size_t len, bool final)
{
    const dcomm_plan *plan = lane->frame->plan;
    size_t element = dcomm_dtype_size((dcomm_dtype)plan->dtype);
    return dcommi_host_reduce(dst, src, nsrc, len / element, (dcomm_dtype)plan->dtype,
                              (dcomm_op)plan->op,
                              final && plan->op == DCOMM_AVG ? lane->frame->run->plan->nranks : 1);
}

/* Bytes of a block such that the blocks of all pieces stay in cache. */
static size_t dcommi_pull_grain(size_t npieces)
{
    size_t grain = (size_t)8 * DCOMMI_PULL_BLOCK / (npieces > 0 ? npieces : 1);
    grain = grain > DCOMMI_PULL_BLOCK ? DCOMMI_PULL_BLOCK : grain;
    return grain < 4096 ? 4096 : grain & ~(size_t)63;
}

/* Where a piece can be read in place from, at once; NULL: it has to be brought here. */
static inline const uint8_t *dcommi_piece_here(dcomm_comm *comm, const dcommi_piece *piece,
                                               size_t at, size_t len)
{
    return piece->local != NULL ? piece->local + at
                                : dcommi_resolve_peer_memory(comm, piece->rank, piece->region,
                                                             piece->address + at, len);
}

/* Fold from memory that can all be read in place. DCOMM_ERR_UNSUPPORTED: some of it can not. */
static dcomm_status dcommi_pull_mapped(dcommi_lane *lane, uint8_t *dst, const dcommi_piece *pieces,
                                       size_t n, size_t len, bool fold, bool final)
{
    dcomm_comm *comm = lane->frame->run->comm;
    const void **src = comm->context->pointers;
    for (size_t i = 0; i < n; i++) {
        src[i] = dcommi_piece_here(comm, &pieces[i], 0, len);
        if (src[i] == NULL) {
            return DCOMM_ERR_UNSUPPORTED;
        }
    }
    for (size_t i = 0; i < n; i++) {
        comm->stats.bytes_mapped += pieces[i].local == NULL ? len : 0;
    }
    if (fold) {
        return dcommi_fold_pieces(lane, dst, src, n, len, final);
    }
    dcommi_host_copy(dst, src[0], len);
    return DCOMM_OK;
}

/* Fold from memory that can all be read directly. DCOMM_ERR_UNSUPPORTED: some of it can not. */
static dcomm_status dcommi_pull_direct(dcommi_lane *lane, uint8_t *dst, const dcommi_piece *pieces,
                                       size_t n, size_t len, bool final)
{
    dcomm_comm *comm = lane->frame->run->comm;
    size_t grain = dcommi_pull_grain(n);
    uint8_t *staging = dcommi_staging(comm->context, n * grain);
    if (staging == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    const void **src = comm->context->pointers;
    for (size_t at = 0; at < len; at += grain) {
        size_t part = len - at < grain ? len - at : grain;
        for (size_t i = 0; i < n; i++) {
            src[i] = dcommi_piece_here(comm, &pieces[i], at, part);
            if (src[i] != NULL) {
                comm->stats.bytes_mapped += pieces[i].local == NULL ? part : 0;
                continue;
            }
            uint8_t *block = staging + i * grain;
            DCOMMI_TRY(dcommi_read_part(
                dcommi_read_process(comm, pieces[i].rank, block, pieces[i].address + at, part), at,
                pieces[i].rank));
            src[i] = block;
        }
        DCOMMI_TRY(dcommi_fold_pieces(lane, dst + at, src, n, part, final));
    }
    return DCOMM_OK;
}

/* The block's pieces are all here. */
static void dcommi_pull_ready(dcommi_pull *pull)
{
    dcomm_status status = DCOMM_OK;
    if (pull->fold) {
        size_t part = dcommi_min64((int64_t)(pull->len - pull->at), (int64_t)pull->block);
        const void **src = dcommi_calloc(pull->npieces, sizeof *src);
        status = src == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
        for (size_t i = 0; src != NULL && i < pull->npieces; i++) {
            src[i] = pull->pieces[i].by_message
                         ? pull->staging + i * pull->block
                         : dcommi_piece_here(pull->run->comm, &pull->pieces[i], pull->at, part);
            if (src[i] == NULL) {
                status = dcommi_fail(DCOMM_ERR_PEER, "rank %d freed memory that is being read",
                                     pull->pieces[i].rank);
            }
        }
        if (status == DCOMM_OK) {
            status = dcommi_fold_pieces(pull->lane, pull->dst + pull->at, src, pull->npieces, part,
                                        pull->final);
        }
        dcommi_free((void *)src);
    }
    if (status < 0) {
        dcommi_poison(pull->run->comm, status, -1, dcommi_message);
        return;
    }
    pull->at += pull->block;
    dcommi_pull_block(pull);
}

static void dcommi_pull_arrived(dcommi_move *move)
{
    dcommi_pull *pull = move->pull;
    dcommi_run_event(move->run);
    dcommi_move_free(move);
    if (--pull->outstanding == 0) {
        dcommi_pull_ready(pull);
    }
}

/* Ask for every piece of the next block, or finish. */
static void dcommi_pull_block(dcommi_pull *pull)
{
    dcommi_run *run = pull->run;
    if (pull->at >= pull->len) {
        dcommi_lane *lane = pull->lane;
        bool async = pull->async;
        dcommi_pull_free(pull);
        dcommi_lane_moved(lane, async);
        return;
    }
    size_t part = dcommi_min64((int64_t)(pull->len - pull->at), (int64_t)pull->block);
    pull->outstanding = 1; /* keeps the block open while its reads are sent */
    for (size_t i = 0; i < pull->npieces; i++) {
        const dcommi_piece *piece = &pull->pieces[i];
        if (!piece->by_message) {
            continue;
        }
        dcommi_move *move = dcommi_move_new(run, pull->lane);
        if (move == NULL) {
            dcommi_poison(run->comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
            return;
        }
        move->pull = pull;
        move->buf = pull->staging != NULL ? pull->staging + i * pull->block : pull->dst + pull->at;
        move->len = part;
        pull->outstanding++;
        uint32_t id = run->next_pull++;
        move->node =
            dcommi_key(DCOMMI_NODE_PULL, run->stream, run->seq, run->stage, piece->rank, id);
        dcommi_match_insert(run->comm, &move->node);
        dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_READ, id);
        header.slot = piece->slot;
        header.a = piece->offset + pull->at;
        header.b = part;
        run->comm->stats.bytes_read += part;
        dcomm_status status = dcommi_send_header(run->comm, piece->rank, &header, NULL, 0);
        if (status < 0) {
            dcommi_poison(run->comm, status, -1, dcommi_message);
            return;
        }
    }
    if (--pull->outstanding == 0) {
        dcommi_pull_ready(pull);
    }
}

/* Start dst <- fold(pieces), or dst <- pieces[0] without `fold`. */
static dcomm_status dcommi_pull_start(dcommi_lane *lane, uint8_t *dst, dcommi_piece *pieces,
                                      size_t n, size_t len, bool fold, bool final, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcomm_comm *comm = run->comm;
    dcomm_status status = dcommi_pull_mapped(lane, dst, pieces, n, len, fold, final);
    bool direct = status == DCOMM_ERR_UNSUPPORTED;
    for (size_t i = 0; i < n && direct; i++) {
        direct = dcommi_piece_here(comm, &pieces[i], 0, len) != NULL ||
                 dcommi_peer_readable(dcommi_peer_of(comm, pieces[i].rank));
    }
    if (direct) {
        status = fold ? dcommi_pull_direct(lane, dst, pieces, n, len, final)
                      : dcommi_read_process(comm, pieces[0].rank, dst, pieces[0].address, len);
    }
    if (status != DCOMM_ERR_UNSUPPORTED) {
        for (size_t i = 0; i < n; i++) {
            comm->stats.bytes_read += pieces[i].local == NULL ? len : 0;
        }
        return status;
    }
    dcommi_pull *pull = dcommi_alloc(sizeof *pull);
    if (pull == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    pull->lane = lane;
    pull->run = run;
    pull->async = async;
    pull->final = final;
    pull->fold = fold;
    pull->dst = dst;
    pull->len = len;
    pull->npieces = n;
    pull->block = fold ? dcommi_pull_grain(n) * 4 : (size_t)8 * DCOMMI_PULL_BLOCK;
    pull->pieces = dcommi_calloc(n, sizeof *pieces);
    pull->staging = fold ? dcommi_alloc_raw(n * pull->block) : NULL;
    if (pull->pieces == NULL || (fold && pull->staging == NULL)) {
        dcommi_pull_free(pull);
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        pull->pieces[i] = pieces[i];
        pull->pieces[i].by_message = dcommi_piece_here(comm, &pieces[i], 0, len) == NULL;
    }
    pull->next = run->pulls;
    run->pulls = pull;
    dcommi_pull_block(pull);
    return DCOMM_IN_PROGRESS;
}

/* ---- the other side ---- */

static void dcommi_reply_sent(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    (void)status; /* the reader that cannot be reached is reported as lost */
    dcommi_move_out_of_transport(move);
    dcommi_move_free(move);
    dcommi_run_unref(run);
}

/* A peer asks for a part of what `run` exposed. */
static void dcommi_on_read(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h)
{
    if (h->slot >= run->plan->nslots || run->offers == NULL || run->offers[h->slot].base == NULL ||
        h->a > (uint64_t)run->offers[h->slot].len ||
        h->b > (uint64_t)run->offers[h->slot].len - h->a) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text,
                 "rank %d asked for bytes %" PRIu64 "+%" PRIu64 " of slot %d, which rank %d has "
                 "not exposed",
                 (int)h->src, h->a, h->b, (int)h->slot, comm->rank);
        dcommi_poison(comm, DCOMM_ERR_CORRUPT, -1, text);
        return;
    }
    dcommi_move *move = dcommi_move_new(run, NULL);
    if (move == NULL) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        return;
    }
    move->op.done = dcommi_reply_sent;
    move->kind = DCOMMI_MOVE_REPLY;
    dcommi_header reply = dcommi_header_of(run, DCOMMI_MSG_READ_REPLY, h->tag);
    reply.a = h->b;
    comm->stats.bytes_sent += h->b;
    dcommi_move_in_transport(move);
    dcomm_status status =
        dcommi_post(comm, (int)h->src, &reply, run->offers[h->slot].base + h->a, h->b, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_reply_sent(&move->op, status);
        if (status < 0) {
            dcommi_poison(comm, status, -1, dcommi_message);
        }
    }
}

static void dcommi_reply_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    bool live = run->active;
    dcommi_move_out_of_transport(move);
    if (live && status < 0) {
        dcommi_move_failed(move, status, "reading memory of");
    } else if (live) {
        dcommi_pull_arrived(move);
    } else {
        dcommi_move_free(move);
    }
    dcommi_run_unref(run);
}

static dcommi_verdict dcommi_on_read_reply(dcomm_comm *comm, const dcommi_header *h,
                                           dcommi_transport *transport, const void *data,
                                           void *desc)
{
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_PULL, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
    dcommi_match_node *node = dcommi_match_take(comm, &key);
    if (node == NULL) {
        return DCOMMI_CONSUMED; /* of a run that failed meanwhile */
    }
    dcommi_move *move = (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
    if (h->a != move->len) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "rank %d answered %" PRIu64 " bytes where %zu were asked for",
                 (int)h->src, h->a, move->len);
        dcommi_poison(comm, DCOMM_ERR_CORRUPT, -1, text);
        return DCOMMI_CONSUMED;
    }
    if (data != NULL) {
        memcpy(move->buf, data, move->len);
        dcommi_pull_arrived(move);
        return DCOMMI_CONSUMED;
    }
    move->op.done = dcommi_reply_fetched;
    dcommi_move_in_transport(move);
    dcomm_status status = transport->call->fetch(transport, desc, move->buf, move->len, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_reply_fetched(&move->op, status);
    }
    return DCOMMI_KEEP;
}

#endif
