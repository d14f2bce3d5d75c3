/* fifo.h - a queue of records in memory that one process writes and one reads: how messages go
 * between two processes of a host. A record is a word, which is written last and says that the rest
 * is there, a header and a payload, in whole cache lines: a short message is one line, and its way
 * one transfer of that line. A process that dies leaves at most a record without its word, so that
 * only its own queue is touched by its death.
 *
 * Lines of short records are asked for all at once, by who is about to write them and by who is
 * about to read them. On AMD's processors such a record has more lines to itself than it needs: see
 * dcommi_fifo_reader. */
#ifndef DCOMMI_FIFO_H
#define DCOMMI_FIFO_H

#include "../../base/util.h"
#include "../../../../../kernels/cpu/isa.h"

#define DCOMMI_LINE 64
#define DCOMMI_FIFO_AHEAD 512  /* bytes */
#define DCOMMI_FIFO_FETCH 2048 /* bytes */
#define DCOMMI_FIFO_UNIT 256   /* bytes, on AMD */
/* bytes: all lines of records up to this length are requested at once, because writing or reading
 * one after the other takes a transfer for each. Longer records lose by it: on AMD between near
 * cores, on Intel always (docs/results/parts.md). */
#define DCOMMI_FIFO_WATCHED 640
/* bytes: records above the first length and up to the second are followed by a gap. The processor
 * of a reader that goes through lines in order prefetches the next ones, and so takes them from the
 * writer, which has got them ready for the next record. Longer records gain nothing. */
#define DCOMMI_FIFO_GAP_ABOVE 640
#define DCOMMI_FIFO_GAP_BELOW 16384
#define DCOMMI_FIFO_GAP 2048
#define DCOMMI_FIFO_GAP_SIZE 65536 /* in fifos from here on */
/* bytes: payloads above the first length and up to the second are stored by `rep movsb` on Intel,
 * which does not read lines that it overwrites whole. All-reduces gain. Payloads that the reader
 * copies, as in an all-gather, gain nothing, and longer ones lose. */
#define DCOMMI_FIFO_STRING_ABOVE 640
#define DCOMMI_FIFO_STRING_MOST 1024

/* Ask for a line to write. The builtin does so only where the compiler was told that it may; the
 * instruction is skipped by processors that do not know it. */
static inline void dcommi_prefetch_write(const volatile void *at)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const volatile char *)at));
#else
    __builtin_prefetch((const void *)(uintptr_t)at, 1);
#endif
}

/* The part in shared memory. The reader trusts none of it. */
typedef struct dcommi_fifo {
    _Alignas(
        DCOMMI_LINE) _Atomic uint64_t consumed; /* by the reader, which tells it now and then */
    _Alignas(DCOMMI_LINE) _Atomic uint64_t produced; /* by the writer, when it leaves */
    _Alignas(DCOMMI_LINE) unsigned char lines[];
} dcommi_fifo;

/* A record's word: turn (32 bits, never that of the lap before), payload length (20), header
 * length (8), kind (4, not 0). The word behind the last record is 0. */
typedef struct dcommi_record {
    unsigned kind;
    size_t header_len, len;
    const unsigned char *header, *data;
} dcommi_record;

#define DCOMMI_FIFO_SKIP 15u /* a record of nothing, to the end of the fifo */

/* One side's view. */
typedef struct dcommi_fifo_end {
    unsigned char *lines;
    uint64_t at;    /* bytes written or read so far */
    uint64_t limit; /* writer: consumed as last seen; reader: consumed as last told */
    uint64_t clear; /* writer: no unit from `at` to here, this one included, begins with a word */
    uint32_t size;  /* of the lines, a power of two */
    uint32_t unit;  /* bytes; records begin at its multiples. more than a line: wide */
    uint32_t last, longer; /* bytes of the last record, and of the longer of the last two */
    uint32_t scripted; /* writer: records that its process took out of the other fifo by scripts,
                        * since the engine took one */
    bool intel;        /* both ends keep to what was measured there */
    dcommi_fifo *fifo;
} dcommi_fifo_end;

