/* nccl.h - dcomm's <nccl.h>, if this folder comes first on the include path. */
#include "../../include/dcomm_nccl.h"
