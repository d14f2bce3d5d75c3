/* price.h - compute the loads and bytes of a routing, and choose its form. All ranks do so from
 * what all have, so all come to the same answer. */
#ifndef DCOMMI_MOE_PRICE_H
#define DCOMMI_MOE_PRICE_H

#include "tables.h"
#include "../../../../../kernels/root.h"

/* ---- loads ---- */

/* Count the rows of all ranks by expert, and in m->by_place by place. Return their total. */
static size_t dcommi_moe_totals(dcomm_moe *m, uint64_t *by_expert)
{
    size_t total = 0;
    memset(m->by_place, 0, m->opts.experts * sizeof *m->by_place);
    for (int r = 0; r < m->size; r++) {
        for (int c = 0; c < m->opts.chunks; c++) {
            const uint32_t *counts = dcommi_moe_counts(m, dcommi_moe_card_of(m, r), c);
            for (size_t p = 0; p < m->opts.experts; p++) {
                m->by_place[p] += counts[p];
            }
        }
    }
    for (size_t p = 0; p < m->opts.experts; p++) {
        by_expert[m->expert_at[p]] = m->by_place[p];
        total += (size_t)m->by_place[p];
    }
    return total;
}

static void dcommi_moe_weigh(dcomm_moe *m)
{
    dcomm_moe_stats *s = &m->stats;
    size_t total = dcommi_moe_totals(m, m->load);
    double mean = (double)total / (double)m->opts.experts, squares = 0;
    s->rerouted = 0;
    s->heaviest_rank = 0;
    memset(m->rank_rows, 0, (size_t)m->size * sizeof *m->rank_rows);
    for (size_t e = 0; e < m->opts.experts; e++) {
        double off = (double)m->load[e] - mean;
        squares += off * off;
        m->rank_rows[m->owner[e]] += m->load[e];
    }
    for (int r = 0; r < m->size; r++) {
        s->rerouted += dcommi_moe_card_of(m, r)[3];
        s->heaviest_rank = m->rank_rows[r] > m->rank_rows[s->heaviest_rank] ? r : s->heaviest_rank;
    }
    s->dropped = s->asked - total;
    s->drop_rate = s->asked > 0 ? (double)s->dropped / (double)s->asked : 0;
    s->cv = mean > 0 ? dcommi_sqrt(squares / (double)m->opts.experts) / mean : 0;
}

/* ---- bytes ---- */

/* Traffic of one rank in one dispatch, in rows: with all ranks, and with those of other hosts. */
typedef struct dcommi_moe_traffic {
    uint64_t in, out, host_in, host_out;
    uint64_t messages, host_messages;
} dcommi_moe_traffic;

static void dcommi_moe_pass_on(const dcomm_moe *m, dcommi_moe_traffic *t, int from, int to,
                               uint64_t rows)
{
    if (from == to || rows == 0) {
        return;
    }
    bool far = m->host_of[from] != m->host_of[to];
    t[from].out += rows;
    t[to].in += rows;
    t[from].host_out += far ? rows : 0;
    t[to].host_in += far ? rows : 0;
    t[from].messages++;
    t[from].host_messages += far;
}

/* Count the traffic of rows, which go directly or, if `hier`, through the gate of their host. */
static void dcommi_moe_row_traffic(const dcomm_moe *m, bool hier, dcommi_moe_traffic *t)
{
    memset(t, 0, (size_t)m->size * sizeof *t);
    for (int from = 0; from < m->size; from++) {
        for (int to = 0; to < m->size; to++) {
            int host = m->host_of[to], gate = hier ? dcommi_moe_gate(m, from, host) : from;
            for (int c = 0; c < m->opts.chunks; c++) {
                if (hier && gate == to) {
                    uint32_t *card = dcommi_moe_card_of(m, from);
                    dcommi_moe_pass_on(m, t, from, to, dcommi_moe_unique(m, card, c)[host]);
                }
                dcommi_moe_pass_on(m, t, gate, to, dcommi_moe_between(m, from, to, c));
            }
        }
    }
}

/* Count the messages to gates before the rows (dcommi_moe_tell), in pairs of words. */
static void dcommi_moe_tell_traffic(const dcomm_moe *m, dcommi_moe_traffic *t)
{
    memset(t, 0, (size_t)m->size * sizeof *t);
    for (int from = 0; from < m->size; from++) {
        for (int h = 0; h < m->nhosts; h++) {
            int gate = dcommi_moe_gate(m, from, h);
            uint64_t rows = dcommi_moe_told_between(m, from, gate, 0, m->opts.chunks);
            dcommi_moe_pass_on(m, t, from, gate, rows);
        }
    }
}