static inline size_t dcommi_fifo_bytes(size_t size)
{
    return sizeof(dcommi_fifo) + size;
}

static inline uint64_t dcommi_fifo_turn(uint64_t at)
{
    return (uint64_t)(uint32_t)(at / DCOMMI_LINE + 1) << 32;
}

static inline _Atomic uint64_t *dcommi_fifo_word(const dcommi_fifo_end *e, uint64_t at)
{
    return (_Atomic uint64_t *)(void *)(e->lines + (at & (e->size - 1)));
}

/* Bytes of the units that a record of so many takes, its word and its gap included. */
static inline size_t dcommi_fifo_lines(const dcommi_fifo_end *e, size_t bytes)
{
    size_t lines = (sizeof(uint64_t) + bytes + e->unit - 1) & ~((size_t)e->unit - 1);
    bool gap = bytes > DCOMMI_FIFO_GAP_ABOVE && bytes < DCOMMI_FIFO_GAP_BELOW &&
               e->size >= DCOMMI_FIFO_GAP_SIZE;
    return gap ? lines + DCOMMI_FIFO_GAP : lines;
}

/* Return true if a record is there. */
static inline bool dcommi_fifo_ready(const dcommi_fifo_end *e)
{
    uint64_t word = atomic_load_explicit(dcommi_fifo_word(e, e->at), memory_order_relaxed);
    return (word & ~(uint64_t)UINT32_MAX) == dcommi_fifo_turn(e->at) && (word & 15) != 0;
}

static inline bool dcommi_fifo_wide(const dcommi_fifo_end *e)
{
    return e->unit > DCOMMI_LINE;
}

/* Both ends guess from the last two records what comes next: a barrier has shorter ones than the
 * operation behind it. */
static inline void dcommi_fifo_note(dcommi_fifo_end *e, size_t bytes)
{
    uint32_t now = (uint32_t)(sizeof(uint64_t) + bytes);
    e->longer = now > e->last ? now : e->last;
    e->last = now;
}

/* ---- writing ---- */

/* Clear the word behind a record: payload of the lap before must not be taken for a record. Its
 * writer has it in its cache and sees that at once. */
static inline void dcommi_fifo_clear(dcommi_fifo_end *e)
{
    e->clear = e->at;
    if (DCOMMI_UNLIKELY(dcommi_fifo_ready(e))) {
        atomic_store_explicit(dcommi_fifo_word(e, e->at), 0, memory_order_relaxed);
    }
}

/* Where that means to write, it takes as long as a message if the reader has the line in its cache,
 * and the record's own word can only follow: so ends without wide units clear some lines ahead when
 * that holds up nobody, which also brings these lines back. */
static inline void dcommi_fifo_publish(dcommi_fifo_end *e, unsigned kind, size_t header_len,
                                       size_t len, size_t lines)
{
    uint64_t at = e->at;
    e->at = at + lines;
    if (e->clear < e->at) {
        dcommi_fifo_clear(e);
    }
    atomic_store_explicit(dcommi_fifo_word(e, at),
                          dcommi_fifo_turn(at) | (uint64_t)len << 12 | header_len << 4 | kind,
                          memory_order_release);
    for (int i = 0; i < 2 && !dcommi_fifo_wide(e) && e->clear < e->at + DCOMMI_FIFO_AHEAD &&
                    e->clear + 2 * DCOMMI_LINE <= e->limit + e->size;
         i++) {
        e->clear += DCOMMI_LINE;
        atomic_store_explicit(dcommi_fifo_word(e, e->clear), 0, memory_order_relaxed);
    }
}

/* Have so many bytes from `at` on back from the reader, before they are written. */
static inline void dcommi_fifo_own(const dcommi_fifo_end *e, uint64_t bytes)
{
    uint64_t end = e->at + bytes;
    for (uint64_t at = e->at; at < end && at < e->limit + e->size; at += DCOMMI_LINE) {
        dcommi_prefetch_write(dcommi_fifo_word(e, at));
    }
}

