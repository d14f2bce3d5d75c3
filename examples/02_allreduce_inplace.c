/* 02_allreduce_inplace.c - average a vector over the ranks in place. */
#include "dcomm.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    enum { COUNT = 1000003 };
    dcomm_comm *comm = NULL;
    double *values = malloc(COUNT * sizeof *values);
    if (values == NULL || dcomm_comm_create(NULL, &comm) < 0) {
        fprintf(stderr, "cannot start: %s\n", dcomm_last_error());
        free(values);
        return 3;
    }
    int rank = dcomm_comm_rank(comm);
    int size = dcomm_comm_size(comm);
    for (int i = 0; i < COUNT; i++) {
        values[i] = i % 1000 + 2 * rank; /* the mean over the ranks is i % 1000 + size - 1 */
    }

    dcomm_status status =
        dcomm_allreduce(comm, DCOMM_IN_PLACE, values, COUNT, DCOMM_F64, DCOMM_AVG, NULL);

    int wrong = 0;
    for (int i = 0; i < COUNT && status >= 0; i++) {
        wrong += values[i] != i % 1000 + size - 1;
    }
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf("rank %d: %d elements, %d wrong\n", rank, COUNT, wrong);
    }
    dcomm_comm_destroy(&comm);
    free(values);
    return status < 0 ? 3 : wrong > 0 ? 1 : 0;
}
