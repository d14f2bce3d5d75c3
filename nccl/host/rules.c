/* rules.c - what a device may do to its callers, which the stand-in does on request: calls that
 * wait in the driver and hold its lock, full queues, and streams that share a hardware queue. */
#define _GNU_SOURCE
#include "stream.h"
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_MAX 32
#define PRIORITIES (CUHOST_PRIORITY_LEAST - CUHOST_PRIORITY_GREATEST + 1)

/* A hardware queue. What is put on its streams begins in this order; what waits holds up the
 * rest. */
struct cuhost_channel {
    uint64_t put, begun;
};

/* The lock of a context, while a call that waits in the driver holds it. */
typedef struct driver_lock {
    pthread_t holder;
    int depth; /* 0: free */
} driver_lock;

static cuda_host_rules rules; /* all guarded by the lock */
static bool chosen;           /* by the environment or a test */
static driver_lock locks[CUHOST_DEVICES_MAX];
static struct cuhost_channel channels[CUHOST_DEVICES_MAX][PRIORITIES][CONNECTIONS_MAX];
static unsigned n_streams[CUHOST_DEVICES_MAX][PRIORITIES]; /* that have been given a channel */
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;   /* a driver's lock */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;    /* work of some stream */
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;    /* work of some channel */

/* ---- the choice ---- */

/* Return the number behind a word of a list, or `otherwise` if there is none; 0: the word is not
 * there. */
static unsigned named(const char *list, const char *word, unsigned otherwise)
{
    const char *at = strstr(list, word);
    if (at == NULL) {
        return 0;
    }
    at += strlen(word);
    return *at == '=' ? (unsigned)strtoul(at + 1, NULL, 10) : otherwise;
}

static const cuda_host_rules *rules_now(void)
{
    if (!chosen) {
        const char *harsh = getenv("CUDA_HOST_HARSH"), *n = getenv("CUDA_DEVICE_MAX_CONNECTIONS"),
                   *blocking = getenv("CUDA_LAUNCH_BLOCKING");
        harsh = harsh == NULL             ? ""
                : strcmp(harsh, "1") == 0 ? "queue,lock,free,alloc,load,connections"
                                          : harsh;
        rules =
            (cuda_host_rules){.queue = named(harsh, "queue", 1024),
                              .lock = named(harsh, "lock", 1) != 0,
                              .free_waits = named(harsh, "free", 1) != 0,
                              .alloc_waits = named(harsh, "alloc", 1) != 0,
                              .load_waits = named(harsh, "load", 1) != 0,
                              .sync_holds = named(harsh, "sync", 1) != 0,
                              .connections = named(harsh, "connections",
                                                   n != NULL ? (unsigned)strtoul(n, NULL, 10) : 8),
                              .launch_blocking = blocking != NULL && strcmp(blocking, "1") == 0};
        chosen = true;
    }
    return &rules;
}

void cuda_host_set_rules(const cuda_host_rules *r)
{
    pthread_mutex_lock(&cuhost_lock);
    rules = *r;
    chosen = true;
    pthread_mutex_unlock(&cuhost_lock);
}

cuda_host_rules cuhost_rules(void)
{
    pthread_mutex_lock(&cuhost_lock);
    cuda_host_rules now = *rules_now();
    pthread_mutex_unlock(&cuhost_lock);
    return now;
}

/* ---- the driver's lock ---- */

void cuhost_driver(int device)
{
    const driver_lock *l = &locks[device];
    while (l->depth > 0 && !pthread_equal(l->holder, pthread_self())) {
        pthread_cond_wait(&let_go, &cuhost_lock);
    }
}

bool cuhost_hold(int device)
{
    if (!rules_now()->lock) {
        return false;
    }
    cuhost_driver(device);
    locks[device].holder = pthread_self();
    locks[device].depth++;
    return true;
}

bool cuhost_hold_sync(int device)
{
    return rules_now()->sync_holds && cuhost_hold(device);
}

void cuhost_let_go(int device, bool held)
{
    locks[device].depth -= held;
    pthread_cond_broadcast(&let_go);
}

cudaError_t cuhost_settle(int device)
{
    pthread_mutex_lock(&cuhost_lock);
    bool held = cuhost_hold(device);
    pthread_mutex_unlock(&cuhost_lock);
    cudaError_t status = cuhost_drain_device(device);
    pthread_mutex_lock(&cuhost_lock);
    cuhost_let_go(device, held);
    pthread_mutex_unlock(&cuhost_lock);
    return status;
}

void cuhost_launched(struct CUstream_st *s)
{
    cuhost_mark *mark =
        rules_now()->launch_blocking && s->graph == NULL ? cuhost_mark_put(s) : NULL;
    if (mark != NULL) {
        int device = s->device;
        bool held = cuhost_hold(device);
        cuhost_mark_wait(mark);
        cuhost_mark_drop(mark);
        cuhost_let_go(device, held);
    }
}

/* ---- a stream's queue ---- */

static bool full(const struct CUstream_st *s)
{
    unsigned most = rules_now()->queue;
    return most > 0 && s->graph == NULL && s->queued >= most;
}

struct CUstream_st *cuhost_room(cudaStream_t stream)
{
    struct CUstream_st *s = cuhost_find(stream);
    if (s == NULL) {
        return NULL;
    }
    const int device = s->device;
    cuhost_driver(device);
    s = cuhost_find(stream); /* the program may have destroyed it meanwhile */
    if (s != NULL && full(s)) {
        bool held = cuhost_hold(device);
        while ((s = cuhost_find(stream)) != NULL && full(s)) {
            pthread_cond_wait(&ended, &cuhost_lock);
        }
        cuhost_let_go(device, held);
    }
    return s;
}

/* ---- hardware queues ---- */

struct cuhost_channel *cuhost_channel_of(int device, int priority)
{
    const unsigned of = (unsigned)(CUHOST_PRIORITY_LEAST - priority);
    unsigned n = rules_now()->connections;
    n = n < CONNECTIONS_MAX ? n : CONNECTIONS_MAX;
    return n > 0 ? &channels[device][of][n_streams[device][of]++ % n] : NULL;
}

void cuhost_queued(struct CUstream_st *s, cuhost_work *w)
{
    w->counts = w->kind != CUHOST_MARK;
    s->queued += w->counts;
    if (s->channel != NULL && w->counts) {
        w->number = s->channel->put++;
    }
}

static void begin(struct CUstream_st *s)
{
    s->channel->begun++;
    pthread_cond_broadcast(&begun);
}

/* A device goes on to a channel's next work when it has begun a kernel or a copy, but not before a
 * wait has ended. The host ends the wait for a function of the program. */
static bool holds_up(const cuhost_work *w)
{
    return w->kind == CUHOST_WAIT || w->kind == CUHOST_CALL;
}

void cuhost_begins(struct CUstream_st *s, const cuhost_work *w)
{
    if (s->channel == NULL || !w->counts) {
        return;
    }
    while (s->channel->begun != w->number) {
        pthread_cond_wait(&begun, &cuhost_lock);
    }
    if (!holds_up(w)) {
        begin(s);
    }
}

void cuhost_ends(struct CUstream_st *s, const cuhost_work *w)
{
    if (s->channel != NULL && w->counts && holds_up(w)) {
        begin(s);
    }
    s->queued -= w->counts;
    pthread_cond_broadcast(&ended);
}