/* After a record: the next is likely as long. */
static inline void dcommi_fifo_expect(const dcommi_fifo_end *e, size_t lines)
{
    if (dcommi_fifo_wide(e) && e->longer <= DCOMMI_FIFO_WATCHED) {
        if (e->longer <= e->unit && e->scripted > 1) {
            dcommi_fifo_own(e, e->unit);
        }
        return;
    }
    /* One line comes as fast by itself, and the reader is looking at it. */
    if (e->last > DCOMMI_LINE) {
        dcommi_fifo_own(e, e->last < DCOMMI_FIFO_FETCH ? e->last : DCOMMI_FIFO_FETCH);
    }
    /* And the word behind it, unless that has been cleared. */
    if (e->clear < e->at + lines && e->last <= DCOMMI_FIFO_GAP_ABOVE &&
        e->at + lines < e->limit + e->size) {
        dcommi_prefetch_write(dcommi_fifo_word(e, e->at + lines));
    }
}

/* Room for a header and payload of `bytes` together, at most a quarter of the fifo, such that
 * `spare` bytes are left; NULL: full. */
static inline unsigned char *dcommi_fifo_reserve(dcommi_fifo_end *e, size_t bytes, size_t spare)
{
    size_t lines = dcommi_fifo_lines(e, bytes), left = e->size - (e->at & (e->size - 1));
    size_t skip = lines > left ? left : 0;
    /* One line more: the word behind the record. */
    uint64_t end = e->at + skip + lines + DCOMMI_LINE + spare;
    if (DCOMMI_UNLIKELY(end > e->limit + e->size)) {
        uint64_t consumed = atomic_load_explicit(&e->fifo->consumed, memory_order_acquire);
        if (consumed < e->limit || consumed > e->at) {
            return NULL; /* nonsense */
        }
        e->limit = consumed;
        if (end > e->limit + e->size) {
            return NULL;
        }
    }
    if (DCOMMI_UNLIKELY(skip > 0)) {
        dcommi_fifo_publish(e, DCOMMI_FIFO_SKIP, 0, 0, skip);
    }
    size_t used = sizeof(uint64_t) + bytes;
    if (used > e->unit && used <= DCOMMI_FIFO_WATCHED) {
        dcommi_fifo_own(e, used);
    }
    return (unsigned char *)dcommi_fifo_word(e, e->at) + sizeof(uint64_t);
}

/* A payload, into what was reserved. */
static inline void dcommi_fifo_copy(const dcommi_fifo_end *e, void *to, const void *data,
                                    size_t len)
{
#if defined(__x86_64__)
    if (e->intel && len > DCOMMI_FIFO_STRING_ABOVE && len <= DCOMMI_FIFO_STRING_MOST) {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(data), "+c"(len) : : "memory");
        return;
    }
#endif
    if (len > 0) {
        memcpy(to, data, len);
    }
}

/* Make what was reserved visible. */
static inline void dcommi_fifo_commit(dcommi_fifo_end *e, unsigned kind, size_t header_len,
                                      size_t len)
{
    size_t lines = dcommi_fifo_lines(e, header_len + len);
    dcommi_fifo_publish(e, kind, header_len, len, lines);
    dcommi_fifo_note(e, header_len + len);
    dcommi_fifo_expect(e, lines);
}

/* ---- reading ---- */

static inline void dcommi_fifo_forward(dcommi_fifo_end *e, size_t lines)
{
    e->at += lines;
    if (DCOMMI_UNLIKELY(e->at - e->limit >= e->size / 4)) {
        e->limit = e->at;
        atomic_store_explicit(&e->fifo->consumed, e->at, memory_order_release);
    }
}

