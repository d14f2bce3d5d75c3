/* ucx_device.c - implements ucx_device.h; tests/meson.build has the linker redirect UCX's calls
 * here. If dcomm leaves the kind of memory to UCX, the memory must be the stand-in's. Its bytes
 * are moved where the stand-in itself reads and writes them. */
#define _GNU_SOURCE
#include "ucx_device.h"
#include "cuda_host.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

bool ucx_device_takes;
_Atomic unsigned ucx_device_fail_send, ucx_device_fail_receive;
static _Atomic uint64_t sent, received;

void __real_ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
void __wrap_ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
ucs_status_t __real_ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr);
ucs_status_t __wrap_ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr);
ucs_status_ptr_t __real_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param);
ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param);
ucs_status_ptr_t __real_ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param);
ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param);

ucx_device_counts ucx_device_get_counts(void)
{
    return (ucx_device_counts){atomic_load(&sent), atomic_load(&received)};
}

static bool counted_down(_Atomic unsigned *n)
{
    return atomic_load(n) > 0 && atomic_fetch_sub(n, 1) == 1;
}

/* Return the address at which the host can access the bytes. A pointer to no device is the
 * caller's error. */
static void *reach(const void *at, size_t len)
{
    void *there = cuda_host_peek(at, len);
    if (there == NULL || !ucx_device_takes) {
        fprintf(stderr, "UCX is given %zu bytes at %p, which %s\n", len, at,
                there == NULL ? "are no device's" : "it does not take");
        abort();
    }
    return there;
}

/* Report 1.14, the first version that recognises memory from pools. */
void __wrap_ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    __real_ucp_get_version(major, minor, release);
    *minor = *major == 1 && *minor < 14 && ucx_device_takes ? 14 : *minor;
}

ucs_status_t __wrap_ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr)
{
    ucs_status_t status = __real_ucp_context_query(context, attr);
    if (status == UCS_OK && (attr->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) != 0 &&
        ucx_device_takes) {
        attr->memory_types |=
            UINT64_C(1) << UCS_MEMORY_TYPE_CUDA | UINT64_C(1) << UCS_MEMORY_TYPE_CUDA_MANAGED;
    }
    return status;
}

ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param)
{
    ucp_request_param_t host = *param;
    if (param->memory_type == UCS_MEMORY_TYPE_UNKNOWN) {
        if (counted_down(&ucx_device_fail_send)) {
            return UCS_STATUS_PTR(UCS_ERR_IO_ERROR);
        }
        buffer = reach(buffer, count);
        host.memory_type = UCS_MEMORY_TYPE_HOST;
        atomic_fetch_add(&sent, count);
    }
    return __real_ucp_am_send_nbx(ep, id, header, header_length, buffer, count, &host);
}

ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param)
{
    ucp_request_param_t host = *param;
    if (param->memory_type == UCS_MEMORY_TYPE_UNKNOWN) {
        if (counted_down(&ucx_device_fail_receive)) {
            ucp_am_data_release(worker, data_desc);
            return UCS_STATUS_PTR(UCS_ERR_IO_ERROR);
        }
        buffer = reach(buffer, count);
        host.memory_type = UCS_MEMORY_TYPE_HOST;
        atomic_fetch_add(&received, count);
    }
    return __real_ucp_am_recv_data_nbx(worker, data_desc, buffer, count, &host);
}
