/* table.h - the list of all codecs. */
#ifndef DCOMMI_CODEC_TABLE_H
#define DCOMMI_CODEC_TABLE_H

#include "cast.h"
#include "fp8.h"
#include "qsgd.h"
#include "sign.h"
#include "topk.h"
#include "randk.h"
#include "powersgd.h"

static const dcommi_codec_ops *const dcommi_codec_table[] = {
    &dcommi_codec_f16,       &dcommi_codec_bf16,  &dcommi_codec_fp8,      &dcommi_codec_qsgd,
    &dcommi_codec_tern,      &dcommi_codec_sign,  &dcommi_codec_topk,     &dcommi_codec_threshold,
    &dcommi_codec_topk_qsgd, &dcommi_codec_randk, &dcommi_codec_powersgd, NULL,
};

#endif