/* Return the rows that the port of the busiest host sends or gets, whichever is more. */
static uint64_t dcommi_moe_port_rows(const dcomm_moe *m, const dcommi_moe_traffic *t)
{
    uint64_t most = 0;
    for (int h = 0; h < m->nhosts; h++) {
        uint64_t in = 0, out = 0;
        for (int i = m->host_first[h]; i < m->host_first[h + 1]; i++) {
            in += t[m->host_ranks[i]].host_in;
            out += t[m->host_ranks[i]].host_out;
        }
        most = in > most ? in : most;
        most = out > most ? out : most;
    }
    return most;
}

/* ---- prices ---- */

/* Return the kind of link between the ranks of a host: the same on all ranks. */
static int dcommi_moe_near(const dcomm_moe *m, const dcommi_terrain *terrain)
{
    for (int h = 0; h < m->nhosts; h++) {
        if (m->host_first[h + 1] - m->host_first[h] > 1) {
            const int *ranks = m->host_ranks + m->host_first[h];
            int depth = dcommi_terrain_depth(terrain, ranks[0], ranks[1]);
            return dcommi_terrain_kind(terrain, depth);
        }
    }
    return DCOMM_LINK_NEAR;
}

/* Ignore a link's sustained rate if a burst takes less than one part in so many of the time at
 * that rate. Between two exchanges the experts are at work, and the link rests. */
#define DCOMMI_MOE_BURST 10

/* Return the seconds of one exchange with rows of `wire` bytes: of the network for its busiest
 * port or rank, and of memory for the busiest rank. They are added, since the stages of the
 * hierarchical form follow one another. Messages of a stage are under way at once. */
static double dcommi_moe_price(const dcomm_moe *m, const dcommi_moe_traffic *t, int64_t wire)
{
    const dcommi_terrain *terrain = &m->comm->chooser->terrain[DCOMMI_MEMORY_ANY];
    const dcommi_link *far = &terrain->link[DCOMM_LINK_HOST];
    const dcommi_link *near = &terrain->link[dcommi_moe_near(m, terrain)];
    int64_t network = 0, memory = 0;
    int64_t port = (int64_t)dcommi_moe_port_rows(m, t) * wire;
    for (int r = 0; r < m->size; r++) {
        int64_t host_rows = (int64_t)(t[r].host_in > t[r].host_out ? t[r].host_in : t[r].host_out);
        int64_t in = (int64_t)(t[r].in - t[r].host_in), out = (int64_t)(t[r].out - t[r].host_out);
        int64_t far_messages = (int64_t)t[r].host_messages;
        int64_t near_messages = (int64_t)t[r].messages - far_messages;
        int64_t far_start = (far_messages > 0 ? far->alpha : 0) + 2 * far_messages * far->overhead;
        int64_t near_start =
            (near_messages > 0 ? near->alpha : 0) + 2 * near_messages * near->overhead;
        network =
            dcommi_max64(network, far_start + dcommi_curve_at(&far->message, host_rows * wire));
        memory = dcommi_max64(
            memory, near_start + dcommi_curve_at(&near->message, dcommi_max64(in, out) * wire) +
                        dcommi_curve_at(&terrain->copy, (in + out) * wire));
    }
    int64_t at_once = dcommi_curve_at(&far->shared, port);
    int64_t in_a_row = dcommi_curve_at(&far->sustained, port);
    network = dcommi_max64(network, at_once);
    if (at_once > in_a_row / DCOMMI_MOE_BURST) {
        network = dcommi_max64(network, in_a_row);
    }
    return (double)(network + memory) * 1e-12;
}

/* Prices are no more exact than this, so a smaller gain does not count. */
#define DCOMMI_MOE_MARGIN 0.9

static void dcommi_moe_choose(dcomm_moe *m)
{
    dcomm_moe_stats *s = &m->stats;
    dcommi_moe_traffic *t = m->traffic;
    s->flat_s = s->hier_s = 0;
    m->hier = m->opts.form == DCOMM_MOE_HIER;
    if (m->host[0] != NULL) {
        dcommi_comm_lock(m->comm); /* another thread may tune the communicator */
        dcommi_moe_tell_traffic(m, t);
        s->hier_s = dcommi_moe_price(m, t, 2 * sizeof *m->told); /* all of it counts: nothing hides
                                                                  * it */
        dcommi_moe_row_traffic(m, true, t);
        s->hier_s += dcommi_moe_price(m, t, (int64_t)m->wire);
        dcommi_moe_row_traffic(m, false, t);
        s->flat_s = dcommi_moe_price(m, t, (int64_t)m->wire);
        dcommi_comm_unlock(m->comm);
        m->hier = m->hier ||
                  (m->opts.form == DCOMM_MOE_AUTO && s->hier_s < DCOMMI_MOE_MARGIN * s->flat_s);
    }
    dcommi_moe_row_traffic(m, m->hier, t);
    s->hier = m->hier;
    s->network_bytes = dcommi_moe_port_rows(m, t) * m->wire;
    for (int r = 0; r < m->size; r++) {
        m->rank_bytes[r] = (t[r].in > t[r].out ? t[r].in : t[r].out) * m->wire;
    }
}

#endif
