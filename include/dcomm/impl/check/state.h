/* state.h - the plan checker's state of a run: ranks, lanes, vector clocks, messages, counters and
 * exposed memory. */
#ifndef DCOMMI_CHECK_STATE_H
#define DCOMMI_CHECK_STATE_H

#include "../plan/build.h"
#include "mem.h"
#include "../plan/check_valid.h"
#include "../plan/cursor.h"

#define DCOMMI_CHECK_BUDGET 50000000 /* steps and pieces executed before we give up */

/* An event, for drawings of a plan. `level` counts the messages on the longest chain so far. */
typedef struct dcommi_check_event {
    uint8_t kind;       /* dcomm_step_kind; a message is one event, of the receiver's kind */
    int16_t rank, peer; /* peer: sender, owner, or target of a signal; -1: none */
    int32_t lane, level;
    int64_t bytes, tag;
} dcommi_check_event;

typedef struct dcommi_check_trace {
    dcommi_check_event *event;
    size_t n, capacity;
} dcommi_check_trace;

/* A plan in execution: a rank's plan, or a called sub-plan. */
typedef struct dcommi_check_frame {
    dcommi_scope scope;
    struct dcommi_check *check;
    struct dcommi_check_lane *caller; /* NULL: the rank's own plan */
    int rank;
    bool linear; /* encodings may be folded */
    dcommi_check_mem *mem[DCOMM_SPACE_MSG];
    int64_t base[DCOMM_SPACE_MSG], size[DCOMM_SPACE_MSG];
    uint32_t lanes_left;
    uint32_t *end_vc; /* join of the lanes that have ended */
    int32_t level;
} dcommi_check_frame;

/* A step under way. */
typedef struct dcommi_check_op {
    dcommi_cursor cursor;         /* first, for dcommi_check_word: the lane as the step found it */
    struct dcommi_check_op *next; /* in the list of free ones */
    struct dcommi_check_op *pending; /* in the list of the lane's asynchronous steps */
    struct dcommi_check_lane *lane;
    const dcomm_step *step;
    uint32_t *vc; /* the lane's clock, or its own if asynchronous */
    uint32_t comp, clock;
    int32_t level;
    int peer; /* rank of the run */
    int64_t tag;
    bool async;
} dcommi_check_op;

typedef struct dcommi_check_lane {
    dcommi_check_frame *frame;
    struct dcommi_check_lane *next_waiter; /* for the same counter or rank's EXPOSE */
    struct dcommi_check_lane *all;         /* every lane of the stage, for deadlock reports */
    uint32_t number;                       /* in its plan */
    dcommi_cursor cursor;
    uint32_t comp; /* component of its steps; comp + 1 is that of its fences */
    uint32_t *vc;
    uint32_t *async_vc; /* join of the clocks of its completed asynchronous steps */
    int32_t level, async_level;
    uint32_t outstanding;
    dcommi_check_op *pending;
    dcommi_check_op op; /* the synchronous step under way */
    bool blocked, done, at_fence;
    int64_t wants; /* WAIT: the value */
} dcommi_check_lane;

/* One lane's signals to one counter. */
typedef struct dcommi_check_source {
    uint32_t comp;
    struct dcommi_check_pulse {
        int64_t before; /* sum of this lane's earlier signals */
        const uint32_t *vc;
        int32_t level;
    } * pulse;
    size_t n, capacity;
    int64_t total;
} dcommi_check_source;

typedef struct dcommi_check_counter {
    int64_t total;
    dcommi_check_source *source;
    size_t nsources, capacity;
    dcommi_check_lane *waiters;
} dcommi_check_counter;

typedef struct dcommi_check_exposed {
    dcommi_check_mem *mem;
    int64_t at, len;
    const uint32_t *vc;
    int32_t level;
} dcommi_check_exposed;

typedef struct dcommi_check_message {
    uint64_t key; /* 0: free */
    dcommi_check_op *send, *recv;
    bool done;
} dcommi_check_message;

/* An encoding: `runs` are the values that it encodes. */
typedef struct dcommi_check_encoding {
    int64_t len; /* encoded bytes */
    dcommi_check_runs runs;
} dcommi_check_encoding;

typedef struct dcommi_check_component {
    int rank;
    uint32_t lane;
    uint32_t caller; /* component of the calling lane, UINT32_MAX: none */
} dcommi_check_component;

