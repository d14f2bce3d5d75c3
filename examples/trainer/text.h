/* text.h - the training text as tokens, which are the numbers of its distinct bytes. */
#ifndef TEXT_H
#define TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct text {
    int *tokens;
    size_t length;
    int vocab;
    uint8_t byte_of[256]; /* token -> byte */
} text;

/* Read a file. If path is a directory, read all its regular files in the order of their names;
 * links are skipped, so that no file is read twice. Return 0, or -1 after an error message. */
int text_open(text *t, const char *path);
void text_close(text *t);

#endif
