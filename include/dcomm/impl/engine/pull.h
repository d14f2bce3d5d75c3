/* pull.h - COPY and REDUCE with operands in peers' memory. Memory of a process on this host is
 * read directly (pieces.h). Any other memory is asked for by message (reply.h answers), and so is
 * memory that lies on a device or is to go to one. The plan does not know the difference. */
#ifndef DCOMMI_PULL_H
#define DCOMMI_PULL_H

#include "device/straight.h"
#include "pieces.h"

/* Blocks asked for at a time, and the longest block (bytes), which every transport sends without a
 * handshake. A request queues behind its sender's own data: with one or two long blocks, ranks
 * that read each other would take turns on the link. */
#define DCOMMI_PULL_WINDOW 16
#define DCOMMI_PULL_MESSAGE 32768

typedef struct dcommi_pull_block {
    dcommi_job job; /* first: its fold, if UCX has brought the last piece */
    dcommi_pull *pull;
    size_t at;
    unsigned outstanding;
} dcommi_pull_block;

/* A step under way that reads at least one peer by message. */
struct dcommi_pull {
    dcommi_job begin;         /* first: the earlier work of queue IN */
    struct dcommi_pull *next; /* in run->pulls, which owns it */
    dcommi_lane *lane;
    dcommi_run *run;
    bool async, final, fold;
    dcommi_device *device; /* dst, staging and local pieces are its memory; NULL: the host's */
    dcommi_move *taker;    /* the receive that this serves; NULL: a step of the lane */
    dcommi_target to;
    size_t len, asked, left, block; /* bytes; left: not there yet */
    size_t npieces, first;          /* first: the piece that is asked for first */
    unsigned window;                /* blocks at a time */
    dcommi_pull_block blocks[DCOMMI_PULL_WINDOW];
    uint8_t *staging; /* one block per piece for each of them; NULL: data go into dst */
    dcommi_piece *pieces;
};

static void dcommi_pull_ask(dcommi_pull *pull, unsigned b);

static void dcommi_pull_staging_free(dcommi_pull *pull)
{
    if (pull->device == NULL) {
        dcommi_free(pull->staging);
    } else if (pull->staging != NULL) {
        dcommi_device_release(&pull->device->handle, pull->staging);
    }
    pull->staging = NULL;
}

static void dcommi_pull_free(dcommi_pull *pull)
{
    DCOMMI_LIST_REMOVE(pull->run->pulls, pull, next);
    dcommi_pull_staging_free(pull);
    dcommi_free(pull->pieces);
    dcommi_free(pull);
}

static size_t dcommi_pull_part(const dcommi_pull *pull, size_t at)
{
    return pull->len - at < pull->block ? pull->len - at : pull->block;
}

static uint8_t *dcommi_pull_staging(const dcommi_pull *pull, unsigned b, size_t piece)
{
    return pull->staging + (b * pull->npieces + piece) * pull->block;
}

/* Fold block `b`; all its pieces are here. */
static dcomm_status dcommi_pull_fold(dcommi_pull *pull, unsigned b)
{
    size_t at = pull->blocks[b].at, part = dcommi_pull_part(pull, at);
    const void **src = dcommi_calloc(pull->npieces, sizeof *src);
    dcomm_status status = src == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (size_t i = 0; src != NULL && i < pull->npieces; i++) {
        src[i] = pull->pieces[i].by_message
                     ? dcommi_pull_staging(pull, b, i)
                     : dcommi_piece_here(pull->run->comm, &pull->pieces[i], at, part);
        if (src[i] == NULL) {
            status = dcommi_fail(DCOMM_ERR_PEER, "rank %d freed memory that is being read",
                                 pull->pieces[i].rank);
        }
    }
    DCOMMI_THEN(status, pull->device != NULL
                            ? dcommi_fold_on_device(pull->lane, pull->to.dst + at, src,
                                                    pull->npieces, part, pull->final)
                            : dcommi_fold_pieces(pull->lane, &pull->to, at, src, pull->npieces,
                                                 part, pull->final));
    dcommi_free((void *)src);
    return status;
}

/* Finish block `b`, whose data are in place, and go on to the next one. */
static void dcommi_pull_done(dcommi_pull *pull, unsigned b)
{
    pull->left -= dcommi_pull_part(pull, pull->blocks[b].at);
    if (pull->left > 0) {
        dcommi_pull_ask(pull, b);
        return;
    }
    dcommi_lane *lane = pull->lane;
    dcommi_move *taker = pull->taker;
    bool async = pull->async;
    dcommi_pull_free(pull);
    if (taker != NULL) {
        dcommi_offer_taken(taker);
    } else {
        dcommi_lane_moved(lane, async);
    }
}

