/* tables.h - compute, from the counts that all ranks know, what each stage sends where, and which
 * of its entries belong to which source row. */
#ifndef DCOMMI_MOE_TABLES_H
#define DCOMMI_MOE_TABLES_H

#include "rows.h"

/* ---- room ---- */

static dcomm_status dcommi_moe_stage_make(const dcomm_moe *m, dcommi_moe_stage *s,
                                          dcomm_comm *forth, dcomm_comm *back)
{
    size_t chunks = (size_t)m->opts.chunks, cells = chunks * (size_t)forth->size;
    s->comm[DCOMMI_MOE_FORTH] = forth;
    s->comm[DCOMMI_MOE_BACK] = back;
    s->n = forth->size;
    size_t *all = dcommi_calloc(4 * cells + 3 * (chunks + 1), sizeof *all);
    s->matrix = dcommi_calloc(cells * (size_t)forth->size, sizeof *s->matrix);
    if (all == NULL || s->matrix == NULL) {
        dcommi_free(all);
        return DCOMM_ERR_NO_MEMORY;
    }
    s->send = all;
    s->send_at = all + cells;
    s->recv = all + 2 * cells;
    s->recv_at = all + 3 * cells;
    s->send_first = all + 4 * cells;
    s->recv_first = s->send_first + chunks + 1;
    s->source_first = s->recv_first + chunks + 1;
    return DCOMM_OK;
}

static void dcommi_moe_stage_free(dcommi_moe_stage *s)
{
    dcommi_free(s->matrix);
    dcommi_free(s->send);
    dcommi_free(s->from);
    dcommi_free(s->start);
    for (int way = 0; way < DCOMMI_MOE_WAYS; way++) {
        dcommi_moe_release(&s->sent[way]);
        dcommi_moe_release(&s->received[way]);
    }
}

/* Return the rows of a chunk that the ranks of a stage send each other. */
static inline size_t *dcommi_moe_matrix(const dcommi_moe_stage *s, int chunk)
{
    return s->matrix + (size_t)chunk * (size_t)s->n * (size_t)s->n;
}

/* Take the rows that rank `me` of n sends to each and gets from each out of the matrix. */
static void dcommi_moe_own_counts(const size_t *matrix, int n, int me, size_t *send, size_t *recv)
{
    for (int r = 0; r < n; r++) {
        send[r] = matrix[me * n + r];
        recv[r] = matrix[r * n + me];
    }
}

/* Compute counts, displacements and firsts from the matrix, and make room for entries and
 * lists. */
static dcomm_status dcommi_moe_stage_lay(const dcomm_moe *m, dcommi_moe_stage *s, size_t sources)
{
    size_t n = (size_t)s->n;
    for (int c = 0; c < m->opts.chunks; c++) {
        size_t sent = 0, received = 0, row = (size_t)c * n;
        dcommi_moe_own_counts(dcommi_moe_matrix(s, c), s->n, s->comm[0]->rank, s->send + row,
                              s->recv + row);
        for (size_t r = row; r < row + n; r++) {
            s->send_at[r] = sent;
            s->recv_at[r] = received;
            sent += s->send[r];
            received += s->recv[r];
        }
        s->send_first[c + 1] = s->send_first[c] + sent;
        s->recv_first[c + 1] = s->recv_first[c] + received;
    }
    size_t entries = s->send_first[m->opts.chunks];
    if (entries > UINT32_MAX || s->recv_first[m->opts.chunks] > UINT32_MAX) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_moe_route: rank %d sends %zu rows and receives %zu: more than 2^32", m->rank,
            entries, s->recv_first[m->opts.chunks]);
    }
    if (entries > s->from_room) {
        size_t room = entries + entries / 8;
        dcommi_free(s->from);
        s->from_room = 0;
        s->from = dcommi_calloc(room, 4 * sizeof *s->from);
        if (s->from == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        s->from_room = room;
        s->name = s->from + room;
        s->entry = s->from + 2 * room;
        s->weight = (float *)(s->from + 3 * room);
    }
    return dcommi_grow((void **)&s->start, &s->start_room, sources + 1, sizeof *s->start);
}

