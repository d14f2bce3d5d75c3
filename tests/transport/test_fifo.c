/* test_fifo.c - the queue between two processes: nothing is lost, torn, reordered or taken for a
 * record that is none, whatever the lengths and whoever is faster. */
#define _GNU_SOURCE
#include "full.h"
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/transport/local/fifo.h"

#include <criterion/criterion.h>
#include <sched.h>

enum { SIZE = 4096, WIDE = DCOMMI_FIFO_GAP_SIZE }; /* the latter has gaps */

static uint32_t size = SIZE, unit = DCOMMI_LINE;

static dcommi_fifo *fresh(void)
{
    dcommi_fifo *memory = aligned_alloc(64, dcommi_fifo_bytes(size));
    memset(memory, 0, dcommi_fifo_bytes(size));
    return memory;
}

static unsigned next(unsigned *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* The ends, as they are on any processor. */
static dcommi_fifo_end writer(dcommi_fifo *memory)
{
    dcommi_fifo_end e = dcommi_fifo_writer(memory, size);
    e.unit = unit;
    e.intel = unit == DCOMMI_LINE;
    return e;
}

static dcommi_fifo_end reader(dcommi_fifo *memory)
{
    dcommi_fifo_end e = dcommi_fifo_reader(memory, size);
    e.unit = unit;
    return e;
}

/* Return the lengths of record i, which follow from `seed` and i. */
static size_t lengths(unsigned seed, unsigned i, size_t *header)
{
    unsigned x = seed + i * 2654435761u;
    *header = next(&x) % 81;
    return next(&x) % 3 == 0 ? next(&x) % (size / 4 - 152) : next(&x) % 100;
}

/* Fill `body` with bytes that look like words of records, at places where the next lap may have
 * some. */
static void fill(unsigned char *body, size_t len, uint64_t at)
{
    for (size_t k = 0; k < len; k++) {
        uint64_t word = dcommi_fifo_turn(at + 8 + k / 8 * 8 + size) | 4 << 4 | 1;
        body[k] = (unsigned char)(word >> (k % 8 * 8));
    }
}

static bool put(dcommi_fifo_end *w, unsigned seed, unsigned i)
{
    size_t header, len = lengths(seed, i, &header);
    unsigned char *body = dcommi_fifo_reserve(w, header + len, 0);
    if (body != NULL) {
        static unsigned char bytes[WIDE];
        fill(bytes, header + len, w->at);
        dcommi_fifo_copy(w, body + header, bytes + header, len);
        memcpy(body, bytes, header);
        dcommi_fifo_commit(w, 1 + i % 5, header, len);
    }
    return body != NULL;
}

/* Return the first error of a record, or NULL. */
static const char *wrong(const dcommi_fifo_end *e, const dcommi_record *r, unsigned seed,
                         unsigned i)
{
    static unsigned char want[WIDE];
    size_t header, len = lengths(seed, i, &header);
    fill(want, header + len, e->at);
    if (r->kind != 1 + i % 5 || r->header_len != header || r->len != len) {
        return "kind or lengths";
    }
    return memcmp(r->header, want, header + len) == 0 && r->data == r->header + header ? NULL
                                                                                       : "bytes";
}

static void at_any_pace(void)
{
    const unsigned seeds = test_full() ? 40 : 10;
    for (unsigned seed = 1; seed <= seeds; seed++) {
        dcommi_fifo *memory = fresh();
        dcommi_fifo_end w = writer(memory), r = reader(memory);
        unsigned x = seed, written = 0, read = 0;
        bool was_full = false;
        while (read < 3000) {
            for (unsigned n = next(&x) % 60; n > 0 && written < 3000; n--) {
                if (!put(&w, seed, written)) {
                    was_full = true;
                    break;
                }
                written++;
            }
            dcommi_record record;
            for (unsigned n = next(&x) % 60; n > 0 && read < written; n--, read++) {
                cr_assert_eq(dcommi_fifo_next(&r, &record), 1, "record %u", read);
                const char *what = wrong(&r, &record, seed, read);
                cr_assert(what == NULL, "record %u: %s", read, what);
                dcommi_fifo_pass(&r, &record);
            }
            if (read == written) {
                cr_assert_eq(dcommi_fifo_next(&r, &record), 0, "a record that nobody wrote");
                cr_assert(!dcommi_fifo_ready(&r));
            }
            if (next(&x) % 10 == 0) { /* the writer comes anew */
                dcommi_fifo_leave(&w);
                w = writer(memory);
            }
        }
        cr_assert(was_full, "the fifo was never full");
        free(memory);
    }
}

Test(fifo, any_pace)
{
    at_any_pace();
}

Test(fifo, any_pace_with_gaps)
{
    size = WIDE;
    at_any_pace();
}

Test(fifo, any_pace_with_wide_units)
{
    unit = DCOMMI_FIFO_UNIT;
    at_any_pace();
    size = WIDE;
    at_any_pace();
}

typedef struct pair {
    dcommi_fifo *memory;
    unsigned count;
} pair;

static void *write_all(void *user)
{
    const pair *p = user;
    dcommi_fifo_end w = writer(p->memory);
    for (unsigned i = 0; i < p->count; i++) {
        while (!put(&w, 7, i)) {
            sched_yield();
        }
    }
    return NULL;
}

static void between_threads(void)
{
    pair p = {fresh(), 60000};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, write_all, &p), 0);
    dcommi_fifo_end r = reader(p.memory);
    for (unsigned i = 0; i < p.count; i++) {
        dcommi_record record;
        while (dcommi_fifo_next(&r, &record) == 0) {
            sched_yield();
        }
        const char *what = wrong(&r, &record, 7, i);
        cr_assert(what == NULL, "record %u: %s", i, what);
        dcommi_fifo_pass(&r, &record);
    }
    pthread_join(thread, NULL);
    free(p.memory);
}

