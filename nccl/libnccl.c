/* libnccl.c - NCCL's interface and dcomm with CUDA, as one library. */
#define DCOMM_NCCL_IMPLEMENTATION
#include "dcomm_nccl.h"
