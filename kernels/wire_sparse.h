/* wire_sparse.h - layout of a sparse wire. C, C++ and CUDA alike.
 *
 *   u32 kept | kept values | their indices, in ascending order
 *
 * Values come first, so that 32-bit values are aligned; the value format gives their length.
 * Indices have the shortest of three forms; of equally short ones, the first. `count` and `kept`
 * decide it, so the wire need not name it. Numbers are little-endian. */
#ifndef DCOMMI_WIRE_SPARSE_H
#define DCOMMI_WIRE_SPARSE_H

#include <stdint.h>

typedef struct dcommi_sparse_head {
    uint32_t kept;
} dcommi_sparse_head;

#define DCOMMI_SPARSE_HEAD 4
#define DCOMMI_SPARSE_BLOCK 65536 /* elements that a 16-bit offset can address */

typedef enum dcommi_sparse_form {
    DCOMMI_SPARSE_FLAT = 0, /* u32 index each */
    DCOMMI_SPARSE_BLOCKS,   /* u32 for each block: number kept up to its end; then u16 offsets */
    DCOMMI_SPARSE_BITMAP    /* one bit an element, lowest bit of a byte first; rest 0 */
} dcommi_sparse_form;

#ifdef __cplusplus
static_assert(sizeof(dcommi_sparse_head) == DCOMMI_SPARSE_HEAD, "no padding");
#else
_Static_assert(sizeof(dcommi_sparse_head) == DCOMMI_SPARSE_HEAD, "no padding");
#endif

#ifdef __CUDACC__
#define DCOMMI_SPARSE_HD __host__ __device__
#else
#define DCOMMI_SPARSE_HD
#endif

DCOMMI_SPARSE_HD static inline uint64_t dcommi_sparse_blocks(uint64_t count)
{
    return count / DCOMMI_SPARSE_BLOCK + (count % DCOMMI_SPARSE_BLOCK != 0);
}

DCOMMI_SPARSE_HD static inline uint64_t dcommi_sparse_form_bytes(dcommi_sparse_form form,
                                                                 uint64_t count, uint64_t kept)
{
    return form == DCOMMI_SPARSE_FLAT     ? 4 * kept
           : form == DCOMMI_SPARSE_BLOCKS ? 4 * dcommi_sparse_blocks(count) + 2 * kept
                                          : count / 8 + (count % 8 != 0);
}

DCOMMI_SPARSE_HD static inline dcommi_sparse_form dcommi_sparse_form_of(uint64_t count,
                                                                        uint64_t kept)
{
    uint64_t flat = dcommi_sparse_form_bytes(DCOMMI_SPARSE_FLAT, count, kept);
    uint64_t blocks = dcommi_sparse_form_bytes(DCOMMI_SPARSE_BLOCKS, count, kept);
    uint64_t bitmap = dcommi_sparse_form_bytes(DCOMMI_SPARSE_BITMAP, count, kept);
    return flat <= blocks && flat <= bitmap ? DCOMMI_SPARSE_FLAT
           : blocks <= bitmap               ? DCOMMI_SPARSE_BLOCKS
                                            : DCOMMI_SPARSE_BITMAP;
}

/* Return the bytes of the packed indices, which grow with `kept`. */
DCOMMI_SPARSE_HD static inline uint64_t dcommi_sparse_index_bytes(uint64_t count, uint64_t kept)
{
    return dcommi_sparse_form_bytes(dcommi_sparse_form_of(count, kept), count, kept);
}

#endif
