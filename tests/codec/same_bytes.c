/* same_bytes.c - one hash over folds, scalings and conversions of a fixed random set, per
 * instruction set. tests/codec/same_bytes.sh compares it across compilers and flags. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../include/dcomm/impl/device/host.h"

enum { COUNT = 3001, SOURCES = 5 };

static uint64_t hash_bytes(uint64_t hash, const void *p, size_t len)
{
    const unsigned char *bytes = p;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

static uint64_t hash_all(void)
{
    static uint64_t memory[SOURCES][COUNT];
    static uint64_t out[COUNT];
    uint64_t hash = 0xcbf29ce484222325u;
    const void *src[SOURCES];
    for (size_t s = 0; s < SOURCES; s++) {
        for (size_t i = 0; i < COUNT; i++) {
            memory[s][i] = dcommi_mix(i, s);
        }
        src[s] = memory[s];
    }
    for (int dtype = 0; dtype < DCOMM_DTYPE_COUNT; dtype++) {
        size_t len = COUNT * dcomm_dtype_size((dcomm_dtype)dtype);
        for (int op = 0; op < DCOMM_OP_COUNT; op++) {
            for (size_t nsrc = 1; nsrc <= SOURCES; nsrc++) {
                dcommi_host_reduce(out, src, nsrc, COUNT, (dcomm_dtype)dtype, (dcomm_op)op,
                                   op == DCOMM_AVG ? 3 : 1);
                hash = hash_bytes(hash, out, len);
            }
        }
        dcommi_host_scale(out, src[0], COUNT, (dcomm_dtype)dtype, 0.3);
        hash = hash_bytes(hash, out, len);
    }
    for (uint32_t i = 0; i < 200000; i++) {
        float f = dcommi_f32_from_bits((uint32_t)dcommi_mix(i, 99));
        uint16_t h[2] = {dcommi_f32_to_f16(f), dcommi_f32_to_bf16(f)};
        float back[2] = {dcommi_f16_to_f32((uint16_t)i), dcommi_bf16_to_f32((uint16_t)i)};
        hash = hash_bytes(hash_bytes(hash, h, sizeof h), back, sizeof back);
    }
    return hash;
}

int main(void)
{
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        printf("%016" PRIx64 " %s\n", hash_all(), dcommi_isa_names[isa]);
    }
    return 0;
}