static void dcommi_pull_on_device(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    dcommi_pull *pull = slot->user;
    unsigned b = slot->block;
    bool ready = pull != NULL && status >= 0 && pull->run->active;
    dcommi_slot_give(slot, DCOMMI_QUEUE_IN);
    if (ready) {
        dcommi_run_event(pull->run);
        dcommi_pull_done(pull, b);
    }
}

/* Copy a piece that has come into a slot on to the device. Queue the block's fold behind its last
 * piece. */
static void dcommi_pull_landed(dcommi_pull *pull, unsigned b, size_t piece, dcommi_slot *slot)
{
    dcommi_run *run = pull->run;
    dcommi_device_handle *d = &pull->device->handle;
    size_t at = pull->blocks[b].at;
    bool last = pull->blocks[b].outstanding == 0;
    uint8_t *to = pull->fold ? dcommi_pull_staging(pull, b, piece) : pull->to.dst + at;
    slot->user = last ? pull : NULL;
    slot->block = b;
    dcomm_status status =
        dcommi_device_copy(d, DCOMMI_QUEUE_IN, to, slot->memory, dcommi_pull_part(pull, at));
    DCOMMI_THEN(status, last && pull->fold ? dcommi_pull_fold(pull, b) : DCOMM_OK);
    DCOMMI_THEN(status, dcommi_job_start(pull->device, DCOMMI_QUEUE_IN, &slot->job, run,
                                         dcommi_pull_on_device));
    if (status < 0) {
        dcommi_device_failed(run, status);
        dcommi_slot_give(slot, DCOMMI_QUEUE_IN);
    }
}

static void dcommi_pull_folded(dcommi_job *job, dcomm_status status)
{
    dcommi_pull_block *block = (dcommi_pull_block *)job;
    dcommi_pull *pull = block->pull;
    if (status >= 0 && pull->run->active) {
        dcommi_run_event(pull->run);
        dcommi_pull_done(pull, (unsigned)(block - pull->blocks));
    }
}

/* Queue the fold of a block. UCX has brought its pieces, or their copies are on queue IN, too. */
static void dcommi_pull_fold_straight(dcommi_pull *pull, unsigned b)
{
    dcommi_pull_block *block = &pull->blocks[b];
    block->pull = pull;
    dcomm_status status = dcommi_pull_fold(pull, b);
    DCOMMI_THEN(status, dcommi_job_start(pull->device, DCOMMI_QUEUE_IN, &block->job, pull->run,
                                         dcommi_pull_folded));
    if (status < 0) {
        dcommi_device_failed(pull->run, status);
    }
}

static void dcommi_pull_arrived(dcommi_move *move)
{
    dcommi_pull *pull = move->pull;
    unsigned b = move->pull_block;
    size_t piece = (size_t)move->word;
    dcommi_slot *slot = move->slot;
    dcommi_run_event(move->run);
    move->slot = NULL;
    dcommi_move_free(move);
    pull->blocks[b].outstanding--;
    if (slot != NULL) {
        dcommi_pull_landed(pull, b, piece, slot);
        return;
    }
    if (pull->blocks[b].outstanding > 0) {
        return;
    }
    if (DCOMMI_UNLIKELY(pull->fold && pull->device != NULL)) {
        dcommi_pull_fold_straight(pull, b);
        return;
    }
    if (!dcommi_good(pull->run->comm, pull->fold ? dcommi_pull_fold(pull, b) : DCOMM_OK)) {
        return;
    }
    dcommi_pull_done(pull, b);
}

/* Ask for one piece of a block. The move belongs to the block; its buf takes the piece. */
static void dcommi_pull_request(dcommi_move *move)
{
    dcommi_run *run = move->run;
    const dcommi_pull *pull = move->pull;
    const dcommi_piece *piece = &pull->pieces[move->word];
    uint32_t id = run->next_pull++;
    move->node = dcommi_key(DCOMMI_NODE_PULL, run->stream, run->seq, run->stage, piece->rank, id);
    dcommi_match_insert(run->comm, &move->node);
    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_READ, id);
    header.slot = piece->slot;
    if (piece->sent) {
        header.type = DCOMMI_MSG_READ_SENT;
        header.tag = pull->taker->node.tag;
        dcommi_header_set_wide(&header, id);
    }
    header.a = piece->offset + pull->blocks[move->pull_block].at;
    header.b = move->len;
    run->comm->stats.bytes_read += piece->sent ? 0 : move->len;
    (void)dcommi_good(run->comm, dcommi_send_header(run->comm, piece->rank, &header, NULL, 0));
}

