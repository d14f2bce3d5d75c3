/* make_codec.h - make a codec for a test from its spec. Include it after dcomm.h or its parts. */
#ifndef MAKE_CODEC_H
#define MAKE_CODEC_H

#include <criterion/criterion.h>

static inline dcomm_codec *make(const char *spec)
{
    dcomm_codec *codec = NULL;
    cr_assert_eq(dcomm_codec_create(spec, &codec), DCOMM_OK, "%s: %s", spec, dcomm_last_error());
    return codec;
}

#endif