/* List the entries of each source row, in the order of entries, from `from`. */
static void dcommi_moe_stage_list(const dcomm_moe *m, dcommi_moe_stage *s, size_t sources)
{
    size_t entries = s->send_first[m->opts.chunks], at = 0;
    memset(s->start, 0, (sources + 1) * sizeof *s->start);
    for (size_t e = 0; e < entries; e++) {
        s->start[s->from[e] + 1]++;
    }
    for (size_t r = 1; r <= sources; r++) {
        s->start[r] += s->start[r - 1];
    }
    for (size_t e = 0; e < entries; e++) {
        s->entry[s->start[s->from[e]]++] = (uint32_t)e;
    }
    for (size_t r = 0; r < sources; r++) { /* each start has become the next one's */
        size_t next = s->start[r];
        s->start[r] = at;
        at = next;
    }
    s->start[sources] = at;
}

/* ---- flat ---- */

static dcomm_status dcommi_moe_flat_tables(dcomm_moe *m)
{
    dcommi_moe_stage *s = &m->inner;
    size_t k = (size_t)m->opts.k;
    for (int c = 0; c < m->opts.chunks; c++) {
        size_t *matrix = dcommi_moe_matrix(s, c);
        for (int from = 0; from < m->size; from++) {
            for (int to = 0; to < m->size; to++) {
                matrix[from * m->size + to] = dcommi_moe_between(m, from, to, c);
            }
        }
    }
    DCOMMI_TRY(dcommi_moe_stage_lay(m, s, m->tokens));
    size_t listed = 0;
    for (int c = 0; c < m->opts.chunks; c++) {
        size_t at = s->send_first[c];
        for (size_t p = 0; p < m->opts.experts; p++) {
            m->cursor[p] = at;
            at += dcommi_moe_count(m, m->rank, c, p);
        }
        s->source_first[c] = m->chunk_first[c];
        for (size_t t = m->chunk_first[c]; t < m->chunk_first[c + 1]; t++) {
            s->start[t] = listed;
            for (size_t j = t * k; j < (t + 1) * k; j++) {
                if (m->slots[j] >= 0) {
                    size_t e = m->cursor[m->slots[j]]++;
                    s->from[e] = (uint32_t)t;
                    s->name[e] = (uint32_t)j;
                    s->weight[e] = m->weights[j];
                    s->entry[listed++] = (uint32_t)e;
                }
            }
        }
    }
    s->start[m->tokens] = listed;
    s->source_first[m->opts.chunks] = m->tokens;
    return DCOMM_OK;
}

/* ---- hierarchical: to one rank of each host ---- */

static void dcommi_moe_outer_counts(dcomm_moe *m)
{
    dcommi_moe_stage *s = &m->outer;
    size_t n = (size_t)m->size;
    for (int c = 0; c < m->opts.chunks; c++) {
        size_t *matrix = dcommi_moe_matrix(s, c);
        memset(matrix, 0, n * n * sizeof *matrix);
        for (int from = 0; from < m->size; from++) {
            const uint32_t *unique = dcommi_moe_unique(m, dcommi_moe_card_of(m, from), c);
            for (int h = 0; h < m->nhosts; h++) {
                matrix[from * m->size + dcommi_moe_gate(m, from, h)] = unique[h];
            }
        }
    }
}

/* Return how many rows are told before those of `chunk` to the gate of `host`. They lie in the
 * order of gates, chunks and places, so what a gate is told of one chunk lies in one piece. */
static size_t dcommi_moe_told_before(const dcomm_moe *m, int host, int chunk)
{
    size_t rows = 0;
    for (int r = 0; r < m->size; r++) {
        bool before = m->gate[m->host_of[r]] < m->gate[host];
        bool same = m->host_of[r] == host;
        for (int c = 0; c < m->opts.chunks && (before || same); c++) {
            rows += before || c < chunk ? dcommi_moe_between(m, m->rank, r, c) : 0;
        }
    }
    return rows;
}

