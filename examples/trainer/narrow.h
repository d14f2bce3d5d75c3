/* narrow.h - arrays of floats in 16 bits, for gradients that are sent so. */
#ifndef NARROW_H
#define NARROW_H

#include "dcomm.h"

/* Convert n floats to DCOMM_F16 or DCOMM_BF16: to the nearest, ties to even. What is beyond the
 * largest number becomes infinite, so that a scaler finds it. */
void narrow_from(dcomm_dtype dtype, const float *x, size_t n, uint16_t *to);
/* Convert them back, and multiply by `factor`. */
void narrow_to(dcomm_dtype dtype, const uint16_t *from, size_t n, float factor, float *x);

#endif
