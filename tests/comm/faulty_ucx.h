/* faulty_ucx.h - UCX's calls that fail. */
#ifndef FAULTY_UCX_H
#define FAULTY_UCX_H

#include "faulty.h"

#include <ucp/api/ucp.h>

/* Count a call. Return true if it fails. */
static bool faulty_ucx(const char *name)
{
    return faulty_kind == FAULTY_UCX && faulty_counts(name);
}

/* ---- opening ---- */

FAULTY_WRAP(ucs_status_t, ucp_config_read, const char *prefix, const char *file,
            ucp_config_t **config_p)
{
    return faulty_ucx("ucp_config_read") ? UCS_ERR_NO_MEMORY
                                         : __real_ucp_config_read(prefix, file, config_p);
}

FAULTY_WRAP(ucs_status_t, ucp_config_modify, ucp_config_t *config, const char *name,
            const char *value)
{
    return faulty_ucx("ucp_config_modify") ? UCS_ERR_NO_ELEM
                                           : __real_ucp_config_modify(config, name, value);
}

/* The header's ucp_init calls it. */
FAULTY_WRAP(ucs_status_t, ucp_init_version, unsigned major, unsigned minor,
            const ucp_params_t *params, const ucp_config_t *config, ucp_context_h *context_p)
{
    return faulty_ucx("ucp_init")
               ? UCS_ERR_NO_DEVICE
               : __real_ucp_init_version(major, minor, params, config, context_p);
}

FAULTY_WRAP(ucs_status_t, ucp_worker_create, ucp_context_h context,
            const ucp_worker_params_t *params, ucp_worker_h *worker_p)
{
    return faulty_ucx("ucp_worker_create") ? UCS_ERR_NO_MEMORY
                                           : __real_ucp_worker_create(context, params, worker_p);
}

FAULTY_WRAP(ucs_status_t, ucp_worker_set_am_recv_handler, ucp_worker_h worker,
            const ucp_am_handler_param_t *param)
{
    return faulty_ucx("ucp_worker_set_am_recv_handler")
               ? UCS_ERR_NO_MEMORY
               : __real_ucp_worker_set_am_recv_handler(worker, param);
}

FAULTY_WRAP(ucs_status_t, ucp_worker_query, ucp_worker_h worker, ucp_worker_attr_t *attr)
{
    return faulty_ucx("ucp_worker_query") ? UCS_ERR_NO_MEMORY
                                          : __real_ucp_worker_query(worker, attr);
}

FAULTY_WRAP(ucs_status_t, ucp_ep_create, ucp_worker_h worker, const ucp_ep_params_t *params,
            ucp_ep_h *ep_p)
{
    return faulty_ucx("ucp_ep_create") ? UCS_ERR_NO_MEMORY
                                       : __real_ucp_ep_create(worker, params, ep_p);
}

/* ---- messages ---- */

FAULTY_WRAP(ucs_status_ptr_t, ucp_am_send_nbx, ucp_ep_h ep, unsigned id, const void *header,
            size_t header_len, const void *data, size_t count, const ucp_request_param_t *param)
{
    if (faulty_kind == FAULTY_UCX_BUSY && (param->op_attr_mask & UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL) &&
        faulty_counts("ucp_am_send_nbx, for now")) {
        return UCS_STATUS_PTR(UCS_ERR_NO_RESOURCE);
    }
    return faulty_ucx("ucp_am_send_nbx")
               ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
               : __real_ucp_am_send_nbx(ep, id, header, header_len, data, count, param);
}

FAULTY_WRAP(ucs_status_ptr_t, ucp_am_recv_data_nbx, ucp_worker_h worker, void *desc, void *into,
            size_t count, const ucp_request_param_t *param)
{
    return faulty_ucx("ucp_am_recv_data_nbx")
               ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
               : __real_ucp_am_recv_data_nbx(worker, desc, into, count, param);
}

/* ---- closing ---- */

FAULTY_WRAP(ucs_status_ptr_t, ucp_ep_flush_nbx, ucp_ep_h ep, const ucp_request_param_t *param)
{
    return faulty_ucx("ucp_ep_flush_nbx") ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
                                          : __real_ucp_ep_flush_nbx(ep, param);
}

FAULTY_WRAP(ucs_status_ptr_t, ucp_worker_flush_nbx, ucp_worker_h worker,
            const ucp_request_param_t *param)
{
    return faulty_ucx("ucp_worker_flush_nbx") ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
                                              : __real_ucp_worker_flush_nbx(worker, param);
}

/* A forced close that fails has closed all the same. */
FAULTY_WRAP(ucs_status_ptr_t, ucp_ep_close_nbx, ucp_ep_h ep, const ucp_request_param_t *param)
{
    ucs_status_ptr_t answer = __real_ucp_ep_close_nbx(ep, param);
    return answer == NULL && faulty_ucx("ucp_ep_close_nbx") ? UCS_STATUS_PTR(UCS_ERR_IO_ERROR)
                                                            : answer;
}

#endif
