/* all.h - the parts of NCCL's face in the order in which tools/amalgamate.py expands them into
 * include/dcomm_nccl.h. */
#include "../impl/base/preamble.h"
#include "face.h"
#ifdef DCOMM_NCCL_IMPLEMENTATION
#include "later.h"
#endif
