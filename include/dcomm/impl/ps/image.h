/* image.h - a server's rows, its update's state and its clock as bytes, and back, for another
 * number of servers too. Knows no messages. Loaded bytes come from outside and are not trusted. */
#ifndef DCOMMI_PS_IMAGE_H
#define DCOMMI_PS_IMAGE_H

#include "../feedback/save.h"
#include "store.h"

#define DCOMMI_PS_MAGIC 0x3173706d6d6f6364u /* "dcommps1" */

/* The head of a saved server, in little-endian order. After it come, for each parameter, the values
 * of this server's rows, the update's numbers of the same shape, and for Adam each row's number of
 * updates (u32), each padded to 8 bytes; and a hash of all that. Which rows they are follows from
 * the number of servers. */
typedef struct dcommi_ps_head {
    uint64_t magic, shape;                          /* shape: a hash of the parameters */
    uint64_t update, server, servers, clock, bytes; /* bytes: of the whole image */
} dcommi_ps_head;

_Static_assert(sizeof(dcommi_ps_head) == 56, "no padding");

/* Return a hash of what must be the same when rows are loaded. Names may differ. */
static uint64_t dcommi_ps_shape(const dcomm_ps *ps)
{
    uint64_t hash = ps->nparams;
    for (size_t i = 0; i < ps->nparams; i++) {
        hash = dcommi_mix(dcommi_mix(hash, ps->params[i].rows), ps->params[i].cols);
    }
    return hash;
}

/* The parts of an image's rows of one parameter. */
typedef struct dcommi_ps_part {
    size_t row; /* bytes of a row in it */
    void *at;   /* in the table */
} dcommi_ps_part;

enum { DCOMMI_PS_PARTS = 2 + DCOMM_PS_STATES };

/* Return the update of opts, and how many numbers it keeps for each value. */
static uint64_t dcommi_ps_image_update(const dcomm_ps *ps)
{
    return (uint64_t)ps->opts.update | (uint64_t)dcommi_ps_states(&ps->opts) << 8;
}

/* List the parts of a table. Return their number. */
static int dcommi_ps_parts(const dcomm_ps *ps, size_t i, dcommi_ps_part *parts)
{
    dcommi_ps_table *t = &ps->tables[i];
    const size_t row = (size_t)t->cols * sizeof(float);
    int n = 0;
    parts[n++] = (dcommi_ps_part){row, t->value};
    for (int s = 0; s < dcommi_ps_states(&ps->opts); s++) {
        parts[n++] = (dcommi_ps_part){row, t->state[s]};
    }
    if (ps->opts.update == DCOMM_PS_ADAM) {
        parts[n++] = (dcommi_ps_part){sizeof *t->updates, t->updates};
    }
    return n;
}

/* Return the bytes of the image of one of so many servers. */
static size_t dcommi_ps_image_bytes(const dcomm_ps *ps, int server, int servers)
{
    size_t bytes = sizeof(dcommi_ps_head) + sizeof(uint64_t);
    for (size_t i = 0; i < ps->nparams; i++) {
        const uint64_t all = ps->params[i].rows;
        const size_t rows = (size_t)(dcommi_ps_share(all, servers, server + 1) -
                                     dcommi_ps_share(all, servers, server));
        dcommi_ps_part parts[DCOMMI_PS_PARTS];
        for (int p = dcommi_ps_parts(ps, i, parts); p > 0; p--) {
            bytes = dcommi_size_add(
                bytes, dcommi_feedback_padded(dcommi_size_mul(rows, parts[p - 1].row)));
        }
    }
    return bytes;
}

/* Return the clock of an image taken now: that of the rows (BSP), or of the slowest worker; when
 * all have gone, of the fastest. */
static uint64_t dcommi_ps_image_clock(const dcomm_ps *ps)
{
    int slowest = -1;
    uint64_t most = 0;
    if (ps->opts.staleness == 0) {
        return ps->clock.closed;
    }
    const uint64_t least = dcommi_ps_slowest(&ps->clock, &slowest);
    for (int r = 0; r < ps->size; r++) {
        most = ps->clock.of[r].clock > most ? ps->clock.of[r].clock : most;
    }
    return slowest >= 0 ? least : most;
}

/* Write this server's image, but for the hash. With the token. */
static void dcommi_ps_image_write(const dcomm_ps *ps, unsigned char *to)
{
    const dcommi_ps_head head = {.magic = DCOMMI_PS_MAGIC,
                                 .shape = dcommi_ps_shape(ps),
                                 .update = dcommi_ps_image_update(ps),
                                 .server = (uint64_t)ps->server,
                                 .servers = (uint64_t)ps->nservers,
                                 .clock = dcommi_ps_image_clock(ps),
                                 .bytes = dcommi_ps_image_bytes(ps, ps->server, ps->nservers)};
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    for (size_t i = 0; i < ps->nparams; i++) {
        dcommi_ps_part parts[DCOMMI_PS_PARTS];
        const int n = dcommi_ps_parts(ps, i, parts);
        for (int p = 0; p < n; p++) {
            const size_t bytes = (size_t)ps->tables[i].rows * parts[p].row;
            if (bytes > 0) {
                memcpy(to, parts[p].at, bytes);
            }
            memset(to + bytes, 0, dcommi_feedback_padded(bytes) - bytes);
            to += dcommi_feedback_padded(bytes);
        }
    }
}

/* Write the hash of an image behind it. */
static void dcommi_ps_image_seal(unsigned char *image, size_t bytes)
{
    const uint64_t hash = dcommi_feedback_hash(image, bytes - sizeof hash);
    memcpy(image + bytes - sizeof hash, &hash, sizeof hash);
}

