/* records.h - a case: one process writes records into a fifo, another reads them. The reader must
 * get them whole and in order, all of them if the writer comes to its end, and wait for nobody who
 * has died. */
#ifndef SIM_RECORDS_H
#define SIM_RECORDS_H

#include "shared.h"

#include "dcomm/impl/transport/local/fifo.h"

enum { RECORDS_MAX = 64, RECORDS_KEPT = 6, RECORDS_BYTES = 20480, RECORDS_HEADER = 80 };

static struct {
    uint32_t size; /* of the fifo, in bytes */
    int n, got;
    size_t header[RECORDS_MAX], len[RECORDS_MAX];
    bool leaves[RECORDS_MAX]; /* the writer leaves after this record, and comes back */
} records;

/* A record that has been read, until its bytes are looked at. */
static struct {
    int number;
    uint64_t at;
} records_kept[RECORDS_KEPT];
static unsigned char records_bytes[RECORDS_KEPT][RECORDS_BYTES];

static dcommi_fifo *records_fifo(void)
{
    return (dcommi_fifo *)(void *)arena.base;
}

/* Return a byte of the record at `at`: these bytes look like words of records of the next lap. */
static unsigned char records_byte(uint64_t at, size_t k)
{
    const uint64_t word = dcommi_fifo_turn(at + 8 + k / 8 * 8 + records.size) | 4 << 4 | 1;
    return (unsigned char)(word >> (k % 8 * 8));
}

static void records_write(void)
{
    static unsigned char bytes[RECORDS_BYTES];
    dcommi_fifo_end w = dcommi_fifo_writer(records_fifo(), records.size);
    for (int i = 0; i < records.n; i++) {
        const size_t header = records.header[i], len = records.len[i];
        unsigned char *body = NULL;
        while ((body = dcommi_fifo_reserve(&w, header + len, 0)) == NULL) {
            if (shared_hears_end(1)) {
                return;
            }
            memory_yield();
        }
        for (size_t k = 0; k < header + len; k++) {
            bytes[k] = records_byte(w.at, k);
        }
        dcommi_fifo_copy(&w, body + header, bytes + header, len);
        memcpy(body, bytes, header);
        dcommi_fifo_commit(&w, 1 + (unsigned)i % 5, header, len);
        if (records.leaves[i]) {
            dcommi_fifo_leave(&w);
            w = dcommi_fifo_writer(records_fifo(), records.size);
        }
    }
    dcommi_fifo_leave(&w);
}

/* Look at the bytes of the records read so far. */
static void records_check(int n)
{
    memory_loaded();
    for (int j = 0; j < n; j++) {
        const int i = records_kept[j].number;
        for (size_t k = 0; k < records.header[i] + records.len[i]; k++) {
            if (records_bytes[j][k] != records_byte(records_kept[j].at, k)) {
                world_trouble("record %d of %zu and %zu bytes is torn at byte %zu", i,
                              records.header[i], records.len[i], k);
                return;
            }
        }
    }
}

/* Take a record over, to be looked at later. */
static void records_take(dcommi_fifo_end *e, const dcommi_record *r, int kept)
{
    const int i = records.got++;
    if (i >= records.n || r->kind != 1 + (unsigned)i % 5 || r->header_len != records.header[i] ||
        r->len != records.len[i]) {
        world_trouble("record %d: kind %u, %zu and %zu bytes", i, r->kind, r->header_len, r->len);
        memory_yield();
        return;
    }
    records_kept[kept].number = i;
    records_kept[kept].at = e->at;
    memcpy(records_bytes[kept], r->header, r->header_len);
    memcpy(records_bytes[kept] + r->header_len, r->data, r->len);
    dcommi_fifo_pass(e, r);
}

static void records_read(void)
{
    dcommi_fifo_end e = dcommi_fifo_reader(records_fifo(), records.size);
    dcommi_record r;
    int kept = 0;
    bool over = false;
    memory_late(records_bytes, sizeof records_bytes);
    while (records.got < records.n) {
        const int found = dcommi_fifo_ready(&e) || over ? dcommi_fifo_next(&e, &r) : 0;
        if (found < 0) {
            world_trouble("record %d makes no sense", records.got);
        } else if (found > 0) {
            records_take(&e, &r, kept++);
        } else if (over) {
            break;
        } else {
            over = shared_hears_end(0);
        }
        if (kept == RECORDS_KEPT || (kept > 0 && world_chance(0.2))) {
            records_check(kept);
            kept = 0;
        }
        memory_yield();
    }
    records_check(kept);
    if (records.got < records.n && world.rank[0].state == WORLD_ENDED) {
        world_trouble("%d of %d records were lost", records.n - records.got, records.n);
    }
}

static void records_process(int rank)
{
    if (rank == 0) {
        records_write();
    } else {
        records_read();
    }
    memory_ended();
}

static bool records_case(uint64_t seed)
{
    shared_prepare(seed, 2, 600);
    const bool gaps = shared_draw(10) == 0;
    records.size = gaps ? DCOMMI_FIFO_GAP_SIZE : 4096;
    records.n = gaps ? 16 : 16 + shared_draw(32);
    records.got = 0;
    for (int i = 0; i < records.n; i++) {
        const size_t header = (size_t)shared_draw(RECORDS_HEADER + 1);
        const int most = (int)records.size / 4 - 160;
        records.header[i] = header;
        records.len[i] = (size_t)shared_draw(shared_draw(3) == 0 ? most : 100);
        records.leaves[i] = shared_draw(10) == 0;
    }
    memory_reset();
    return shared_run(seed, 2, records_process);
}

#endif
