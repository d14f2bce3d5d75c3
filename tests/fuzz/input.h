/* input.h - reads a fuzzer's input byte by byte. After its end come zeros. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stdint.h>

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint8_t take(input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

#endif