static dcomm_status dcommi_moe_outer_tables(dcomm_moe *m)
{
    dcommi_moe_stage *s = &m->outer;
    size_t k = (size_t)m->opts.k, n = (size_t)m->size, listed = 0, told = 0;
    dcommi_moe_outer_counts(m);
    DCOMMI_TRY(dcommi_moe_stage_lay(m, s, m->tokens));
    for (int c = 0; c < m->opts.chunks; c++) {
        for (int r = 0; r < m->size; r++) {
            told += dcommi_moe_between(m, m->rank, r, c);
        }
    }
    DCOMMI_TRY(dcommi_grow((void **)&m->told, &m->told_room, 2 * told, sizeof *m->told));
    DCOMMI_TRY(dcommi_grow((void **)&m->told_slot, &m->told_slot_room, told, sizeof *m->told_slot));
    size_t *gate_at = m->cursor + m->opts.experts; /* [size] next entry for each gate */
    memset(m->seen, 0xff, (size_t)m->nhosts * sizeof *m->seen);
    for (int c = 0; c < m->opts.chunks; c++) {
        for (int h = 0; h < m->nhosts; h++) {
            size_t at = dcommi_moe_told_before(m, h, c);
            for (int i = m->host_first[h]; i < m->host_first[h + 1]; i++) {
                int r = m->host_ranks[i];
                for (size_t p = m->place_first[r]; p < m->place_first[r + 1]; p++) {
                    m->cursor[p] = at;
                    at += dcommi_moe_count(m, m->rank, c, p);
                }
            }
            gate_at[m->gate[h]] = s->send_first[c] + s->send_at[(size_t)c * n + (size_t)m->gate[h]];
        }
        s->source_first[c] = m->chunk_first[c];
        for (size_t t = m->chunk_first[c]; t < m->chunk_first[c + 1]; t++) {
            s->start[t] = listed;
            for (size_t j = t * k; j < (t + 1) * k; j++) {
                if (m->slots[j] < 0) {
                    continue;
                }
                int h = m->host_of[m->owner[m->expert_at[m->slots[j]]]], gate = m->gate[h];
                if (m->seen[h] != (uint32_t)t) {
                    m->seen[h] = (uint32_t)t;
                    size_t e = gate_at[gate]++;
                    s->from[e] = (uint32_t)t;
                    s->entry[listed++] = (uint32_t)e;
                }
                size_t at = m->cursor[m->slots[j]]++;
                m->told[2 * at] = (uint32_t)(gate_at[gate] - 1 - s->send_first[c] -
                                             s->send_at[(size_t)c * n + (size_t)gate]);
                memcpy(&m->told[2 * at + 1], &m->weights[j], sizeof m->weights[j]);
                m->told_slot[at] = (uint32_t)j;
            }
        }
    }
    s->start[m->tokens] = listed;
    s->source_first[m->opts.chunks] = m->tokens;
    return DCOMM_OK;
}

/* ---- hierarchical: inside ---- */

/* Return the rows of chunks first .. end - 1 of which `from` tells `gate`; 0 if that is not its
 * gate. */
static size_t dcommi_moe_told_between(const dcomm_moe *m, int from, int gate, int first, int end)
{
    size_t rows = 0;
    int host = m->host_of[gate];
    if (dcommi_moe_gate(m, from, host) != gate) {
        return 0;
    }
    for (int i = m->host_first[host]; i < m->host_first[host + 1]; i++) {
        for (int c = first; c < end; c++) {
            rows += dcommi_moe_between(m, from, m->host_ranks[i], c);
        }
    }
    return rows;
}

static void dcommi_moe_inner_counts(dcomm_moe *m)
{
    dcommi_moe_stage *s = &m->inner;
    int host = m->host_of[m->rank];
    const int *ranks = m->host_ranks + m->host_first[host];
    for (int c = 0; c < m->opts.chunks; c++) {
        size_t *matrix = dcommi_moe_matrix(s, c);
        memset(matrix, 0, (size_t)s->n * (size_t)s->n * sizeof *matrix);
        for (int from = 0; from < m->size; from++) {
            int gate = m->seat[dcommi_moe_gate(m, from, host)];
            for (int i = 0; i < s->n; i++) {
                matrix[gate * s->n + i] += dcommi_moe_between(m, from, ranks[i], c);
            }
        }
    }
}

/* Fill in the entries of chunk c. They are sent by rank, expert, and the rank of their tokens.
 * The numbers that ranks have told are in order of teller, chunk, rank and expert. heard_at[from]
 * is the index of the first one that `from` told of this chunk. */
