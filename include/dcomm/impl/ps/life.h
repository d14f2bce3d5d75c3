/* life.h - how a parameter server begins, serves and ends. */
#ifndef DCOMMI_PS_LIFE_H
#define DCOMMI_PS_LIFE_H

#include "calls.h"

#define DCOMMI_PS_PARAMS_MAX 65536

/* ---- the service ---- */

static dcommi_verdict dcommi_ps_on_message(dcomm_comm *comm, const dcommi_header *h,
                                           dcommi_transport *transport,
                                           const dcommi_arrival *arrival)
{
    dcomm_ps *ps = comm->served;
    if (h->slot >= DCOMMI_PS_VALUES) {
        return dcommi_ps_heard(ps, h, transport, arrival);
    }
    return ps->server >= 0 ? dcommi_ps_take(ps, h, transport, arrival) : DCOMMI_CONSUMED;
}

static void dcommi_ps_on_lost(dcomm_comm *comm, int rank)
{
    dcomm_ps *ps = comm->served;
    const dcommi_remote *peer = dcommi_peer_of(comm, rank);
    for (int k = 0; k < ps->nservers; k++) {
        if (ps->to[k].rank == rank) {
            dcommi_ps_server_lost(ps, k, peer->lost ? peer->why : "it has left");
        }
    }
    if (ps->server >= 0) {
        dcommi_ps_worker_gone(ps, rank);
    }
}

static void dcommi_ps_on_failed(dcomm_comm *comm)
{
    dcomm_ps *ps = comm->served;
    for (int k = 0; k < ps->nservers; k++) {
        dcommi_ps_server_lost(ps, k, comm->message);
    }
    for (int r = 0; ps->server >= 0 && r < ps->size; r++) {
        dcommi_ps_worker_gone(ps, r);
    }
    for (int r = 0; ps->server >= 0 && r < ps->size; r++) {
        dcommi_ps_unstash(ps, r, false); /* late pushes, of a clock that nobody ends */
    }
}

static void dcommi_ps_check(dcomm_comm *comm, double now)
{
    dcomm_ps *ps = comm->served;
    dcommi_ps_worker_check(ps, now);
    if (ps->server >= 0) {
        dcommi_ps_server_check(ps, now);
    }
}

static const dcommi_service dcommi_ps_service = {dcommi_ps_on_message, dcommi_ps_on_lost,
                                                 dcommi_ps_on_failed, dcommi_ps_check};

/* ---- create ---- */

static bool dcommi_ps_positive(double x)
{
    return x > 0 && x <= 1e30;
}

static dcomm_status dcommi_ps_check_opts(const dcomm_ps *ps, const dcomm_ps_opts *o)
{
    const bool elastic = o->update == DCOMM_PS_ELASTIC, bsp = o->staleness == 0;
    const bool own = o->update == DCOMM_PS_CALLBACK;
    const int servers = o->servers > 0 ? o->servers : ps->size;
    const int workers = ps->size - (o->dedicated ? servers : 0);
    const struct {
        const char *name;
        bool wrong;
    } rules[] = {
        {"servers", o->servers < 0 || o->servers > ps->size},
        {"dedicated", workers < 1},
        {"staleness", o->staleness < DCOMM_PS_ASYNC},
        {"update", (unsigned)o->update > DCOMM_PS_CALLBACK || (elastic && bsp)},
        {"update_fn", own != (o->update_fn != NULL)},
        {"update_states", o->update_states < 0 || o->update_states > (own ? DCOMM_PS_STATES : 0)},
        {"rho", elastic && !(o->rho > 0 && o->rho <= 1)},
        {"lr", !elastic && !own && !dcommi_ps_positive(o->lr)},
        {"momentum", !(o->momentum >= 0 && o->momentum < 1)},
        {"beta1", !(o->beta1 >= 0 && o->beta1 < 1)},
        {"beta2", !(o->beta2 >= 0 && o->beta2 < 1)},
        {"eps", !(o->eps >= 0 && o->eps <= 1)},
        {"weight", (unsigned)o->weight > DCOMM_PS_WEIGHT_HALVED},
        {"weight", bsp && o->weight != DCOMM_PS_WEIGHT_ONE},
        {"weight_ref", o->weight == DCOMM_PS_WEIGHT_HALVED && !dcommi_ps_positive(o->weight_ref)},
        {"drop_tau", !(o->drop_tau >= 0) || (bsp && o->drop_tau > 0)},
        {"quorum", o->quorum < 0 || o->quorum > workers || (!bsp && o->quorum > 0)},
        {"deadline_s", !(o->deadline_s >= 0) || (!bsp && o->deadline_s > 0)},
        {"replicas", o->replicas < 0 || o->replicas > 1},
        {"replicas", o->replicas > 0 && (servers < 2 || o->weight != DCOMM_PS_WEIGHT_ONE ||
                                         o->drop_tau > 0 || o->quorum > 0 || o->deadline_s > 0)},
        {"pull_dtype", o->pull_dtype != 0 && o->pull_dtype != DCOMM_F32 &&
                           o->pull_dtype != DCOMM_F16 && o->pull_dtype != DCOMM_BF16},
        {"codec", elastic && o->codec != NULL}, /* no residual belongs to a copy */
        {"timeout_s", !(o->timeout_s >= 0)},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].wrong) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_ps_create: opts.%s is out of range (%d ranks, servers %d, "
                               "dedicated %d, staleness %d, update %d, lr %g, rho %g, weight %d, "
                               "quorum %d)",
                               rules[i].name, ps->size, o->servers, (int)o->dedicated, o->staleness,
                               (int)o->update, o->lr, o->rho, (int)o->weight, o->quorum);
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_ps_check_params(const dcomm_ps_param *params, size_t n)
{
    const uint64_t most = (uint64_t)INT64_MAX / 64;
    if (n < 1 || n > DCOMMI_PS_PARAMS_MAX) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_ps_create: nparams is %zu; it can be 1 to %d",
                           n, DCOMMI_PS_PARAMS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        const dcomm_ps_param *p = &params[i];
        if (p->rows < 1 || p->cols < 1 || p->cols > most || p->rows > most / p->cols) {
            return dcommi_fail(DCOMM_ERR_INVALID,
                               "dcomm_ps_create: parameter %zu has %zu rows of %zu elements", i,
                               p->rows, p->cols);
        }
        if (p->dtype != DCOMM_F32 && p->dtype != DCOMM_F16 && p->dtype != DCOMM_BF16) {
            return dcommi_fail(
                DCOMM_ERR_UNSUPPORTED,
                "dcomm_ps_create: parameter %zu is of dtype %s; it can be f32, f16 or bf16", i,
                dcomm_dtype_name(p->dtype));
        }
    }
    return DCOMM_OK;
}

