/* text.c - read text files, and number their bytes. */
#define _GNU_SOURCE
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct bytes {
    uint8_t *data;
    size_t length;
} bytes;

static int complain(const char *path, const char *why)
{
    fprintf(stderr, "trainer: %s: %s\n", path, why);
    return -1;
}

static int append_file(bytes *all, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return complain(path, strerror(errno));
    }
    int result = 0;
    for (;;) {
        size_t room = 1 << 16;
        uint8_t *bigger = realloc(all->data, all->length + room);
        if (bigger == NULL) {
            result = complain(path, "no memory");
            break;
        }
        all->data = bigger;
        size_t got = fread(all->data + all->length, 1, room, file);
        all->length += got;
        if (got < room) {
            result = ferror(file) ? complain(path, "cannot be read") : 0;
            break;
        }
    }
    fclose(file);
    return result;
}

static int append_directory(bytes *all, const char *path)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, NULL);
    if (n < 0) {
        return complain(path, strerror(errno));
    }
    /* Sort the names by bytes: alphasort depends on the locale. */
    for (int i = 1; i < n; i++) {
        struct dirent *entry = entries[i];
        int j = i;
        for (; j > 0 && strcmp(entries[j - 1]->d_name, entry->d_name) > 0; j--) {
            entries[j] = entries[j - 1];
        }
        entries[j] = entry;
    }
    int result = 0;
    for (int i = 0; i < n; i++) {
        char *name = NULL;
        struct stat info;
        if (asprintf(&name, "%s/%s", path, entries[i]->d_name) < 0) {
            result = complain(path, "no memory");
            name = NULL;
        } else if (result == 0 && lstat(name, &info) == 0 && S_ISREG(info.st_mode)) {
            result = append_file(all, name);
        }
        free(name);
        free(entries[i]);
    }
    free(entries);
    return result;
}

/* Set the tokens. They are numbered in the order of the byte values. */
static void number_bytes(text *t, const bytes *all)
{
    int token_of[256] = {0};
    for (size_t i = 0; i < all->length; i++) {
        token_of[all->data[i]] = 1;
    }
    for (int byte = 0; byte < 256; byte++) {
        if (token_of[byte] != 0) {
            t->byte_of[t->vocab] = (uint8_t)byte;
            token_of[byte] = t->vocab++;
        }
    }
    for (size_t i = 0; i < all->length; i++) {
        t->tokens[i] = token_of[all->data[i]];
    }
    t->length = all->length;
}

int text_open(text *t, const char *path)
{
    bytes all = {0};
    struct stat info;
    *t = (text){0};
    int result = stat(path, &info) != 0  ? complain(path, strerror(errno))
                 : S_ISDIR(info.st_mode) ? append_directory(&all, path)
                                         : append_file(&all, path);
    if (result == 0 && all.length > 0) {
        t->tokens = malloc(all.length * sizeof *t->tokens);
    }
    if (result == 0 && t->tokens == NULL) {
        result = complain(path, all.length == 0 ? "has no text" : "no memory");
    }
    if (result == 0) {
        number_bytes(t, &all);
    }
    free(all.data);
    return result;
}

void text_close(text *t)
{
    free(t->tokens);
    t->tokens = NULL;
}
