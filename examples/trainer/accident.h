/* accident.h - let ranks die at given places, to show and to test how the others go on (--die). */
#ifndef ACCIDENT_H
#define ACCIDENT_H

typedef enum accident_place {
    ACCIDENT_COMPUTE,  /* before it computes gradients */
    ACCIDENT_SUM,      /* while gradients are summed */
    ACCIDENT_AGREE,    /* while ranks agree that they have the sums */
    ACCIDENT_UPDATE,   /* all ranks have the sums, but this one has not updated its weights */
    ACCIDENT_RECOVER,  /* while the ranks that are left go on after a death in that step or later */
    ACCIDENT_WRITE,    /* in the middle of its file of a checkpoint */
    ACCIDENT_MANIFEST, /* before a checkpoint's manifest gets its name; only rank 0 writes it */
    ACCIDENT_PLACES
} accident_place;

enum { ACCIDENTS = 8 };

typedef struct accidents {
    int n;
    struct {
        int step, rank; /* from 0; the rank at the start of the program */
        accident_place place;
    } list[ACCIDENTS];
} accidents;

/* Parse STEP:RANK or STEP:RANK:PLACE and add it. Return 0, or -1. */
int accident_parse(accidents *a, const char *text);
/* Let these accidents happen on this rank. */
void accident_plan(const accidents *a, int rank);
/* Kill this process with SIGKILL if an accident is planned here. */
void accident(int step, accident_place place);

#endif
