/* gate.h - operations in the order of a stream of the caller. The stream writes a word of pinned
 * memory when it has come to the operation, and then waits for another, which is written when the
 * run has ended, well or badly. Nobody asks CUDA meanwhile. Words are reused with a higher value,
 * so nobody has to know whether a stream has reached its wait. */
#ifndef DCOMMI_GATE_H
#define DCOMMI_GATE_H

#include "jobs.h"

#define DCOMMI_GATE_WORDS 2048 /* pairs pinned at a time */
/* The most runs that a stream holds. A call waits until there are fewer: where a stream's queue of
 * launches is full, CUDA holds up threads, ours among them. The queue has 1,024 entries, two of
 * which a run takes; kernels of the caller need the rest. */
#define DCOMMI_GATE_DEPTH 128
/* Seconds after which the call goes on, and later calls at once until a run ends: what the stream
 * waits for may be behind them. */
#define DCOMMI_GATE_PATIENCE 1.0

struct dcommi_gate_word {
    struct dcommi_gate_word *next;
    _Atomic uint32_t *reached, *word; /* pinned: written by the stream, and waited for by it */
    uint32_t value;                   /* value last used */
    const dcommi_run *owner;          /* the run that uses it */
    bool holds;                       /* its stream waits for it */
};

/* Free words of the process. They are never released, because a stream may still be on its way to
 * a word when the context that wrote it is closed. */
static struct dcommi_gate_word *dcommi_gate_words;
static struct dcommi_gate_word *dcommi_gates_shut; /* those that runs use */
static pthread_mutex_t dcommi_gate_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t dcommi_gates_opened; /* so far */

