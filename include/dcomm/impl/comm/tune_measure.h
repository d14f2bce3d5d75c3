/* tune_measure.h - measure the costs of a communicator. All ranks take part, and rank 0's times
 * count. */
#ifndef DCOMMI_TUNE_MEASURE_H
#define DCOMMI_TUNE_MEASURE_H

#include "api_mem.h"
#include "tune_rounds.h"

#define DCOMMI_TUNE_LONGEST (1 << 20)  /* most bytes of a probe within a host */
#define DCOMMI_TUNE_FARTHEST (4 << 20) /* and between hosts */
#define DCOMMI_TUNE_STREAM 65536       /* bytes from which messages fill a link */
#define DCOMMI_TUNE_FEW 7
#define DCOMMI_TUNE_CROWD_ROUNDS 2
#define DCOMMI_TUNE_BUSY 4          /* busy: one probe in so many stays disturbed */
#define DCOMMI_TUNE_OVERHEAD_S 2e-7 /* seconds, within a host: more comes from the scheduler */
#define DCOMMI_TUNE_FAR_S 0.04      /* seconds; then no longer message is tried between hosts */
#define DCOMMI_TUNE_NEAR_S 0.015    /* seconds; then no other round of probes is run */
#define DCOMMI_TUNE_PIECE_S 0.01    /* seconds of a probe of connections */
#define DCOMMI_TUNE_CONNECTIONS 8   /* most connections that are tried */
#define DCOMMI_TUNE_CUT 262144      /* bytes of the shortest message to try them with */
#define DCOMMI_TUNE_GAIN 1.4        /* go on while twice as many are so much faster */
#define DCOMMI_TUNE_SWIFT 7e8       /* bytes/s: the processor limits a faster connection */

/* ---- curves ---- */

/* Append a point to a curve that does not fall. Noise only adds time: if more bytes took less, the
 * points before were disturbed, so lower them. A difference of two measured times that comes out
 * as zero says nothing, so repeat the point before. */
static void dcommi_tune_point(dcomm_curve *c, int64_t bytes, double seconds)
{
    if (c->n < DCOMM_CURVE_POINTS) {
        int64_t ps = dcommi_ps(seconds);
        ps = ps == 0 && c->n > 0 ? c->ps[c->n - 1] : ps;
        for (int64_t i = c->n; i-- > 0 && c->ps[i] > ps;) {
            c->ps[i] = ps;
        }
        c->bytes[c->n] = bytes;
        c->ps[c->n++] = ps;
    }
}

static int64_t dcommi_tune_at(const dcomm_curve *c, int64_t bytes)
{
    dcommi_curve k = dcommi_curve_make(c);
    return dcommi_curve_at(&k, bytes);
}

/* Add the probes of a short message and of a signal, which dcommi_tune_short reads. */
static int dcommi_tune_add_short(dcommi_tuner *t, int depth)
{
    int first = dcommi_tune_add(t, DCOMMI_PROBE_SIGNALS, 0, 8, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, 8, 8, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_BURSTS, 8, 4, depth, false);
    return first;
}

static double dcommi_tune_short(dcommi_tuner *t, dcomm_link *link, int first)
{
    double signal = dcommi_tune_time(t, first), message = dcommi_tune_time(t, first + 1);
    double burst = dcommi_tune_time(t, first + 2);
    /* Each further message adds two steps, and overhead at both ends. */
    double overhead = ((burst - message) / (DCOMMI_PROBE_BURST - 1) - 2 * t->step) / 2;
    double most = link->by_core ? DCOMMI_TUNE_OVERHEAD_S : message / 3;
    overhead = overhead < 0 ? 0 : overhead > most ? most : overhead;
    link->overhead_ps = dcommi_ps(overhead);
    link->alpha_ps = dcommi_ps(message - 2 * overhead - 3 * t->step);
    double tell = signal / 4 < overhead ? signal / 4 : overhead;
    link->tell_ps = dcommi_ps(tell);
    link->signal_ps = dcommi_ps(signal - tell - 2 * t->step);
    t->signal = signal;
    return message;
}

enum { DCOMMI_TUNE_KINDS = 4, DCOMMI_TUNE_SIZES = 8, DCOMMI_TUNE_SHORT_SIZES = 5 };
static const int64_t dcommi_tune_sizes[DCOMMI_TUNE_SIZES] = {512,   2048,  8192,   16384,
                                                             32768, 65536, 262144, 1 << 20};

