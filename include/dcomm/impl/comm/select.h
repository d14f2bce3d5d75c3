/* select.h - find the algorithm for a call. It reads only what all ranks share. */
#ifndef DCOMMI_SELECT_H
#define DCOMMI_SELECT_H

#include "choose.h"

/* List the names of an operation's algorithms, or only of those that fold in rank order. */
static void dcommi_algo_names(const dcommi_shape *s, bool rank_order, char *text, size_t len)
{
    size_t at = 0;
    text[0] = 0;
    int n;
    const dcommi_algo *table = dcommi_algos(s->coding != NULL, &n);
    for (int i = 0; i < n && at + 1 < len; i++) {
        const dcommi_algo *algo = &table[i];
        if (algo->coll == s->coll && (algo->rank_order || !rank_order)) {
            at += (size_t)snprintf(text + at, len - at, "%s%s", at > 0 ? ", " : "", algo->name);
        }
    }
}

/* Pick the algorithm by its name or, without one, by choice. `soft`: the name is the
 * communicator's, for all operations, so an operation without such an algorithm ignores it.
 * chooser NULL: there is no communicator. */
static dcomm_status dcommi_algo_pick(const dcommi_shape *s, const char *name, bool soft,
                                     dcommi_chooser *chooser, const dcommi_algo **algo_p)
{
    char names[256];
    bool chosen = name == NULL || name[0] == 0 || strcmp(name, "auto") == 0;
    const dcommi_algo *algo = NULL;
    if (!chosen && s->coding == NULL) {
        algo = dcommi_algo_find(s->coll, name);
    } else if (!chosen && !soft) {
        algo = dcommi_coded_find(s->coll, name);
    }
    if (algo == NULL && !chosen && !soft) {
        bool coded = s->coding == NULL && dcommi_coded_find(s->coll, name) != NULL;
        dcommi_algo_names(s, false, names, sizeof names);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s%s has no algorithm \"%s\"%s; it has %s",
                           s->coding != NULL ? "compressed " : "", dcomm_coll_name(s->coll), name,
                           coded ? " without a codec" : "", names);
    }
    if (algo == NULL) {
        DCOMMI_TRY(chooser != NULL ? dcommi_choose(chooser, s, &algo)
                                   : dcommi_choose_alone(s, &algo));
    }
    if (s->coding != NULL && s->coding->parts > 0 && s->rank_order &&
        (algo == NULL || algo->make == dcommi_coded_linear)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "codec %.64s cannot fold in rank order, which deterministic and "
                           "accumulate ask for: its encodings are summed by an exact all-reduce "
                           "(coded_linear), in that one's order; leave these options out, or take "
                           "a codec that decodes each rank's encoding, such as topk or qsgd",
                           s->coding->spec);
    }
    if (algo == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "there is no algorithm for %s",
                           dcomm_coll_name(s->coll));
    }
    if (s->rank_order && s->nranks > 1 && !algo->rank_order) {
        dcommi_algo_names(s, true, names, sizeof names);
        return dcommi_fail(
            DCOMM_ERR_UNSUPPORTED,
            "algorithm %s cannot fold in rank order, which deterministic, accumulate and ordered "
            "operators ask for; %s can",
            algo->name, names);
    }
    *algo_p = algo;
    return DCOMM_OK;
}

#endif
