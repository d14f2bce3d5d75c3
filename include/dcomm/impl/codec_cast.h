/* codec_cast.h - casts to 16 bits: bf16. One 16-bit number an element, in order. */
#ifndef DCOMMI_CODEC_CAST_H
#define DCOMMI_CODEC_CAST_H

#include "codec.h"
#include "../../../kernels/math.h"

static const dcommi_codec_option dcommi_cast_options[] = {{.kind = DCOMMI_CODEC_END}};

static unsigned dcommi_cast_traits(const dcomm_codec *codec)
{
    (void)codec;
    return DCOMMI_CODEC_EXACT_BYTES;
}

static size_t dcommi_cast_bytes(const dcomm_codec *codec, size_t count)
{
    (void)codec;
    return dcommi_size_mul(count, 2);
}

static dcomm_status dcommi_cast_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    for (size_t i = 0; i < call->count; i++) {
        uint32_t bits = dcommi_f32_bits(call->x[i]);
        uint16_t h = dcommi_f32_to_bf16(call->x[i]);
        if (dcommi_f32_nonfinite(call->x[i])) {
            dcommi_codec_nonfinite(call, i);
            h = codec->nonfinite == DCOMMI_NONFINITE_PASS ? h : 0;
        } else if ((bits & 0x7f800000u) == 0) {
            h &= 0x8000u;
        } else if ((h & 0x7fffu) == 0x7f80u) {
            call->report.clipped++;
            h--;
        }
        memcpy(call->wire + 2 * i, &h, 2);
    }
    call->bytes = 2 * call->count;
    return DCOMM_OK;
}

static dcomm_status dcommi_cast_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                       float *x, size_t count, bool add)
{
    size_t wanted = dcommi_cast_bytes(codec, count);
    if (bytes != wanted) {
        return dcommi_codec_bad_length(codec, bytes, wanted, count);
    }
    const unsigned char *from = wire;
    for (size_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        x[i] = add ? x[i] + dcommi_bf16_to_f32(h) : dcommi_bf16_to_f32(h);
    }
    return DCOMM_OK;
}

static const dcommi_codec_ops dcommi_codec_bf16 = {
    .name = "bf16",
    .summary = "the upper 16 bits of an f32: 8 bits of exponent, 7 of fraction",
    .options = dcommi_cast_options,
    .traits = dcommi_cast_traits,
    .max_bytes = dcommi_cast_bytes,
    .encode = dcommi_cast_encode,
    .decode = dcommi_cast_decode,
};

#endif
