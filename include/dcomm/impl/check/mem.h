/* mem.h - the plan checker's model of memory: for each run of bytes, the contributions that it
 * holds and the steps that have touched it. */
#ifndef DCOMMI_CHECK_MEM_H
#define DCOMMI_CHECK_MEM_H

#include "../../check.h"
#include "../base/util.h"

#define DCOMMI_CHECK_RANKS 64 /* contributions are sets of ranks in one 64-bit word */

typedef enum dcommi_check_kind {
    DCOMMI_CHECK_UNDEF = 0, /* nothing was written here */
    DCOMMI_CHECK_SUM,       /* fold of input byte `src` of every rank in `mask` */
    DCOMMI_CHECK_ENCODED,   /* byte `src` of encoding number `mask` */
    DCOMMI_CHECK_ZERO,      /* words at the start of a run */
    DCOMMI_CHECK_WORD,      /* the 64-bit number `src` */
    DCOMMI_CHECK_OPAQUE     /* defined, but unknown */
} dcommi_check_kind;

#define DCOMMI_CHECK_DIVIDED 1u /* a FINAL fold made it */
#define DCOMMI_CHECK_ORDERED 2u /* a left fold of ranks 0, 1, 2, ... (or one contribution) */

typedef struct dcommi_check_value {
    uint8_t kind, flags;
    uint64_t mask;
    int64_t src;
} dcommi_check_value;

typedef struct dcommi_check_run {
    int64_t len;
    dcommi_check_value v;
} dcommi_check_run;

typedef struct dcommi_check_runs {
    dcommi_check_run *run;
    size_t n, capacity;
} dcommi_check_runs;

/* A step that touches memory. Each lane has two components in the vector clocks: one for its
 * steps, one for its fences. An ASYNC step counts as touching memory at the lane's next fence, so
 * it is ordered before nothing earlier. */
typedef struct dcommi_check_who {
    const uint32_t *vc; /* the events known to precede the step */
    uint32_t comp, clock;
    uint32_t step; /* index in its plan, for messages */
} dcommi_check_who;

typedef struct dcommi_check_reader {
    uint32_t comp, clock, step;
    uint32_t next; /* index in the pool, 0: the end */
} dcommi_check_reader;

typedef struct dcommi_check_cell {
    int64_t start; /* ends where the next cell begins */
    dcommi_check_value v;
    uint32_t comp, clock, step; /* the last writer; clock 0: before the run */
    uint32_t readers;           /* list of readers since that write, without superseded ones */
} dcommi_check_cell;

/* One space of one rank (or of one called sub-plan). Its cells are a gap buffer: those before `gap`
 * stand at the start of the array, the others at its end. Accesses of a plan are mostly close to
 * each other, so that few cells move when some are inserted. */
typedef struct dcommi_check_mem {
    struct dcommi_check_mem *next;
    dcommi_check_cell *cell; /* use dcommi_check_cell_at */
    size_t ncells, gap, capacity;
    int64_t size;
    uint32_t *peer_last;    /* per component: the last read through PEER; NULL: none */
    const uint32_t *end_vc; /* of a sub-plan's memory: the clock when its call returned */
    int rank;
    uint8_t space;
    bool read_only;
} dcommi_check_mem;

/* Two unordered accesses. dcommi_check_found puts them into words. */
typedef struct dcommi_check_race {
    const dcommi_check_mem *mem;
    int64_t at;
    bool first_writes, second_writes;
    uint32_t comp, step; /* of the first access */
} dcommi_check_race;

typedef struct dcommi_check_pool {
    dcommi_check_reader *reader;
    size_t n, capacity;
    uint32_t free;
} dcommi_check_pool;

static dcommi_check_value dcommi_check_shift(dcommi_check_value v, int64_t by)
{
    if (v.kind == DCOMMI_CHECK_SUM || v.kind == DCOMMI_CHECK_ENCODED) {
        v.src += by;
    } else if (v.kind == DCOMMI_CHECK_WORD && by != 0) {
        v.kind = DCOMMI_CHECK_OPAQUE;
    }
    return v;
}

