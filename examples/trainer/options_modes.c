/* options_modes.c - options of the modes: when and with whom ranks exchange weights or gradients.
 */
#include "dcomm.h"
#include "options_part.h"

#include <stdio.h>
#include <string.h>

enum { MODE, PUSH, FETCH, LOCAL_STEPS, POST_LOCAL, WITHIN, CLIENTS, FRACTION, CORRECT, PROX };

static const struct option table[] = {
    {"mode", required_argument, NULL, MODE},
    {"push-every", required_argument, NULL, PUSH},
    {"fetch-every", required_argument, NULL, FETCH},
    {"local-steps", required_argument, NULL, LOCAL_STEPS},
    {"post-local", required_argument, NULL, POST_LOCAL},
    {"sync-within", required_argument, NULL, WITHIN},
    {"clients", required_argument, NULL, CLIENTS},
    {"fraction", required_argument, NULL, FRACTION},
    {"correct", required_argument, NULL, CORRECT},
    {"prox", required_argument, NULL, PROX},
    {NULL, 0, NULL, 0},
};

static const char help[] =
    "modes (docs/training-modes.md), in place of a sum of all gradients in each step:\n"
    "  --mode M         a parameter server on all ranks: ps:bsp, bulk-synchronous; ps:ssp:S, at\n"
    "                   most S steps apart; async; downpour; easgd:RHO, elastic averaging with\n"
    "                   0 < RHO <= 1\n"
    "  --push-every N   downpour: steps between pushes (4)\n"
    "  --fetch-every N  downpour: steps between pulls (4)\n"
    "  --local-steps K  average weights every K steps, and no gradients; also of easgd (4) and of\n"
    "                   --clients (4)\n"
    "  --post-local STEP  with --local-steps: sum gradients before this step\n"
    "  --sync-within host  with --local-steps: ranks of a host sum their gradients in each step\n"
    "  --clients P      federated averaging: P clients with texts of their own, of different\n"
    "                   lengths; client p is on rank p modulo the number of ranks\n"
    "  --fraction X     of the clients that take part in a round (1)\n"
    "  --correct scaffold  with --clients: control variates against the drift of clients\n"
    "  --prox MU        with --clients: pull clients to the common weights (FedProx)";

/* Parse the value of --mode. */
static bool take_mode(mode_options *m, const char *value)
{
    m->name = value;
    m->staleness = 0;
    m->kind = MODE_PS;
    if (strcmp(value, "ps:bsp") == 0) {
        return true;
    }
    if (strncmp(value, "ps:ssp:", 7) == 0) {
        return parse_int(value + 7, 0, 1000, &m->staleness);
    }
    m->staleness = DCOMM_PS_ASYNC;
    if (strncmp(value, "easgd:", 6) == 0) {
        m->kind = MODE_EASGD;
        return parse_rate(value + 6, &m->rho);
    }
    m->kind = strcmp(value, "downpour") == 0 ? MODE_DOWNPOUR : MODE_PS;
    return m->kind == MODE_DOWNPOUR || strcmp(value, "async") == 0;
}

static bool take(options *o, int val, const char *value)
{
    mode_options *m = &o->mode;
    switch (val) {
    case MODE:
        return take_mode(m, value);
    case PUSH:
        return parse_int(value, 1, 1000000, &m->push);
    case FETCH:
        return parse_int(value, 1, 1000000, &m->fetch);
    case LOCAL_STEPS:
        return parse_int(value, 1, 1000000, &m->local_steps);
    case POST_LOCAL:
        return parse_int(value, 1, 1000000, &m->post_local);
    case WITHIN:
        m->within = true;
        return strcmp(value, "host") == 0;
    case CLIENTS:
        return parse_int(value, 1, 4096, &m->clients);
    case FRACTION:
        return parse_rate(value, &m->fraction);
    case CORRECT:
        m->scaffold = true;
        return strcmp(value, "scaffold") == 0;
    default:
        return parse_above(value, &m->prox);
    }
}

