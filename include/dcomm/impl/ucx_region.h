/* ucx_region.h - memory that peers on this host can map, by UCX's shared-memory keys. */
#ifndef DCOMMI_UCX_REGION_H
#define DCOMMI_UCX_REGION_H

#include "transport.h"
#include "ucx_config.h"

/* What must be given back before the worker goes: our own memory, or a peer's key. */
typedef struct dcommi_ucx_mapping {
    struct dcommi_ucx_mapping *prev, *next;
    ucp_mem_h memory;
    void *key;
    ucp_rkey_h rkey;
} dcommi_ucx_mapping;

static void dcommi_ucx_mapping_add(dcommi_ucx_mapping *list, dcommi_ucx_mapping *m)
{
    m->prev = list;
    m->next = list->next;
    list->next->prev = m;
    list->next = m;
}

static void dcommi_ucx_mapping_drop(ucp_context_h context, dcommi_ucx_mapping *m)
{
    m->prev->next = m->next;
    m->next->prev = m->prev;
    if (m->rkey != NULL) {
        ucp_rkey_destroy(m->rkey);
    }
    if (m->key != NULL) {
        ucp_rkey_buffer_release(m->key);
    }
    if (m->memory != NULL) {
        ucp_mem_unmap(context, m->memory);
    }
    dcommi_free(m);
}

static dcomm_status dcommi_ucx_region_allocate(ucp_context_h context, dcommi_ucx_mapping *list,
                                               size_t len, dcommi_region *region)
{
    dcommi_ucx_mapping *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_mapping_add(list, m);
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                 UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = len,
                                   .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    size_t key_len = 0;
    dcommi_ucx_hush++;
    ucs_status_t status = ucp_mem_map(context, &params, &m->memory);
    dcommi_ucx_hush--;
    if (status != UCS_OK) {
        m->memory = NULL;
    } else {
        status = ucp_mem_query(m->memory, &attr);
    }
    if (status == UCS_OK) {
        status = ucp_rkey_pack(context, m->memory, &m->key, &key_len);
    }
    if (status != UCS_OK) {
        dcommi_ucx_mapping_drop(context, m);
        return dcommi_fail(
            status == UCS_ERR_NO_MEMORY ? DCOMM_ERR_SYSTEM : dcommi_ucx_status(status),
            "no shared memory of %zu bytes: %s (see /proc/sys/kernel/shmmax and the size "
            "of /dev/shm)",
            len, ucs_status_string(status));
    }
    *region = (dcommi_region){
        .base = attr.address, .len = len, .handle = m, .key = m->key, .key_len = key_len};
    return DCOMM_OK;
}

static dcomm_status dcommi_ucx_region_attach(ucp_context_h context, dcommi_ucx_mapping *list,
                                             ucp_ep_h ep, const void *key, void *remote_base,
                                             void **ptr, void **map)
{
    dcommi_ucx_mapping *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_mapping_add(list, m);
    ucs_status_t status = ucp_ep_rkey_unpack(ep, key, &m->rkey);
    if (status != UCS_OK) {
        m->rkey = NULL;
    } else {
        status = ucp_rkey_ptr(m->rkey, (uint64_t)(uintptr_t)remote_base, ptr);
    }
    if (status != UCS_OK) {
        dcommi_ucx_mapping_drop(context, m);
        return dcommi_fail(dcommi_ucx_status(status), "a peer's shared memory cannot be mapped: %s",
                           ucs_status_string(status));
    }
    *map = m;
    return DCOMM_OK;
}

#endif