typedef struct dcommi_check_rank {
    const dcomm_plan *plan; /* of this stage */
    dcommi_check_mem *mem[DCOMM_SPACE_MSG];
    dcommi_check_frame *frame;
    dcommi_check_lane *peer_waiters; /* wait until this rank exposes something */
    dcommi_check_counter *counters;
    dcommi_check_exposed *exposed; /* [nslots][n]: by slot and reader */
    uint64_t heard;                /* ranks whose start precedes this rank's present */
    int64_t bytes;
} dcommi_check_rank;

/* The counters of one stage, kept from one pass to the next. */
typedef struct dcommi_check_log {
    dcommi_check_counter *counters[DCOMMI_CHECK_RANKS];
    uint32_t ncounters[DCOMMI_CHECK_RANKS];
} dcommi_check_log;

#define DCOMMI_CHECK_STAGES 64

typedef struct dcommi_check_block {
    struct dcommi_check_block *next;
    size_t used, size;
} dcommi_check_block;

typedef struct dcommi_check {
    const dcomm_plan *const *plans;
    int n;
    uint64_t all; /* every rank */
    const dcomm_check_spec *spec;
    bool spec_holds; /* results are checked: this scenario allows it and all words are known */
    bool reduces, averages;
    int64_t element;
    int scenario;

    dcomm_status status; /* the first hard error; its text is the thread's last error */
    char finding[DCOMMI_MESSAGE_MAX]; /* the first missing order of this pass */
    int64_t budget;

    dcommi_check_block *blocks, *log_blocks; /* memory of this pass, and of the last pass's logs */
    dcommi_check_mem *mems;
    dcommi_check_pool pool;
    dcommi_check_runs arrived, given, folded, merged; /* values under way */
    dcommi_check_encoding *encoding;
    size_t nencodings, encodings_capacity;

    dcommi_check_rank rank[DCOMMI_CHECK_RANKS];
    int stage;
    uint32_t ncomps;
    dcommi_check_component *comps;
    uint32_t **free_vc;
    size_t nfree_vc, free_vc_capacity;
    dcommi_check_op *free_ops;
    dcommi_check_lane *lanes; /* all of this stage */
    dcommi_check_lane *running;
    dcommi_check_lane **ready;
    size_t nready, ready_capacity;
    dcommi_check_message *message;
    size_t nmessages, messages_capacity;
    dcommi_check_log log[DCOMMI_CHECK_STAGES], old_log[DCOMMI_CHECK_STAGES];
    bool has_old_log, waited;
    uint64_t edges; /* hash of the signal -> wait edges that this pass found */

    int64_t messages, signals, total_bytes;
    int32_t steps;
    dcommi_check_trace *trace;
} dcommi_check;

/* ---- memory of one pass ---- */

static void *dcommi_check_get(dcommi_check *c, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    dcommi_check_block *b = c->blocks;
    if (b == NULL || b->size - b->used < bytes) {
        size_t size = bytes > (1u << 18) ? bytes : 1u << 18;
        b = dcommi_alloc(DCOMMI_CACHE_LINE + size);
        if (b == NULL) {
            c->status = DCOMM_ERR_NO_MEMORY;
            return NULL;
        }
        b->size = size;
        b->next = c->blocks;
        c->blocks = b;
    }
    void *p = (char *)b + DCOMMI_CACHE_LINE + b->used;
    b->used += bytes;
    return p;
}

static void dcommi_check_blocks_free(dcommi_check_block **blocks)
{
    while (*blocks != NULL) {
        dcommi_check_block *next = (*blocks)->next;
        dcommi_free(*blocks);
        *blocks = next;
    }
}

static dcommi_check_mem *dcommi_check_mem_new(dcommi_check *c, int rank, unsigned space)
{
    dcommi_check_mem *mem = dcommi_check_get(c, sizeof *mem);
    if (mem != NULL) {
        mem->rank = rank;
        mem->space = (uint8_t)space;
        mem->read_only = space == DCOMM_SPACE_IN;
        mem->next = c->mems;
        c->mems = mem;
    }
    return mem;
}

/* ---- vector clocks ---- */

static uint32_t *dcommi_check_vc_new(dcommi_check *c)
{
    if (c->nfree_vc > 0) {
        return c->free_vc[--c->nfree_vc];
    }
    return dcommi_check_get(c, c->ncomps * sizeof(uint32_t));
}

static uint32_t *dcommi_check_vc_copy(dcommi_check *c, const uint32_t *vc)
{
    uint32_t *copy = dcommi_check_vc_new(c);
    if (copy != NULL) {
        memcpy(copy, vc, c->ncomps * sizeof *copy);
    }
    return copy;
}

