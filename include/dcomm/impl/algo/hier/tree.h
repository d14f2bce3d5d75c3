/* tree.h - the groups of all levels as a tree: the rank that owns each shard in a group, and the
 * ranks that a rank works with at each level. A group is a range of the order of groups.h.
 *
 * The tiers of a rank: in tier 0 it works with the ranks of its lowest group. In tier 1 it works
 * with the owners of the same shard in the other parts of the group above, and so on. In the last
 * tier it works across the coarsest groups. A group whose parts cannot own equally many of its
 * shards is not divided. */
#ifndef DCOMMI_ALGO_HIER_TREE_H
#define DCOMMI_ALGO_HIER_TREE_H

#include "parts.h"

#define DCOMMI_HIER_TIERS (DCOMMI_LEVELS_MAX + 1)

/* A group: ranks order[begin .. end) of level `level`; -1: all ranks. */
typedef struct dcommi_hier_node {
    int begin, end, level;
} dcommi_hier_node;

typedef struct dcommi_hier_tier {
    dcommi_hier_node node; /* the group whose parts work together in this tier */
    int level;             /* of the parts; -1: the parts are ranks */
    int n, place;          /* number of parts; this rank's part */
    int shares;            /* parts that get a share, the first ones; 1: the first part gets all */
    int below;             /* owners in each part */
    int owner;             /* this rank's number among the owners of its part; -1: it is none */
    bool near;             /* the parts can read each other's memory */
    bool home;             /* the group has the rank that comes first */
} dcommi_hier_tier;

typedef struct dcommi_hier_tree {
    const dcommi_groups *g;
    int first;  /* position of the rank that comes first in all its groups; -1: none */
    int least;  /* a group of fewer ranks is not divided */
    int ntiers; /* at least 2 */
    dcommi_hier_tier tier[DCOMMI_HIER_TIERS];
} dcommi_hier_tree;

static bool dcommi_hier_holds(dcommi_hier_node v, int position)
{
    return v.begin <= position && position < v.end;
}

/* Return the part of a group that begins at a position. */
static dcommi_hier_node dcommi_hier_part_at(const dcommi_hier_tree *t, dcommi_hier_node v,
                                            int level, int begin)
{
    dcommi_hier_node part = {begin, begin + 1, level};
    int32_t group = dcommi_group_of(t->g, level, t->g->order[begin]);
    while (part.end < v.end && dcommi_group_of(t->g, level, t->g->order[part.end]) == group) {
        part.end++;
    }
    return part;
}

/* Return the number of parts of a group at a level; *which: the part with `position`. */
static int dcommi_hier_parts_of(const dcommi_hier_tree *t, dcommi_hier_node v, int level,
                                int position, int *which)
{
    int n = 0;
    *which = 0;
    for (int at = v.begin; at < v.end; n++) {
        dcommi_hier_node part = dcommi_hier_part_at(t, v, level, at);
        *which = dcommi_hier_holds(part, position) ? n : *which;
        at = part.end;
    }
    return n;
}

/* Return part `place` of a group, counted from the part that comes first. */
static dcommi_hier_node dcommi_hier_part_of(const dcommi_hier_tree *t, dcommi_hier_node v,
                                            int level, int place)
{
    int first, n = dcommi_hier_parts_of(t, v, level, t->first, &first);
    dcommi_hier_node part = dcommi_hier_part_at(t, v, level, v.begin);
    for (int i = (place + first) % n; i > 0; i--) {
        part = dcommi_hier_part_at(t, v, level, part.end);
    }
    return part;
}

/* Return the position of rank `place` of a group, counted from the rank that comes first. */
static int dcommi_hier_member(const dcommi_hier_tree *t, dcommi_hier_node v, int place)
{
    int first = dcommi_hier_holds(v, t->first) ? t->first - v.begin : 0;
    return v.begin + (place + first) % (v.end - v.begin);
}

/* Return the level at which a group with so many shards is divided; -1: it is not divided. */
static int dcommi_hier_split(const dcommi_hier_tree *t, dcommi_hier_node v, int shards)
{
    const dcommi_groups *g = t->g;
    int size = v.end - v.begin, which;
    if (v.level < 0) {
        return dcommi_hier_level(g, g->nranks);
    }
    for (int l = v.level + 1; l < g->nlevels && g->kind[l] <= DCOMMI_HIER_DEEPEST; l++) {
        int n = dcommi_hier_parts_of(t, v, l, v.begin, &which);
        bool fits = size >= t->least && n < size && shards % (shards > 1 ? n : 1) == 0;
        if (n == 1) {
            continue;
        }
        for (int at = v.begin; at < v.end && fits && shards > 1;) {
            dcommi_hier_node part = dcommi_hier_part_at(t, v, l, at);
            fits =
                part.end - part.begin >= shards / n || dcommi_hier_split(t, part, shards / n) >= 0;
            at = part.end;
        }
        if (fits) {
            return l;
        }
    }
    return -1;
}