static void dcommi_ps_take_opts(dcomm_ps *ps, const dcomm_ps_opts *o)
{
    ps->opts = *o;
    ps->opts.beta1 = o->beta1 > 0 ? o->beta1 : 0.9;
    ps->opts.beta2 = o->beta2 > 0 ? o->beta2 : 0.999;
    ps->opts.eps = o->eps > 0 ? o->eps : 1e-8;
    ps->opts.pull_dtype = o->pull_dtype != 0 ? o->pull_dtype : DCOMM_F32;
    ps->opts.timeout_s = o->timeout_s > 0 ? o->timeout_s : ps->comm->timeout_s;
    ps->nservers = o->servers > 0 ? o->servers : ps->size;
    ps->workers = ps->size - (o->dedicated ? ps->nservers : 0);
    ps->server = -1;
    for (int k = 0; k < ps->nservers; k++) {
        if (dcommi_ps_server_rank(ps, k) == ps->rank) {
            ps->server = k;
        }
    }
    ps->works = !o->dedicated || ps->server < 0;
}

/* Make what a server has with its workers. */
static dcomm_status dcommi_ps_make_server(dcomm_ps *ps, const dcomm_ps_param *params)
{
    const size_t n = (size_t)ps->size;
    ps->clock = (dcommi_ps_clock){.n = ps->size,
                                  .staleness = ps->opts.staleness,
                                  .quorum = ps->opts.quorum,
                                  .deadline_s = ps->opts.deadline_s,
                                  .last = -1,
                                  .of = dcommi_calloc(n, sizeof *ps->clock.of)};
    ps->from = dcommi_calloc(n, sizeof *ps->from);
    ps->last_counts = dcommi_calloc(n, sizeof *ps->last_counts);
    if (ps->clock.of == NULL || ps->from == NULL || ps->last_counts == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int r = 0; r < ps->size; r++) {
        ps->from[r].seen = dcommi_calloc(ps->nparams, 2 * sizeof(uint64_t));
        if (ps->opts.staleness == 0) {
            ps->from[r].stash = dcommi_calloc(ps->nparams, sizeof *ps->from[r].stash);
        }
        if (ps->from[r].seen == NULL || (ps->opts.staleness == 0 && ps->from[r].stash == NULL)) {
            return DCOMM_ERR_NO_MEMORY;
        }
        ps->from[r].own = ps->from[r].seen + ps->nparams;
        ps->clock.of[r].works = true;
    }
    for (int k = 0; k < ps->nservers && ps->opts.dedicated; k++) {
        ps->clock.of[ps->to[k].rank].works = false;
    }
    return dcommi_ps_store_make(ps, params);
}