/* Pin more words. Without the lock: pinning may wait for devices. */
static dcomm_status dcommi_gate_more(int device)
{
    void *page = NULL;
    struct dcommi_gate_word *words = dcommi_calloc(DCOMMI_GATE_WORDS, sizeof *words);
    if (words == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcomm_status status =
        dcommi_devices->pin(device, 2 * DCOMMI_GATE_WORDS * sizeof(uint32_t), &page);
    if (status < 0) {
        dcommi_free(words);
        return status;
    }
    memset(page, 0, 2 * DCOMMI_GATE_WORDS * sizeof(uint32_t));
    pthread_mutex_lock(&dcommi_gate_lock);
    for (int i = 0; i < DCOMMI_GATE_WORDS; i++) {
        words[i].reached = (_Atomic uint32_t *)page + 2 * i;
        words[i].word = (_Atomic uint32_t *)page + 2 * i + 1;
        words[i].next = dcommi_gate_words;
        dcommi_gate_words = &words[i];
    }
    pthread_mutex_unlock(&dcommi_gate_lock);
    return DCOMM_OK;
}

static dcomm_status dcommi_gate_word_take(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    while (gate->word == NULL) {
        pthread_mutex_lock(&dcommi_gate_lock);
        struct dcommi_gate_word *word = dcommi_gate_words;
        if (word != NULL) {
            dcommi_gate_words = word->next;
            gate->word = word;
            gate->value = ++word->value;
            word->owner = run;
            word->holds = false;
            word->next = dcommi_gates_shut;
            dcommi_gates_shut = word;
        }
        pthread_mutex_unlock(&dcommi_gate_lock);
        if (word == NULL) {
            DCOMMI_TRY(dcommi_gate_more(gate->device));
        }
    }
    return DCOMM_OK;
}

/* Let the stream go on: the run has ended, and nothing of it is under way on a device. A word that
 * the stream has yet to write is not used again. */
static void dcommi_gate_open(dcommi_run *run)
{
    struct dcommi_gate_word *word = run->gate.word;
    run->gate.word = NULL;
    atomic_store_explicit(word->word, run->gate.value, memory_order_release);
    atomic_fetch_add_explicit(&dcommi_gates_opened, 1, memory_order_relaxed);
    pthread_mutex_lock(&dcommi_gate_lock);
    DCOMMI_LIST_REMOVE(dcommi_gates_shut, word, next);
    if (!run->gate.coming) {
        word->next = dcommi_gate_words;
        dcommi_gate_words = word;
    }
    pthread_mutex_unlock(&dcommi_gate_lock);
}

/* Return true if a run's stream has so many runs before it that the call must wait. */
static bool dcommi_gate_crowded(const dcommi_gate *gate)
{
    unsigned n = 0;
    pthread_mutex_lock(&dcommi_gate_lock);
    for (const struct dcommi_gate_word *w = dcommi_gates_shut; w != NULL; w = w->next) {
        n += w->owner->gate.device == gate->device && w->owner->gate.stream == gate->stream;
    }
    pthread_mutex_unlock(&dcommi_gate_lock);
    return n >= DCOMMI_GATE_DEPTH;
}

/* Wait until a run's stream has room for it. Progress threads do the work. */
static void dcommi_gate_room(const dcommi_run *run)
{
    static _Thread_local uint64_t in_vain = UINT64_MAX; /* runs opened when it went on */
    const struct timespec nap = {0, 50000};
    const double until = dcommi_now() + DCOMMI_GATE_PATIENCE;
    while (dcommi_gate_crowded(&run->gate)) {
        const uint64_t opened = atomic_load_explicit(&dcommi_gates_opened, memory_order_relaxed);
        if (opened == in_vain || dcommi_now() >= until) {
            in_vain = opened;
            return;
        }
        nanosleep(&nap, NULL);
    }
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
        const dcommi_run *them = w->owner;
        if (w->holds && them->comm->id == run->comm->id && them->comm != run->comm &&
            them->seq == run->seq && dcommi_gate_follows(&them->gate, gate)) {
            other = them->comm->rank;
            same = them->gate.stream == gate->stream;
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

/* Tie a run to its stream, first half: learn when the stream has come to it. */
static dcomm_status dcommi_gate_mark(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    DCOMMI_TRY(dcommi_gate_check(run));
    DCOMMI_TRY(dcommi_gate_word_take(run));
    DCOMMI_TRY(
        dcommi_devices->stream_write(gate->device, gate->stream, gate->word->reached, gate->value));
    gate->coming = true;
    return DCOMM_OK;
}

/* Tie a run to its stream, second half: make later work of the stream wait for the run. The runs
 * of a group all do the first half before. The end of a run with a request is learned from that,
 * and where no stream may wait for a rank the caller waits (dcommi_run_awaited). */
static dcomm_status dcommi_gate_hold(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    if (gate->word == NULL || !run->blocking || dcommi_devices->synchronous()) {
        return DCOMM_OK;
    }
    pthread_mutex_lock(&dcommi_gate_lock);
    gate->word->holds = true;
    pthread_mutex_unlock(&dcommi_gate_lock);
    return dcommi_devices->stream_hold(gate->device, gate->stream, gate->word->word, gate->value);
}

/* Return true if a run must wait for its stream before it enters the engine. */
static bool dcommi_gate_shut(dcommi_run *run)
{
    dcommi_gate *gate = &run->gate;
    if (DCOMMI_LIKELY(!gate->coming) || gate->failed) {
        return false;
    }
    gate->coming = !dcommi_word_reached(gate->word->reached, gate->value);
    return gate->coming;
}

/* If earlier work of a run's stream has failed, fail the run on all ranks: its data are not what
 * was meant. The stream will not come to it. */
static void dcommi_gate_look(dcommi_run *run)
{
    dcomm_status status = dcommi_devices->health(run->gate.device);
    if (status < 0) {
        run->gate.failed = true;
        dcommi_poison(run->comm, status,
                      "%s #%" PRIu64
                      ", rank %d, device %d: what opts.stream held before it has failed: %.300s",
                      dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, run->comm->rank,
                      run->gate.device, dcommi_message);
    }
}

#endif
