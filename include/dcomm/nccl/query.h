/* query.h - NCCL's queries, its errors and its memory. */
#ifndef DCOMMI_NCCL_QUERY_H
#define DCOMMI_NCCL_QUERY_H

#include "coll.h"
#include "comm.h"

void ncclResetDebugInit(void)
{
}

ncclResult_t ncclGetVersion(int *version)
{
    if (version == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (see ncclGetLastError)";
    case ncclSystemError:
        return "unhandled system error (see ncclGetLastError)";
    case ncclInternalError:
        return "internal error (see ncclGetLastError)";
    case ncclInvalidArgument:
        return "invalid argument (see ncclGetLastError)";
    case ncclInvalidUsage:
        return "invalid usage (see ncclGetLastError)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    if (comm != NULL && dcomm_comm_ready(comm->comm) == DCOMM_OK &&
        dcomm_comm_status(comm->comm) != DCOMM_OK) {
        return dcomm_comm_error(comm->comm);
    }
    return dcommi_nccl_text;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (comm == NULL || error == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclCommGetAsyncError: %s is NULL",
                                comm == NULL ? "comm" : "error");
    }
    dcomm_status status = dcomm_comm_ready(comm->comm);
    if (status == DCOMM_OK) {
        *error = dcommi_nccl_result(dcomm_comm_status(comm->comm));
    } else {
        *error = dcommi_nccl_from(status);
    }
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_ask(const char *call, ncclComm_t comm, const void *out)
{
    if (comm == NULL || out == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: %s is NULL", call,
                                comm == NULL ? "comm" : "the pointer for the answer");
    }
    return dcomm_comm_ready(comm->comm) == DCOMM_IN_PROGRESS
               ? dcommi_nccl_fail(ncclInvalidUsage, "%s: the communicator is still being created",
                                  call)
               : ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommCount", comm, count));
    *count = dcomm_comm_size(comm->comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommCuDevice", comm, device));
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommUserRank", comm, rank));
    *rank = dcomm_comm_rank(comm->comm);
    return ncclSuccess;
}

/* ---- memory ---- */

/* Allocate memory that no peer may open yet: ncclCommRegister shares it. */
ncclResult_t ncclMemAlloc(void **ptr, size_t bytes)
{
    return ptr == NULL ? dcommi_nccl_fail(ncclInvalidArgument, "ncclMemAlloc: ptr is NULL")
                       : dcommi_nccl_from(dcomm_mem_alloc_device(NULL, bytes, ptr));
}

ncclResult_t ncclMemFree(void *ptr)
{
    return dcommi_nccl_from(dcomm_mem_free(&ptr));
}

/* Register a buffer, and share it if it is from ncclMemAlloc. Other memory is not shared: it must
 * not be freed while a peer has it open, and dcomm does not see its cudaFree. */
static ncclResult_t dcommi_nccl_register(const char *call, ncclComm_t comm, void *buff,
                                         size_t bytes, void **handle)
{
    dcomm_mem_info info;
    if (buff == NULL || bytes == 0) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: buff is NULL, or bytes is 0", call);
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_ask(call, comm, handle));
    dcommi_nccl_registered *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return dcommi_nccl_no_memory();
    }
    r->buff = buff;
    if (dcomm_mem_get_info(buff, &info) == DCOMM_OK && info.device >= 0) {
        dcomm_status status = dcomm_mem_share(dcomm_comm_context(comm->comm), buff);
        if (status < 0) {
            free(r);
            return dcommi_nccl_from(status);
        }
        r->shared = true;
    }
    pthread_mutex_lock(&dcommi_nccl_lock);
    r->next = comm->registered;
    comm->registered = r;
    pthread_mutex_unlock(&dcommi_nccl_lock);
    *handle = r;
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_deregister(const char *call, ncclComm_t comm, const void *handle)
{
    dcommi_nccl_registered **at, *r = NULL;
    if (comm != NULL && handle == NULL) {
        return ncclSuccess;
    }
    if (comm != NULL) {
        pthread_mutex_lock(&dcommi_nccl_lock);
        for (at = &comm->registered; *at != NULL && *at != handle; at = &(*at)->next) {
        }
        r = *at;
        if (r != NULL) {
            *at = r->next;
        }
        pthread_mutex_unlock(&dcommi_nccl_lock);
    }
    if (r == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: comm is NULL, or not that of the handle",
                                call);
    }
    dcommi_nccl_unregister(comm, r);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t bytes, void **handle)
{
    return dcommi_nccl_register("ncclCommRegister", comm, buff, bytes, handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return dcommi_nccl_deregister("ncclCommDeregister", comm, handle);
}

/* A registered buffer is enough: collectives alone use windows here. Their order is that of the
 * stream, which is strict enough for NCCL_WIN_STRICT_ORDERING. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t bytes, ncclWindow_t *window,
                                    int flags)
{
    void *handle = NULL;
    if (window == NULL || (flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclCommWindowRegister: window is NULL, or flags is %d", flags);
    }
    *window = NULL;
    DCOMMI_NCCL_TRY(dcommi_nccl_register("ncclCommWindowRegister", comm, buff, bytes, &handle));
    *window = handle;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    return dcommi_nccl_deregister("ncclCommWindowDeregister", comm, window);
}

DCOMMI_NCCL_CALL(ncclGetVersion);
DCOMMI_NCCL_CALL(ncclResetDebugInit);
DCOMMI_NCCL_CALL(ncclGetErrorString);
DCOMMI_NCCL_CALL(ncclGetLastError);
DCOMMI_NCCL_CALL(ncclCommGetAsyncError);
DCOMMI_NCCL_CALL(ncclCommCount);
DCOMMI_NCCL_CALL(ncclCommCuDevice);
DCOMMI_NCCL_CALL(ncclCommUserRank);
DCOMMI_NCCL_CALL(ncclMemAlloc);
DCOMMI_NCCL_CALL(ncclMemFree);
DCOMMI_NCCL_CALL(ncclCommRegister);
DCOMMI_NCCL_CALL(ncclCommDeregister);
DCOMMI_NCCL_CALL(ncclCommWindowRegister);
DCOMMI_NCCL_CALL(ncclCommWindowDeregister);

#endif
