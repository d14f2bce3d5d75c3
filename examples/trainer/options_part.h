/* options_part.h - parts of the command line that have files of their own, and how values are
 * parsed. */
#ifndef OPTIONS_PART_H
#define OPTIONS_PART_H

#include "options.h"

#include <getopt.h>

/* A part of the command line. options.c parses it with the rest. */
typedef struct options_part {
    const char *help;
    const struct option *table; /* `val` is the part's own; the last name is NULL */
    /* Take the value of option `val`, NULL if it has none. Return false if it is not one of this
     * option. */
    bool (*take)(options *o, int val, const char *value);
    /* After the last option: fill in what follows from others. Return NULL, or a sentence about
     * options that do not go together. */
    const char *(*check)(options *o);
} options_part;

/* A part may fill in what a later one has. */
extern const options_part options_modes; /* options_modes.c */
extern const options_part options_rules; /* options_rules.c */

/* Parse a number with low <= value <= high. */
bool parse_int(const char *text, int low, int high, int *value);
/* Parse a number with 0 < value <= 1. */
bool parse_rate(const char *text, float *rate);
/* Parse a number with 0 < value. */
bool parse_above(const char *text, float *value);
/* Parse STEP:RANK, both from 0 on. */
bool parse_place(const char *text, int *step, int *rank);

#endif
