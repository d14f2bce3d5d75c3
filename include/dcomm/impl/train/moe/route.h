/* route.h - a step's routing: check experts, apply the capacity, exchange counts. */
#ifndef DCOMMI_MOE_ROUTE_H
#define DCOMMI_MOE_ROUTE_H

#include "agree.h"
#include "price.h"

/* ---- this rank's own ---- */

static dcomm_status dcommi_moe_take(dcomm_moe *m, size_t tokens, const int32_t *experts,
                                    const float *weights)
{
    size_t k = (size_t)m->opts.k, n = tokens * k;
    m->tokens = 0;
    if (tokens > UINT32_MAX / k / 2) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_moe_route: tokens is %zu, too many for k of %zu", tokens, k);
    }
    if (experts == NULL && tokens > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_moe_route: experts is NULL for %zu tokens",
                           tokens);
    }
    DCOMMI_TRY(dcommi_moe_on_host(m, "dcomm_moe_route", "experts", experts));
    DCOMMI_TRY(dcommi_moe_on_host(m, "dcomm_moe_route", "weights", weights));
    DCOMMI_TRY(dcommi_grow((void **)&m->slots, &m->slots_room, n, sizeof *m->slots));
    DCOMMI_TRY(dcommi_grow((void **)&m->weights, &m->weights_room, n, sizeof *m->weights));
    for (size_t i = 0; i < n; i++) {
        if (experts[i] < -1 || (experts[i] >= 0 && (size_t)experts[i] >= m->opts.experts)) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_moe_route: token %zu of rank %d goes to expert %d; there are "
                               "%zu",
                               i / k, m->rank, experts[i], m->opts.experts);
        }
        m->slots[i] = experts[i] < 0 ? -1 : (int32_t)m->place[experts[i]];
        m->weights[i] = weights != NULL ? weights[i] : 1;
    }
    m->tokens = tokens;
    return DCOMM_OK;
}

/* Count on this rank's card the rows that its slots ask for. */
static void dcommi_moe_tally(dcomm_moe *m)
{
    size_t k = (size_t)m->opts.k;
    memset(m->card + DCOMMI_MOE_HEAD, 0, (m->card_len - DCOMMI_MOE_HEAD) * sizeof *m->card);
    memset(m->seen, 0xff, (size_t)m->nhosts * sizeof *m->seen);
    for (int c = 0; c < m->opts.chunks; c++) {
        m->chunk_first[c] = m->tokens * (size_t)c / (size_t)m->opts.chunks;
        m->chunk_first[c + 1] = m->tokens * ((size_t)c + 1) / (size_t)m->opts.chunks;
        uint32_t *counts = dcommi_moe_counts(m, m->card, c);
        uint32_t *unique = dcommi_moe_unique(m, m->card, c);
        for (size_t i = m->chunk_first[c] * k; i < m->chunk_first[c + 1] * k; i++) {
            if (m->slots[i] >= 0) {
                int host = m->host_of[m->owner[m->expert_at[m->slots[i]]]];
                counts[m->slots[i]]++;
                unique[host] += m->seen[host] != (uint32_t)(i / k);
                m->seen[host] = (uint32_t)(i / k);
            }
        }
    }
}

/* ---- exchange ---- */

static dcomm_status dcommi_moe_exchange(dcomm_moe *m, dcomm_status status)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcomm_coll_opts opts = {.timeout_s = m->opts.timeout_s};
    m->card[0] = (uint32_t)status;
    memcpy(m->card + 1, &m->expert_s, sizeof m->expert_s);
    dcomm_status sent = dcomm_allgather(m->comm, m->card, m->cards, m->card_len, DCOMM_U32, &opts);
    if (sent < 0) {
        return dcommi_moe_fail(m, sent);
    }
    for (int r = 0; r < m->size; r++) {
        if ((int32_t)dcommi_moe_card_of(m, r)[0] < 0) {
            memcpy(dcommi_message, why, sizeof why);
            return dcommi_all_good(m->comm, status, m->opts.timeout_s);
        }
    }
    return DCOMM_OK;
}

/* ---- capacity ---- */

/* Mark this rank's slots that find no room. An expert takes the first that come, by rank and
 * token. */
static void dcommi_moe_admit(dcomm_moe *m, size_t capacity)
{
    size_t *left = m->cursor; /* room that the ranks before leave */
    for (size_t p = 0; p < m->opts.experts; p++) {
        size_t before = 0;
        for (int r = 0; r < m->rank; r++) {
            for (int c = 0; c < m->opts.chunks; c++) {
                before += dcommi_moe_count(m, r, c, p);
            }
        }
        left[p] = before < capacity ? capacity - before : 0;
    }
    for (size_t i = 0; i < m->tokens * (size_t)m->opts.k; i++) {
        int32_t p = m->slots[i];
        if (p >= 0 && left[p]-- == 0) {
            left[p] = 0;
            m->slots[i] = -2 - p; /* beyond capacity */
            m->stats.own_dropped++;
        }
    }
}