static dcomm_status dcommi_ps_prepare(dcomm_ps *ps, const dcomm_ps_param *params, size_t n,
                                      const dcomm_ps_opts *opts)
{
    DCOMMI_TRY(dcommi_ps_check_opts(ps, opts));
    DCOMMI_TRY(dcommi_ps_check_params(params, n));
    dcommi_ps_take_opts(ps, opts);
    ps->params = dcommi_calloc(n, sizeof *ps->params);
    ps->to = dcommi_calloc((size_t)ps->nservers, sizeof *ps->to);
    if (ps->params == NULL || ps->to == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    ps->nparams = n;
    for (size_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "param%zu", i);
        ps->params[i].rows = params[i].rows;
        ps->params[i].cols = params[i].cols;
        ps->params[i].dtype = params[i].dtype;
        ps->params[i].pulled = params[i].dtype == DCOMM_F32 ? ps->opts.pull_dtype : params[i].dtype;
        ps->params[i].name = dcommi_strdup(params[i].name != NULL ? params[i].name : name);
        if (ps->params[i].name == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    for (int k = 0; k < ps->nservers; k++) {
        ps->to[k].rank = dcommi_ps_server_rank(ps, k);
    }
    DCOMMI_TRY(dcommi_ps_codec_make(ps, opts->codec));
    DCOMMI_TRY(ps->server >= 0 ? dcommi_ps_make_server(ps, params) : DCOMM_OK);
    return ps->server >= 0 && ps->works ? dcommi_context_need_thread(ps->comm->context) : DCOMM_OK;
}

static uint64_t dcommi_ps_params_hash(const dcomm_ps *ps)
{
    uint64_t h = ps->nparams;
    for (size_t i = 0; i < ps->nparams; i++) {
        const dcommi_ps_param *p = &ps->params[i];
        h = dcommi_mix(dcommi_mix(dcommi_mix(h, p->rows), p->cols), p->dtype);
        h = dcommi_mix_text(h, p->name);
    }
    return h;
}

static dcomm_status dcommi_ps_agree(const dcomm_ps *ps)
{
    const dcomm_ps_opts *o = &ps->opts;
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {{"params", dcommi_ps_params_hash(ps)},
               {"opts.servers", (uint64_t)ps->nservers},
               {"opts.dedicated", o->dedicated},
               {"opts.staleness", (uint64_t)o->staleness},
               {"opts.update", o->update},
               {"opts.update_states", (uint64_t)o->update_states},
               {"opts.lr", dcommi_f64_bits(o->lr)},
               {"opts.momentum", dcommi_f64_bits(o->momentum)},
               {"opts.beta1", dcommi_f64_bits(o->beta1)},
               {"opts.beta2", dcommi_f64_bits(o->beta2)},
               {"opts.eps", dcommi_f64_bits(o->eps)},
               {"opts.rho", dcommi_f64_bits(o->rho)},
               {"opts.weight", o->weight},
               {"opts.weight_ref", dcommi_f64_bits(o->weight_ref)},
               {"opts.drop_tau", dcommi_f64_bits(o->drop_tau)},
               {"opts.quorum", (uint64_t)o->quorum},
               {"opts.deadline_s", dcommi_f64_bits(o->deadline_s)},
               {"opts.replicas", (uint64_t)o->replicas},
               {"opts.pull_dtype", o->pull_dtype},
               {"opts.codec", o->codec != NULL ? dcommi_mix_text(0, o->codec) : 0},
               {"opts.codec_seed", o->codec_seed}};
    enum { N = sizeof all / sizeof *all };
    const char *names[N];
    uint64_t own[N];
    for (int i = 0; i < N; i++) {
        names[i] = all[i].name;
        own[i] = all[i].value;
    }
    return dcommi_all_alike(ps->comm, "dcomm_ps_create", names, own, N, 0);
}

/* Show the parameter server to the engine; from then on messages reach it. */
static void dcommi_ps_enter(dcomm_ps *ps)
{
    dcomm_comm *comm = ps->comm;
    dcommi_token_take(comm->context);
    ps->heard_at = dcommi_now();
    comm->served = ps;
    comm->service = &dcommi_ps_service;
    for (int r = 0; r < ps->size; r++) { /* it may be lost since the options were compared */
        if (r != ps->rank && dcommi_peer_of(comm, r)->lost) {
            comm->service->on_lost(comm, r);
        }
    }
    dcommi_token_release(comm->context);
}

/* Give up all that is under way, and free the parameter server; the last op under way does it if
 * there is one. */
static dcomm_status dcommi_ps_end(dcomm_ps *ps)
{
    dcomm_comm *comm = ps->comm;
    dcommi_token_take(comm->context);
    if (comm->service != NULL) {
        comm->service->on_failed(comm);
    }
    if (ps->twin != NULL) {
        ps->twin->twin = NULL;
    }
    comm->service = NULL;
    comm->served = NULL;
    ps->closed = true;
    dcommi_token_release(comm->context);
    const dcomm_status status = dcomm_comm_destroy(&comm);
    dcommi_ps_unref(ps);
    return status;
}

/* End a parameter server that cannot be created. Return its error, with its sentence. */
static dcomm_status dcommi_ps_give_up(dcomm_ps *ps, dcomm_status status)
{
    char why[DCOMMI_MESSAGE_MAX];
    snprintf(why, sizeof why, "%s", dcomm_last_error());
    dcommi_ps_end(ps);
    return dcommi_fail(status, "%s", why);
}

/* Create a parameter server whose rows are held by the servers `shift` further on. Collective. */
static dcomm_status dcommi_ps_make(dcomm_comm *comm, const dcomm_ps_param *params, size_t nparams,
                                   const dcomm_ps_opts *opts, int shift, dcomm_ps **ps_p)
{
    dcomm_comm *own = NULL;
    DCOMMI_TRY(dcomm_comm_dup(comm, &own));
    dcomm_ps *ps = dcommi_alloc(sizeof *ps);
    if (ps == NULL) {
        dcomm_comm_abort(own, "no memory for a parameter server");
        dcomm_comm_destroy(&own);
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "dcomm_ps_create: no memory");
    }
    atomic_store(&ps->refs, 1);
    ps->comm = own;
    dcommi_comm_lock(own);
    own->refs++;
    dcommi_comm_unlock(own);
    ps->rank = own->rank;
    ps->size = own->size;
    ps->shift = shift;
    dcomm_status status = dcommi_all_good(own, dcommi_ps_prepare(ps, params, nparams, opts), 0);
    DCOMMI_THEN(status, dcommi_ps_agree(ps));
    if (status >= 0) {
        dcommi_ps_enter(ps);
        status = dcomm_barrier(own, NULL); /* nobody sends before all have entered */
    }
    if (status < 0) {
        return dcommi_ps_give_up(ps, status);
    }
    *ps_p = ps;
    return DCOMM_OK;
}

/* ---- destroy and serve ---- */

/* Return true if messages of this rank have still to leave. */
static bool dcommi_ps_leaving(dcomm_ps *ps)
{
    dcommi_token_take(ps->comm->context);
    bool leaving = atomic_load(&ps->refs) > 1;
    for (int k = 0; k < ps->nservers; k++) {
        leaving = leaving || ps->to[k].queue != NULL;
    }
    dcommi_token_release(ps->comm->context);
    return leaving;
}

/* Leave as a worker. */
static dcomm_status dcommi_ps_leave(dcomm_ps *ps)
{
    if (!ps->works || ps->left) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_ps_tell_all(ps, DCOMMI_PS_LEAVE, 0));
    ps->left = true;
    return DCOMM_OK;
}