/* Say which options do not go with a mode, whatever it is. */
static const char *check_any(const options *o)
{
    if (o->elastic || o->checkpoint != NULL) {
        return "--elastic and --checkpoint are for data-parallel training: in other modes ranks "
               "have different weights";
    }
    if (o->buckets > 0 || o->dump != NULL) {
        return "--buckets and --dump are for data-parallel training: other modes do not sum the "
               "gradients of each step";
    }
    if (o->grad_dtype != DCOMM_F32 || o->balance || o->noise_scale || o->hash_every > 0) {
        return "--grad-dtype, --balance, --noise-scale and --hash-every are for data-parallel "
               "training";
    }
    if (o->optimizer != NULL &&
        (strcmp(o->optimizer, "frozen") == 0 || strcmp(o->optimizer, "1bit-adam") == 0)) {
        return "--optimizer frozen and 1bit-adam are for data-parallel training: ranks exchange "
               "their own momentum";
    }
    return NULL;
}

static const char *check_ps(options *o)
{
    const char *optimizer = o->optimizer != NULL ? o->optimizer : "adam";
    if (o->codec != NULL || o->algo != NULL || o->deterministic) {
        return "--codec, --algo and --deterministic are of an all-reduce, which a parameter server "
               "does not need; ps:bsp is deterministic";
    }
    if (o->mode.local_steps > 0 && o->mode.kind != MODE_EASGD) {
        return "--local-steps goes with no --mode but easgd";
    }
    if (o->mode.kind == MODE_EASGD) {
        o->mode.local_steps = o->mode.local_steps > 0 ? o->mode.local_steps : 4;
        return NULL;
    }
    if (o->mode.kind == MODE_DOWNPOUR && o->optimizer == NULL) {
        o->optimizer = optimizer = "adagrad";
    }
    if (strcmp(optimizer, "adam") != 0 && strcmp(optimizer, "sgd") != 0 &&
        strcmp(optimizer, "adagrad") != 0) {
        return "a parameter server has --optimizer adam, sgd and adagrad";
    }
    if (strcmp(optimizer, "adam") == 0 && o->momentum == 0) {
        return "a parameter server's Adam needs --momentum above 0";
    }
    return NULL;
}

static const char *check_federated(options *o)
{
    mode_options *m = &o->mode;
    o->optimizer = o->optimizer != NULL ? o->optimizer : "sgd";
    m->local_steps = m->local_steps > 0 ? m->local_steps : 4;
    if (strcmp(o->optimizer, "sgd") != 0) {
        return "--clients goes with --optimizer sgd: clients keep nothing for an optimizer";
    }
    if (m->scaffold && m->prox > 0) {
        return "--correct and --prox are two ways to correct one thing";
    }
    return (float)o->batch < m->fraction * (float)m->clients
               ? "--batch must be at least the number of clients in a round"
               : NULL;
}

static const char *check(options *o)
{
    mode_options *m = &o->mode;
    const bool server = m->kind != MODE_DATA_PARALLEL;
    if ((m->push > 0 || m->fetch > 0) && m->kind != MODE_DOWNPOUR) {
        return "--push-every and --fetch-every are for --mode downpour";
    }
    m->push = m->push > 0 ? m->push : 4;
    m->fetch = m->fetch > 0 ? m->fetch : 4;
    if ((m->scaffold || m->prox > 0 || m->fraction > 0) && m->clients == 0) {
        return "--correct, --prox and --fraction are for --clients";
    }
    m->fraction = m->fraction > 0 ? m->fraction : 1;
    if ((m->post_local > 0 || m->within) && (m->local_steps == 0 || m->clients > 0 || server)) {
        return "--post-local and --sync-within are for --local-steps, without --clients and --mode";
    }
    if (m->clients > 0 && server) {
        return "--clients does not go with --mode";
    }
    if (m->clients > 0) {
        m->kind = MODE_FEDERATED;
    } else if (!server && m->local_steps > 0) {
        m->kind = MODE_LOCAL;
    }
    if (m->name == NULL) {
        m->name = m->kind == MODE_LOCAL ? "local" : m->kind == MODE_FEDERATED ? "federated" : "";
    }
    const char *wrong = m->kind != MODE_DATA_PARALLEL ? check_any(o) : NULL;
    if (wrong == NULL && server) {
        wrong = check_ps(o);
    }
    return wrong == NULL && m->kind == MODE_FEDERATED ? check_federated(o) : wrong;
}

const options_part options_modes = {help, table, take, check};
