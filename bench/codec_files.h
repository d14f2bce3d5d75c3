/* codec_files.h - find the tensors that dcomm-codec encodes from the names of its inputs: each
 * array of a .npz file, each .npy and .npz file of a folder, and the other kinds of --input. */
#ifndef CODEC_FILES_H
#define CODEC_FILES_H

#include "codec_input.h"

#include <dirent.h>
#include <sys/stat.h>

typedef struct codec_tensors {
    codec_input *tensor;
    size_t n, room;
} codec_tensors;

static bool tensors_add(codec_tensors *t, const codec_input *in, char why[INPUT_TEXT])
{
    if (t->n == t->room) {
        size_t room = 2 * t->room + 4;
        codec_input *more = realloc(t->tensor, room * sizeof *more);
        if (more == NULL) {
            snprintf(why, INPUT_TEXT, "no memory for %zu tensors", room);
            return false;
        }
        t->tensor = more;
        t->room = room;
    }
    t->tensor[t->n++] = *in;
    return true;
}

static bool tensors_ends(const char *name, const char *with)
{
    size_t n = strlen(name), m = strlen(with);
    return n > m && strcmp(name + n - m, with) == 0;
}

/* Add every array of the .npz file `path`, rank 0's file for the first step. */
static bool tensors_add_archive(codec_tensors *t, const codec_input *in, const char *path,
                                char why[INPUT_TEXT])
{
    npy_file file;
    size_t n = 0;
    npz_entry *entry = NULL;
    const char *bad = npy_map(path, &file);
    bad = bad == NULL ? npz_list(file.data, file.size, &entry, &n) : bad;
    npy_unmap(&file);
    if (bad != NULL) {
        snprintf(why, INPUT_TEXT, "%.300s: %s", path, bad);
        return false;
    }
    bool good = true;
    for (size_t i = 0; i < n && good; i++) {
        codec_input one = *in;
        snprintf(one.member, sizeof one.member, "%s", entry[i].name);
        snprintf(one.text, sizeof one.text, "%.240s: %.255s", in->pattern, entry[i].name);
        good = tensors_add(t, &one, why);
    }
    free(entry);
    return good;
}

static int tensors_wanted(const struct dirent *e)
{
    return tensors_ends(e->d_name, ".npy") || tensors_ends(e->d_name, ".npz");
}

static bool tensors_add_input(codec_tensors *t, const codec_input *in, char why[INPUT_TEXT]);

/* Add every .npy and .npz file of a folder, sorted by name. */
static bool tensors_add_folder(codec_tensors *t, const codec_input *in, const char *path,
                               char why[INPUT_TEXT])
{
    struct dirent **entry = NULL;
    int n = scandir(path, &entry, tensors_wanted, alphasort);
    bool good = n > 0;
    if (!good) {
        snprintf(why, INPUT_TEXT, "%.300s: %s", path,
                 n < 0 ? strerror(errno) : "this folder has no .npy or .npz file");
    }
    for (int i = 0; i < n; i++) {
        codec_input one = *in;
        const char *slash = tensors_ends(in->pattern, "/") ? "" : "/";
        int length = snprintf(one.pattern, sizeof one.pattern, "%.511s%s%s", in->pattern, slash,
                              entry[i]->d_name);
        snprintf(one.text, sizeof one.text, "%.511s", one.pattern);
        if (good && (size_t)length >= INPUT_TEXT) {
            snprintf(why, INPUT_TEXT, "%.300s: it has a file whose name is too long", path);
            good = false;
        }
        good = good && tensors_add_input(t, &one, why);
        free(entry[i]);
    }
    free(entry);
    return good;
}

/* Add the tensors of one input. Return false, with a sentence in why, if they cannot be listed. If
 * there are files for each rank and step, rank 0's first file determines the arrays. */
static bool tensors_add_input(codec_tensors *t, const codec_input *in, char why[INPUT_TEXT])
{
    char path[INPUT_PATH];
    struct stat about;
    if (in->kind != INPUT_FILE) {
        return tensors_add(t, in, why);
    }
    input_path(in, 0, 0, path);
    if (stat(path, &about) != 0) { /* report a missing file now, not when its turn comes */
        snprintf(why, INPUT_TEXT, "%.300s: %s", path, strerror(errno));
        return false;
    }
    if (S_ISDIR(about.st_mode)) {
        return tensors_add_folder(t, in, path, why);
    }
    return tensors_ends(path, ".npz") ? tensors_add_archive(t, in, path, why)
                                      : tensors_add(t, in, why);
}

#endif
