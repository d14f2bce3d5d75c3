/* agree.h - make an error that one rank finds an error on all ranks. */
#ifndef DCOMMI_MOE_AGREE_H
#define DCOMMI_MOE_AGREE_H

#include "../../comm/alike.h"
#include "types.h"

static dcomm_status dcommi_moe_broken(const dcomm_moe *m)
{
    return m->failed < 0 ? dcommi_fail(m->failed, "%s", m->message) : DCOMM_OK;
}

/* Fail the step, and tell the other ranks why, on every communicator that they may wait on. */
static dcomm_status dcommi_moe_fail(dcomm_moe *m, dcomm_status status)
{
    if (m->failed < 0) {
        return dcommi_moe_broken(m);
    }
    snprintf(m->message, sizeof m->message, "%s", dcommi_message);
    m->failed = status;
    dcomm_comm *all[] = {m->comm, m->back, m->host[0], m->host[1]};
    for (int i = 0; i < 4; i++) {
        if (all[i] != NULL) {
            dcomm_comm_abort(all[i], m->message);
        }
    }
    return dcommi_moe_broken(m);
}

static dcomm_status dcommi_moe_check(const char *what, dcomm_moe *m)
{
    if (m == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: m is NULL", what);
    }
    DCOMMI_TRY(dcommi_check_fork());
    DCOMMI_TRY(dcommi_check_no_group(what));
    return dcommi_moe_broken(m);
}

/* ---- options ---- */

static uint64_t dcommi_moe_owner_hash(const dcomm_moe *m)
{
    uint64_t h = 0;
    for (size_t e = 0; e < m->opts.experts; e++) {
        h = dcommi_mix(h, (uint64_t)m->owner[e]);
    }
    return h;
}

#define DCOMMI_MOE_OPTIONS(X)                                             \
    X(experts, m->opts.experts)                                           \
    X(hidden, m->opts.hidden)                                             \
    X(k, m->opts.k)                                                       \
    X(dtype, m->opts.dtype)                                               \
    X(owner, dcommi_moe_owner_hash(m))                                    \
    X(capacity, m->opts.capacity * 65536)                                 \
    X(policy, m->opts.policy)                                             \
    X(chunks, m->opts.chunks)                                             \
    X(form, m->opts.form)                                                 \
    X(algo, dcommi_mix_text(0, m->opts.algo != NULL ? m->opts.algo : "")) \
    X(codec, dcommi_mix_text(0, m->codec != NULL ? m->codec->spec : ""))  \
    X(codec_seed, m->opts.codec_seed)

enum {
#define DCOMMI_MOE_COUNT(name, value) +1
    DCOMMI_MOE_NOPTIONS = 0 DCOMMI_MOE_OPTIONS(DCOMMI_MOE_COUNT)
#undef DCOMMI_MOE_COUNT
};

/* Check that all ranks have the same options and have come this far without an error. */
static dcomm_status dcommi_moe_agree(const dcomm_moe *m)
{
    static const char *const names[] = {
#define DCOMMI_MOE_NAME(name, value) "opts." #name,
        DCOMMI_MOE_OPTIONS(DCOMMI_MOE_NAME)
#undef DCOMMI_MOE_NAME
    };
    const uint64_t own[] = {
#define DCOMMI_MOE_VALUE(name, value) (uint64_t)(value),
        DCOMMI_MOE_OPTIONS(DCOMMI_MOE_VALUE)
#undef DCOMMI_MOE_VALUE
    };
    return dcommi_all_alike(m->comm, "dcomm_moe_create", names, own, DCOMMI_MOE_NOPTIONS,
                            m->opts.timeout_s);
}

#endif
