/* tally_loops.h - the sums of a ledger, in the lanes that DCOMMI_L names; see codec_loops.h.
 *
 * Differences and sums of two f32 are rounded to f32, so that each product in f64 is exact. Then
 * fusing it with the following addition does not change the result. */

/* Return all ones in each lane with a finite number. */
DCOMMI_LANE DCOMMI_L(i) DCOMMI_L(tally_finite)(DCOMMI_L(f) a)
{
    return DCOMMI_L(less_i)(DCOMMI_L(and_i)(DCOMMI_L(as_i)(a), DCOMMI_L(set_i)(0x7fffffff)),
                            DCOMMI_L(set_i)(0x7f800000));
}

DCOMMI_LANE DCOMMI_L(f) DCOMMI_L(tally_where)(DCOMMI_L(i) mask, DCOMMI_L(f) a)
{
    return DCOMMI_L(as_f)(DCOMMI_L(and_i)(mask, DCOMMI_L(as_i)(a)));
}

/* Compare y with x. n is a multiple of 16 and below 2^24. Leave out numbers that are not
 * finite. */
DCOMMI_LOOP void DCOMMI_L(compare)(dcommi_tally *t, const float *x, const float *y, size_t n)
{
    const DCOMMI_L(i) magnitude = DCOMMI_L(set_i)(0x7fffffff);
    const DCOMMI_L(i) top = DCOMMI_L(set_i)((int32_t)0x80000000u);
    DCOMMI_L(d) xx = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_XX]);
    DCOMMI_L(d) yy = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_YY]);
    DCOMMI_L(d) xy = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_XY]);
    DCOMMI_L(d) ee = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_EE]);
    DCOMMI_L(d) bias = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_SIGNED]);
    DCOMMI_L(d) size = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_X]);
    DCOMMI_L(i) seen = DCOMMI_L(set_i)(0);
    for (size_t at = 0; at < n; at += 16) {
        DCOMMI_L(f) a = DCOMMI_L(load_f)(x + at), b = DCOMMI_L(load_f)(y + at);
        DCOMMI_L(f) e = DCOMMI_L(sub_f)(b, a);
        /* A difference is finite only if both numbers are. */
        DCOMMI_L(i) good = DCOMMI_L(tally_finite)(e);
        a = DCOMMI_L(tally_where)(good, a);
        b = DCOMMI_L(tally_where)(good, b);
        e = DCOMMI_L(tally_where)(good, e);
        seen = DCOMMI_L(sub_i)(seen, good);
        DCOMMI_L(f) absolute = DCOMMI_L(as_f)(DCOMMI_L(and_i)(DCOMMI_L(as_i)(a), magnitude));
        DCOMMI_L(i) some = DCOMMI_L(less_i)(DCOMMI_L(set_i)(0), DCOMMI_L(as_i)(absolute));
        DCOMMI_L(f)
        turned = DCOMMI_L(as_f)(DCOMMI_L(and_xor)(DCOMMI_L(as_i)(a), top, DCOMMI_L(as_i)(e)));
        xx = DCOMMI_L(add_products)(xx, a, a);
        yy = DCOMMI_L(add_products)(yy, b, b);
        xy = DCOMMI_L(add_products)(xy, a, b);
        ee = DCOMMI_L(add_products)(ee, e, e);
        bias = DCOMMI_L(add_values)(bias, DCOMMI_L(tally_where)(some, turned));
        size = DCOMMI_L(add_values)(size, absolute);
    }
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_XX], xx);
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_YY], yy);
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_XY], xy);
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_EE], ee);
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_SIGNED], bias);
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_X], size);
    t->seen += (uint64_t)DCOMMI_L(sum)(DCOMMI_L(from_int)(seen));
}

/* Add the squares of e = sent + next and of next, for an encoding with feedback. */
DCOMMI_LOOP void DCOMMI_L(held)(dcommi_tally *t, const float *sent, const float *next, size_t n)
{
    DCOMMI_L(d) encoded = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_ENCODED]);
    DCOMMI_L(d) left = DCOMMI_L(load_d)(t->sum[DCOMMI_LEDGER_RESIDUAL]);
    for (size_t at = 0; at < n; at += 16) {
        DCOMMI_L(f) r = DCOMMI_L(load_f)(next + at);
        DCOMMI_L(f) e = DCOMMI_L(add_f)(DCOMMI_L(load_f)(sent + at), r);
        DCOMMI_L(i) good = DCOMMI_L(tally_finite)(e);
        e = DCOMMI_L(tally_where)(good, e);
        r = DCOMMI_L(tally_where)(good, r);
        encoded = DCOMMI_L(add_products)(encoded, e, e);
        left = DCOMMI_L(add_products)(left, r, r);
    }
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_ENCODED], encoded);
    DCOMMI_L(store_d)(t->sum[DCOMMI_LEDGER_RESIDUAL], left);
}