/* Add the probes of one size: messages as they are and folded, memory read and folded. */
static int dcommi_tune_add_size(dcommi_tuner *t, int64_t len, int depth)
{
    int64_t trips = len < DCOMMI_TUNE_COLD ? 8 : 2;
    int first = dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, len, trips, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_FOLDS, len, trips, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_READS, len, 1, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_REDUCES, len, 1, depth, false);
    return first;
}

static void dcommi_tune_size(dcommi_tuner *t, dcomm_link *link, int64_t len, double least,
                             int first)
{
    double message = dcommi_tune_time(t, first), folded = dcommi_tune_time(t, first + 1);
    double around = 2 * t->signal + t->empty;
    double copied = 1e-12 * (double)dcommi_tune_at(&t->tuning.copy, len);
    double waits = link->eager_bytes > 0 && len > link->eager_bytes ? t->signal : 0;
    dcommi_tune_point(&link->message, len, message - least - waits);
    dcommi_tune_point(&link->fold, len, folded - message);
    if (len >= 2048) {
        dcommi_tune_point(&link->read, len, dcommi_tune_time(t, first + 2) - around - copied);
        dcommi_tune_point(&link->reduce, len, dcommi_tune_time(t, first + 3) - around);
    }
}

/* Measure a link within a host. */
static void dcommi_tune_near(dcommi_tuner *t, dcomm_link *link, int depth)
{
    int first = dcommi_tune_add_short(t, depth);
    for (int i = 0; i < DCOMMI_TUNE_SHORT_SIZES; i++) {
        dcommi_tune_add_size(t, dcommi_tune_sizes[i], depth);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_ROUNDS, DCOMMI_TUNE_NEAR_S);
    double least = dcommi_tune_short(t, link, first);
    link->message.n = link->fold.n = link->read.n = link->reduce.n = 0;
    dcommi_tune_point(&link->message, 8, 0);
    dcommi_tune_point(&link->fold, 8, 0);
    for (int i = 0; i < DCOMMI_TUNE_SHORT_SIZES; i++) {
        dcommi_tune_size(t, link, dcommi_tune_sizes[i], least, first + 3 + i * DCOMMI_TUNE_KINDS);
    }
    for (int i = DCOMMI_TUNE_SHORT_SIZES; i < DCOMMI_TUNE_SIZES; i++) {
        dcommi_tune_add_size(t, dcommi_tune_sizes[i], depth);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_FEW, DCOMMI_TUNE_NEAR_S);
    for (int i = DCOMMI_TUNE_SHORT_SIZES; i < DCOMMI_TUNE_SIZES; i++) {
        dcommi_tune_size(t, link, dcommi_tune_sizes[i], least,
                         (i - DCOMMI_TUNE_SHORT_SIZES) * DCOMMI_TUNE_KINDS);
    }
}

#define DCOMMI_TUNE_SPECIAL ((2 + DCOMMI_PROBE_TURNS) * (size_t)DCOMMI_TUNE_LONGEST)

static uint8_t *dcommi_tune_registered(dcommi_tuner *t)
{
    dcommi_own *own = NULL;
    if (t->registered == NULL &&
        dcommi_mem_alloc(t->comm->context, DCOMMI_TUNE_SPECIAL, &own) >= 0) {
        t->registered = own->base;
    }
    return t->registered;
}

/* Return memory on huge pages as far as the kernel gives some, as programs get it. */
static uint8_t *dcommi_tune_huge(dcommi_tuner *t)
{
    if (t->huge == NULL) {
        t->huge = dcommi_huge_advised(DCOMMI_TUNE_SPECIAL);
    }
    return t->huge;
}

