/* tree_nodes.h - parents and children: a binomial tree, and two binary trees that share the work.
 *
 * Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", Parallel Computing 35 (2009): a rank that is an inner node of one binary tree is a leaf of
 * the other.
 *
 * Where ranks form groups (groups.h), a tree is made level by level: one over the hosts, one over
 * the packages of each host, and so on down to the ranks. The rank on top of a group's tree stands
 * for the group in the tree above. So the ranks of a group are one part of the tree, and one edge
 * leads into it. The `units` of a level are the groups of the next level; of the last level, ranks.
 */
#ifndef DCOMMI_ALGO_TREE_NODES_H
#define DCOMMI_ALGO_TREE_NODES_H

#include "parts.h"

#define DCOMMI_TREE_CHILDREN 32

/* A rank's place in a tree. */
typedef struct dcommi_node {
    int parent; /* -1: root */
    int nchildren;
    int child[DCOMMI_TREE_CHILDREN];
} dcommi_node;

/* Return the node of a unit in the binomial tree over units 0 .. n-1 from `root`. Number the units
 * from the root on: the parent's number is this one's without its lowest set bit. The children come
 * in the order of growing distance. */
static dcommi_node dcommi_tree_binomial(int n, int root, int unit)
{
    dcommi_node node = {.parent = -1};
    int v = (unit - root + n) % n;
    for (int64_t bit = 1; bit < n; bit *= 2) {
        if (v & bit) {
            node.parent = (int)((v - bit + root) % n);
            break;
        }
        if (v + bit < n) {
            node.child[node.nchildren++] = (int)((v + bit + root) % n);
        }
    }
    return node;
}

/* Return a node of one of the two binary trees over positions 0 .. n-1. The first is the in-order
 * tree of x = 1 .. n: x stands as high as its lowest set bit, so odd x are leaves. The second is
 * the mirror image for even n and a shift by one for odd n, so that its leaves are inner nodes of
 * the first. Unit (position + shift) mod `units` stands at a position; the root's parent is
 * `above`. */
static dcommi_node dcommi_tree_binary(int64_t n, int which, int64_t position, int64_t shift,
                                      int64_t units, int above)
{
    dcommi_node node = {.parent = above};
    int64_t x = position + 1;
    if (which == 1) {
        x = n % 2 == 0 ? n - position : (position + 1) % n + 1;
    }
    int64_t relatives[3] = {0, 0, 0};
    int64_t low = x & -x;
    relatives[0] = ((x ^ low) | (2 * low)) <= n ? (x ^ low) | (2 * low) : x ^ low;
    if (low > 1) {
        relatives[1] = x - low / 2;
        int64_t reach = low / 2;
        while (reach >= 1 && x + reach > n) {
            reach /= 2;
        }
        relatives[2] = reach >= 1 ? x + reach : 0;
    }
    for (int i = 0; i < 3; i++) {
        if (relatives[i] == 0) {
            continue;
        }
        int64_t at = relatives[i] - 1;
        if (which == 1) {
            at = n % 2 == 0 ? n - relatives[i] : (relatives[i] - 2 + n) % n;
        }
        int unit = (int)((at + shift) % units);
        if (i == 0) {
            node.parent = unit;
        } else {
            node.child[node.nchildren++] = unit;
        }
    }
    return node;
}

/* Return the node of a unit in the same trees over all units but `root`, which stands above both.
 */
static dcommi_node dcommi_tree_rooted(int64_t n, int which, int root, int64_t unit)
{
    int64_t v = (unit - root + n) % n;
    if (v > 0) {
        return dcommi_tree_binary(n - 1, which, v - 1, root + 1, n, root);
    }
    dcommi_node top = {.parent = -1};
    for (int64_t position = 0; position < n - 1; position++) {
        dcommi_node node = dcommi_tree_binary(n - 1, which, position, root + 1, n, root);
        if (node.parent == root) {
            top.child[top.nchildren++] = (int)((position + root + 1) % n);
        }
    }
    return top;
}

/* ---- levels ---- */

enum dcommi_tree_kind { DCOMMI_TREE_FIRST = 0, DCOMMI_TREE_SECOND = 1, DCOMMI_TREE_BINOMIAL = 2 };