/* Ask for the lines of so many bytes but the first. */
static inline void dcommi_fifo_ask(const dcommi_fifo_end *e, size_t bytes)
{
    for (size_t i = DCOMMI_LINE; i < bytes; i += DCOMMI_LINE) {
        __builtin_prefetch((const void *)dcommi_fifo_word(e, e->at + i));
    }
}

/* Ask for the other lines of what is waited for. Of long records that is one: the writer is at work
 * on the rest. */
static inline void dcommi_fifo_watch(const dcommi_fifo_end *e)
{
    dcommi_fifo_ask(e, e->longer <= e->unit               ? e->unit
                       : e->longer <= DCOMMI_FIFO_WATCHED ? e->longer
                                                          : 2 * DCOMMI_LINE);
}

/* Request the lines of a record before polling for it (Intel only). bytes: its header and payload.
 */
static inline void dcommi_fifo_expecting(const dcommi_fifo_end *e, size_t bytes)
{
    if (e->intel && sizeof(uint64_t) + bytes <= DCOMMI_FIFO_WATCHED) {
        dcommi_fifo_ask(e, sizeof(uint64_t) + bytes);
    }
}

/* The next record, which stays until it is passed. 0: none; -1: nonsense lies there. */
static inline int dcommi_fifo_next(dcommi_fifo_end *e, dcommi_record *r)
{
    for (;;) {
        uint64_t word = atomic_load_explicit(dcommi_fifo_word(e, e->at), memory_order_acquire);
        if ((word & ~(uint64_t)UINT32_MAX) != dcommi_fifo_turn(e->at) || (word & 15) == 0) {
            if (dcommi_fifo_wide(e)) {
                dcommi_fifo_watch(e);
            }
            return 0;
        }
        size_t left = e->size - (e->at & (e->size - 1));
        r->kind = word & 15;
        r->header_len = word >> 4 & 255;
        r->len = (uint32_t)word >> 12;
        if (DCOMMI_UNLIKELY(r->kind == DCOMMI_FIFO_SKIP)) {
            dcommi_fifo_forward(e, left);
            continue;
        }
        if (DCOMMI_UNLIKELY(dcommi_fifo_lines(e, r->header_len + r->len) > left)) {
            return -1;
        }
        r->header = (unsigned char *)dcommi_fifo_word(e, e->at) + sizeof word;
        r->data = r->header + r->header_len;
        return 1;
    }
}

static inline void dcommi_fifo_pass(dcommi_fifo_end *e, const dcommi_record *r)
{
    dcommi_fifo_note(e, r->header_len + r->len);
    dcommi_fifo_forward(e, dcommi_fifo_lines(e, r->header_len + r->len));
}

/* ---- coming and leaving ---- */

/* Return the reader's end of a fifo in its zeroed memory.
 * On AMD a record has whole units. The reader requests all lines of the record that it waits for.
 * The writer takes those of the next unit back at once, or those of a longer record before it
 * writes the first. docs/results/parts.md has the gain, and that of shorter and longer units. */
static inline dcommi_fifo_end dcommi_fifo_reader(dcommi_fifo *fifo, uint32_t size)
{
    dcommi_fifo_end e = {.lines = fifo->lines,
                         .size = size,
                         .unit = dcommi_isa_is_amd() ? DCOMMI_FIFO_UNIT : DCOMMI_LINE,
                         .intel = dcommi_isa_is_intel(),
                         .fifo = fifo};
    return e;
}

static inline dcommi_fifo_end dcommi_fifo_writer(dcommi_fifo *fifo, uint32_t size)
{
    dcommi_fifo_end e = dcommi_fifo_reader(fifo, size);
    e.at = atomic_load_explicit(&fifo->produced, memory_order_acquire);
    e.limit = atomic_load_explicit(&fifo->consumed, memory_order_acquire);
    e.clear = e.at; /* the word behind the last record */
    return e;
}

static inline void dcommi_fifo_leave(dcommi_fifo_end *writer)
{
    atomic_store_explicit(&writer->fifo->produced, writer->at, memory_order_release);
}

#endif
