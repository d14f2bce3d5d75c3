/* ucx_region.h - memory that the processes of a host map from each other, by UCX's shared-memory
 * keys. A UCX context of its own, over which nothing is ever sent: no process can leave anything
 * half-written in another's queue. */
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

/* The context, and a worker that gives an address and endpoints for unpacking keys. */
typedef struct dcommi_ucx_maps {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_len;
    dcommi_ucx_mapping mappings; /* head of a ring */
} dcommi_ucx_maps;

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

static dcomm_status dcommi_ucx_region_allocate(dcommi_ucx_maps *maps, size_t len,
                                               dcommi_region *region)
{
    ucp_context_h context = maps->context;
    dcommi_ucx_mapping *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_mapping_add(&maps->mappings, m);
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                 UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = len,
                                   .flags = UCP_MEM_MAP_ALLOCATE | UCP_MEM_MAP_NONBLOCK};
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

static dcomm_status dcommi_ucx_region_attach(dcommi_ucx_maps *maps, ucp_ep_h ep, const void *key,
                                             void *remote_base, void **ptr, void **map)
{
    dcommi_ucx_mapping *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_mapping_add(&maps->mappings, m);
    ucs_status_t status = ucp_ep_rkey_unpack(ep, key, &m->rkey);
    if (status != UCS_OK) {
        m->rkey = NULL;
    } else {
        status = ucp_rkey_ptr(m->rkey, (uint64_t)(uintptr_t)remote_base, ptr);
    }
    if (status != UCS_OK) {
        dcommi_ucx_mapping_drop(maps->context, m);
        return dcommi_fail(dcommi_ucx_status(status), "a peer's shared memory cannot be mapped: %s",
                           ucs_status_string(status));
    }
    *map = m;
    return DCOMM_OK;
}

/* ---- the worker ---- */

/* An endpoint that serves only to unpack keys: nothing is sent for it. */
static dcomm_status dcommi_ucx_maps_reach(dcommi_ucx_maps *maps, const void *address, ucp_ep_h *ep)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    dcommi_ucx_hush++;
    ucs_status_t status = ucp_ep_create(maps->worker, &params, ep);
    dcommi_ucx_hush--;
    if (status != UCS_OK) {
        *ep = NULL;
        return dcommi_fail(dcommi_ucx_status(status),
                           "a process of this host cannot be reached over shared memory: %s",
                           ucs_status_string(status));
    }
    return DCOMM_OK;
}

static void dcommi_ucx_maps_leave(dcommi_ucx_maps *maps, ucp_ep_h ep)
{
    ucp_request_param_t param = {0};
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    ucp_worker_progress(maps->worker);
    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request);
    }
}

static void dcommi_ucx_maps_close(dcommi_ucx_maps *maps)
{
    while (maps->mappings.next != NULL && maps->mappings.next != &maps->mappings) {
        dcommi_ucx_mapping_drop(maps->context, maps->mappings.next);
    }
    if (maps->address != NULL) {
        ucp_worker_release_address(maps->worker, maps->address);
    }
    if (maps->worker != NULL) {
        ucp_worker_destroy(maps->worker);
    }
    if (maps->context != NULL) {
        ucp_cleanup(maps->context);
    }
    memset(maps, 0, sizeof *maps);
}

static dcomm_status dcommi_ucx_maps_open(dcommi_ucx_maps *maps)
{
    static const dcommi_ucx_option options[] = {
        {"TLS", "posix,sysv,self", NULL},
        {"SHM_DEVICES", "all", NULL},
        {"SELF_DEVICES", "all", NULL},
        {"NET_DEVICES", "all", NULL},
        /* Memory that peers can map, or none. System V's is not bounded by /dev/shm. */
        {"ALLOC_PRIO", "md:sysv,md:posix", NULL},
    };
    maps->mappings.next = maps->mappings.prev = &maps->mappings;
    dcommi_ucx_tame_once();
    dcomm_status set = dcommi_ucx_shm_check(DCOMMI_UCX_SHM_NEED);
    if (set == DCOMM_OK) {
        set = dcommi_ucx_start("local", UCP_FEATURE_RMA, options, sizeof options / sizeof *options,
                               &maps->context, &maps->worker);
    }
    if (set == DCOMM_OK) {
        ucs_status_t status =
            ucp_worker_get_address(maps->worker, &maps->address, &maps->address_len);
        if (status != UCS_OK) {
            maps->address = NULL;
            set = dcommi_fail(dcommi_ucx_status(status), "local: UCX gives no address: %s",
                              ucs_status_string(status));
        }
    }
    if (set != DCOMM_OK) {
        dcommi_ucx_maps_close(maps);
    }
    return set;
}

#endif