/* Measure reading and folding memory of a kind. The first round makes peers map what they can. */
static void dcommi_tune_special(dcommi_tuner *t, uint8_t *memory, int depth, dcomm_curve *reads,
                                dcomm_curve *reduces)
{
    uint8_t *in = t->in, *out = t->out;
    if (memory != NULL) { /* a rank without memory takes part all the same */
        t->in = memory;
        t->out = t->in + 2 * DCOMMI_TUNE_LONGEST;
    }
    for (int i = 2; i < DCOMMI_TUNE_SIZES; i++) {
        dcommi_tune_add(t, DCOMMI_PROBE_READS, dcommi_tune_sizes[i], 1, depth, false);
        dcommi_tune_add(t, DCOMMI_PROBE_REDUCES, dcommi_tune_sizes[i], 1, depth, false);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_FEW, DCOMMI_TUNE_NEAR_S / 2);
    t->in = in;
    t->out = out;
    reads->n = reduces->n = 0;
    for (int i = 2; i < DCOMMI_TUNE_SIZES; i++) {
        int64_t len = dcommi_tune_sizes[i];
        double around = 2 * t->signal + t->empty;
        double copied = 1e-12 * (double)dcommi_tune_at(&t->tuning.copy, len);
        double read = dcommi_tune_time(t, 2 * i - 4), folded = dcommi_tune_time(t, 2 * i - 3);
        dcommi_tune_point(reads, len, read - around - copied);
        dcommi_tune_point(reduces, len, folded - around);
    }
}

/* Count the ranks on rank 0's host that have a partner on another one. */
static int dcommi_tune_crowd(const dcommi_groups *g)
{
    int n = 0;
    for (int r = 0; r < g->nranks; r++) {
        n += dcommi_group_of(g, 0, r) == 0 && dcommi_probe_partner(g, r, 0) >= 0;
    }
    return n;
}

static double dcommi_tune_far_time(dcommi_tuner *t, int64_t len)
{
    int at = dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, len, len <= 65536 ? 4 : 1, 0, true);
    dcommi_tune_run(t, 2, 0);
    return dcommi_tune_time(t, at);
}

/* Return the seconds of a message that all pairs send at once. Time until the last is done, since
 * pairs do not share a link evenly. The first round warms up. */
static double dcommi_tune_crowd_time(dcommi_tuner *t, int64_t len)
{
    double took = 0;
    for (int round = -1; round < DCOMMI_TUNE_CROWD_ROUNDS; round++) {
        dcommi_tune_meet(t);
        double start = dcommi_now();
        dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, len, 1, 0, false);
        dcommi_tune_run(t, 0, 0);
        dcommi_tune_meet(t);
        double now = dcommi_now() - start;
        took = round <= 0 || now < took ? now : took;
    }
    return took;
}

static void dcommi_tune_connect(dcommi_tuner *t, int connections)
{
    dcommi_token_take(t->comm->context);
    dcommi_comm_connections(t->comm, connections);
    dcommi_token_release(t->comm->context);
}

/* Time messages of 4 KiB and more, until one takes too long. Return the longest, in bytes. */
static int64_t dcommi_tune_lengths(dcommi_tuner *t, dcomm_link *link, double least, double *seconds)
{
    int64_t len = 4096, last = 0;
    double until = dcommi_now() + DCOMMI_TUNE_FAR_S;
    link->message.n = 0;
    dcommi_tune_point(&link->message, 8, 0);
    for (int i = 0; len <= DCOMMI_TUNE_FARTHEST; len *= 4, i++) {
        if (i > 0 && !dcommi_tune_goes_on(t, until)) {
            break;
        }
        seconds[i] = dcommi_tune_far_time(t, len) - least;
        dcommi_tune_point(&link->message, len, seconds[i]);
        last = len;
    }
    return last;
}

/* Return the fewest connections that come within a tenth of the fastest. `seconds` are the times
 * of all lengths with one; rank 0's clock counts. Take one if several gain little: several must
 * not be chosen by chance, connections stay open, and idle ones slow a fast link down. */
