/* files.h - files that are complete or not there, and the generations in a checkpoint's directory.
 *
 * Functions return 0, or -1 and a sentence in `why`. */
#ifndef FILES_H
#define FILES_H

#include "accident.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FILES_PATH = 4096, FILES_WHY = FILES_PATH + 256, FILES_RANKS = 4096 };

/* Return a checksum of n numbers of 32 bits. */
uint64_t checksum(const void *words, size_t n);

/* Files of a generation. */
typedef struct manifest {
    int step, nranks;
    struct {
        uint64_t bytes, checksum;
    } files[FILES_RANKS];
} manifest;

/* Write DIR/step-STEP/NAME: under another name at first, and on the disk before it is renamed. The
 * accident may happen on the way. */
int files_write(const char *dir, int step, const char *name, const void *from, size_t bytes,
                accident_place place, char why[FILES_WHY]);
/* Write the manifest, then remove all generations but this one and the newest complete one before
 * it. */
int files_finish(const char *dir, const manifest *m, char why[FILES_WHY]);
/* Read a manifest. */
int files_manifest(const char *dir, int step, manifest *m, char why[FILES_WHY]);
/* Read the file of a rank into memory that the caller frees, and check it. */
int files_read(const char *dir, const manifest *m, int rank, void **to, char why[FILES_WHY]);
/* List the steps of the generations that have a manifest (`complete`) or have none, newest first.
 * Return how many are in steps[max]; 0 also if there is no such directory. */
int files_list(const char *dir, bool complete, int *steps, int max);

#endif