/* Share out the free seats, expert by expert, to the slots that found no room, rank by rank.
 * left[place] becomes this rank's share. */
static void dcommi_moe_seats(const dcomm_moe *m, size_t capacity, size_t *left)
{
    size_t over_before = 0, over_own = 0, free_before = 0;
    for (size_t p = 0; p < m->opts.experts; p++) {
        size_t at = 0;
        for (int r = 0; r <= m->rank; r++) {
            size_t asked = 0;
            for (int c = 0; c < m->opts.chunks; c++) {
                asked += dcommi_moe_count(m, r, c, p);
            }
            size_t fits = at < capacity ? capacity - at : 0;
            size_t over = asked > fits ? asked - fits : 0;
            over_before += r < m->rank ? over : 0;
            over_own += r == m->rank ? over : 0;
            at += asked;
        }
    }
    for (size_t p = 0; p < m->opts.experts; p++) {
        size_t load = (size_t)m->by_place[p] < capacity ? (size_t)m->by_place[p] : capacity;
        size_t seats = capacity - load;
        size_t begin = over_before > free_before ? over_before : free_before;
        size_t end = over_before + over_own < free_before + seats ? over_before + over_own
                                                                  : free_before + seats;
        left[p] = end > begin ? end - begin : 0;
        free_before += seats;
    }
}

static bool dcommi_moe_has(const dcomm_moe *m, size_t token, int32_t place)
{
    for (int j = 0; j < m->opts.k; j++) {
        if (m->slots[token * (size_t)m->opts.k + (size_t)j] == place) {
            return true;
        }
    }
    return false;
}

/* Give slots without room a seat of this rank's share, where most of these are left. */
static void dcommi_moe_reseat(dcomm_moe *m, size_t capacity)
{
    size_t *left = m->cursor, k = (size_t)m->opts.k;
    dcommi_moe_seats(m, capacity, left);
    for (size_t i = 0; i < m->tokens * k; i++) {
        int32_t best = -1;
        for (size_t p = 0; p < m->opts.experts && m->slots[i] < -1; p++) {
            bool better = left[p] > 0 && (best < 0 || left[p] > left[best]);
            best = better && !dcommi_moe_has(m, i / k, (int32_t)p) ? (int32_t)p : best;
        }
        if (best >= 0) {
            left[best]--;
            m->slots[i] = best;
            m->stats.own_dropped--;
            m->stats.own_rerouted++;
        }
    }
}

static dcomm_status dcommi_moe_limit(dcomm_moe *m)
{
    double share = (double)m->stats.asked / (double)m->opts.experts * m->opts.capacity;
    size_t capacity = (size_t)share;
    capacity += (double)capacity < share;
    m->stats.capacity = capacity;
    dcommi_moe_admit(m, capacity);
    if (m->opts.policy == DCOMM_MOE_REROUTE) {
        dcommi_moe_reseat(m, capacity);
    }
    dcommi_moe_tally(m);
    m->card[3] = (uint32_t)m->stats.own_rerouted;
    return dcommi_moe_exchange(m, DCOMM_OK);
}

/* ---- all of it ---- */

/* Tell gates which of the rows that they get are for which experts, and with what weights. */
static dcomm_status dcommi_moe_tell(dcomm_moe *m)
{
    size_t n = (size_t)m->size, sent = 0, received = 0;
    size_t *send = m->scaled, *send_at = send + n, *recv = send + 2 * n, *recv_at = send + 3 * n;
    size_t *all = send + 4 * n;
    for (int from = 0; from < m->size; from++) {
        for (int to = 0; to < m->size; to++) {
            all[from * m->size + to] = 2 * dcommi_moe_told_between(m, from, to, 0, m->opts.chunks);
        }
    }
    dcommi_moe_own_counts(all, m->size, m->rank, send, recv);
    for (int r = 0; r < m->size; r++) {
        send_at[r] = sent;
        recv_at[r] = received;
        sent += send[r];
        received += recv[r];
    }
    DCOMMI_TRY(dcommi_grow((void **)&m->heard, &m->heard_room, received, sizeof *m->heard));
    dcomm_coll_opts opts = {.timeout_s = m->opts.timeout_s, .matrix = all};
    return dcomm_alltoallv(m->comm, m->told, send, send_at, m->heard, recv, recv_at, DCOMM_U32,
                           &opts);
}