/* Return the number of workers that have not left, and name them. *silent_s: how long none of them
 * has been heard. */
static int dcommi_ps_left_over(dcomm_ps *ps, char *text, size_t len, double *silent_s)
{
    bool *works = dcommi_calloc((size_t)ps->size, sizeof *works);
    dcommi_token_take(ps->comm->context);
    const int n = dcommi_ps_working(&ps->clock);
    *silent_s = dcommi_now() - ps->heard_at;
    for (int r = 0; works != NULL && r < ps->size; r++) {
        works[r] = ps->clock.of[r].works;
    }
    dcommi_token_release(ps->comm->context);
    dcommi_ranks_text(dcommi_rank_wanted, works, works != NULL ? ps->size : 0, "some worker", text,
                      len);
    dcommi_free(works);
    return n;
}

/* Serve until every worker has left or died. */
static dcomm_status dcommi_ps_serve_all(dcomm_ps *ps, const char *what)
{
    char who[112];
    double silent_s;
    while (dcommi_ps_left_over(ps, who, sizeof who, &silent_s) > 0) {
        if (silent_s > ps->opts.timeout_s) {
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "%s: rank %d has waited %.3g s for a message; not left: %s", what,
                               ps->rank, ps->opts.timeout_s, who);
        }
        dcommi_progress_or_yield(ps->comm->context);
    }
    return DCOMM_OK;
}

/* Refuse a call that cannot be made. */
static dcomm_status dcommi_ps_check_call(const char *what, const dcomm_ps *ps)
{
    if (ps == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: ps is NULL", what);
    }
    DCOMMI_TRY(dcommi_check_fork());
    DCOMMI_TRY(dcommi_check_no_group(what));
    const int poisoned = atomic_load_explicit(&ps->comm->poisoned, memory_order_acquire);
    return poisoned < 0 ? dcommi_fail((dcomm_status)poisoned, "%s", ps->comm->message) : DCOMM_OK;
}

#endif
