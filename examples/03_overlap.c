/* 03_overlap.c - compute the next piece while the pieces before it are summed. */
#include "dcomm.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 8, COUNT = 100000 };

/* Compute a piece, in place of a layer's backward pass. It consists of small whole numbers, so
 * that sums are exact. */
static void compute(float *piece, int number, int rank)
{
    for (int i = 0; i < COUNT; i++) {
        piece[i] = (float)((i * 7 + number) % 100 + rank);
    }
}

int main(void)
{
    dcomm_comm *comm = NULL;
    float *data = malloc((size_t)PIECES * COUNT * sizeof *data);
    if (data == NULL || dcomm_comm_create(NULL, &comm) < 0) {
        fprintf(stderr, "cannot start: %s\n", dcomm_last_error());
        free(data);
        return 3;
    }
    int rank = dcomm_comm_rank(comm);
    int size = dcomm_comm_size(comm);
    dcomm_context *context = dcomm_comm_context(comm);

    dcomm_request *requests[PIECES] = {NULL};
    dcomm_status status = DCOMM_OK;
    for (int p = 0; p < PIECES && status >= 0; p++) {
        compute(data + p * COUNT, p, rank);
        status = dcomm_iallreduce(comm, DCOMM_IN_PLACE, data + p * COUNT, COUNT, DCOMM_F32,
                                  DCOMM_SUM, NULL, &requests[p]);
        dcomm_context_progress(context); /* alternative: open the context with a progress thread */
    }
    dcomm_status waited = dcomm_wait_all(requests, PIECES);
    status = status < 0 ? status : waited;

    int wrong = 0;
    for (int i = 0; i < PIECES * COUNT && status >= 0; i++) {
        int own = (i % COUNT * 7 + i / COUNT) % 100;
        wrong += data[i] != (float)(own * size + size * (size - 1) / 2);
    }
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf("rank %d: %d pieces, %d wrong elements\n", rank, PIECES, wrong);
    }
    dcomm_comm_destroy(&comm);
    free(data);
    return status < 0 ? 3 : wrong > 0 ? 1 : 0;
}
