/* interface_layout.h - offsets and types of the fields of option structs. They are part of the
 * binary interface. Append a new field to the end of its struct, or put it where no other moves. */
#ifndef INTERFACE_LAYOUT_H
#define INTERFACE_LAYOUT_H

#include "dcomm.h"

#if UINTPTR_MAX == UINT64_MAX

#define FIELD(structure, field, type, offset)                                               \
    _Static_assert(offsetof(structure, field) == (offset), #structure "." #field " moved"); \
    _Static_assert(_Generic(&((structure *)0)->field, type * : 1, default : 0),             \
                   #structure "." #field " is no " #type)
/* clang-format off */
FIELD(dcomm_op_opts, ordered, bool, 0);
FIELD(dcomm_context_opts, progress_thread, bool, 0);
FIELD(dcomm_context_opts, iface, const char *, 8);
FIELD(dcomm_context_opts, host_id, const char *, 16);
FIELD(dcomm_comm_opts, context, dcomm_context *, 0);
FIELD(dcomm_comm_opts, context_opts, dcomm_context_opts, 8);
FIELD(dcomm_comm_opts, boot, dcomm_boot, 32);
FIELD(dcomm_comm_opts, rank, int, 36);
FIELD(dcomm_comm_opts, size, int, 40);
FIELD(dcomm_comm_opts, id, dcomm_id, 44);
FIELD(dcomm_comm_opts, allgather, dcomm_allgather_fn, 176);
FIELD(dcomm_comm_opts, allgather_user, void *, 184);
FIELD(dcomm_comm_opts, timeout_s, double, 192);
FIELD(dcomm_comm_opts, algo, const char *, 200);
FIELD(dcomm_comm_opts, deterministic, bool, 208);
FIELD(dcomm_comm_opts, chunk_bytes, size_t, 216);
FIELD(dcomm_comm_opts, tune, int, 224);
FIELD(dcomm_comm_opts, connections, int, 228);
FIELD(dcomm_comm_opts, on_error, dcomm_on_error, 232);
FIELD(dcomm_comm_opts, quorum, int, 236);
FIELD(dcomm_comm_opts, liveness_s, double, 240);
FIELD(dcomm_coll_opts, algo, const char *, 0);
FIELD(dcomm_coll_opts, deterministic, bool, 8);
FIELD(dcomm_coll_opts, accumulate, dcomm_dtype, 12);
FIELD(dcomm_coll_opts, timeout_s, double, 16);
FIELD(dcomm_coll_opts, premul, double, 24);
FIELD(dcomm_coll_opts, premul_p, const void *, 32);
FIELD(dcomm_coll_opts, lanes, int, 40);
FIELD(dcomm_coll_opts, chunk_bytes, size_t, 48);
FIELD(dcomm_coll_opts, matrix, const size_t *, 56);
FIELD(dcomm_coll_opts, registered, bool, 64);
FIELD(dcomm_coll_opts, huge_pages, bool, 65);
FIELD(dcomm_coll_opts, device, bool, 66);
FIELD(dcomm_coll_opts, premul_on_stream, bool, 67);
FIELD(dcomm_coll_opts, stream, void *, 72);
FIELD(dcomm_coll_opts, codec, const dcomm_codec *, 80);
FIELD(dcomm_coll_opts, feedback, dcomm_feedback *, 88);
FIELD(dcomm_coll_opts, codec_seed, uint64_t, 96);
FIELD(dcomm_coll_opts, codec_step, uint64_t, 104);
FIELD(dcomm_coll_opts, codec_report, dcomm_codec_report *, 112);
FIELD(dcomm_coll_opts, codec_ledger, dcomm_ledger *, 120);
FIELD(dcomm_bucket_param, name, const char *, 0);
FIELD(dcomm_bucket_param, grad, void *, 8);
FIELD(dcomm_bucket_param, count, size_t, 16);
FIELD(dcomm_bucket_param, dtype, dcomm_dtype, 24);
FIELD(dcomm_bucket_param, codec, const char *, 32);
FIELD(dcomm_bucket_param, value, void *, 40);
FIELD(dcomm_bucket_param, aside, bool, 48);
FIELD(dcomm_bucket_rule, match, const char *, 0);
FIELD(dcomm_bucket_rule, codec, const char *, 8);
FIELD(dcomm_bucket_rule, feedback, const dcomm_feedback_opts *, 16);
FIELD(dcomm_bucket_rule, no_feedback, bool, 24);
FIELD(dcomm_buckets_opts, bucket_bytes, size_t, 0);
FIELD(dcomm_buckets_opts, first_bytes, size_t, 8);
FIELD(dcomm_buckets_opts, sum, bool, 16);
FIELD(dcomm_buckets_opts, weighted, bool, 17);
FIELD(dcomm_buckets_opts, predivide, bool, 18);
FIELD(dcomm_buckets_opts, unused, bool, 19);
FIELD(dcomm_buckets_opts, rebuild, bool, 20);
FIELD(dcomm_buckets_opts, sharded, bool, 21);
FIELD(dcomm_buckets_opts, codec, const char *, 24);
FIELD(dcomm_buckets_opts, rules, const dcomm_bucket_rule *, 32);
FIELD(dcomm_buckets_opts, nrules, size_t, 40);
FIELD(dcomm_buckets_opts, feedback, const dcomm_feedback_opts *, 48);
FIELD(dcomm_buckets_opts, coll, dcomm_coll_opts, 56);
FIELD(dcomm_buckets_opts, registered, bool, 184);
FIELD(dcomm_buckets_opts, history, size_t, 192);
FIELD(dcomm_buckets_opts, trace_steps, size_t, 200);
FIELD(dcomm_buckets_opts, value_codec, const char *, 208);
FIELD(dcomm_buckets_step, weight, double, 0);
FIELD(dcomm_buckets_step, accumulate, bool, 8);
FIELD(dcomm_feedback_opts, variant, dcomm_feedback_variant, 0);
FIELD(dcomm_feedback_opts, bf16, bool, 4);
FIELD(dcomm_feedback_opts, in_place, bool, 5);
FIELD(dcomm_feedback_opts, scale, bool, 6);
FIELD(dcomm_feedback_opts, seed, uint64_t, 8);
FIELD(dcomm_feedback_opts, tensor, uint32_t, 16);
FIELD(dcomm_feedback_opts, momentum, double, 24);
FIELD(dcomm_feedback_opts, clip, double, 32);
FIELD(dcomm_feedback_opts, warmup_steps, uint64_t, 40);
FIELD(dcomm_feedback_step, x, const float *, 0);
FIELD(dcomm_feedback_step, first, size_t, 8);
FIELD(dcomm_feedback_step, count, size_t, 16);
FIELD(dcomm_feedback_step, own_first, size_t, 24);
FIELD(dcomm_feedback_step, own_count, size_t, 32);
FIELD(dcomm_feedback_step, rank, uint32_t, 40);
FIELD(dcomm_feedback_step, nranks, uint32_t, 44);
FIELD(dcomm_feedback_step, average, bool, 48);
FIELD(dcomm_feedback_step, partly, bool, 49);
FIELD(dcomm_moe_opts, experts, size_t, 0);
FIELD(dcomm_moe_opts, hidden, size_t, 8);
FIELD(dcomm_moe_opts, k, int, 16);
FIELD(dcomm_moe_opts, dtype, dcomm_dtype, 20);
FIELD(dcomm_moe_opts, owner, const int *, 24);
FIELD(dcomm_moe_opts, capacity, double, 32);
FIELD(dcomm_moe_opts, policy, dcomm_moe_policy, 40);
FIELD(dcomm_moe_opts, chunks, int, 44);
FIELD(dcomm_moe_opts, form, dcomm_moe_form, 48);
FIELD(dcomm_moe_opts, algo, const char *, 56);
FIELD(dcomm_moe_opts, codec, const char *, 64);
FIELD(dcomm_moe_opts, codec_seed, uint64_t, 72);
FIELD(dcomm_moe_opts, timeout_s, double, 80);
FIELD(dcomm_moe_opts, registered, bool, 88);
FIELD(dcomm_scaler_opts, scale, double, 0);
FIELD(dcomm_scaler_opts, growth, double, 8);
FIELD(dcomm_scaler_opts, backoff, double, 16);
FIELD(dcomm_scaler_opts, interval, uint64_t, 24);
FIELD(dcomm_scaler_opts, least, double, 32);
FIELD(dcomm_scaler_opts, most, double, 40);
FIELD(dcomm_scaler_opts, clip, double, 48);
FIELD(dcomm_scaler_opts, leave, bool, 56);
FIELD(dcomm_ps_param, name, const char *, 0);
FIELD(dcomm_ps_param, rows, size_t, 8);
FIELD(dcomm_ps_param, cols, size_t, 16);
FIELD(dcomm_ps_param, dtype, dcomm_dtype, 24);
FIELD(dcomm_ps_param, init, const void *, 32);
FIELD(dcomm_ps_opts, servers, int, 0);
FIELD(dcomm_ps_opts, dedicated, bool, 4);
FIELD(dcomm_ps_opts, staleness, int, 8);
FIELD(dcomm_ps_opts, update, dcomm_ps_update, 12);
FIELD(dcomm_ps_opts, lr, double, 16);
FIELD(dcomm_ps_opts, momentum, double, 24);
FIELD(dcomm_ps_opts, beta1, double, 32);
FIELD(dcomm_ps_opts, beta2, double, 40);
FIELD(dcomm_ps_opts, eps, double, 48);
FIELD(dcomm_ps_opts, rho, double, 56);
FIELD(dcomm_ps_opts, weight, dcomm_ps_weight, 64);
FIELD(dcomm_ps_opts, weight_ref, double, 72);
FIELD(dcomm_ps_opts, drop_tau, double, 80);
FIELD(dcomm_ps_opts, quorum, int, 88);
FIELD(dcomm_ps_opts, deadline_s, double, 96);
FIELD(dcomm_ps_opts, pull_dtype, dcomm_dtype, 104);
FIELD(dcomm_ps_opts, timeout_s, double, 112);
FIELD(dcomm_ps_opts, update_fn, dcomm_ps_update_fn, 120);
FIELD(dcomm_ps_opts, update_user, void *, 128);
FIELD(dcomm_ps_opts, update_states, int, 136);
FIELD(dcomm_ps_opts, codec, const char *, 144);
FIELD(dcomm_ps_opts, codec_seed, uint64_t, 152);
FIELD(dcomm_ps_opts, replicas, int, 160);
FIELD(dcomm_fingerprint_tensor, name, const char *, 0);
FIELD(dcomm_fingerprint_tensor, data, const void *, 8);
FIELD(dcomm_fingerprint_tensor, bytes, size_t, 16);
FIELD(dcomm_codec_key, seed, uint64_t, 0);
FIELD(dcomm_codec_key, step, uint64_t, 8);
FIELD(dcomm_codec_key, first, uint64_t, 16);
FIELD(dcomm_codec_key, rank, uint32_t, 24);
FIELD(dcomm_codec_key, tensor, uint32_t, 28);
/* clang-format on */
#undef FIELD

#endif
#endif
