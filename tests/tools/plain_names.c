/* plain_names.c - one rank of a training, in a program that defines functions with names of the C
 * library. tests/tools/header.sh writes these functions, each of which ends the program. It links
 * them and this file with dcomm, and runs the program.
 *
 *   plain_names DIRECTORY    writes a tuning there; exits with 0 if all sums are right */
#include "dcomm.h"

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 3000 };

static void must(dcomm_status status, const char *what)
{
    if (status != DCOMM_OK) {
        fprintf(stderr, "%s: %s\n", what, dcomm_last_error());
        exit(3);
    }
}

static void all_reduce(dcomm_comm *comm, float *x, const dcomm_coll_opts *opts, const char *what)
{
    const int rank = dcomm_comm_rank(comm), size = dcomm_comm_size(comm);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)((rank + 1) * (i % 5));
    }
    must(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, COUNT, DCOMM_F32, DCOMM_SUM, opts), what);
    for (int i = 0; i < COUNT; i++) {
        if (x[i] != (float)(size * (size + 1) / 2 * (i % 5))) {
            fprintf(stderr, "%s: element %d is %g\n", what, i, (double)x[i]);
            exit(4);
        }
    }
}

/* Sum with compression and error feedback, and save and load the state. */
static void compressed(dcomm_comm *comm, float *x, const char *spec)
{
    dcomm_codec *codec;
    dcomm_feedback *fb, *again;
    dcomm_ledger ledger = {0};
    must(dcomm_codec_create(spec, &codec), spec);
    must(dcomm_feedback_create(codec, COUNT, NULL, &fb), spec);
    dcomm_coll_opts opts = {.codec = codec, .feedback = fb, .codec_ledger = &ledger};
    must(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, COUNT, DCOMM_F32, DCOMM_AVG, &opts), spec);
    const size_t bytes = dcomm_feedback_save_bytes(fb);
    void *state = malloc(bytes);
    must(dcomm_feedback_save(fb, state, bytes), spec);
    must(dcomm_feedback_load(codec, state, bytes, &again), spec);
    free(state);
    must(dcomm_feedback_destroy(&again), spec);
    must(dcomm_feedback_destroy(&fb), spec);
    must(dcomm_codec_destroy(&codec), spec);
}

int main(int argc, char **argv)
{
    dcomm_comm *comm;
    dcomm_tuning tuning;
    static float x[COUNT];
    char path[4096];
    must(dcomm_comm_create(NULL, &comm), "create");
    if (argc < 2 || dcomm_comm_size(comm) < 2) {
        return 2;
    }
    all_reduce(comm, x, NULL, "all-reduce");
    void *shared;
    must(dcomm_mem_alloc(dcomm_comm_context(comm), sizeof x, &shared), "registered memory");
    const dcomm_coll_opts registered = {.registered = true};
    all_reduce(comm, shared, &registered, "all-reduce of registered memory");
    must(dcomm_mem_free(&shared), "registered memory");
    static const char *const specs[] = {"qsgd:bits=8,norm=two", "topk:k=0.01", "powersgd", "fp8"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        compressed(comm, x, specs[i]);
    }
    snprintf(path, sizeof path, "%s/tuning.%d", argv[1], dcomm_comm_rank(comm));
    must(dcomm_comm_get_tuning(comm, &tuning), "tuning");
    must(dcomm_tuning_save(&tuning, path), "save");
    must(dcomm_tuning_load(path, &tuning), "load");
    must(dcomm_comm_destroy(&comm), "destroy");
    return 0;
}