/* Return true if `b` continues `a`, which is `len` bytes long. */
static bool dcommi_check_continues(const dcommi_check_value *a, int64_t len,
                                   const dcommi_check_value *b)
{
    if (a->kind != b->kind || a->flags != b->flags || a->kind == DCOMMI_CHECK_WORD) {
        return false;
    }
    if (a->kind == DCOMMI_CHECK_SUM || a->kind == DCOMMI_CHECK_ENCODED) {
        return a->mask == b->mask && a->src + len == b->src;
    }
    return true;
}

static dcomm_status dcommi_check_append(dcommi_check_runs *runs, int64_t len, dcommi_check_value v)
{
    if (len == 0) {
        return DCOMM_OK;
    }
    if (runs->n > 0) {
        dcommi_check_run *last = &runs->run[runs->n - 1];
        if (dcommi_check_continues(&last->v, last->len, &v)) {
            last->len += len;
            return DCOMM_OK;
        }
    }
    DCOMMI_TRY(dcommi_grow((void **)&runs->run, &runs->capacity, runs->n + 1, sizeof *runs->run));
    runs->run[runs->n].len = len;
    runs->run[runs->n].v = v;
    runs->n++;
    return DCOMM_OK;
}

/* ---- readers ---- */

static dcomm_status dcommi_check_reader_add(dcommi_check_pool *pool, uint32_t *list,
                                            dcommi_check_reader reader)
{
    uint32_t at = pool->free;
    if (at != 0) {
        pool->free = pool->reader[at].next;
    } else {
        pool->n += pool->n == 0;
        if (pool->n >= UINT32_MAX) {
            return dcommi_fail(DCOMM_ERR_NO_MEMORY, "too many reads to remember");
        }
        DCOMMI_TRY(dcommi_grow((void **)&pool->reader, &pool->capacity, pool->n + 1,
                               sizeof *pool->reader));
        at = (uint32_t)pool->n++;
    }
    reader.next = *list;
    pool->reader[at] = reader;
    *list = at;
    return DCOMM_OK;
}

static void dcommi_check_reader_drop(dcommi_check_pool *pool, uint32_t *list)
{
    uint32_t at = *list;
    *list = pool->reader[at].next;
    pool->reader[at].next = pool->free;
    pool->free = at;
}

/* ---- cells ---- */

static dcommi_check_cell *dcommi_check_cell_at(const dcommi_check_mem *mem, size_t i)
{
    return &mem->cell[i < mem->gap ? i : i + mem->capacity - mem->ncells];
}

/* Move the gap in front of cell i. */
static void dcommi_check_gap_to(dcommi_check_mem *mem, size_t i)
{
    const size_t hole = mem->capacity - mem->ncells, gap = mem->gap;
    dcommi_check_cell *cell = mem->cell;
    if (i < gap) {
        memmove(cell + i + hole, cell + i, (gap - i) * sizeof *cell);
    } else if (i > gap) {
        memmove(cell + gap, cell + gap + hole, (i - gap) * sizeof *cell);
    }
    mem->gap = i;
}

/* Make room for `more` cells in front of cell i. */
static dcomm_status dcommi_check_room(dcommi_check_mem *mem, size_t i, size_t more)
{
    if (mem->capacity - mem->ncells < more) {
        dcommi_check_gap_to(mem, mem->ncells);
        DCOMMI_TRY(dcommi_grow((void **)&mem->cell, &mem->capacity, mem->ncells + more,
                               sizeof *mem->cell));
    }
    dcommi_check_gap_to(mem, i);
    return DCOMM_OK;
}

/* Put a cell into the gap, for which there is room. */
static void dcommi_check_insert(dcommi_check_mem *mem, const dcommi_check_cell *cell)
{
    mem->cell[mem->gap++] = *cell;
    mem->ncells++;
}

