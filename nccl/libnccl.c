/* libnccl.c - NCCL's face and dcomm with CUDA under it, as a library of its own. */
#define DCOMM_NCCL_IMPLEMENTATION
#include "dcomm_nccl.h"
