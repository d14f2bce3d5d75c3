/* api_paths.h - the paths that bytes of device memory may take, with their prices. */
#ifndef DCOMMI_API_PATHS_H
#define DCOMMI_API_PATHS_H

#include "../model/api_model.h"
#include "call.h"

static const struct dcommi_path {
    const char *name;
    enum dcommi_memory memory; /* the path is priced as this kind */
} dcommi_paths[] = {
    {"staged", DCOMMI_MEMORY_DEVICE}, {"direct", DCOMMI_MEMORY_OPEN}, {"ucx", DCOMMI_MEMORY_UCX}};
enum { DCOMMI_PATHS = sizeof dcommi_paths / sizeof *dcommi_paths };

/* Count the pairs of ranks that share a host. */
static int64_t dcommi_path_pairs(const dcommi_shape *s)
{
    int64_t pairs = 0;
    for (int r = 0; r < s->nranks; r++) {
        for (int q = 0; q < r; q++) {
            pairs += s->groups == NULL ||
                     dcommi_group_of(s->groups, 0, q) == dcommi_group_of(s->groups, 0, r);
        }
    }
    return pairs;
}

/* Write to row->why why the calls do not take this path, unless they do or an error stands
 * there. */
static void dcommi_path_why(const dcommi_shape *s, enum dcommi_memory memory, dcomm_path *row)
{
    const size_t room = sizeof row->why;
    const bool open = s->memory == DCOMMI_MEMORY_OPEN;
    char *why = row->why;
    if (row->taken || row->why[0] != 0) {
        return;
    }
    if (!dcommi_memory_of_device(s->memory)) {
        snprintf(why, room, "opts.device does not promise device memory");
    } else if (memory == DCOMMI_MEMORY_UCX && row->ucx_pairs == 0) {
        snprintf(why, room, "all ranks share a host");
    } else if (memory == DCOMMI_MEMORY_UCX && !open) {
        snprintf(why, room, "UCX does not take device memory on all ranks");
    } else if (memory != DCOMMI_MEMORY_OPEN && open) {
        snprintf(why, room, "opts.registered promises memory that peers read where it lies");
    } else if (memory == DCOMMI_MEMORY_DEVICE) {
        snprintf(why, room, "UCX takes device memory on all ranks");
    } else if (row->direct_pairs == 0) {
        snprintf(why, room, "no two ranks share a host");
    } else {
        snprintf(why, room,
                 "opts.registered does not promise it; it takes memory from "
                 "dcomm_mem_alloc_device");
    }
}

static void dcommi_path_price(dcommi_chooser *c, const dcommi_shape *s, const char *name, bool soft,
                              dcomm_path *row)
{
    const dcommi_algo *algo = NULL;
    dcommi_price price = {.ps = 0};
    dcomm_status status = dcommi_algo_pick(s, name, soft, c, &algo);
    if (status >= 0) {
        row->algo = algo->name;
        status = dcommi_choice_price(c, s, algo, DCOMMI_PRICE_LIMIT, DCOMMI_CHOICE_BUDGET, &price);
    }
    row->seconds = status >= 0 ? 1e-12 * (double)price.ps : -1;
    if (status < 0) {
        snprintf(row->why, sizeof row->why, "%.190s", dcommi_message);
    }
}

/* Fill in at most `max` rows for a shape, and return how many paths there are. */
static int dcommi_explain_paths(dcommi_chooser *c, const dcommi_shape *s, const char *name,
                                bool soft, dcomm_path *rows, int max)
{
    const int64_t all = (int64_t)s->nranks * (s->nranks - 1) / 2;
    const int64_t near = max > 0 ? dcommi_path_pairs(s) : 0;
    for (int i = 0; i < DCOMMI_PATHS && i < max; i++) {
        dcomm_path *row = &rows[i];
        dcommi_shape q = *s;
        q.memory = dcommi_paths[i].memory;
        q.chunk_bytes = q.chunk_bytes > 0 ? q.chunk_bytes : (int64_t)DCOMMI_SLOT_BYTES;
        memset(row, 0, sizeof *row);
        row->name = dcommi_paths[i].name;
        row->direct_pairs = q.memory == DCOMMI_MEMORY_OPEN ? near : 0;
        row->ucx_pairs = dcommi_memory_by_ucx(&c->tuning, q.memory) ? all - near : 0;
        row->staged_pairs = all - row->direct_pairs - row->ucx_pairs;
        row->taken = s->memory == q.memory;
        row->assumed = dcommi_device_assumed(&c->tuning, q.memory);
        dcommi_path_price(c, &q, name, soft, row);
        dcommi_path_why(s, q.memory, row);
    }
    return DCOMMI_PATHS;
}

#endif
