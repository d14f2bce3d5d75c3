/* gate.h - operations in the order of a stream of the caller. An event recorded on the stream is
 * polled before the run enters the engine. The stream then waits for a word of pinned memory,
 * which is written when the run has ended, well or badly. Words are reused with a higher value, so
 * nobody has to know whether a stream has reached its wait. */
#ifndef DCOMMI_GATE_H
#define DCOMMI_GATE_H

#include "jobs.h"

#define DCOMMI_GATE_WORDS 512 /* pinned at a time */

struct dcommi_gate_word {
    struct dcommi_gate_word *next;
    _Atomic uint32_t *word; /* pinned */
    uint32_t value;         /* value last used */
    const dcommi_run *run;  /* the run whose stream waits for it */
};

/* Free words of the process. They are never released, because a stream may still be on its way to
 * a word when the context that wrote it is closed. */
static struct dcommi_gate_word *dcommi_gate_words;
static struct dcommi_gate_word *dcommi_gates_shut; /* streams of this process wait for them */
static pthread_mutex_t dcommi_gate_lock = PTHREAD_MUTEX_INITIALIZER;

/* Pin more words. With the lock. */
static dcomm_status dcommi_gate_more(void)
{
    void *page = NULL;
    struct dcommi_gate_word *words = dcommi_calloc(DCOMMI_GATE_WORDS, sizeof *words);
    if (words == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcomm_status status = dcommi_devices->pin(DCOMMI_GATE_WORDS * sizeof(uint32_t), &page);
    if (status < 0) {
        dcommi_free(words);
        return status;
    }
    memset(page, 0, DCOMMI_GATE_WORDS * sizeof(uint32_t));
    for (int i = 0; i < DCOMMI_GATE_WORDS; i++) {
        words[i].word = (_Atomic uint32_t *)page + i;
        words[i].next = dcommi_gate_words;
        dcommi_gate_words = &words[i];
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_gate_word_take(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    dcomm_status status = DCOMM_OK;
    pthread_mutex_lock(&dcommi_gate_lock);
    if (dcommi_gate_words == NULL) {
        status = dcommi_gate_more();
    }
    if (status >= 0) {
        gate->word = dcommi_gate_words;
        dcommi_gate_words = gate->word->next;
        gate->value = ++gate->word->value;
        gate->word->run = run;
        gate->word->next = dcommi_gates_shut;
        dcommi_gates_shut = gate->word;
    }
    pthread_mutex_unlock(&dcommi_gate_lock);
    return status;
}

/* Let the stream go on: the run has ended, and nothing of it is under way on a device. */
static void dcommi_gate_open(dcommi_run *run)
{
    struct dcommi_gate_word *word = run->gate.word;
    run->gate.word = NULL;
    atomic_store_explicit(word->word, run->gate.value, memory_order_release);
    pthread_mutex_lock(&dcommi_gate_lock);
    DCOMMI_LIST_REMOVE(dcommi_gates_shut, word, next);
    word->next = dcommi_gate_words;
    dcommi_gate_words = word;
    pthread_mutex_unlock(&dcommi_gate_lock);
}

/* Call `act`, which waits for all streams of a device, unless a stream of this process waits for a
 * rank. No stream can begin to wait meanwhile. Return true if it was called. */
static bool dcommi_gates_open_for(void (*act)(int device, void *memory), int device, void *memory)
{
    pthread_mutex_lock(&dcommi_gate_lock);
    bool open = dcommi_gates_shut == NULL;
    if (open) {
        act(device, memory);
    }
    pthread_mutex_unlock(&dcommi_gate_lock);
    return open;
}

/* Return true for operations in which no rank ends before all have begun. */
static bool dcommi_gate_joint(const dcommi_run *run)
{
    const dcommi_signature *s = &run->signature;
    return s->coll == DCOMM_COLL_BARRIER ||
           (s->count > 0 &&
            (s->coll == DCOMM_COLL_ALLREDUCE || s->coll == DCOMM_COLL_ALLGATHER ||
             s->coll == DCOMM_COLL_REDUCE_SCATTER || s->coll == DCOMM_COLL_ALLTOALL));
}

/* Return true if work that is put on one stream waits for what the other holds. */
static bool dcommi_gate_follows(const dcommi_gate *a, const dcommi_gate *b)
{
    bool default_one = a->kind == DCOMMI_STREAM_LEGACY || b->kind == DCOMMI_STREAM_LEGACY;
    if (a->device != b->device) {
        return false;
    }
    return a->stream == b->stream
               ? a->kind != DCOMMI_STREAM_THREAD
               : default_one && a->kind != DCOMMI_STREAM_APART && b->kind != DCOMMI_STREAM_APART;
}

/* Refuse two ranks of a process on one stream, or on the legacy default stream and one that waits
 * for it. The second would begin after the first has ended, which waits for the second. */
static dcomm_status dcommi_gate_check(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    int other = -1;
    bool same = true;
    if (!dcommi_gate_joint(run)) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_devices->stream_kind(gate->device, gate->stream, &gate->kind));
    pthread_mutex_lock(&dcommi_gate_lock);
    for (struct dcommi_gate_word *w = dcommi_gates_shut; w != NULL && other < 0; w = w->next) {
        if (w->run->comm->id == run->comm->id && w->run->comm != run->comm &&
            w->run->seq == run->seq && dcommi_gate_follows(&w->run->gate, gate)) {
            other = w->run->comm->rank;
            same = w->run->gate.stream == gate->stream;
        }
    }
    pthread_mutex_unlock(&dcommi_gate_lock);
    return other < 0
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID,
                             "%s #%" PRIu64 ": ranks %d and %d of one process have put it on %s, "
                             "where each would wait for the other: give each a stream%s, or "
                             "make both calls in one group",
                             dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, other,
                             run->comm->rank,
                             same ? "one stream"
                                  : "the legacy default stream and on a stream that waits for that",
                             same ? "" : " with cudaStreamNonBlocking");
}

/* Tie a run to its stream, first half: record what the run must come after. */
static dcomm_status dcommi_gate_mark(dcommi_run *run)
{
    DCOMMI_TRY(dcommi_devices->stream_mark(run->gate.device, run->gate.stream, &run->gate.before));
    return dcommi_gate_check(run);
}

/* Tie a run to its stream, second half: make later work of the stream wait for the run. The runs
 * of a group all do the first half before. */
static dcomm_status dcommi_gate_hold(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    DCOMMI_TRY(dcommi_gate_word_take(run));
    dcomm_status status =
        dcommi_devices->stream_hold(gate->device, gate->stream, gate->word->word, gate->value);
    if (status < 0) {
        dcommi_gate_open(run);
    }
    return status;
}

/* Return true if a run must wait for its stream before it enters the engine. If earlier work of
 * the stream has failed, fail the run on all ranks, because its data are not what was meant. */
static bool dcommi_gate_shut(dcommi_run *run)
{
    void *before = run->gate.before;
    if (before == NULL) {
        return false;
    }
    dcomm_status status = dcommi_devices->poll(before);
    if (status == DCOMM_IN_PROGRESS) {
        return true;
    }
    dcommi_devices->stream_unmark(before);
    run->gate.before = NULL;
    if (status < 0) {
        dcommi_poison(run->comm, status,
                      "%s #%" PRIu64
                      ", rank %d, device %d: what opts.stream held before it has failed: %.300s",
                      dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, run->comm->rank,
                      run->gate.device, dcommi_message);
    }
    return false;
}

#endif
