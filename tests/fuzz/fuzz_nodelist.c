/* fuzz_nodelist.c - any text as a list of hosts, into places of several sizes. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/nodelist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    for (size_t max = 0; max <= 64; max += max < 4 ? 1 : 20) {
        char *host = malloc(max + 1);
        if (host != NULL && dcommi_nodelist_first(text, host, max) &&
            (strlen(host) == 0 || strlen(host) >= max || strpbrk(host, "[],/ ") != NULL)) {
            abort();
        }
        free(host);
    }
    free(text);
    return 0;
}
