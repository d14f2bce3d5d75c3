/* api_mem.h - registered host memory for the caller: allocate, look up, free. Device memory is in
 * api_mem_device.h. */
#ifndef DCOMMI_API_MEM_H
#define DCOMMI_API_MEM_H

#include "api_mem_device.h"

/* Allocations of at least this many bytes take whole huge pages. */
#define DCOMMI_MEM_HUGE_MIN ((size_t)256 << 10)

static dcommi_own *dcommi_mem_all; /* guarded by dcommi_mem_lock */

/* Warn, once in a process, that registered memory is not on huge pages. */
static void dcommi_mem_report(const dcommi_own *own)
{
    static _Atomic int said;
    char setting[128] = "unknown";
    if (own->len < DCOMMI_HUGE_PAGE || own->huge == own->len || atomic_exchange(&said, 1) != 0) {
        return;
    }
    dcommi_host_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", setting, sizeof setting);
    dcommi_log(DCOMMI_LOG_WARN,
               "%zu of %zu bytes of registered memory are on huge pages: the kernel refuses "
               "MADV_COLLAPSE (Linux 6.1 has it) or has no huge page free; shmem_enabled is: %s",
               own->huge, own->len, setting);
}

/* Return the bytes that the kernel can give without swapping; SIZE_MAX if it does not say. */
static size_t dcommi_mem_available(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    }
    if (file != NULL) {
        fclose(file);
    }
    return found ? (size_t)kib << 10 : SIZE_MAX;
}

/* Fill `own` with memory that no other process can map. */
static dcomm_status dcommi_mem_plain(dcommi_own *own)
{
    own->base = dcommi_huge_reserve(own->len);
    if (own->base == NULL || mprotect(own->base, own->len, PROT_READ | PROT_WRITE) != 0) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "no address space for %zu bytes: %s", own->len,
                           strerror(errno));
    }
    if (!dcommi_huge_fill(own->base, own->len, &own->huge)) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "no memory for %zu bytes: %s", own->len,
                           strerror(errno));
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_mem_make(dcommi_own *own)
{
    dcomm_status status = dcommi_own_create(own, true);
    if (status == DCOMM_ERR_UNSUPPORTED) {
        dcommi_own_destroy(own);
        return dcommi_mem_plain(own);
    }
    DCOMMI_TRY(status);
    dcommi_token_take(own->context);
    status = dcommi_own_enter(own);
    dcommi_token_release(own->context);
    return status;
}

static dcomm_status dcommi_mem_alloc(dcomm_context *context, size_t bytes, dcommi_own **own_p)
{
    size_t available = dcommi_mem_available();
    if (bytes > available || bytes > DCOMMI_REGION_LEN_MAX) {
        return dcommi_fail(DCOMM_ERR_SYSTEM,
                           "%zu bytes of registered memory are wanted and %zu available; it is all "
                           "taken at once",
                           bytes, available);
    }
    dcommi_own *own = dcommi_alloc(sizeof *own);
    if (own == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    size_t grain = bytes >= DCOMMI_MEM_HUGE_MIN ? DCOMMI_HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
    own->len = (bytes + grain - 1) / grain * grain;
    own->context = context;
    dcomm_status status = dcommi_mem_make(own);
    if (status < 0) {
        dcommi_own_destroy(own);
        dcommi_free(own);
        return status;
    }
    atomic_fetch_add(&context->refs, 1);
    pthread_mutex_lock(&dcommi_mem_lock);
    own->next = dcommi_mem_all;
    dcommi_mem_all = own;
    pthread_mutex_unlock(&dcommi_mem_lock);
    *own_p = own;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_mem_alloc(dcomm_context *context, size_t bytes, void **ptr_p)
{
    dcommi_own *own;
    DCOMMI_NEED(ptr_p);
    *ptr_p = NULL;
    DCOMMI_NEED(context);
    DCOMMI_TRY(dcommi_check_fork());
    if (bytes == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_mem_alloc(context, bytes, &own));
    dcommi_mem_report(own);
    *ptr_p = own->base;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_mem_free(void **ptr_p)
{
    if (ptr_p == NULL || *ptr_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    pthread_mutex_lock(&dcommi_mem_lock);
    dcommi_own **at = &dcommi_mem_all;
    while (*at != NULL && (*at)->base != *ptr_p) {
        at = &(*at)->next;
    }
    dcommi_own *own = *at;
    if (own != NULL) {
        *at = own->next;
    }
    pthread_mutex_unlock(&dcommi_mem_lock);
    dcomm_status status;
    if (own == NULL && dcommi_shared_release(*ptr_p, &status)) {
        *ptr_p = NULL;
        return status;
    }
    if (own == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%p is not from dcomm_mem_alloc, or is free already",
                           *ptr_p);
    }
    *ptr_p = NULL;
    if (own->id != 0) {
        dcommi_token_take(own->context);
        dcommi_own_leave(own);
        dcommi_token_release(own->context);
    }
    dcommi_own_destroy(own);
    dcomm_context *context = own->context;
    dcommi_free(own->readers);
    dcommi_free(own);
    return dcommi_context_release(context);
}

DCOMM_API dcomm_status dcomm_mem_get_info(const void *ptr, dcomm_mem_info *info)
{
    DCOMMI_NEED(info);
    *info = (dcomm_mem_info){0};
    pthread_mutex_lock(&dcommi_mem_lock);
    const dcommi_own *own = dcommi_mem_all;
    while (own != NULL && (uintptr_t)ptr - (uintptr_t)own->base >= own->len) {
        own = own->next;
    }
    if (own != NULL) {
        *info = (dcomm_mem_info){own->base, own->len, own->huge, own->id != 0, -1};
    }
    bool found = own != NULL || dcommi_shared_query(ptr, info);
    pthread_mutex_unlock(&dcommi_mem_lock);
    return found ? DCOMM_OK
                 : dcommi_fail(DCOMM_ERR_INVALID, "%p lies in no memory from dcomm_mem_alloc", ptr);
}

#endif