/* Ask for a piece that has got its slot. */
static void dcommi_pull_go(dcommi_slot *slot, void *user)
{
    dcommi_move *move = user;
    dcommi_run *run = move->run;
    dcommi_move_out_of_transport(move);
    move->slot = slot;
    if (run->active) {
        move->buf = slot->memory;
        dcommi_pull_request(move);
    } else {
        dcommi_move_free(move);
    }
    dcommi_run_unref(run);
}

/* Return the piece to ask for first: that of the next rank after our own, so that the ranks of a
 * communicator do not all ask rank 0 first, then rank 1, and so on. */
static size_t dcommi_pull_first(const dcommi_pull *pull)
{
    size_t i = 0;
    while (i < pull->npieces &&
           (!pull->pieces[i].by_message || pull->pieces[i].rank < pull->run->comm->rank)) {
        i++;
    }
    return i < pull->npieces ? i : 0;
}

/* Ask for every piece of the next block, if there is one, as block `b` of the window. */
static void dcommi_pull_ask(dcommi_pull *pull, unsigned b)
{
    dcommi_run *run = pull->run;
    dcommi_pull_block *block = &pull->blocks[b];
    if (pull->asked >= pull->len) {
        return;
    }
    block->at = pull->asked;
    size_t part = dcommi_pull_part(pull, block->at);
    pull->asked += part;
    for (size_t k = 0; k < pull->npieces; k++) {
        size_t i = (pull->first + k) % pull->npieces;
        const dcommi_piece *piece = &pull->pieces[i];
        if (!piece->by_message) {
            continue;
        }
        dcommi_move *move = dcommi_move_new(run, pull->lane);
        if (!dcommi_have(run->comm, move)) {
            return;
        }
        move->pull = pull;
        move->pull_block = (uint8_t)b;
        move->word = (int32_t)i;
        move->len = part;
        block->outstanding++;
        if (pull->device == NULL || piece->straight) {
            move->device = piece->straight;
            move->buf =
                pull->staging != NULL ? dcommi_pull_staging(pull, b, i) : pull->to.dst + block->at;
            dcommi_pull_request(move);
        } else {
            dcommi_move_ask_slot(move, DCOMMI_QUEUE_IN, dcommi_pull_go);
        }
        if (!run->active) {
            return;
        }
    }
}

static void dcommi_pull_ask_first(dcommi_pull *pull)
{
    dcommi_run *run = pull->run;
    for (unsigned b = 0; b < pull->window && run->active; b++) { /* no answer comes meanwhile */
        dcommi_pull_ask(pull, b);
    }
}

static void dcommi_pull_begun(dcommi_job *job, dcomm_status status)
{
    if (status >= 0 && job->run->active) {
        dcommi_run_event(job->run);
        dcommi_pull_ask_first((dcommi_pull *)job);
    }
}

/* Set the block length of a fold by messages. Return how many blocks are asked for at a time. */
static unsigned dcommi_pull_window(dcommi_pull *pull)
{
    const dcomm_plan *plan = pull->lane->frame->scope.plan;
    size_t n = pull->npieces, all = 4 * DCOMMI_PULL_MESSAGE;
    size_t longest = (size_t)dcommi_whole_elements(
        DCOMMI_PULL_MESSAGE, (int64_t)dcomm_dtype_size((dcomm_dtype)plan->dtype));
    pull->block = dcommi_pull_grain(plan, n);
    if (pull->device != NULL) {
        longest = all = DCOMMI_SLOT_BYTES;
        pull->block =
            n <= DCOMMI_SLOTS ? longest : (DCOMMI_SLOTS * longest / n + 4096) & ~(size_t)63;
    }
    pull->block = pull->fold && pull->block < longest ? pull->block : longest;
    size_t window = DCOMMI_PULL_WINDOW * all / (n * pull->block);
    return window < 1 ? 1 : window < DCOMMI_PULL_WINDOW ? (unsigned)window : DCOMMI_PULL_WINDOW;
}

/* Start to <- fold(pieces), or to <- pieces[0] without `fold`, and ask for all pieces that are not
 * here. `taker`: the receive that this serves; NULL: a step of the lane. */