/* Return the rank of owner number `owner` of a group's shards. */
static int dcommi_hier_owner(const dcommi_hier_tree *t, dcommi_hier_node v, int shards, int owner)
{
    for (int level; (level = dcommi_hier_split(t, v, shards)) >= 0;) {
        int which, n = dcommi_hier_parts_of(t, v, level, v.begin, &which);
        int shares = shards > 1 ? n : 1;
        v = dcommi_hier_part_of(t, v, level, owner % shares);
        shards /= shares;
        owner /= shares;
    }
    return t->g->order[dcommi_hier_member(t, v, owner)];
}

/* Make the tiers of a rank. shards: at most the ranks of the smallest of the coarsest groups.
 * first: the rank that comes first in all its groups, or -1. least: a group of fewer ranks is not
 * divided. */
static void dcommi_hier_tree_make(const dcommi_groups *g, int rank, int shards, int first,
                                  int least, dcommi_hier_tree *t)
{
    dcommi_hier_node v = {0, g->nranks, -1};
    dcommi_hier_tier path[DCOMMI_HIER_TIERS]; /* from the last one on */
    int at = 0, n = 0, owner = 0;
    memset(t, 0, sizeof *t);
    t->g = g;
    t->first = -1;
    t->least = least;
    for (int i = 0; i < g->nranks; i++) {
        at = g->order[i] == rank ? i : at;
        t->first = g->order[i] == first ? i : t->first;
    }
    for (bool leaf = false; !leaf; n++) {
        dcommi_hier_tier *tier = &path[n];
        int home = 0, level = dcommi_hier_split(t, v, shards);
        memset(tier, 0, sizeof *tier);
        tier->node = v;
        tier->level = level;
        tier->home = dcommi_hier_holds(v, t->first);
        leaf = level < 0;
        if (leaf) {
            tier->n = v.end - v.begin;
            tier->place = at - v.begin;
            home = tier->home ? t->first - v.begin : 0;
            tier->shares = shards;
            tier->below = 1;
            tier->near = true;
        } else {
            tier->n = dcommi_hier_parts_of(t, v, level, at, &tier->place);
            dcommi_hier_parts_of(t, v, level, t->first, &home);
            tier->shares = n > 0 && shards > 1 ? tier->n : 1; /* the last tier divides no shards */
            tier->below = shards / tier->shares;
            tier->near = g->kind[level] != DCOMMI_LEVEL_HOST;
        }
        tier->place = (tier->place - home + tier->n) % tier->n;
        shards = leaf ? shards : tier->below;
        if (!leaf) {
            v = dcommi_hier_part_of(t, v, level, tier->place);
        }
    }
    t->ntiers = n;
    for (int i = 0; i < n; i++) {
        dcommi_hier_tier *tier = &t->tier[i];
        *tier = path[n - 1 - i];
        tier->owner = owner;
        owner = owner >= 0 && tier->place < tier->shares ? owner * tier->shares + tier->place : -1;
    }
}

/* Put the ranks that work with this one in a tier into the table, in the order of places. Return
 * the first index. */
static int64_t dcommi_hier_tier_table(const dcommi_hier_tree *t, const dcommi_hier_tier *tier,
                                      dcomm_builder *b)
{
    int64_t first = (int64_t)b->ntable;
    dcommi_hier_node v = tier->node, part = v;
    for (int i = 0; i < tier->n; i++) {
        int64_t rank;
        if (tier->level < 0) {
            rank = t->g->order[dcommi_hier_member(t, v, i)];
        } else {
            part = i == 0 ? dcommi_hier_part_of(t, v, tier->level, 0)
                          : dcommi_hier_part_at(t, v, tier->level,
                                                part.end < v.end ? part.end : v.begin);
            rank = dcommi_hier_owner(t, part, tier->below, tier->owner);
        }
        dcomm_build_table(b, &rank, 1);
    }
    return first;
}

#endif
