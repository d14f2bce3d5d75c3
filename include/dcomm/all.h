/* all.h - every part in order; tools/amalgamate.py turns this file into include/dcomm.h. */
#include "impl/preamble.h"

#include "base.h"
#include "compress.h"
#include "ledger.h"
#include "feedback.h"
#include "cuda.h"

#ifndef DCOMM_NO_COMM
#include "plan.h"
#include "comm.h"
#include "mem.h"
#include "coll.h"
#include "bucket.h"
#include "scaler.h"
#include "moe.h"
#include "tune.h"
#endif

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
#include "impl/util.h"
#include "impl/base_impl.h"
#include "impl/api_codec.h"
#include "impl/feedback_save.h"
#include "impl/feedback_undo.h"
#include "impl/api_layout.h"

#ifndef DCOMM_NO_COMM
#include "impl/device_host.h"
#include "impl/build.h"
#include "impl/print.h"
#include "impl/check.h"
#include "impl/api_model.h"
#include "impl/api_coll.h"
#include "impl/requests.h"
#include "impl/api_mem.h"
#include "impl/api_tune.h"
#include "impl/api_explain.h"
#include "impl/api_paths.h"
#include "impl/tune_comm.h"
#include "impl/api_bucket.h"
#include "impl/scaler.h"
#include "impl/bucket_save.h"
#include "impl/api_moe.h"
#endif
#endif

#ifdef DCOMM_CUDA_IMPLEMENTATION
#include "../../kernels/cuda_reduce.cuh"
#include "../../kernels/cuda_codec.cuh"
#include "../../kernels/cuda_add.cuh"
#include "../../kernels/cuda_convert.cuh"
#include "../../kernels/cuda_feedback.cuh"
#include "../../kernels/cuda_clip.cuh"
#include "../../kernels/cuda_load.cuh"
#include "../../kernels/cuda_look.cuh"
#include "../../kernels/cuda_scatter.cuh"
#include "../../kernels/cuda_fp8.cuh"
#include "../../kernels/cuda_powersgd.cuh"
#endif
