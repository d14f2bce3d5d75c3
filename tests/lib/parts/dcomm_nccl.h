/* dcomm_nccl.h - stands in for the generated header where a target is built from the parts. */
#include "dcomm/nccl/all.h"
