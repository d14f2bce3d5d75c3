/* codec_table.h - the codecs that there are. */
#ifndef DCOMMI_CODEC_TABLE_H
#define DCOMMI_CODEC_TABLE_H

#include "codec_cast.h"

static const dcommi_codec_ops *const dcommi_codec_table[] = {
    &dcommi_codec_bf16,
    NULL,
};

#endif
