/* codec_kernels.c - the loops of the dense codecs, compiled once for all programs of
 * the project that hold parts of the implementation. */
#define _GNU_SOURCE
#define DCOMMI_CODEC_KERNELS
#define DCOMMI_CODEC_LOOPS

#include "dcomm/base.h"

#include "dcomm/impl/base/util.h"

#include "../../kernels/cpu/codec_isa.h"
