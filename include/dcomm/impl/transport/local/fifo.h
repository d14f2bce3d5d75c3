/* fifo.h - a queue of records in shared memory, with one writer and one reader, which carries
 * messages between two processes of a host. A record is a word, a header and a payload, in whole
 * cache lines. The writer stores the word last, to say that the rest is there. So a short message
 * is one line and costs one transfer of that line. A process that dies leaves at most a record
 * without its word, so its death touches only its own queue.
 *
 * The writer and the reader request all lines of a short record at once. On AMD such a record gets
 * more lines than it needs: see dcommi_fifo_reader. */
#ifndef DCOMMI_FIFO_H
#define DCOMMI_FIFO_H

#include "../../base/util.h"
#include "../../../../../kernels/cpu/isa.h"

#define DCOMMI_LINE 64
#define DCOMMI_FIFO_AHEAD 512  /* bytes that the writer clears ahead of its records */
#define DCOMMI_FIFO_FETCH 2048 /* most bytes that the writer requests for the next record */
#define DCOMMI_FIFO_UNIT 256   /* bytes of a unit on AMD */
/* Longest record, in bytes, whose lines are all requested at once, because touching them one after
 * the other takes a transfer for each. Longer records lose by it: on AMD between near cores, on
 * Intel always (docs/results/parts.md). */
#define DCOMMI_FIFO_WATCHED 640
/* A gap follows records of more than the first length and less than the second, in bytes. A reader
 * goes through lines in order, so its processor prefetches the next ones. Without the gap it would
 * take them from the writer, which has prepared them for the next record. Longer records gain
 * nothing. */
#define DCOMMI_FIFO_GAP_ABOVE 640
#define DCOMMI_FIFO_GAP_BELOW 16384
#define DCOMMI_FIFO_GAP 2048
#define DCOMMI_FIFO_GAP_SIZE 65536 /* smallest fifo with gaps, in bytes */
/* On Intel, `rep movsb` stores payloads above the first length and up to the second, in bytes. It
 * does not read lines that it overwrites whole. All-reduces gain. Payloads that the reader copies,
 * as in an all-gather, gain nothing, and longer ones lose. */
#define DCOMMI_FIFO_STRING_ABOVE 640
#define DCOMMI_FIFO_STRING_MOST 1024

/* Prefetch a line for writing. The builtin does so only if the compiler may use the instruction.
 * Processors that do not know the instruction skip it. */
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
        DCOMMI_LINE) _Atomic uint64_t consumed; /* bytes read; the reader stores it now and then */
    _Alignas(DCOMMI_LINE) _Atomic uint64_t produced; /* bytes; the writer stores it on leaving */
    _Alignas(DCOMMI_LINE) unsigned char lines[];
} dcommi_fifo;

/* A record. Its word holds the turn (32 bits, never that of the lap before), the payload length
 * (20), the header length (8) and the kind (4, not 0). The word behind the last record never reads
 * as a record. */
typedef struct dcommi_record {
    unsigned kind;
    size_t header_len, len;
    const unsigned char *header, *data;
} dcommi_record;

#define DCOMMI_FIFO_SKIP 15u /* kind of an empty record that fills the rest of the fifo */

