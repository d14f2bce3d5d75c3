/* 01_hello.c - print the ranks, and run one all-reduce. A whole program in one file:
 *
 *   cc 01_hello.c -o hello -I../include -lucp -lucs -luct -lhwloc -lm -lpthread
 *   dcomm-run -n 4 -- ./hello
 */
#define DCOMM_IMPLEMENTATION /* in one C file of a program; other files only include dcomm.h */
#include "dcomm.h"

#include <stdio.h>

int main(void)
{
    dcomm_comm *comm = NULL;
    if (dcomm_comm_create(NULL, &comm) < 0) {
        fprintf(stderr, "no communicator: %s\n", dcomm_last_error());
        return 3;
    }
    int rank = dcomm_comm_rank(comm);
    int size = dcomm_comm_size(comm);

    float mine = (float)(rank + 1), sum = 0;
    if (dcomm_allreduce(comm, &mine, &sum, 1, DCOMM_F32, DCOMM_SUM, NULL) < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
        return 3;
    }
    dcomm_explanation why = {.coll = DCOMM_COLL_ALLREDUCE, .count = 1, .dtype = DCOMM_F32};
    dcomm_comm_explain(comm, &why);
    printf("rank %d of %d on %s: the sum is %g, by %s\n", rank, size,
           dcomm_comm_hostname(comm, rank), (double)sum, why.algo);

    dcomm_comm_destroy(&comm);
    return sum == (float)(size * (size + 1) / 2) ? 0 : 1;
}
