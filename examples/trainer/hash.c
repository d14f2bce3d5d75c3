/* hash.c - hashes of the weights now and then, to compare ranks and runs. */
#define _GNU_SOURCE
#include "hash.h"
#include "elastic.h"
#include "files.h"
#include "trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME = 32 };

/* Hashes of all ranks, `each` of a rank: of all weights (1), or of each tensor. */
typedef struct hashes {
    size_t each;
    uint64_t *all; /* [nranks * each] */
} hashes;

static hashes found; /* of gather, which together() calls */

static void hash_weights(const trainer *t, size_t each, uint64_t *hash)
{
    const float *params = model_params(t->model);
    size_t first = 0, count = model_count(t->model), rows;
    for (size_t i = 0; i < each; i++) {
        if (each > 1) {
            model_tensor(t->model, i, &first, &count, &rows);
        }
        hash[i] = checksum(params + first, count);
    }
}

static dcomm_status gather(trainer *t)
{
    free(found.all);
    found.all = calloc(found.each * (size_t)t->nranks, sizeof *found.all);
    if (found.all == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    uint64_t *mine = found.all + found.each * (size_t)t->rank;
    hash_weights(t, found.each, mine);
    return dcomm_allgather(t->comm, DCOMM_IN_PLACE, found.all, found.each, DCOMM_U64, NULL);
}

/* Return the first rank whose hash i is not that of `rank`; nranks: all have it. */
static int first_other(const trainer *t, int rank, size_t i)
{
    int r = 0;
    while (r < t->nranks &&
           found.all[(size_t)r * found.each + i] == found.all[(size_t)rank * found.each + i]) {
        r++;
    }
    return r;
}

/* Return the rank whose hash i most ranks have; of equals, the lowest. */
static int most_common(const trainer *t, size_t i)
{
    int best = 0, most = 0;
    for (int r = 0; r < t->nranks; r++) {
        int same = 0;
        for (int k = 0; k < t->nranks; k++) {
            same += found.all[(size_t)k * found.each + i] == found.all[(size_t)r * found.each + i];
        }
        if (same > most) {
            most = same;
            best = r;
        }
    }
    return best;
}

/* Say which rank differs, and where first. */
static void complain(const trainer *t)
{
    char name[NAME] = "";
    size_t i = 0;
    int usual = 0, other = t->nranks;
    for (; i < found.each; i++) {
        usual = most_common(t, i);
        other = first_other(t, usual, i);
        if (other < t->nranks) {
            break;
        }
    }
    model_tensor_name(t->model, i, name, NAME);
    fprintf(stderr,
            "trainer: step %d: the weights of rank %d differ from those of rank %d, first in %s\n",
            t->step, other, usual, name);
}

dcomm_status hash_step(trainer *t)
{
    if (t->o->hash_every == 0 || t->step % t->o->hash_every != 0) {
        return DCOMM_OK;
    }
    found.each = 1;
    dcomm_status status = together(t, gather);
    t->differ = status >= 0 && first_other(t, 0, 0) < t->nranks;
    if (t->differ) {
        found.each = model_tensors(t->model);
        status = together(t, gather);
    }
    if (status >= 0 && t->rank == 0) {
        if (t->differ) {
            complain(t);
        } else {
            printf("step %5d  weights %016" PRIx64 "\n", t->step, found.all[0]);
        }
    }
    free(found.all);
    found.all = NULL;
    return status;
}
