/* fuzz_pmi.c - any bytes as a process manager's answer. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/boot/pmi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1);
    if (line == NULL) {
        return 0;
    }
    memcpy(line, data, size);
    for (size_t max = 1; max <= 64; max *= 4) {
        char *value = malloc(max);
        if (value != NULL && dcommi_pmi_value(line, size, "value", value, max) &&
            (strlen(value) >= max || strpbrk(value, " \n") != NULL)) {
            abort();
        }
        free(value);
    }
    dcommi_pmi_answers(line, size, "get_result");
    free(line);
    return 0;
}
