/* memory.h - the table of allocations, for the files that deal with memory. */
#ifndef CUDA_HOST_MEMORY_H
#define CUDA_HOST_MEMORY_H

#include "host.h"

typedef enum cuhost_owner {
    CUHOST_OF_ARENA,  /* device memory of this process */
    CUHOST_OF_PEER,   /* device memory of another process */
    CUHOST_OF_HEAP,   /* pinned or managed memory */
    CUHOST_OF_PROGRAM /* registered memory */
} cuhost_owner;

typedef struct cuhost_block {
    void *base;
    size_t bytes;
    void *alias; /* address for this library's accesses */
    enum cudaMemoryType type;
    cuhost_owner owner;
    int device;
    int fd; /* OF_PEER: file whose lock tells the owner that it is open */
} cuhost_block;

typedef struct cuhost_arena {
    int fd;
    char *base, *alias; /* NULL: memory of this device was never allocated */
} cuhost_arena;

/* Call all but the last under the lock. */
cuhost_block *cuhost_block_around(const void *p);
bool cuhost_block_add(const cuhost_block *block);
void cuhost_block_remove(cuhost_block *block);
const cuhost_arena *cuhost_arena_of(int device);
bool cuhost_map_twice(int fd, size_t offset, size_t bytes, char **seen, char **alias);

#endif
