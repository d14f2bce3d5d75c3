/* fuzz_codec_spec.c - any text as the spec of a codec: refused with a sentence, or read to its
 * end. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *spec = malloc(size + 1);
    if (spec == NULL) {
        return 0;
    }
    memcpy(spec, data, size);
    spec[size] = '\0';
    dcomm_codec *codec = NULL, *again = NULL;
    dcomm_status status = dcomm_codec_create(spec, &codec);
    if (status == DCOMM_OK) {
        /* A codec's own spec must give the same codec. */
        if (dcomm_codec_create(dcomm_codec_spec(codec), &again) != DCOMM_OK ||
            strcmp(dcomm_codec_spec(again), dcomm_codec_spec(codec)) != 0 ||
            dcomm_codec_max_bytes(again, 1000) != dcomm_codec_max_bytes(codec, 1000)) {
            abort();
        }
    } else if (codec != NULL || dcomm_last_error()[0] == '\0') {
        abort();
    }
    dcomm_codec_destroy(&codec);
    dcomm_codec_destroy(&again);
    free(spec);
    return 0;
}
