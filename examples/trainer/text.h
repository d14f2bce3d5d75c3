/* text.h - the text that is trained on, as tokens: its distinct bytes, numbered. */
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

/* Read a file, or, of a directory, all its regular files in the order of their names (links left
 * out, so that nothing is read twice). Returns 0, or -1 after a sentence on stderr. */
int text_open(text *t, const char *path);
void text_close(text *t);

#endif
