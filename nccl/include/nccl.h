/* nccl.h - put this folder first on the include path, and <nccl.h> is dcomm's. */
#include "../../include/dcomm_nccl.h"
