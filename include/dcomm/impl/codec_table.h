/* codec_table.h - the codecs that there are. */
#ifndef DCOMMI_CODEC_TABLE_H
#define DCOMMI_CODEC_TABLE_H

#include "codec_cast.h"
#include "codec_fp8.h"
#include "codec_qsgd.h"
#include "codec_sign.h"
#include "codec_topk.h"
#include "codec_randk.h"
#include "codec_powersgd.h"

static const dcommi_codec_ops *const dcommi_codec_table[] = {
    &dcommi_codec_f16,       &dcommi_codec_bf16,  &dcommi_codec_fp8,      &dcommi_codec_qsgd,
    &dcommi_codec_tern,      &dcommi_codec_sign,  &dcommi_codec_topk,     &dcommi_codec_threshold,
    &dcommi_codec_topk_qsgd, &dcommi_codec_randk, &dcommi_codec_powersgd, NULL,
};

#endif
