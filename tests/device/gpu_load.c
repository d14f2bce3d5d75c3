/* gpu_load.c - load all kernels, and say what dcomm_cuda_load finds wrong. */
#include "dcomm.h"
#include <stdio.h>

int main(void)
{
    const dcomm_status status = dcomm_cuda_load();
    printf("# dcomm_cuda_load: %s%s%s\n", dcomm_status_name(status), status != DCOMM_OK ? ": " : "",
           status != DCOMM_OK ? dcomm_last_error() : "");
    return status != DCOMM_OK;
}