static dcomm_status dcommi_check_mem_fill(dcommi_check_mem *mem, int64_t from, int64_t to,
                                          dcommi_check_value v)
{
    if (to <= from) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_room(mem, mem->ncells, 1));
    const dcommi_check_cell cell = {.start = from, .v = v};
    dcommi_check_insert(mem, &cell);
    mem->size = to;
    return DCOMM_OK;
}

/* Return the index of the cell that holds byte `at`, which must be in [0, size). */
static size_t dcommi_check_find(const dcommi_check_mem *mem, int64_t at)
{
    size_t low = 0, high = mem->ncells;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (dcommi_check_cell_at(mem, middle)->start <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int64_t dcommi_check_cell_end(const dcommi_check_mem *mem, size_t i)
{
    return i + 1 < mem->ncells ? dcommi_check_cell_at(mem, i + 1)->start : mem->size;
}

/* Make a cell begin at `at`; *index_p is that cell (ncells when `at` is the end). */
static dcomm_status dcommi_check_split(dcommi_check_mem *mem, dcommi_check_pool *pool, int64_t at,
                                       size_t *index_p)
{
    if (at >= mem->size) {
        *index_p = mem->ncells;
        return DCOMM_OK;
    }
    size_t i = dcommi_check_find(mem, at);
    *index_p = i;
    if (dcommi_check_cell_at(mem, i)->start == at) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_room(mem, i + 1, 1));
    dcommi_check_cell half = *dcommi_check_cell_at(mem, i);
    uint32_t r = half.readers;
    half.v = dcommi_check_shift(half.v, at - half.start);
    half.start = at;
    half.readers = 0;
    for (; r != 0; r = pool->reader[r].next) {
        DCOMMI_TRY(dcommi_check_reader_add(pool, &half.readers, pool->reader[r]));
    }
    dcommi_check_insert(mem, &half);
    *index_p = i + 1;
    return DCOMM_OK;
}

/* Append the values in [at, at+len) to `runs`, without recording a read. */
static dcomm_status dcommi_check_peek(const dcommi_check_mem *mem, int64_t at, int64_t len,
                                      dcommi_check_runs *runs)
{
    int64_t end = at + len;
    for (size_t i = len > 0 ? dcommi_check_find(mem, at) : 0; at < end; i++) {
        int64_t stop = dcommi_min64(end, dcommi_check_cell_end(mem, i));
        const dcommi_check_cell *cell = dcommi_check_cell_at(mem, i);
        DCOMMI_TRY(
            dcommi_check_append(runs, stop - at, dcommi_check_shift(cell->v, at - cell->start)));
        at = stop;
    }
    return DCOMM_OK;
}

/* Return true if the step is not known to come after (comp, clock). A synchronous step comes after
 * itself. */
static bool dcommi_check_unordered(const dcommi_check_who *who, uint32_t comp, uint32_t clock)
{
    bool self = comp == who->comp && clock == who->clock && comp % 2 == 0;
    return clock > who->vc[comp] && !self;
}

/* Read [at, at+len): record the reader, note a race with an unordered writer, append values. */
static dcomm_status dcommi_check_read(dcommi_check_mem *mem, dcommi_check_pool *pool, int64_t at,
                                      int64_t len, const dcommi_check_who *who,
                                      dcommi_check_runs *runs, dcommi_check_race *race)
{
    if (len == 0) {
        return DCOMM_OK;
    }
    if (mem->read_only) {
        return dcommi_check_peek(mem, at, len, runs);
    }
    size_t first, last;
    DCOMMI_TRY(dcommi_check_split(mem, pool, at, &first));
    DCOMMI_TRY(dcommi_check_split(mem, pool, at + len, &last));
    for (size_t i = first; i < last; i++) {
        dcommi_check_cell *cell = dcommi_check_cell_at(mem, i);
        if (dcommi_check_unordered(who, cell->comp, cell->clock) && race->mem == NULL) {
            dcommi_check_race found = {mem, cell->start, true, false, cell->comp, cell->step};
            *race = found;
        }
        /* A step after this read is also after the reads that precede it, so drop those. */
        bool known = false;
        for (uint32_t *r = &cell->readers; *r != 0;) {
            dcommi_check_reader *old = &pool->reader[*r];
            known = known || (old->comp == who->comp && old->clock == who->clock);
            if (old->clock <= who->vc[old->comp]) {
                dcommi_check_reader_drop(pool, r);
            } else {
                r = &old->next;
            }
        }
        dcommi_check_reader reader = {who->comp, who->clock, who->step, 0};
        if (!known) {
            DCOMMI_TRY(dcommi_check_reader_add(pool, &cell->readers, reader));
        }
    }
    return dcommi_check_peek(mem, at, len, runs);
}

/* Note a race between a coming write to [at, at+len) and earlier accesses. Call this before the
 * step's own reads are recorded, so that an asynchronous step does not race with itself. */
static dcomm_status dcommi_check_write_order(dcommi_check_mem *mem, dcommi_check_pool *pool,
                                             int64_t at, int64_t len, const dcommi_check_who *who,
                                             dcommi_check_race *race)
{
    size_t first, last;
    if (len == 0 || race->mem != NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_split(mem, pool, at, &first));
    DCOMMI_TRY(dcommi_check_split(mem, pool, at + len, &last));
    for (size_t i = first; i < last; i++) {
        const dcommi_check_cell *cell = dcommi_check_cell_at(mem, i);
        if (dcommi_check_unordered(who, cell->comp, cell->clock)) {
            dcommi_check_race found = {mem, cell->start, true, true, cell->comp, cell->step};
            *race = found;
            return DCOMM_OK;
        }
        for (uint32_t r = cell->readers; r != 0; r = pool->reader[r].next) {
            const dcommi_check_reader *reader = &pool->reader[r];
            if (dcommi_check_unordered(who, reader->comp, reader->clock)) {
                dcommi_check_race found = {mem,  cell->start,  false,
                                           true, reader->comp, reader->step};
                *race = found;
                return DCOMM_OK;
            }
        }
    }
    return DCOMM_OK;
}

/* Write `runs` at `at`. Their total length must fit into the rest of `mem`. */
static dcomm_status dcommi_check_write(dcommi_check_mem *mem, dcommi_check_pool *pool, int64_t at,
                                       const dcommi_check_runs *runs, const dcommi_check_who *who)
{
    int64_t len = 0;
    for (size_t i = 0; i < runs->n; i++) {
        len += runs->run[i].len;
    }
    if (len == 0) {
        return DCOMM_OK;
    }
    size_t first, last;
    DCOMMI_TRY(dcommi_check_split(mem, pool, at, &first));
    DCOMMI_TRY(dcommi_check_split(mem, pool, at + len, &last));
    for (size_t i = first; i < last; i++) {
        dcommi_check_cell *cell = dcommi_check_cell_at(mem, i);
        while (cell->readers != 0) {
            dcommi_check_reader_drop(pool, &cell->readers);
        }
    }
    DCOMMI_TRY(dcommi_check_room(mem, last, runs->n));
    mem->gap = first; /* drop the cells from first to last */
    mem->ncells -= last - first;
    for (size_t i = 0; i < runs->n; i++) {
        const dcommi_check_cell cell = {at, runs->run[i].v, who->comp, who->clock, who->step, 0};
        dcommi_check_insert(mem, &cell);
        at += runs->run[i].len;
    }
    return DCOMM_OK;
}

/* Forget readers and writers between stages. */
static void dcommi_check_mem_settle(dcommi_check_mem *mem)
{
    for (size_t i = 0; i < mem->ncells; i++) {
        dcommi_check_cell *cell = dcommi_check_cell_at(mem, i);
        cell->clock = 0;
        cell->comp = 0;
        cell->readers = 0;
    }
    mem->peer_last = NULL;
}

#endif
