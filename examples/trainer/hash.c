/* hash.c - compares the weights of ranks now and then, and prints their hash to compare runs. */
#define _GNU_SOURCE
#include "hash.h"
#include "elastic.h"
#include "files.h"
#include "trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME = 32 };

static dcomm_fingerprint_difference found; /* of compare, which together() calls */

/* Compare all tensors among the ranks. A difference is no error here. */
static dcomm_status compare(trainer *t)
{
    size_t n = model_tensors(t->model);
    dcomm_fingerprint_tensor *tensors = calloc(n, sizeof *tensors);
    if (tensors == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        size_t first, count, rows;
        model_tensor(t->model, i, &first, &count, &rows);
        tensors[i].data = model_params(t->model) + first;
        tensors[i].bytes = count * sizeof(float);
    }
    dcomm_status status = dcomm_fingerprint_compare(t->comm, tensors, n, &found);
    free(tensors);
    return status == DCOMM_ERR_MISMATCH && found.rank >= 0 ? DCOMM_OK : status;
}

dcomm_status hash_step(trainer *t)
{
    if (t->o->hash_every == 0 || t->step % t->o->hash_every != 0) {
        return DCOMM_OK;
    }
    dcomm_status status = together(t, compare);
    t->differ = status >= 0 && found.rank >= 0;
    if (t->differ && t->rank == 0) {
        char name[NAME] = "";
        model_tensor_name(t->model, found.tensor, name, NAME);
        fprintf(
            stderr,
            "trainer: step %d: the weights of rank %d differ from those of rank %d, first in %s\n",
            t->step, found.rank, found.usual, name);
    } else if (status >= 0 && t->rank == 0) {
        printf("step %5d  weights %016" PRIx64 "\n", t->step,
               checksum(model_params(t->model), model_count(t->model)));
    }
    return status;
}