static dcomm_status dcommi_pull_by_message(dcommi_lane *lane, dcommi_device *device,
                                           dcommi_move *taker, const dcommi_target *to,
                                           const dcommi_piece *pieces, size_t n, size_t len,
                                           bool fold, bool final, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcomm_comm *comm = run->comm;
    dcommi_pull *pull = dcommi_alloc(sizeof *pull);
    if (pull == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    pull->lane = lane;
    pull->run = run;
    pull->device = device;
    pull->taker = taker;
    pull->async = async;
    pull->final = final;
    pull->fold = fold;
    pull->to = *to;
    pull->len = pull->left = len;
    pull->npieces = n;
    pull->next = run->pulls;
    run->pulls = pull;
    pull->window = dcommi_pull_window(pull);
    dcomm_status status = DCOMM_OK;
    bool straight = false;
    pull->pieces = dcommi_calloc(n, sizeof *pieces);
    if (fold && device != NULL) {
        void *staging = NULL;
        status = dcommi_device_alloc(&device->handle, pull->window * n * pull->block, &staging);
        pull->staging = staging;
    } else if (fold) {
        pull->staging = dcommi_alloc_raw(pull->window * n * pull->block);
    }
    if (status < 0 || pull->pieces == NULL || (fold && pull->staging == NULL)) {
        dcommi_pull_free(pull);
        return status < 0 ? status : DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        pull->pieces[i] = pieces[i];
        pull->pieces[i].by_message = device != NULL
                                         ? pieces[i].local == NULL
                                         : dcommi_piece_here(comm, &pieces[i], 0, len) == NULL;
        straight = straight || pieces[i].straight;
    }
    pull->first = dcommi_pull_first(pull);
    if (!straight) {
        dcommi_pull_ask_first(pull);
        return DCOMM_IN_PROGRESS;
    }
    /* UCX does not follow the queue's order. It may store into memory that was taken in the order
     * of queue IN only after the queue was seen to get there. */
    status = dcommi_job_start(device, DCOMMI_QUEUE_IN, &pull->begin, run, dcommi_pull_begun);
    if (status < 0) {
        dcommi_pull_free(pull);
        return status;
    }
    return DCOMM_IN_PROGRESS;
}

/* Start to <- fold(pieces), or to <- pieces[0] without `fold`. */
static dcomm_status dcommi_pull_start(dcommi_lane *lane, const dcommi_target *to,
                                      dcommi_piece *pieces, size_t n, size_t len, bool fold,
                                      bool final, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcomm_comm *comm = run->comm;
    dcomm_status status = dcommi_pull_mapped(lane, to, pieces, n, len, fold, final);
    bool direct = status == DCOMM_ERR_UNSUPPORTED;
    for (size_t i = 0; i < n && direct; i++) {
        direct = dcommi_piece_here(comm, &pieces[i], 0, len) != NULL ||
                 (!pieces[i].device && dcommi_peer_readable(dcommi_peer_of(comm, pieces[i].rank)));
    }
    if (direct) {
        status = fold ? dcommi_pull_direct(lane, to, pieces, n, len, final)
                      : dcommi_read_process(comm, pieces[0].rank, to->dst, pieces[0].address, len);
    }
    if (status != DCOMM_ERR_UNSUPPORTED) {
        for (size_t i = 0; i < n; i++) {
            comm->stats.bytes_read += pieces[i].local == NULL ? len : 0;
        }
        return status;
    }
    return dcommi_pull_by_message(lane, NULL, NULL, to, pieces, n, len, fold, final, async);
}

/* ---- the answers ---- */

static void dcommi_reply_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    bool live = run->active;
    if (DCOMMI_UNLIKELY(move->device)) {
        dcommi_devices->flush(run->device->handle.number);
        dcommi_straight_end(move);
    } else {
        dcommi_move_out_of_transport(move);
    }
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
        return DCOMMI_CONSUMED; /* its run failed meanwhile */
    }
    dcommi_move *move = dcommi_move_of(node);
    if (h->a != move->len) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT,
                      "rank %d answered %" PRIu64 " bytes where %zu were asked for", (int)h->src,
                      h->a, move->len);
        return DCOMMI_CONSUMED;
    }
    const bool straight = DCOMMI_UNLIKELY(move->device);
    if (straight && (data != NULL || transport->call->fetch_device == NULL)) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT,
                      "a peer offered device memory and answered from host memory");
        return DCOMMI_CONSUMED;
    }
    if (data != NULL) {
        memcpy(move->buf, data, move->len);
        dcommi_pull_arrived(move);
        return DCOMMI_CONSUMED;
    }
    move->op.done = dcommi_reply_fetched;
    if (!straight) {
        dcommi_move_in_transport(move);
    }
    dcomm_status status =
        straight ? dcommi_straight_fetch(move, transport, desc)
                 : transport->call->fetch(transport, desc, move->buf, move->len, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_reply_fetched(&move->op, status);
    }
    return DCOMMI_KEEP;
}

#endif