/* ---- loading ---- */

typedef struct dcommi_ps_image {
    const unsigned char *at; /* NULL: it was not given */
    size_t bytes;
} dcommi_ps_image;

/* Return the first image of some bytes: as many as its head says, if that can be. */
static dcommi_ps_image dcommi_ps_image_first(const unsigned char *at, size_t bytes)
{
    dcommi_ps_head head = {.bytes = bytes};
    if (bytes >= sizeof head) {
        memcpy(&head, at, sizeof head);
    }
    return (dcommi_ps_image){at, head.bytes < bytes ? (size_t)head.bytes : bytes};
}

/* Find the image of old server k of n: the one that the caller gives for it, or if that is NULL,
 * the one behind the image of the server that took its rows over. */
static dcommi_ps_image dcommi_ps_image_find(const void *const *images, const size_t *bytes,
                                            size_t k, size_t n)
{
    const size_t heir = (k + 1) % n;
    if (images[k] != NULL) {
        return dcommi_ps_image_first(images[k], bytes[k]);
    }
    const dcommi_ps_image before = images[heir] != NULL
                                       ? dcommi_ps_image_first(images[heir], bytes[heir])
                                       : (dcommi_ps_image){NULL, bytes[heir]};
    return before.bytes == bytes[heir]
               ? (dcommi_ps_image){NULL, 0}
               : dcommi_ps_image_first(before.at + before.bytes, bytes[heir] - before.bytes);
}

static dcomm_status dcommi_ps_corrupt(size_t k, const char *why)
{
    return dcommi_fail(DCOMM_ERR_CORRUPT, "dcomm_ps_load: images[%zu]: %s", k, why);
}

/* Check that an image is that of server k of n of an old job, and read its head. */
static dcomm_status dcommi_ps_image_check(const dcomm_ps *ps, const unsigned char *image,
                                          size_t bytes, size_t k, size_t n, dcommi_ps_head *h)
{
    uint64_t hash;
    if (bytes < sizeof *h + sizeof hash) {
        return dcommi_ps_corrupt(k, "it is too short");
    }
    memcpy(h, image, sizeof *h);
    memcpy(&hash, image + bytes - sizeof hash, sizeof hash);
    if (h->magic != DCOMMI_PS_MAGIC) {
        return dcommi_ps_corrupt(k, "these bytes are no image of a server");
    }
    if (hash != dcommi_feedback_hash(image, bytes - sizeof hash)) {
        return dcommi_ps_corrupt(k, "it is damaged: its hash does not match its bytes");
    }
    if (h->shape != dcommi_ps_shape(ps)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_load: images[%zu] is of other parameters: their number, rows "
                           "and cols must be the same",
                           k);
    }
    if (h->update != dcommi_ps_image_update(ps)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_load: images[%zu] is of update %d with %" PRIu64
                           " numbers for each value, not of update %d with %d",
                           k, (int)(h->update & 255), h->update >> 8, (int)ps->opts.update,
                           dcommi_ps_states(&ps->opts));
    }
    if (h->server != k || h->servers != n) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_ps_load: images[%zu] of %zu is of server %" PRIu64 " of %" PRIu64,
                           k, n, h->server, h->servers);
    }
    if (bytes != h->bytes || bytes != dcommi_ps_image_bytes(ps, (int)k, (int)n)) {
        return dcommi_ps_corrupt(k, "it is not as long as its rows are");
    }
    return DCOMM_OK;
}

/* The rows of parameter i that an old server has and this one holds. */
static uint64_t dcommi_ps_shared(const dcomm_ps *ps, size_t i, size_t k, size_t n, uint64_t *first)
{
    const dcommi_ps_table *t = &ps->tables[i];
    const uint64_t from = dcommi_ps_share(ps->params[i].rows, (int)n, (int)k);
    const uint64_t to = dcommi_ps_share(ps->params[i].rows, (int)n, (int)k + 1);
    const uint64_t end = to < t->first + t->rows ? to : t->first + t->rows;
    *first = from > t->first ? from : t->first;
    return end > *first ? end - *first : 0;
}

/* Return true if old server k of n has rows that this one holds. */
static bool dcommi_ps_image_needed(const dcomm_ps *ps, size_t k, size_t n)
{
    uint64_t first, rows = 0;
    for (size_t i = 0; i < ps->nparams && rows == 0; i++) {
        rows = dcommi_ps_shared(ps, i, k, n, &first);
    }
    return rows > 0;
}

/* Take the rows of a checked image that this server holds. With the token. */
static void dcommi_ps_image_take(dcomm_ps *ps, const unsigned char *image, size_t k, size_t n)
{
    image += sizeof(dcommi_ps_head);
    for (size_t i = 0; i < ps->nparams; i++) {
        const dcommi_ps_table *t = &ps->tables[i];
        const uint64_t all = ps->params[i].rows;
        const uint64_t from = dcommi_ps_share(all, (int)n, (int)k);
        const size_t has = (size_t)(dcommi_ps_share(all, (int)n, (int)k + 1) - from);
        uint64_t first;
        const size_t rows = (size_t)dcommi_ps_shared(ps, i, k, n, &first);
        dcommi_ps_part parts[DCOMMI_PS_PARTS];
        const int nparts = dcommi_ps_parts(ps, i, parts);
        for (int p = 0; p < nparts; p++) {
            const size_t row = parts[p].row;
            if (rows > 0) {
                memcpy((unsigned char *)parts[p].at + (size_t)(first - t->first) * row,
                       image + (size_t)(first - from) * row, rows * row);
            }
            image += dcommi_feedback_padded(has * row);
        }
    }
}

#endif