/* One side's view. */
typedef struct dcommi_fifo_end {
    unsigned char *lines;
    uint64_t at;    /* bytes written or read so far */
    uint64_t limit; /* writer: `consumed` as last loaded; reader: `consumed` as last stored */
    uint64_t clear; /* writer: no unit from `at` to here, inclusive, begins with a valid word */
    uint32_t size;  /* bytes of `lines`, a power of two */
    uint32_t unit;  /* bytes; records begin at its multiples. Wide if more than a line */
    uint32_t last, longer; /* bytes of the last record, and of the longer of the last two */
    uint32_t scripted; /* writer: records that its process took out of the other fifo by scripts,
                        * since the engine took one */
    bool intel;        /* both ends use the choices measured on Intel */
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

/* Return the bytes that a record occupies, with word and gap. `bytes` is header and payload. */
static inline size_t dcommi_fifo_lines(const dcommi_fifo_end *e, size_t bytes)
{
    size_t lines = (sizeof(uint64_t) + bytes + e->unit - 1) & ~((size_t)e->unit - 1);
    bool gap = bytes > DCOMMI_FIFO_GAP_ABOVE && bytes < DCOMMI_FIFO_GAP_BELOW &&
               e->size >= DCOMMI_FIFO_GAP_SIZE;
    return gap ? lines + DCOMMI_FIFO_GAP : lines;
}

/* Return true if a record is there. The reader loads the word again, with an order, before it
 * touches the record. */
static inline bool dcommi_fifo_ready(const dcommi_fifo_end *e)
{
    uint64_t word = atomic_load_explicit(dcommi_fifo_word(e, e->at), memory_order_relaxed);
    return (word & ~(uint64_t)UINT32_MAX) == dcommi_fifo_turn(e->at) && (word & 15) != 0;
}

static inline bool dcommi_fifo_wide(const dcommi_fifo_end *e)
{
    return e->unit > DCOMMI_LINE;
}

/* Note the length of a record. Both ends guess the next length from the last two records, because
 * the records of a barrier are shorter than those of the operation after it. */
static inline void dcommi_fifo_note(dcommi_fifo_end *e, size_t bytes)
{
    uint32_t now = (uint32_t)(sizeof(uint64_t) + bytes);
    e->longer = now > e->last ? now : e->last;
    e->last = now;
}

/* ---- writing ---- */

/* Clear the word behind a record if it would read as a record, for it may hold payload of the lap
 * before. The writer has that line in its cache, so the look is cheap. Only the writer stores
 * there, and the next word that it publishes comes after this store. */
static inline void dcommi_fifo_clear(dcommi_fifo_end *e)
{
    e->clear = e->at;
    if (DCOMMI_UNLIKELY(dcommi_fifo_ready(e))) {
        atomic_store_explicit(dcommi_fifo_word(e, e->at), 0, memory_order_relaxed);
    }
}

/* Publish a record. First clear the word behind it, then store its own word, which comes after the
 * record's bytes and after all words that were cleared. If clearing must write and the reader has
 * that line in its cache, it takes as long as a message and delays the record. So ends without wide
 * units afterwards clear some lines ahead, when nobody waits for them. This also brings these lines
 * back. */
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

/* Take the lines of the next `bytes` bytes back from the reader, before they are written. */
static inline void dcommi_fifo_own(const dcommi_fifo_end *e, uint64_t bytes)
{
    uint64_t end = e->at + bytes;
    for (uint64_t at = e->at; at < end && at < e->limit + e->size; at += DCOMMI_LINE) {
        dcommi_prefetch_write(dcommi_fifo_word(e, at));
    }
}

/* Request the lines of the next record, which is likely as long as those before. */
static inline void dcommi_fifo_expect(const dcommi_fifo_end *e, size_t lines)
{
    if (dcommi_fifo_wide(e) && e->longer <= DCOMMI_FIFO_WATCHED) {
        if (e->longer <= e->unit && e->scripted > 1) {
            dcommi_fifo_own(e, e->unit);
        }
        return;
    }
    /* Do not request a single line: it comes as fast by itself, and the reader is polling it. */
    if (e->last > DCOMMI_LINE) {
        dcommi_fifo_own(e, e->last < DCOMMI_FIFO_FETCH ? e->last : DCOMMI_FIFO_FETCH);
    }
    /* Request the word behind the next record too, unless it has been cleared. */
    if (e->clear < e->at + lines && e->last <= DCOMMI_FIFO_GAP_ABOVE &&
        e->at + lines < e->limit + e->size) {
        dcommi_prefetch_write(dcommi_fifo_word(e, e->at + lines));
    }
}

/* Reserve room for `bytes` bytes of header and payload, at most a quarter of the fifo, such that
 * `spare` bytes remain free. Return NULL if the fifo is too full. */
static inline unsigned char *dcommi_fifo_reserve(dcommi_fifo_end *e, size_t bytes, size_t spare)
{
    size_t lines = dcommi_fifo_lines(e, bytes), left = e->size - (e->at & (e->size - 1));
    size_t skip = lines > left ? left : 0;
    /* Add a line for the word behind the record. */
    uint64_t end = e->at + skip + lines + DCOMMI_LINE + spare;
    if (DCOMMI_UNLIKELY(end > e->limit + e->size)) {
        /* The reader's loads of this room come before our stores. */
        uint64_t consumed = atomic_load_explicit(&e->fifo->consumed, memory_order_acquire);
        if (consumed < e->limit || consumed > e->at) {
            return NULL; /* the reader has stored nonsense */
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

/* Copy a payload into reserved room. */
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

/* Make a reserved record visible. */
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
        /* Our loads of the records come before it. */
        atomic_store_explicit(&e->fifo->consumed, e->at, memory_order_release);
    }
}

/* Prefetch the lines of the next `bytes` bytes, except the first line. */
static inline void dcommi_fifo_ask(const dcommi_fifo_end *e, size_t bytes)
{
    for (size_t i = DCOMMI_LINE; i < bytes; i += DCOMMI_LINE) {
        __builtin_prefetch((const void *)dcommi_fifo_word(e, e->at + i));
    }
}

/* Prefetch the lines of the expected record after the first. For a long record prefetch only one,
 * because the writer is still writing the rest. */
static inline void dcommi_fifo_watch(const dcommi_fifo_end *e)
{
    dcommi_fifo_ask(e, e->longer <= e->unit               ? e->unit
                       : e->longer <= DCOMMI_FIFO_WATCHED ? e->longer
                                                          : 2 * DCOMMI_LINE);
}

/* Prefetch the lines of a record before polling for it (Intel only). `bytes` is header and
 * payload. */
static inline void dcommi_fifo_expecting(const dcommi_fifo_end *e, size_t bytes)
{
    if (e->intel && sizeof(uint64_t) + bytes <= DCOMMI_FIFO_WATCHED) {
        dcommi_fifo_ask(e, sizeof(uint64_t) + bytes);
    }
}

/* Look for the next record, which stays until dcommi_fifo_pass. Return 1 if there is one, 0 if
 * there is none, -1 if the writer has stored nonsense. */
static inline int dcommi_fifo_next(dcommi_fifo_end *e, dcommi_record *r)
{
    for (;;) {
        /* The loads of the record come after it. */
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

/* Return the reader's end of a fifo in zeroed memory. On AMD a record fills whole units. The
 * reader requests all lines of the record that it waits for. The writer takes back the lines of
 * the next unit at once, or those of a longer record before it writes the first.
 * docs/results/parts.md has the gain, and that of shorter and longer units. */
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
    /* `produced` is this process's own. The reader's loads come before `consumed`. */
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
