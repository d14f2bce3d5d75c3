/* accident.c - let ranks die at given places. */
#define _GNU_SOURCE
#include "accident.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

static accidents planned; /* only those of this rank */

int accident_parse(accidents *a, const char *text)
{
    static const char *const places[ACCIDENT_PLACES] = {"compute", "sum",   "agree",   "update",
                                                        "recover", "write", "manifest"};
    int step, rank, place = 0;
    char name[16] = "compute";
    int n = sscanf(text, "%9d:%9d:%15s", &step, &rank, name);
    while (place < ACCIDENT_PLACES && strcmp(name, places[place]) != 0) {
        place++;
    }
    if (n < 2 || step < 0 || rank < 0 || place == ACCIDENT_PLACES || a->n == ACCIDENTS) {
        return -1;
    }
    a->list[a->n].step = step;
    a->list[a->n].rank = rank;
    a->list[a->n++].place = (accident_place)place;
    return 0;
}

void accident_plan(const accidents *a, int rank)
{
    planned.n = 0;
    for (int i = 0; i < a->n; i++) {
        if (a->list[i].rank == rank) {
            planned.list[planned.n++] = a->list[i];
        }
    }
}

void accident(int step, accident_place place)
{
    for (int i = 0; i < planned.n; i++) {
        /* The death that the ranks recover from may come a step later than planned. */
        const bool here =
            place == ACCIDENT_RECOVER ? planned.list[i].step <= step : planned.list[i].step == step;
        if (!here || planned.list[i].place != place) {
            continue;
        }
        if (place == ACCIDENT_SUM || place == ACCIDENT_AGREE || place == ACCIDENT_RECOVER) {
            /* Not here, but a moment later: SIGALRM ends the process. */
            struct itimerval soon = {.it_value = {.tv_usec = 100}};
            setitimer(ITIMER_REAL, &soon, NULL);
        } else {
            raise(SIGKILL);
        }
    }
}