static int dcommi_tune_fewest(dcommi_tuner *t, int64_t last, double least, const double *seconds)
{
    double took[DCOMMI_TUNE_CONNECTIONS + 1], best;
    int64_t len = 4096;
    int i = 0, tried = 1;
    while (len < last && (len < DCOMMI_TUNE_CUT || seconds[i + 1] < DCOMMI_TUNE_PIECE_S)) {
        len *= 4;
        i++;
    }
    len = dcommi_max64(len, DCOMMI_TUNE_CUT);
    took[1] =
        last < DCOMMI_TUNE_CUT ? dcommi_tune_far_time(t, DCOMMI_TUNE_CUT) - least : seconds[i];
    uint64_t word[2] = {(uint64_t)len, took[1] * DCOMMI_TUNE_SWIFT > (double)len};
    dcommi_tune_share(t, word, sizeof word);
    while (word[1] != 0 && tried < DCOMMI_TUNE_CONNECTIONS) {
        dcommi_tune_connect(t, tried * 2);
        took[tried * 2] = dcommi_tune_far_time(t, (int64_t)word[0]) - least;
        /* A gain of two connections over one must show twice, unless it is too large and the probe
         * too long for the scheduler to cause it. */
        double gain = took[tried] / took[tried * 2];
        bool again = tried == 1 && (gain < 1.5 || took[1] < DCOMMI_TUNE_PIECE_S);
        word[1] = gain < DCOMMI_TUNE_GAIN ? 0 : again ? 2 : 1;
        dcommi_tune_share(t, word, sizeof word);
        if (word[1] == 2) {
            dcommi_tune_connect(t, 1);
            best = dcommi_tune_far_time(t, (int64_t)word[0]) - least;
            took[1] = best < took[1] ? best : took[1];
            word[1] = took[1] / took[2] >= DCOMMI_TUNE_GAIN;
            dcommi_tune_share(t, word, sizeof word);
        }
        tried *= 2;
    }
    best = took[tried];
    for (int k = tried; k >= 1; k /= 2) {
        best = took[k] < best ? took[k] : best;
    }
    word[1] = 1;
    while (word[1] < (uint64_t)tried &&
           took[word[1]] > best * (word[1] == 1 ? DCOMMI_TUNE_GAIN : 1.1)) {
        word[1] *= 2;
    }
    dcommi_tune_share(t, word, sizeof word);
    return (int)word[1];
}

/* Measure a link between hosts: short messages of all pairs, as in a collective; long ones of one
 * pair alone, then of all pairs at once through the same interfaces. */
static void dcommi_tune_far(dcommi_tuner *t, dcomm_link *link)
{
    double seconds[DCOMM_CURVE_POINTS] = {0};
    int crowd = dcommi_tune_crowd(t->comm->groups);
    bool chooses = t->comm->connections == 0 && t->comm->context->net != NULL &&
                   t->comm->context->net->by_flow;
    int first = dcommi_tune_add_short(t, 0);
    dcommi_tune_run(t, DCOMMI_TUNE_ROUNDS, DCOMMI_TUNE_NEAR_S);
    double crowded = dcommi_tune_short(t, link, first), least = dcommi_tune_far_time(t, 8);
    link->shared.n = link->sustained.n = 0;
    link->eager_bytes = 0; /* the probes' times include any wait of long messages */
    int connections = chooses ? 1 : t->comm->connections;
    if (connections > 0) {
        dcommi_tune_connect(t, connections);
    }
    int64_t last = dcommi_tune_lengths(t, link, least, seconds);
    if (chooses) {
        connections = dcommi_tune_fewest(t, last, least, seconds);
        dcommi_tune_connect(t, connections);
        last = connections > 1 ? dcommi_tune_lengths(t, link, least, seconds) : last;
    }
    t->tuning.connections = connections > 0 ? connections : 1;
    /* A shaped link lets a burst through faster than it can go on. The longest probe shows the
     * sustained rate. In a stream, messages that are not short go no faster than that. */
    double slope = (double)link->message.ps[link->message.n - 1] / (double)last;
    for (int64_t i = 1; i < link->message.n; i++) {
        int64_t least_ps = (int64_t)(slope * (double)link->message.bytes[i]);
        if (link->message.bytes[i] >= DCOMMI_TUNE_STREAM) {
            /* One message alone may use fewer connections than the next ones do. */
            link->message.ps[i] =
                connections > 1 ? least_ps : dcommi_max64(link->message.ps[i], least_ps);
        }
    }
    double each = 1e-12 * slope * (double)last;
    if (crowd > 1) {
        each = (dcommi_tune_crowd_time(t, last) - crowded) / crowd;
    }
    dcommi_tune_point(&link->shared, 0, 0);
    for (int64_t i = 1; i < link->message.n && link->message.bytes[i] < last; i++) {
        double bytes = (double)link->message.bytes[i], even = each * bytes / (double)last;
        double alone = 1e-12 * (double)link->message.ps[i];
        bool stream = link->message.bytes[i] >= DCOMMI_TUNE_STREAM;
        dcommi_tune_point(&link->shared, link->message.bytes[i],
                          stream || alone > even ? even : alone);
    }
    dcommi_tune_point(&link->shared, last, each);
    dcommi_tune_point(&link->sustained, 0, 0);
    dcommi_tune_point(&link->sustained, last, each);
}

