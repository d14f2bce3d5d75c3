/* runs.h - the life of a run: bound to memory, started, taken from stage to stage, finished. */
#ifndef DCOMMI_RUNS_H
#define DCOMMI_RUNS_H

#include "cache.h"
#include "coded/coded.h"
#include "fast/bcast.h"
#include "failure.h"
#include "device/gate.h"
#include "refusal.h"
#include "../plan/check_valid.h"

static void dcommi_run_unref(dcommi_run *run)
{
    if (atomic_fetch_sub_explicit(&run->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dcomm_comm *comm = run->comm;
    while (run->pulls != NULL) {
        dcommi_pull_free(run->pulls);
    }
    while (run->children != NULL) { /* of a failed run: transfers used their scratch */
        dcommi_frame *frame = run->children;
        run->children = frame->next;
        dcommi_free(frame);
    }
    dcommi_comm_lock(comm);
    if (run->cached != NULL) {
        dcommi_cached_release(run->cached);
        run->cached = NULL;
    }
    dcommi_coded_drop(comm, run->coded);
    run->coded = NULL;
    dcommi_free(run->why);
    run->why = NULL;
    dcommi_op_drop(run->op);
    run->next = comm->free_runs;
    comm->free_runs = run;
    bool last = --comm->refs == 0;
    dcommi_comm_unlock(comm);
    if (last) {
        dcommi_comm_free(comm);
    }
}

/* Let the stream of an ended run go on, which has no work on its device any more, and then release
 * its device memory: CUDA may hold up the latter for the former. The context's devices may be
 * closed before the run is freed. */
static void dcommi_run_off_device(dcommi_run *run)
{
    if (DCOMMI_UNLIKELY(run->gate.word != NULL)) {
        dcommi_gate_open(run);
    }
    if (DCOMMI_UNLIKELY(run->device != NULL)) {
        for (dcommi_pull *pull = run->pulls; pull != NULL; pull = pull->next) {
            dcommi_pull_staging_free(pull);
        }
        for (dcommi_frame *frame = run->children; frame != NULL; frame = frame->next) {
            dcommi_frame_scratch_free(frame);
        }
        dcommi_frame_scratch_free(&run->root);
    }
}

/* Bind a run to memory for a plan's lanes, words, counters, offers and scratch. The memory is kept
 * from run to run. Words are zero, except those that a stage before left. */
static dcomm_status dcommi_run_bind(dcommi_run *run, const dcomm_plan *plan, const uint64_t *words,
                                    uint32_t nwords)
{
    size_t lanes = (plan->nlanes * sizeof(dcommi_lane) + 63) & ~(size_t)63;
    size_t word_bytes = (plan->nwords * sizeof(uint64_t) + 63) & ~(size_t)63;
    size_t counters = (plan->ncounters * sizeof(uint64_t) + 63) & ~(size_t)63;
    size_t offers = (plan->nslots * sizeof(*run->offers) + 63) & ~(size_t)63;
    size_t zeroed = lanes + word_bytes + counters + offers;
    bool away = run->device != NULL && !dcommi_plan_of_host(plan);
    size_t need = zeroed + (away ? 0 : (size_t)plan->scratch_bytes);
    need = need > 0 ? need : 1; /* addresses are computed from it */
    if (run->memory_len < need) {
        uint8_t *bigger = dcommi_alloc_raw(need);
        if (bigger == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        dcommi_free(run->memory);
        run->memory = bigger;
        run->memory_len = need;
    }
    uint8_t *memory = run->memory;
    if (zeroed > 0) {
        dcommi_zero(memory, zeroed);
    }
    run->plan = plan;
    dcommi_frame *root = &run->root;
    dcommi_frame_scratch_free(root);
    dcommi_zero(root, sizeof *root);
    root->scope.plan = plan;
    dcommi_frame_bind(root, run, (dcommi_lane *)memory, (uint64_t *)(memory + lanes));
    run->counters = (uint64_t *)(memory + lanes + word_bytes);
    run->offers = (struct dcommi_offer *)(memory + lanes + word_bytes + counters);
    if (nwords > 0) {
        memcpy(root->words, words, (nwords < plan->nwords ? nwords : plan->nwords) * sizeof *words);
    }
    root->space[DCOMM_SPACE_IN] = (uint8_t *)(uintptr_t)run->in;
    root->space_len[DCOMM_SPACE_IN] = plan->in_bytes;
    root->space[DCOMM_SPACE_OUT] = run->out;
    root->space_len[DCOMM_SPACE_OUT] = plan->out_bytes;
    if (DCOMMI_UNLIKELY(run->device != NULL)) {
        root->on_device = 1u << DCOMM_SPACE_IN | 1u << DCOMM_SPACE_OUT;
    }
    return dcommi_frame_scratch(root, memory + zeroed);
}

/* Take the SIGNALs and EXPOSEs that came before this stage began. Their order does not matter:
 * signals add up, and a plan exposes a slot to a rank once. */
static void dcommi_run_take_early(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_EARLY_RUN, run->stream, run->seq, run->stage, 0, 0);
    while (run->active && comm->early_count > 0) {
        dcommi_early *early = (dcommi_early *)dcommi_match_take(comm, &key);
        if (early == NULL) {
            return;
        }
        comm->early_count--;
        dcommi_run_told(run, &early->header);
        dcommi_early_free(early);
    }
}

static void dcommi_run_forget_exposed(dcommi_run *run)
{
    while (run->exposed_list != NULL) {
        dcommi_exposed *e = run->exposed_list;
        run->exposed_list = e->next_of_run;
        dcommi_match_remove(run->comm, &e->node);
        dcommi_free(e);
    }
}

static void dcommi_run_return_plan(dcommi_run *run)
{
    if (run->give_back != NULL) {
        run->give_back(run->give_back_user, run->plan);
    }
    run->give_back = NULL;
}

static void dcommi_run_finish(dcommi_run *run, dcomm_status status)
{
    dcomm_comm *comm = run->comm;
    dcomm_context *context = comm->context;
    run->active = false;
    if (DCOMMI_UNLIKELY(run->why != NULL && status == DCOMM_OK)) {
        status = DCOMM_ERR_MISMATCH; /* it ended while it was to be given up */
    }
    *(run->prev != NULL ? &run->prev->next : &comm->runs) = run->next;
    *(run->next != NULL ? &run->next->prev : &comm->last_run) = run->prev;
    context->active--;
    if (status < 0) {
        dcommi_lane **at = &context->ready_first;
        context->ready_last = NULL;
        while (*at != NULL) {
            if ((*at)->frame->run == run) {
                *at = (*at)->next_ready;
            } else {
                context->ready_last = *at;
                at = &(*at)->next_ready;
            }
        }
        for (dcommi_move *move = run->moves, *next; move != NULL; move = next) {
            next = move->next;
            dcommi_match_remove(comm, &move->node);
            move->lane = NULL;
            if (!move->in_transport) {
                dcommi_move_free(move);
            }
        }
    }
    if (run->coded != NULL) {
        dcommi_coded_end(run->coded, status);
    }
    dcommi_run_forget_exposed(run);
    dcommi_run_return_plan(run);
    for (dcommi_frame *frame = run->children; frame != NULL; frame = frame->next) {
        dcommi_frame_unshare(frame);
    }
    dcommi_frame_unshare(&run->root);
    dcommi_free(run->peers);
    run->peers = NULL;
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_advance_done(comm);
    } else if (run->signature.coll == DCOMM_COLL_RECV && status == DCOMM_OK) {
        dcommi_member *m = &comm->members[run->p2p_peer];
        if (++m->p2p_completed - m->p2p_told >= DCOMMI_CREDIT_EVERY) {
            dcommi_send_credit(comm, run->p2p_peer, DCOMMI_STREAM_P2P);
        }
    }
    comm->stats.operations += status == DCOMM_OK;
    run->ended_at = comm->timed ? dcommi_now() : 0;
    run->next_finished = context->finished; /* the engine may still be in one of its lanes */
    context->finished = run;
    dcommi_settle_stores(context);
    atomic_store_explicit(&run->status, status, memory_order_release);
    if (run->jobs == 0) {
        dcommi_run_off_device(run);
    }
}

static void dcommi_stage_done(dcommi_run *run)
{
    const dcomm_plan *plan = run->plan;
    if (plan->next == NULL) {
        dcommi_run_finish(run, run->verdict);
        return;
    }
    dcomm_status status = DCOMM_OK;
    char kept[DCOMMI_MESSAGE_MAX], why[DCOMMI_MESSAGE_MAX] = "";
    uint32_t nwords = plan->nwords;
    uint64_t *words = dcommi_calloc(nwords, sizeof *words);
    const dcomm_plan *next = NULL;
    if (words == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    } else {
        memcpy(words, run->root.words, nwords * sizeof *words);
        memcpy(kept, dcommi_message, sizeof kept);
        dcommi_message[0] = 0;
        next = plan->next(plan->next_user, words, nwords, &status);
        snprintf(why, sizeof why, "%s",
                 dcommi_message[0] != 0 ? dcommi_message : dcomm_strerror(status));
        memcpy(dcommi_message, kept, sizeof kept); /* the thread's own message, as it was */
    }
    if (status >= 0 && next != NULL) {
        void (*give_back)(void *, const dcomm_plan *) = plan->release;
        void *user = plan->next_user;
        dcommi_run_forget_exposed(run);
        dcommi_run_return_plan(run);
        run->give_back = give_back;
        run->give_back_user = user;
        run->plan = next; /* even if it cannot be bound: it must be given back */
        run->stage++;
        uint32_t budget = DCOMMI_CHECK_SUBPLANS;
        if (run->signature.coll == DCOMM_COLL_PLAN) { /* like the first, in dcomm_plan_run */
            status = dcommi_check_plan_valid(next, "the plan", 0, &budget);
        }
        if (status >= 0) {
            status = dcommi_run_bind(run, next, words, nwords);
        } else {
            snprintf(why, sizeof why, "%s", dcommi_message);
        }
    }
    dcommi_free(words);
    if (status < 0) {
        dcommi_poison(run->comm, status, "rank %d: stage %d of %s failed: %.400s", run->comm->rank,
                      run->stage, run->plan->name, why);
    } else if (next == NULL) {
        dcommi_run_finish(run, run->verdict);
    } else {
        dcommi_run_event(run);
        dcommi_frame_start(&run->root);
        dcommi_run_take_early(run);
        if (run->active && run->root.lanes_left == 0) {
            dcommi_stage_done(run);
        }
    }
}

/* Enter a submitted run into the engine. */
static void dcommi_run_start(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    dcomm_context *context = comm->context;
    dcommi_run *before = comm->last_run;
    if (DCOMMI_UNLIKELY(run->refused)) {
        dcommi_refusal_start(run);
        return;
    }
    if (DCOMMI_UNLIKELY(run->stream == DCOMMI_STREAM_COLL && run->seq < comm->entered)) {
        while (before != NULL && (before->stream != DCOMMI_STREAM_COLL || before->seq > run->seq)) {
            before = before->prev;
        }
    }
    run->prev = before;
    run->next = before != NULL ? before->next : comm->runs;
    *(before != NULL ? &before->next : &comm->runs) = run;
    *(run->next != NULL ? &run->next->prev : &comm->last_run) = run;
    run->active = true;
    context->active++;
    context->idle = 0;
    dcommi_bcast_attach(comm);
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_history *entry = &comm->history[run->seq % DCOMMI_HISTORY];
        entry->seq = run->seq;
        entry->known = true;
        entry->signature = run->signature;
        if (run->signature.coll == DCOMM_COLL_PLAN) {
            entry->signature.algo = "the caller's own"; /* the plan's name may be freed */
        }
        comm->started++;
        if (run->seq >= comm->entered) {
            comm->entered = run->seq + 1;
        }
    }
    int poisoned = atomic_load(&comm->poisoned);
    if (poisoned != 0) {
        dcommi_run_finish(run, (dcomm_status)poisoned);
        return;
    }
    if (dcommi_run_refused_before(run)) {
        return;
    }
    if (!dcommi_good(comm, dcommi_run_bind(run, run->plan, NULL, 0))) {
        return;
    }
    if (run->factored) {
        memcpy(run->root.words, &run->factor, run->plan->nwords * sizeof(uint64_t));
    }
    if (run->plan->nlanes == 0) {
        dcommi_stage_done(run);
        return;
    }
    dcommi_frame_start(&run->root);
    dcommi_run_take_early(run);
}

#endif
