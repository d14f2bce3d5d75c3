/* types.h - translate NCCL's data types and operators to dcomm's. */
#ifndef DCOMMI_NCCL_TYPES_H
#define DCOMMI_NCCL_TYPES_H

#include "state.h"

static bool dcommi_nccl_is_fp8(ncclDataType_t type)
{
    return type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
}

static bool dcommi_nccl_is_float(dcomm_dtype type)
{
    return type == DCOMM_F64 || type == DCOMM_F32 || type == DCOMM_F16 || type == DCOMM_BF16;
}

/* Translate `type`. `reduced`: the call computes with the elements. 8-bit floats are then refused:
 * dcomm only moves them, as bytes. */
static ncclResult_t dcommi_nccl_type(ncclDataType_t type, bool reduced, dcomm_dtype *out)
{
    static const dcomm_dtype types[ncclNumTypes] = {
        [ncclInt8] = DCOMM_I8,       [ncclUint8] = DCOMM_U8,      [ncclInt32] = DCOMM_I32,
        [ncclUint32] = DCOMM_U32,    [ncclInt64] = DCOMM_I64,     [ncclUint64] = DCOMM_U64,
        [ncclFloat16] = DCOMM_F16,   [ncclFloat32] = DCOMM_F32,   [ncclFloat64] = DCOMM_F64,
        [ncclBfloat16] = DCOMM_BF16, [ncclFloat8e4m3] = DCOMM_U8, [ncclFloat8e5m2] = DCOMM_U8};
    if ((unsigned)type >= ncclNumTypes) {
        return dcommi_nccl_fail(ncclInvalidArgument, "datatype is %d, which is none", (int)type);
    }
    if (reduced && dcommi_nccl_is_fp8(type)) {
        return dcommi_nccl_fail(ncclInvalidUsage,
                                "dcomm does not reduce arrays of 8-bit floats; it moves them, and "
                                "DCOMM_CODEC=fp8 sends float32 gradients in 8 bits");
    }
    *out = types[type];
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_operator(const struct ncclComm *comm, ncclRedOp_t op,
                                         ncclDataType_t type, dcomm_op *out,
                                         const dcommi_nccl_op **premul)
{
    static const dcomm_op ops[ncclNumOps] = {[ncclSum] = DCOMM_SUM,
                                             [ncclProd] = DCOMM_PROD,
                                             [ncclMax] = DCOMM_MAX,
                                             [ncclMin] = DCOMM_MIN,
                                             [ncclAvg] = DCOMM_AVG};
    const unsigned own = (unsigned)op - ncclNumOps;
    *premul = NULL;
    if ((unsigned)op < ncclNumOps) {
        *out = ops[op];
        return ncclSuccess;
    }
    if (own >= DCOMMI_NCCL_OPS || !comm->ops[own].used) {
        return dcommi_nccl_fail(ncclInvalidArgument, "op is %d, which this communicator has not",
                                (int)op);
    }
    if (comm->ops[own].type != type) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "op %d was created for datatype %d, not for %d", (int)op,
                                (int)comm->ops[own].type, (int)type);
    }
    *out = DCOMM_PREMUL_SUM;
    *premul = &comm->ops[own];
    return ncclSuccess;
}

/* ---- pre-multiplied sums ---- */

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    dcomm_dtype type = DCOMM_F32;
    if (op == NULL || scalar == NULL || comm == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: %s is NULL",
                                op == NULL       ? "op"
                                : scalar == NULL ? "scalar"
                                                 : "comm");
    }
    if ((unsigned)residence > ncclScalarHostImmediate) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclRedOpCreatePreMulSum: residence is %d, which is none",
                                (int)residence);
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_type(datatype, true, &type));
    for (int i = 0; i < DCOMMI_NCCL_OPS; i++) {
        if (!comm->ops[i].used) {
            const bool here = residence == ncclScalarHostImmediate;
            comm->ops[i] = (dcommi_nccl_op){true, datatype, here ? NULL : scalar, {0}};
            if (here) {
                memcpy(comm->ops[i].factor, scalar, dcomm_dtype_size(type));
            }
            *op = (ncclRedOp_t)(ncclNumOps + i);
            return ncclSuccess;
        }
    }
    return dcommi_nccl_fail(ncclInvalidUsage, "a communicator has %d operators at most",
                            DCOMMI_NCCL_OPS);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const unsigned own = (unsigned)op - ncclNumOps;
    if (comm == NULL || (unsigned)op < ncclNumOps || own >= DCOMMI_NCCL_OPS ||
        !comm->ops[own].used) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclRedOpDestroy: comm is NULL, or has no operator %d", (int)op);
    }
    comm->ops[own].used = false;
    return ncclSuccess;
}

DCOMMI_NCCL_CALL(ncclRedOpCreatePreMulSum);
DCOMMI_NCCL_CALL(ncclRedOpDestroy);

#endif