static dcomm_status dcommi_moe_tables(dcomm_moe *m)
{
    dcommi_moe_stage *s = &m->inner;
    s->comm[DCOMMI_MOE_FORTH] = m->hier ? m->host[DCOMMI_MOE_FORTH] : m->comm;
    s->comm[DCOMMI_MOE_BACK] = m->hier ? m->host[DCOMMI_MOE_BACK] : m->back;
    s->n = s->comm[0]->size;
    if (!m->hier) {
        return dcommi_moe_flat_tables(m);
    }
    DCOMMI_TRY(dcommi_moe_outer_tables(m));
    DCOMMI_TRY(dcommi_moe_tell(m));
    return dcommi_moe_inner_tables(m);
}

/* Make room for the step's buffers, before any of them is in use. */
static dcomm_status dcommi_moe_room(dcomm_moe *m)
{
    dcommi_moe_stage *stages[] = {&m->inner, &m->outer};
    for (int i = 0; i < (m->hier ? 2 : 1); i++) {
        dcommi_moe_stage *s = stages[i];
        size_t sent = s->send_first[m->opts.chunks] * m->stride;
        size_t received = s->recv_first[m->opts.chunks] * m->stride;
        bool apart = !dcommi_moe_direct(m);
        DCOMMI_TRY(dcommi_moe_reserve(m, &s->sent[DCOMMI_MOE_FORTH], sent));
        DCOMMI_TRY(dcommi_moe_reserve(m, &s->received[DCOMMI_MOE_BACK], sent));
        DCOMMI_TRY(dcommi_moe_reserve(m, &s->received[DCOMMI_MOE_FORTH],
                                      apart || m->codec != NULL ? received : 0));
        DCOMMI_TRY(dcommi_moe_reserve(m, &s->sent[DCOMMI_MOE_BACK], apart ? received : 0));
    }
    DCOMMI_TRY(dcommi_moe_reserve(m, &m->coded, m->codec != NULL ? m->tokens * m->wire : 0));
    return dcommi_moe_reserve(m, &m->batch[0], m->inner.recv_first[m->opts.chunks] * m->row);
}

/* Make room for the buffers of gradients. */
static dcomm_status dcommi_moe_gradient_room(dcomm_moe *m)
{
    size_t entries = m->inner.send_first[m->opts.chunks];
    size_t told = m->hier ? m->told_slot_room : 0;
    DCOMMI_TRY(dcommi_grow((void **)&m->dots, &m->dots_room, entries, sizeof *m->dots));
    DCOMMI_TRY(dcommi_grow((void **)&m->dots_back, &m->dots_back_room, told, sizeof *m->dots_back));
    return dcommi_moe_reserve(m, &m->batch[1], m->inner.recv_first[m->opts.chunks] * m->row);
}

static void dcommi_moe_begin_step(dcomm_moe *m)
{
    dcomm_moe_stats *s = &m->stats;
    s->slowest_rank = -1;
    s->slowest_s = 0;
    s->permute_s = 0;
    s->permute_bytes = 0;
    for (int r = 0; r < m->size; r++) {
        double seconds;
        memcpy(&seconds, dcommi_moe_card_of(m, r) + 1, sizeof seconds);
        if (seconds > s->slowest_s) {
            s->slowest_s = seconds;
            s->slowest_rank = r;
        }
    }
    m->expert_s = m->left_at = 0;
    m->at_work = 0;
    memset(m->ops, 0, (size_t)m->opts.chunks * DCOMMI_MOE_PASSES * sizeof *m->ops);
    for (int way = 0; way < DCOMMI_MOE_WAYS; way++) {
        m->queue[way].first = m->queue[way].n = 0;
    }
    m->steps++;
}

static dcomm_status dcommi_moe_route(dcomm_moe *m, size_t tokens, const int32_t *experts,
                                     const float *weights)
{
    if (m->under_way > 0) {
        dcommi_fail(DCOMM_ERR_INVALID,
                    "dcomm_moe_route: rank %d has not waited for all chunks of step %zu", m->rank,
                    m->steps);
        return dcommi_moe_fail(m, DCOMM_ERR_INVALID);
    }
    dcomm_status status = dcommi_moe_take(m, tokens, experts, weights);
    m->stats.own_dropped = m->stats.own_rerouted = 0;
    m->stats.capacity = SIZE_MAX;
    m->card[3] = 0;
    dcommi_moe_tally(m);
    DCOMMI_TRY(dcommi_moe_exchange(m, status));
    dcommi_moe_begin_step(m);
    m->stats.asked = dcommi_moe_totals(m, m->demand);
    if (m->opts.capacity > 0) {
        DCOMMI_TRY(dcommi_moe_limit(m));
    }
    dcommi_moe_weigh(m);
    dcommi_moe_choose(m);
    status = dcommi_moe_tables(m);
    DCOMMI_THEN(status, dcommi_moe_room(m));
    return status < 0 ? dcommi_moe_fail(m, status) : DCOMM_OK;
}

#endif
