/* ucx_device.h - a UCX that takes the host stand-in's device memory. ucx_device.c stands between
 * dcomm and the installed UCX, which moves the bytes. */
#ifndef UCX_DEVICE_H
#define UCX_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Take device memory in this process; set it before the first communicator. */
extern bool ucx_device_takes;
/* The n-th send from, or receive into, device memory from now on fails; 0: none. */
extern _Atomic unsigned ucx_device_fail_send, ucx_device_fail_receive;

typedef struct ucx_device_counts {
    uint64_t sent, received; /* bytes out of and into device memory */
} ucx_device_counts;
ucx_device_counts ucx_device_get_counts(void);

#endif