/* Measure work in a rank's own memory, on all ranks at once, as in a collective. */
static void dcommi_tune_local(dcommi_tuner *t)
{
    static const int64_t sizes[] = {512, 8192, 65536, 1 << 20};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    dcommi_tune_add(t, DCOMMI_PROBE_NOTHING, 0, 1, 0, false);
    dcommi_tune_add(t, DCOMMI_PROBE_STEPS, 0, 64, 0, false);
    for (int i = 0; i < SIZES; i++) {
        dcommi_tune_add(t, DCOMMI_PROBE_COPY, sizes[i], sizes[i] <= 8192 ? 8 : 1, 0, false);
        dcommi_tune_add(t, DCOMMI_PROBE_FOLD, sizes[i], sizes[i] <= 8192 ? 8 : 1, 0, false);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_ROUNDS, DCOMMI_TUNE_NEAR_S / 4);
    t->empty = dcommi_tune_time(t, 0);
    t->step = dcommi_tune_time(t, 1) - t->empty / 64;
    t->step = t->step > 0 ? t->step : 0;
    t->tuning.step_ps = dcommi_ps(t->step);
    t->tuning.call_ps = dcommi_ps(t->empty);
    t->tuning.copy.n = t->tuning.fold.n = 0;
    for (int i = 0; i < SIZES; i++) {
        double around = t->empty / (sizes[i] <= 8192 ? 8 : 1) + t->step;
        dcommi_tune_point(&t->tuning.copy, sizes[i], dcommi_tune_time(t, 2 + 2 * i) - around);
        dcommi_tune_point(&t->tuning.fold, sizes[i], dcommi_tune_time(t, 3 + 2 * i) - around);
    }
}

/* ---- all of it ---- */

/* Run the probes. Every rank returns, and rank 0 has the findings. */
static void dcommi_tune_probe_all(dcommi_tuner *t)
{
    const dcommi_groups *g = t->comm->groups;
    int known = -1;
    size_t most = t->comm->nhosts > 1 ? DCOMMI_TUNE_FARTHEST : DCOMMI_TUNE_LONGEST;
    t->in = dcommi_alloc(2 * most);
    t->out = dcommi_alloc(DCOMMI_PROBE_TURNS * most);
    if (t->in == NULL || t->out == NULL) {
        t->status = DCOMM_ERR_NO_MEMORY;
        return;
    }
    t->near = true;
    dcommi_tune_local(t);
    for (int depth = g->nlevels; depth >= 0; depth--) {
        int kind = depth < g->nlevels ? g->kind[depth] : (int)DCOMM_LINK_NEAR;
        if (dcommi_probe_partner(g, 0, depth) < 0) {
            continue; /* rank 0 has no partner there */
        }
        t->near = kind != DCOMM_LINK_HOST;
        if (!t->near) {
            dcommi_tune_far(t, &t->tuning.link[kind]);
            t->tuning.link[kind].fold = t->tuning.fold;
        } else {
            dcomm_link *link = &t->tuning.link[kind];
            dcommi_tune_near(t, link, depth);
            dcommi_tune_special(t, dcommi_tune_registered(t), depth, &link->mapped_read,
                                &link->mapped_reduce);
            dcommi_tune_special(t, dcommi_tune_huge(t), depth, &link->huge_read,
                                &link->huge_reduce);
            /* Until a longer link is measured, assume that it costs what this one does. */
            int first = known < 0 ? DCOMM_LINK_NEAR : kind;
            for (int k = DCOMM_LINK_HOST + 1; k <= first; k++) {
                t->tuning.link[k] = t->tuning.link[kind];
            }
            known = kind;
        }
    }
    t->busy = t->comm->rank == 0 &&
              (t->disturbed * DCOMMI_TUNE_BUSY > t->probes || dcommi_busy_crowded(&t->others));
    snprintf(t->tuning.source, sizeof t->tuning.source, "measured by %d ranks on %d host%s%s",
             t->comm->size, t->comm->nhosts, t->comm->nhosts == 1 ? "" : "s",
             t->busy ? "; this machine was busy while it was measured" : "");
    if (t->busy) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "this machine was busy while it was measured (%d of %d probes took twice their "
                   "fastest; at %d of %d looks, other programs waited for its processors): "
                   "algorithms may be chosen badly",
                   t->disturbed, t->probes, t->others.crowds, t->others.looks);
    }
}

#endif
