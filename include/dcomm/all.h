/* all.h - includes every part in order. tools/amalgamate.py turns this file into
 * include/dcomm.h. */
#include "impl/base/preamble.h"

#include "base.h"
#include "compress.h"
#include "ledger.h"
#include "feedback.h"
#include "cuda.h"

#ifndef DCOMM_NO_COMM
#include "plan.h"
#include "build.h"
#include "comm.h"
#include "mem.h"
#include "coll.h"
#include "tune.h"
#ifndef DCOMM_NO_CHECK
#include "check.h"
#endif
#ifndef DCOMM_NO_TRAIN
#include "bucket.h"
#include "scaler.h"
#include "moe.h"
#include "checkpoint.h"
#include "fingerprint.h"
#include "share.h"
#include "ps.h"
#endif
#endif
#include "old_names.h"

#if defined(DCOMM_IMPLEMENTATION) || defined(DCOMM_CUDA_IMPLEMENTATION)
#include "../../kernels/norm.h"
#include "../../kernels/tally.h"
#include "../../kernels/rng.h"
#include "../../kernels/randk.h"
#include "../../kernels/wire.h"
#include "../../kernels/wire_sparse.h"
#include "../../kernels/topk_sample.h"
#endif

#ifdef DCOMM_IMPLEMENTATION
#ifndef DCOMMI_IMPLEMENTATION_H
#define DCOMMI_IMPLEMENTATION_H
#include "impl/base/util.h"
#include "impl/base/base_impl.h"
#include "impl/codec/api_codec.h"
#include "impl/feedback/save.h"
#include "impl/feedback/linear.h"
#include "impl/codec/api_layout.h"

#ifndef DCOMM_NO_COMM
#include "impl/device/host.h"
#include "impl/plan/build.h"
#include "impl/plan/print.h"
#include "impl/plan/api_build.h"
#include "impl/model/api_model.h"
#include "impl/comm/api_coll.h"
#include "impl/comm/requests.h"
#include "impl/comm/shrink.h"
#include "impl/comm/api_mem.h"
#include "impl/comm/api_tune.h"
#include "impl/comm/api_explain.h"
#include "impl/comm/tune_comm.h"
#include "impl/comm/create.h"
#include "impl/comm/grow.h"
#ifndef DCOMM_NO_CHECK
#include "impl/check/check.h"
#endif
#ifndef DCOMM_NO_TRAIN
#include "impl/train/bucket/api_bucket.h"
#include "impl/train/scaler.h"
#include "impl/train/bucket/save.h"
#include "impl/train/bucket/rebind.h"
#include "impl/train/moe/api_moe.h"
#include "impl/train/checkpoint.h"
#include "impl/train/fingerprint.h"
#include "impl/train/share.h"
#include "impl/ps/api_life.h"
#include "impl/ps/api_ps.h"
#include "impl/ps/api_save.h"
#endif
#endif
#endif
#endif

#ifdef DCOMM_CUDA_IMPLEMENTATION
#ifndef DCOMMI_CUDA_IMPLEMENTATION_H
#define DCOMMI_CUDA_IMPLEMENTATION_H
#include "../../kernels/cuda/reduce.cuh"
#include "../../kernels/cuda/codec.cuh"
#include "../../kernels/cuda/add.cuh"
#include "../../kernels/cuda/convert.cuh"
#include "../../kernels/cuda/feedback.cuh"
#include "../../kernels/cuda/clip.cuh"
#include "../../kernels/cuda/check.cuh"
#include "../../kernels/cuda/load.cuh"
#include "../../kernels/cuda/look.cuh"
#include "../../kernels/cuda/scatter.cuh"
#include "../../kernels/cuda/fp8.cuh"
#include "../../kernels/cuda/powersgd.cuh"
#endif
#endif