Test(fifo, two_threads, .timeout = 60)
{
    between_threads();
}

Test(fifo, two_threads_with_gaps, .timeout = 60)
{
    size = WIDE;
    between_threads();
}

Test(fifo, two_threads_with_wide_units, .timeout = 60)
{
    size = WIDE;
    unit = DCOMMI_FIFO_UNIT;
    between_threads();
}

/* The reader does not see half a record, and still gets the records before it. */
Test(fifo, a_writer_that_dies)
{
    dcommi_fifo *memory = fresh();
    dcommi_fifo_end w = writer(memory), r = reader(memory);
    dcommi_record record;
    cr_assert(put(&w, 3, 0));
    unsigned char *body = dcommi_fifo_reserve(&w, 500, 0);
    memset(body, 0xff, 500);
    cr_assert_eq(dcommi_fifo_next(&r, &record), 1);
    dcommi_fifo_pass(&r, &record);
    cr_assert_eq(dcommi_fifo_next(&r, &record), 0);
    free(memory);
}

Test(fifo, nonsense)
{
    dcommi_fifo *memory = fresh();
    dcommi_fifo_end w = writer(memory), r = reader(memory);
    dcommi_record record;
    atomic_store(dcommi_fifo_word(&r, 0), dcommi_fifo_turn(0) | (uint64_t)SIZE << 12 | 1);
    cr_assert_eq(dcommi_fifo_next(&r, &record), -1, "a record longer than the fifo");
    r.at = SIZE - 256;
    atomic_store(dcommi_fifo_word(&r, r.at), dcommi_fifo_turn(r.at) | (uint64_t)1000 << 12 | 1);
    cr_assert_eq(dcommi_fifo_next(&r, &record), -1, "a record beyond the fifo's end");
    atomic_store(&memory->consumed, 1000000); /* more than was ever written */
    while (dcommi_fifo_reserve(&w, 500, 0) != NULL) {
        dcommi_fifo_commit(&w, 1, 0, 500);
        cr_assert(w.at <= SIZE, "the writer believed the reader");
    }
    free(memory);
}
