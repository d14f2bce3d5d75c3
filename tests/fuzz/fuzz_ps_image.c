/* fuzz_ps_image.c - any bytes as images of servers: nothing is read beyond them or written beyond
 * the rows that a server holds, and what is loaded is what is saved again. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PARAMS = 2, SERVERS_MAX = 5 };

/* Load one image, which is part of a job of so many servers, and look at it again. */
static void load(dcomm_ps *ps, const uint8_t *image, size_t bytes, size_t k, size_t n)
{
    dcommi_ps_head head;
    uint64_t first;
    if (dcommi_ps_image_check(ps, image, bytes, k, n, &head) != DCOMM_OK) {
        return;
    }
    dcommi_ps_image_take(ps, image, k, n);
    for (size_t i = 0; i < PARAMS; i++) {
        const dcommi_ps_table *t = &ps->tables[i];
        const uint64_t rows = dcommi_ps_shared(ps, i, k, n, &first);
        if (rows > t->rows ||
            (rows > 0 && (first < t->first || first - t->first > t->rows - rows))) {
            abort();
        }
    }
    if (k == (size_t)ps->server && n == (size_t)ps->nservers) {
        uint8_t *again = malloc(bytes);
        ps->clock.closed = head.clock;
        dcommi_ps_image_write(ps, again);
        dcommi_ps_image_seal(again, bytes);
        dcommi_ps_head other;
        if (bytes != dcommi_ps_image_bytes(ps, ps->server, ps->nservers) ||
            dcommi_ps_image_check(ps, again, bytes, k, n, &other) != DCOMM_OK ||
            memcmp(&head, &other, sizeof head) != 0) {
            abort();
        }
        free(again);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8) {
        return 0;
    }
    dcommi_ps_param params[PARAMS] = {{.rows = 1 + data[0] % 40u, .cols = 1 + data[1] % 5u},
                                      {.rows = 1 + data[2] % 7u, .cols = 3}};
    const dcomm_ps_param given[PARAMS] = {{.init = NULL}, {.init = NULL}};
    const size_t n = 1 + data[4] % SERVERS_MAX, k = data[5] % n;
    dcomm_ps ps = {.nparams = PARAMS, .params = params, .size = 1};
    ps.nservers = 1 + data[3] % SERVERS_MAX;
    ps.server = data[6] % ps.nservers;
    ps.opts.update = (dcomm_ps_update)(data[7] % 5);
    if (dcommi_ps_store_make(&ps, given) < 0) {
        abort();
    }
    const size_t bytes = size - 8;
    uint8_t *image = malloc(bytes + 1); /* exact size: shows reads past the end */
    memcpy(image, data + 8, bytes);
    load(&ps, image, bytes, k, n);
    const void *images[SERVERS_MAX] = {NULL};
    size_t lens[SERVERS_MAX] = {0};
    images[(k + data[9 % size]) % n] = image;
    lens[(k + data[9 % size]) % n] = bytes;
    const dcommi_ps_image found = dcommi_ps_image_find(images, lens, k, n);
    if (found.at != NULL &&
        (found.at < image || found.bytes > (size_t)(image + bytes - found.at))) {
        abort();
    }
    if (found.at != NULL) {
        load(&ps, found.at, found.bytes, k, n);
    }
    if (bytes >= sizeof(dcommi_ps_head) + 8) { /* pass the checks */
        const dcommi_ps_head head = {.magic = DCOMMI_PS_MAGIC,
                                     .shape = dcommi_ps_shape(&ps),
                                     .update = dcommi_ps_image_update(&ps),
                                     .server = k,
                                     .servers = n,
                                     .clock = data[8],
                                     .bytes = bytes};
        const size_t whole = dcommi_ps_image_bytes(&ps, (int)k, (int)n);
        uint8_t *longer = calloc(whole + 1, 1);
        memcpy(image, &head, sizeof head);
        dcommi_ps_image_seal(image, bytes);
        load(&ps, image, bytes, k, n);
        memcpy(longer, image, bytes < whole ? bytes : whole);
        ((dcommi_ps_head *)(void *)longer)->bytes = whole;
        dcommi_ps_image_seal(longer, whole);
        load(&ps, longer, whole, k, n);
        free(longer);
    }
    free(image);
    for (size_t i = 0; i < PARAMS; i++) {
        dcommi_free(ps.tables[i].value);
        dcommi_free(ps.tables[i].state[0]);
        dcommi_free(ps.tables[i].state[1]);
        dcommi_free(ps.tables[i].updates);
    }
    dcommi_free(ps.tables);
    dcommi_free(ps.updates);
    dcommi_free(ps.sum);
    dcommi_free(ps.touched);
    return 0;
}