static void dcommi_check_vc_free(dcommi_check *c, uint32_t *vc)
{
    if (dcommi_grow((void **)&c->free_vc, &c->free_vc_capacity, c->nfree_vc + 1,
                    sizeof *c->free_vc) == DCOMM_OK) {
        c->free_vc[c->nfree_vc++] = vc;
    }
}

static void dcommi_check_join(const dcommi_check *c, uint32_t *into, const uint32_t *from)
{
    for (uint32_t i = 0; i < c->ncomps; i++) {
        into[i] = into[i] > from[i] ? into[i] : from[i];
    }
}

/* ---- words about places ---- */

typedef struct dcommi_check_text {
    char s[128];
} dcommi_check_text;

static dcommi_check_text dcommi_check_lane_text(const dcommi_check *c, uint32_t comp)
{
    dcommi_check_text t = {""};
    const dcommi_check_component *k = &c->comps[comp / 2];
    if (k->caller == UINT32_MAX) {
        snprintf(t.s, sizeof t.s, "rank %d lane %" PRIu32, k->rank, k->lane);
    } else {
        const dcommi_check_component *outer = &c->comps[k->caller / 2];
        while (outer->caller != UINT32_MAX) {
            outer = &c->comps[outer->caller / 2];
        }
        snprintf(t.s, sizeof t.s, "rank %d lane %" PRIu32 " sub-plan lane %" PRIu32, k->rank,
                 outer->lane, k->lane);
    }
    return t;
}

static dcommi_check_text dcommi_check_op_text(const dcommi_check *c, const dcommi_check_op *op)
{
    dcommi_check_text t = dcommi_check_lane_text(c, op->lane->comp);
    size_t n = strlen(t.s);
    const dcomm_step *s = op->step;
    const char *name = dcommi_print_kind(s->kind);
    if (op->peer >= 0) {
        snprintf(t.s + n, sizeof t.s - n, " step %" PRIu32 " (%s %s %d, tag %" PRId64 ")",
                 op->cursor.at.pc, name, s->kind == DCOMM_STEP_SEND ? "to" : "from", op->peer,
                 op->tag);
    } else if (s->kind == DCOMM_STEP_WAIT) {
        snprintf(t.s + n, sizeof t.s - n,
                 " step %" PRIu32 " (wait for counter %" PRId64 " >= %" PRId64 ")",
                 op->cursor.at.pc, op->lane->frame->scope.counter + s->slot, op->lane->wants);
    } else {
        snprintf(t.s + n, sizeof t.s - n, " step %" PRIu32 " (%s)", op->cursor.at.pc, name);
    }
    return t;
}

/* Refuse the plans at this step. Return false. */
static bool DCOMMI_PRINTF(3, 4)
    dcommi_check_refuse(dcommi_check *c, const dcommi_check_op *op, const char *format, ...)
{
    char text[384];
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (c->status == DCOMM_OK) {
        c->status = dcommi_fail(DCOMM_ERR_PLAN, "%s: %s", dcommi_check_op_text(c, op).s, text);
    }
    return false;
}

/* Refuse the plans if the cursor's `status` is an error. Return true if it is none. */
static bool dcommi_check_walked(dcommi_check *c, const dcommi_check_op *op, dcomm_status status)
{
    return status >= 0 || dcommi_check_refuse(c, op, "%s", dcommi_message);
}

/* Keep `status` in c->status if it is the first error. Return true if it is none. */
static bool dcommi_check_good(dcommi_check *c, dcomm_status status)
{
    if (status < 0 && c->status == DCOMM_OK) {
        c->status = status;
    }
    return status >= 0;
}

/* Record the first missing order of this pass. */
static void dcommi_check_found(dcommi_check *c, const dcommi_check_op *op,
                               const dcommi_check_race *race)
{
    if (race->mem == NULL || c->finding[0] != '\0') {
        return;
    }
    snprintf(c->finding, sizeof c->finding,
             "%s %s byte %" PRId64 " of rank %d's %s, which %s step %" PRIu32
             " %s%s: nothing orders the two",
             dcommi_check_op_text(c, op).s, race->second_writes ? "writes" : "reads", race->at,
             race->mem->rank, dcommi_print_space(race->mem->space),
             dcommi_check_lane_text(c, race->comp).s, race->step,
             race->first_writes ? "writes" : "reads", race->comp % 2 != 0 ? " (async)" : "");
}

/* Return the step's place in the vector clocks. */
static dcommi_check_who dcommi_check_who_of(const dcommi_check_op *op)
{
    dcommi_check_who who = {op->vc, op->comp, op->clock, op->cursor.at.pc};
    return who;
}

#endif
