/* dcomm.c - the implementation as a file of its own, for programs that have no C file to hold it. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm.h"
