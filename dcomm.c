/* dcomm.c - the implementation as a file of its own, for programs that have no C file to hold it. */
#define DCOMM_IMPLEMENTATION
#include "dcomm.h"
