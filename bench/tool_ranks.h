/* tool_ranks.h - shared by the tools that run as ranks: names of algorithms, and decisions of rank
 * 0. */
#ifndef TOOL_RANKS_H
#define TOOL_RANKS_H

#include "busy.h"
#include "tool.h"

enum { TOOL_ALGOS = 64 };

static inline int tool_add_word(const char **words, int n, const char *word)
{
    int known = 0;
    while (known < n && strcmp(words[known], word) != 0) {
        known++;
    }
    if (known == n && n < TOOL_ALGOS) {
        words[n++] = word;
    }
    return n;
}

/* Return true if each name of a comma list is an algorithm of the operation, or one of the `nmore`
 * words in `more`. With `coded`, algorithms that compress count, too, with or without their prefix
 * "coded_". */
static inline bool tool_algos(const char *list, dcomm_coll coll, bool coded,
                              const char *const *more, int nmore)
{
    const char *words[TOOL_ALGOS];
    int n = 0;
    dcomm_algo_info info;
    for (int i = 0; dcomm_algo_get_info(coll, i, &info) == DCOMM_OK; i++) {
        n = tool_add_word(words, n, info.name);
    }
    for (int i = 0; coded && dcomm_coded_algo_get_info(coll, i, &info) == DCOMM_OK; i++) {
        n = tool_add_word(words, n, info.name + strlen("coded_"));
        n = tool_add_word(words, n, info.name);
    }
    for (int i = 0; i < nmore; i++) {
        n = tool_add_word(words, n, more[i]);
    }
    return numbers_words(list, words, n, NULL);
}

/* Return true if spec is valid, or NULL. */
static inline bool tool_codec(const char *spec)
{
    dcomm_codec *codec = NULL;
    bool good = spec == NULL || dcomm_codec_create(spec, &codec) == DCOMM_OK;
    dcomm_codec_destroy(&codec);
    return good;
}

/* Return the number of ranks on this rank's host. */
static inline int tool_ranks_here(dcomm_comm *comm)
{
    int ours = 0, mine = dcomm_comm_host(comm, dcomm_comm_rank(comm));
    for (int r = 0; r < dcomm_comm_size(comm); r++) {
        ours += dcomm_comm_host(comm, r) == mine;
    }
    return ours;
}

/* Replace n times by those of the slowest rank. */
static inline dcomm_status tool_slowest(dcomm_comm *comm, double *seconds, size_t n)
{
    return dcomm_allreduce(comm, seconds, seconds, n, DCOMM_F64, DCOMM_MAX, NULL);
}

/* Return rank 0's result on all ranks. If it is bad, the other ranks wait while rank 0 prints an
 * error, because a launcher ends all ranks when one ends. */
static inline int tool_agree(dcomm_comm *comm, int result)
{
    int32_t said = result;
    if (dcomm_broadcast(comm, &said, &said, 1, DCOMM_I32, 0, NULL) < 0) {
        return TOOL_COMM;
    }
    if (said != TOOL_GOOD && dcomm_comm_rank(comm) != 0) {
        sleep(1);
    }
    return said;
}

#endif