static dcomm_status dcommi_moe_inner_chunk(dcomm_moe *m, int c, size_t *heard_at)
{
    dcommi_moe_stage *s = &m->inner;
    int host = m->host_of[m->rank];
    size_t e = s->send_first[c];
    for (int i = m->host_first[host]; i < m->host_first[host + 1]; i++) {
        int to = m->host_ranks[i];
        for (size_t p = m->place_first[to]; p < m->place_first[to + 1]; p++) {
            for (int from = 0; from < m->size; from++) {
                if (dcommi_moe_gate(m, from, host) != m->rank) {
                    continue;
                }
                size_t rows = dcommi_moe_count(m, from, c, p);
                size_t cell = (size_t)c * (size_t)m->size + (size_t)from;
                size_t first = m->outer.recv_first[c] + m->outer.recv_at[cell];
                for (size_t j = 0; j < rows; j++, e++) {
                    size_t at = heard_at[from]++;
                    if (m->heard[2 * at] >= m->outer.recv[cell]) {
                        return dcommi_fail(DCOMM_ERR_CORRUPT,
                                           "moe: rank %d tells of row %u of %zu in chunk %d", from,
                                           m->heard[2 * at], m->outer.recv[cell], c);
                    }
                    s->from[e] = (uint32_t)(first + m->heard[2 * at]);
                    memcpy(&s->weight[e], &m->heard[2 * at + 1], sizeof s->weight[e]);
                    s->name[e] = (uint32_t)at;
                }
            }
        }
    }
    return DCOMM_OK;
}

/* Make the tables of the inner stage, once the gates have told the rows' experts. */
static dcomm_status dcommi_moe_inner_tables(dcomm_moe *m)
{
    dcommi_moe_stage *s = &m->inner;
    size_t sources = m->outer.recv_first[m->opts.chunks], at = 0;
    size_t *heard_at = m->cursor + m->opts.experts;
    dcommi_moe_inner_counts(m);
    DCOMMI_TRY(dcommi_moe_stage_lay(m, s, sources));
    memcpy(s->source_first, m->outer.recv_first,
           ((size_t)m->opts.chunks + 1) * sizeof *s->source_first);
    for (int from = 0; from < m->size; from++) {
        heard_at[from] = at;
        at += dcommi_moe_told_between(m, from, m->rank, 0, m->opts.chunks);
    }
    for (int c = 0; c < m->opts.chunks; c++) {
        DCOMMI_TRY(dcommi_moe_inner_chunk(m, c, heard_at));
    }
    dcommi_moe_stage_list(m, s, sources);
    return DCOMM_OK;
}

/* ---- batches ---- */

typedef void (*dcommi_moe_piece_fn)(void *user, size_t arrived, size_t place, size_t rows);

/* Call `fn` for a chunk's rows as they arrive at this rank, piece by piece, with their place in
 * the batch. Both count rows from the chunk's first. */
static void dcommi_moe_pieces(dcomm_moe *m, int c, dcommi_moe_piece_fn fn, void *user)
{
    size_t first = m->place_first[m->rank], n = m->place_first[m->rank + 1] - first, arrived = 0;
    size_t *next = m->seg_at; /* [(local experts) * size] */
    size_t at = 0;
    for (size_t p = 0; p < n; p++) {
        m->batch_first[p] = at;
        for (int from = 0; from < m->size; from++) {
            next[p * (size_t)m->size + (size_t)from] = at;
            at += dcommi_moe_count(m, from, c, first + p);
        }
    }
    m->batch_first[n] = at;
    int host = m->hier ? m->host_of[m->rank] : -1;
    for (int peer = 0; peer < m->inner.n; peer++) {
        int gate = m->hier ? m->host_ranks[m->host_first[host] + peer] : peer;
        for (size_t p = 0; p < n; p++) {
            for (int from = 0; from < m->size; from++) {
                bool through = m->hier ? dcommi_moe_gate(m, from, host) == gate : from == peer;
                size_t rows = through ? dcommi_moe_count(m, from, c, first + p) : 0;
                if (rows > 0) {
                    fn(user, arrived, next[p * (size_t)m->size + (size_t)from], rows);
                    arrived += rows;
                }
            }
        }
    }
}

#endif
