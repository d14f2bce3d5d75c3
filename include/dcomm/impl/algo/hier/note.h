/* note.h - tell the user which groups the hierarchical algorithms cannot use, and why. */
#ifndef DCOMMI_ALGO_HIER_NOTE_H
#define DCOMMI_ALGO_HIER_NOTE_H

#include "hier.h"

/* Write the note for ranks that no level divides; else the empty text. */
static void dcommi_hier_note_flat(const dcommi_shape *s, char *text, size_t len)
{
    bool between_hosts = s->groups == NULL || s->groups->count[0] > 1;
    text[0] = 0;
    if (dcommi_hier_level(s->groups, s->nranks) < 0 && s->nranks > 1) {
        snprintf(text, len, "no level divides the ranks: it is %s",
                 dcommi_hier_plain(s, !between_hosts, dcommi_hier_bytes(s)).name);
    }
}

/* Return the level at which a group has parts but is not divided, because they are uneven; -1: the
 * group is divided or has no parts. */
static int dcommi_hier_uneven(const dcommi_hier *h, int group)
{
    const dcommi_groups *g = h->s->groups;
    dcommi_hier_tree t = {.g = g, .first = -1, .least = 2};
    int outer = dcommi_hier_level(g, g->nranks);
    bool whole = h->s->coll == DCOMM_COLL_ALLREDUCE || h->s->coll == DCOMM_COLL_BROADCAST;
    dcommi_hier_node node = {h->begin[group], h->begin[group + 1], outer};
    int size = dcommi_hier_size(h, group), level = -1, which;
    for (int l = outer + 1; l < g->nlevels && g->kind[l] <= DCOMMI_HIER_DEEPEST && level < 0; l++) {
        int n = dcommi_hier_parts_of(&t, node, l, node.begin, &which);
        level = n > 1 && n < size ? l : -1;
    }
    if (level < 0 || (whole && dcommi_hier_split(&t, node, h->smallest) >= 0)) {
        return -1;
    }
    dcommi_groups *inner = dcommi_groups_restrict(g, h->member + h->begin[group], size);
    bool divided = !whole && inner != NULL && dcommi_hier_divides(inner, 2);
    dcommi_groups_free(&inner);
    return divided ? -1 : level;
}

static void dcommi_hier_note(const dcommi_shape *s, char *text, size_t len)
{
    static const char *const names[] = {"host", "package", "NUMA node", "cache", "core"};
    dcommi_hier h;
    bool flat;
    dcommi_hier_note_flat(s, text, len);
    if (text[0] != 0 || dcommi_hier_open(s, NULL, &h, &flat) < 0 || flat) {
        return;
    }
    const char *group = names[s->groups->kind[dcommi_hier_level(s->groups, s->nranks)]];
    for (int k = 0; k < h.ngroups && text[0] == 0; k++) {
        int level = dcommi_hier_uneven(&h, k);
        if (level >= 0) {
            snprintf(text, len, "%s %d is one group: its %ss cannot own equally much", group, k,
                     names[s->groups->kind[level]]);
        }
    }
    bool whole = s->coll == DCOMM_COLL_ALLREDUCE || s->coll == DCOMM_COLL_BROADCAST;
    for (int k = 0; k < h.ngroups && whole && text[0] == 0; k++) {
        if (dcommi_hier_size(&h, k) > h.smallest) {
            snprintf(text, len, "of each %s %d rank%s a part, as the smallest has", group,
                     h.smallest, h.smallest == 1 ? " owns" : "s own");
        }
    }
    dcommi_hier_close(&h);
}

#endif
