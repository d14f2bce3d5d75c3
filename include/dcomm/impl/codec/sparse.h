/* sparse.h - pack and unpack indices (kernels/wire_sparse.h). */
#ifndef DCOMMI_CODEC_SPARSE_H
#define DCOMMI_CODEC_SPARSE_H

#include "codec.h"
#include "../../../../kernels/wire_sparse.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dcomm: packed indices are little-endian, and so must be the processor"
#endif

/* Return the position of the first ascending index that is at least `bound`. */
static size_t dcommi_sparse_lower(const uint32_t *index, size_t kept, uint64_t bound)
{
    size_t low = 0;
    while (low < kept) {
        size_t middle = low + (kept - low) / 2;
        if (index[middle] < bound) {
            low = middle + 1;
        } else {
            kept = middle;
        }
    }
    return low;
}

/* Write the ascending indices, each below count. `out` needs dcommi_sparse_index_bytes. */
static void dcommi_sparse_pack(const uint32_t *index, size_t kept, size_t count, unsigned char *out)
{
    switch (dcommi_sparse_form_of(count, kept)) {
    case DCOMMI_SPARSE_FLAT:
        memcpy(out, index, 4 * kept);
        return;
    case DCOMMI_SPARSE_BLOCKS: {
        size_t blocks = (size_t)dcommi_sparse_blocks(count);
        for (size_t b = 0; b < blocks; b++) {
            uint32_t end =
                (uint32_t)dcommi_sparse_lower(index, kept, (uint64_t)(b + 1) * DCOMMI_SPARSE_BLOCK);
            memcpy(out + 4 * b, &end, 4);
        }
        out += 4 * blocks;
        for (size_t i = 0; i < kept; i++) {
            uint16_t offset = (uint16_t)index[i];
            memcpy(out + 2 * i, &offset, 2);
        }
        return;
    }
    case DCOMMI_SPARSE_BITMAP:
        memset(out, 0, count / 8 + (count % 8 != 0));
        for (size_t i = 0; i < kept; i++) {
            out[index[i] / 8] |= (unsigned char)(1u << index[i] % 8);
        }
    }
}

/* A reader's position in packed indices that dcommi_sparse_check accepted. */
typedef struct dcommi_sparse_reader {
    const unsigned char *in; /* BLOCKS: the offsets */
    const unsigned char *ends;
    dcommi_sparse_form form;
    size_t kept, count;
    size_t at;      /* number of indices read */
    uint64_t place; /* BLOCKS: the block; BITMAP: the first element not yet read */
} dcommi_sparse_reader;

static void dcommi_sparse_open(dcommi_sparse_reader *r, const unsigned char *in, size_t kept,
                               size_t count)
{
    dcommi_sparse_form form = dcommi_sparse_form_of(count, kept);
    size_t ends = form == DCOMMI_SPARSE_BLOCKS ? 4 * (size_t)dcommi_sparse_blocks(count) : 0;
    *r = (dcommi_sparse_reader){
        .in = in + ends, .ends = in, .form = form, .kept = kept, .count = count};
}

/* Return 64 elements of a bitmap from `first`, a multiple of 64; elements behind its end are 0. */
static inline uint64_t dcommi_sparse_word(const dcommi_sparse_reader *r, uint64_t first)
{
    uint64_t word = 0;
    size_t bytes = r->count / 8 + (r->count % 8 != 0), from = (size_t)first / 8;
    memcpy(&word, r->in + from, bytes - from < 8 ? bytes - from : 8);
    return word;
}

/* Read the next indices below `until`, at most `most`, and return their number. `most` is at least
 * 64. `until` is a multiple of DCOMMI_SPARSE_BLOCK or at least count. */
static size_t dcommi_sparse_next(dcommi_sparse_reader *r, uint64_t until, uint32_t *index,
                                 size_t most)
{
    size_t n = 0;
    until = until < r->count ? until : r->count;
    if (r->form == DCOMMI_SPARSE_FLAT) {
        for (; n < most && r->at < r->kept; n++, r->at++) {
            memcpy(&index[n], r->in + 4 * r->at, 4);
            if (index[n] >= until) {
                break;
            }
        }
    } else if (r->form == DCOMMI_SPARSE_BLOCKS) {
        for (; r->place * DCOMMI_SPARSE_BLOCK < until; r->place++) {
            uint32_t end;
            memcpy(&end, r->ends + 4 * r->place, 4);
            for (; n < most && r->at < end; n++, r->at++) {
                uint16_t offset;
                memcpy(&offset, r->in + 2 * r->at, 2);
                index[n] = (uint32_t)(r->place * DCOMMI_SPARSE_BLOCK) + offset;
            }
            if (r->at < end) {
                break;
            }
        }
    } else {
        for (; r->place < until && n + 64 <= most; r->place += 64) {
            for (uint64_t word = dcommi_sparse_word(r, r->place); word != 0; word &= word - 1) {
                index[n++] = (uint32_t)(r->place + (unsigned)__builtin_ctzll(word));
            }
        }
        r->at += n;
    }
    return n;
}

/* Return true if these dcommi_sparse_index_bytes hold `kept` ascending indices below count. */
static bool dcommi_sparse_check(const unsigned char *in, size_t kept, size_t count)
{
    dcommi_sparse_reader r;
    dcommi_sparse_open(&r, in, kept, count);
    uint64_t bad = 0;
    if (r.form == DCOMMI_SPARSE_FLAT) {
        uint64_t least = 0;
        for (size_t i = 0; i < kept; i++) {
            uint32_t index;
            memcpy(&index, in + 4 * i, 4);
            bad |= index < least;
            least = (uint64_t)index + 1;
        }
        return bad == 0 && least <= count;
    }
    if (r.form == DCOMMI_SPARSE_BLOCKS) {
        size_t blocks = (size_t)dcommi_sparse_blocks(count), from = 0;
        for (size_t b = 0; b < blocks; b++) {
            uint32_t end, least = 0;
            memcpy(&end, in + 4 * b, 4);
            if (end < from || end > kept) {
                return false;
            }
            for (; from < end; from++) {
                uint16_t offset;
                memcpy(&offset, r.in + 2 * from, 2);
                bad |= offset < least;
                least = (uint32_t)offset + 1;
            }
            bad |= (uint64_t)b * DCOMMI_SPARSE_BLOCK + least > count;
        }
        return bad == 0 && from == kept;
    }
    size_t set = 0;
    uint64_t last = 0;
    for (uint64_t first = 0; first < count; first += 64) {
        last = dcommi_sparse_word(&r, first);
        set += (size_t)__builtin_popcountll(last);
    }
    return set == kept && (count % 64 == 0 || last >> count % 64 == 0);
}

#endif