/* The ranks at positions first .. end-1 of the order: a group of level-1, whose units are the
 * groups of `level`. */
typedef struct dcommi_tree_span {
    int first, end, level;
} dcommi_tree_span;

static bool dcommi_tree_same_unit(const dcommi_shape *s, int level, int64_t a, int64_t b)
{
    const dcommi_groups *g = s->groups;
    return a == b ||
           (g != NULL && level < g->nlevels &&
            dcommi_group_of(g, level, g->order[a]) == dcommi_group_of(g, level, g->order[b]));
}

/* Count the units of a span up to position `until`. */
static int dcommi_tree_units(const dcommi_shape *s, const dcommi_tree_span *span, int until)
{
    int units = 0;
    for (int i = span->first; i < until; i++) {
        units += i == span->first || !dcommi_tree_same_unit(s, span->level, i - 1, i);
    }
    return units;
}

static dcommi_tree_span dcommi_tree_unit(const dcommi_shape *s, const dcommi_tree_span *span,
                                         int unit)
{
    dcommi_tree_span part = {span->first, span->first, span->level + 1};
    for (; unit >= 0; unit--) {
        part.first = part.end++;
        while (part.end < span->end &&
               dcommi_tree_same_unit(s, span->level, part.first, part.end)) {
            part.end++;
        }
    }
    return part;
}

/* Return the node of a unit in the tree over the units of a span. root: the position of the rank
 * that must be on top; -1, or a position outside the span: any may be. */
static dcommi_node dcommi_tree_local(const dcommi_shape *s, enum dcommi_tree_kind kind,
                                     const dcommi_tree_span *span, int root, int unit)
{
    int n = dcommi_tree_units(s, span, span->end);
    bool inside = root >= span->first && root < span->end;
    int top = inside ? dcommi_tree_units(s, span, root + 1) - 1 : 0;
    if (kind == DCOMMI_TREE_BINOMIAL) {
        return dcommi_tree_binomial(n, top, unit);
    }
    return inside ? dcommi_tree_rooted(n, (int)kind, top, unit)
                  : dcommi_tree_binary(n, (int)kind, unit, 0, n, -1);
}

/* Return the position that stands on top of the tree of a span. */
static int dcommi_tree_top(const dcommi_shape *s, enum dcommi_tree_kind kind, dcommi_tree_span span,
                           int root)
{
    while (span.end - span.first > 1) {
        int unit = 0, n = dcommi_tree_units(s, &span, span.end);
        if (root >= span.first && root < span.end) {
            return root;
        }
        while (kind != DCOMMI_TREE_BINOMIAL &&
               dcommi_tree_binary(n, (int)kind, unit, 0, n, -1).parent >= 0) {
            unit++;
        }
        span = dcommi_tree_unit(s, &span, unit);
    }
    return span.first;
}

/* Return this rank's place in the tree over all ranks. root: the rank on top; -1: any. */
static dcommi_node dcommi_tree_node(const dcommi_shape *s, enum dcommi_tree_kind kind, int root)
{
    dcommi_node all = {.parent = -1};
    dcommi_tree_span span = {0, s->nranks, 0};
    int position = (int)dcommi_order_position(s, s->rank);
    root = root >= 0 ? (int)dcommi_order_position(s, root) : -1;
    while (span.end - span.first > 1) {
        int unit = dcommi_tree_units(s, &span, position + 1) - 1;
        dcommi_tree_span part = dcommi_tree_unit(s, &span, unit);
        if (dcommi_tree_top(s, kind, part, root) == position) { /* stands for its unit */
            dcommi_node node = dcommi_tree_local(s, kind, &span, root, unit);
            memmove(all.child + node.nchildren, all.child, (size_t)all.nchildren * sizeof(int));
            all.nchildren += node.nchildren; /* the nearest come first */
            for (int i = -1; i < node.nchildren; i++) {
                int relative = i < 0 ? node.parent : node.child[i];
                if (relative >= 0) {
                    dcommi_tree_span other = dcommi_tree_unit(s, &span, relative);
                    int top = dcommi_tree_top(s, kind, other, root);
                    *(i < 0 ? &all.parent : &all.child[i]) = (int)dcommi_order_rank(s, top);
                }
            }
        }
        span = part;
    }
    return all;
}

#endif
