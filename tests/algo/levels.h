/* levels.h - calls of hierarchical algorithms over several invented levels. */
#ifndef LEVELS_H
#define LEVELS_H

/* Divide small groups and short parts too, so that these suites test divided parts. */
#define DCOMMI_HIER_DIVIDE_MIN 2
#define DCOMMI_HIER_DIVIDE_BYTES 0
#include "dcomm/all.h"

#include <criterion/criterion.h>

#include "hier_algorithms.h"

#define RANKS_MAX 64
#define LEVELS 3 /* levels of groups, without the ranks themselves */

/* The sizes of a group's parts, and the numbering of ranks. */
typedef enum sizes { EQUAL, NEARLY, GROWING, RANDOM, SIZES } sizes;
typedef enum numbers { BLOCK, CYCLIC, SHUFFLED, NUMBERS } numbers;

typedef struct call {
    dcomm_coll coll;
    const char *name;
    int n, levels, parts[LEVELS], root;
    sizes sizes;
    numbers numbers;
    size_t count;
    int64_t chunk;
    bool in_place;
} call;

static const char *text_of(const call *c)
{
    static char text[256];
    snprintf(text, sizeof text,
             "%s of %s, %d ranks, %d levels of %d, %d and %d parts, sizes %d, numbers %d, count "
             "%zu, chunk %" PRId64 ", root %d, in place %d",
             c->name, dcomm_coll_name(c->coll), c->n, c->levels, c->parts[0], c->parts[1],
             c->parts[2], c->sizes, c->numbers, c->count, c->chunk, c->root, c->in_place);
    return text;
}

/* Return the part of rank number `i` of a group: the group has `size` ranks in `parts` parts. */
static int part_of(const call *c, int level, int i, int size, int parts)
{
    if (parts > size) {
        parts = size;
    }
    switch (c->sizes) {
    case GROWING:
        for (int k = 0, end = 0; k < parts; k++) {
            end += (int)dcommi_max64(1, 2 * (k + 1) * size / (parts * (parts + 1)));
            if (i < end) {
                return k;
            }
        }
        return parts - 1;
    case RANDOM:
        return (int)(dcommi_mix((uint64_t)(level + 5), (uint64_t)i) % (uint64_t)parts);
    default:
        return i * parts / size;
    }
}

static dcommi_groups *groups_of(const call *c)
{
    static const uint8_t kinds[LEVELS] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE,
                                          DCOMMI_LEVEL_NUMA};
    int64_t at[LEVELS][RANKS_MAX], ids[LEVELS * RANKS_MAX];
    int rank[RANKS_MAX];
    for (int l = 0; l < c->levels; l++) { /* number the groups from the top of the tree down */
        for (int i = 0; i < c->n; i++) {
            int before = 0, size = 0;
            for (int j = 0; j < c->n; j++) {
                bool same = l == 0 || at[l - 1][j] == at[l - 1][i];
                size += same;
                before += same && j < i;
            }
            int64_t part = part_of(c, l, before, size, c->parts[l]);
            at[l][i] = (l > 0 ? at[l - 1][i] * 100 : 0) + part;
        }
    }
    for (int i = 0; i < c->n; i++) {
        rank[i] = i;
    }
    if (c->numbers == CYCLIC) { /* deal the ranks round the hosts */
        int next = 0;
        for (int turn = 0; turn < c->n; turn++) {
            for (int host = 0; host < c->n; host++) {
                for (int i = 0, seen = 0; i < c->n; i++) {
                    if (at[0][i] == host && seen++ == turn) {
                        rank[i] = next++;
                    }
                }
            }
        }
    } else if (c->numbers == SHUFFLED) {
        for (int i = c->n - 1; i > 0; i--) {
            int j = (int)(dcommi_mix(99, (uint64_t)i) % (uint64_t)(i + 1)), r = rank[i];
            rank[i] = rank[j];
            rank[j] = r;
        }
    }
    for (int l = 0; l < c->levels; l++) {
        for (int i = 0; i < c->n; i++) {
            ids[l * c->n + rank[i]] = at[l][i];
        }
    }
    dcommi_groups *g = dcommi_groups_make(c->n, c->levels, kinds, ids);
    cr_assert(g != NULL);
    return g;
}

static bool is_v(dcomm_coll coll)
{
    return coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV;
}

#endif
