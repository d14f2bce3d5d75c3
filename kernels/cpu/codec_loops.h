/* codec_loops.h - the loops of the dense codecs, in the lanes that DCOMMI_L names. A template:
 * codec_isa.h includes it for each instruction set. The bytes are the same because the source is.
 *
 * Loops work on whole groups of elements; callers pad shorter inputs. */

#include "tally_loops.h"

/* ---- measures of a bucket ---- */

/* Return, as bits, the largest |x| or, for signs, the sum of |x|. It is not finite if an input is
 * not. */
DCOMMI_LOOP uint32_t DCOMMI_L(measure)(const float *x, size_t n, bool sign)
{
    const DCOMMI_L(i) magnitude = DCOMMI_L(set_i)(0x7fffffff);
    DCOMMI_L(i) most = DCOMMI_L(set_i)(0);
    DCOMMI_L(f) sum = DCOMMI_L(set_f)(0);
    for (size_t at = 0; at < n; at += 16) {
        DCOMMI_L(f) v = DCOMMI_L(load_f)(x + at);
        if (sign) {
            v = DCOMMI_L(normal)(v);
            sum =
                DCOMMI_L(add_f)(sum, DCOMMI_L(as_f)(DCOMMI_L(and_i)(DCOMMI_L(as_i)(v), magnitude)));
        } else {
            most = DCOMMI_L(max_i)(most, DCOMMI_L(and_i)(DCOMMI_L(as_i)(v), magnitude));
        }
    }
    return sign ? dcommi_f32_bits(DCOMMI_L(sum)(sum)) : DCOMMI_L(most)(most);
}

/* Store e = x + r and return its measure. */
DCOMMI_LOOP uint32_t DCOMMI_L(add_measure)(const float *x, const float *r, float *e, size_t n,
                                           bool sign)
{
    for (size_t at = 0; at < n; at += 16) {
        DCOMMI_L(store_f)
        (e + at, DCOMMI_L(add_f)(DCOMMI_L(load_f)(x + at), DCOMMI_L(load_f)(r + at)), false);
    }
    return DCOMMI_L(measure)(e, n, sign);
}

DCOMMI_LOOP double DCOMMI_L(squares)(const float *x, size_t n)
{
    DCOMMI_L(d) sum = DCOMMI_L(no_squares)();
    for (size_t at = 0; at < n; at += 16) {
        const DCOMMI_L(f) v = DCOMMI_L(load_f)(x + at);
        sum = DCOMMI_L(add_products)(sum, v, v);
    }
    return DCOMMI_L(sum_squares)(sum);
}

/* ---- random numbers of a group ---- */

DCOMMI_LANE DCOMMI_L(random) DCOMMI_L(random_of)(const dcommi_rng *rng, uint64_t group)
{
    DCOMMI_L(philox) s = DCOMMI_L(philox_begin)(rng, group);
    for (unsigned i = 0; i < DCOMMI_RNG_ROUNDS; i++) {
        s = DCOMMI_L(philox_round)(s, rng, i);
    }
    return DCOMMI_L(philox_end)(s);
}

/* Compute the random numbers of DCOMMI_CODEC_SOON groups from `group` on. Ten rounds are one long
 * chain of dependent operations, so work on several groups in turn. */
DCOMMI_LOOP void DCOMMI_L(random_soon)(dcommi_quant *q, uint64_t group)
{
    enum { CHAINS = DCOMMI_JOIN(DCOMMI, DCOMMI_V, CHAINS) };
    for (unsigned g = 0; g < DCOMMI_CODEC_SOON; g += CHAINS) {
        DCOMMI_L(philox) s[CHAINS];
        DCOMMI_UNROLL
        for (unsigned c = 0; c < CHAINS; c++) {
            s[c] = DCOMMI_L(philox_begin)(q->rng, group + g + c);
        }
        for (unsigned i = 0; i < DCOMMI_RNG_ROUNDS; i++) {
            DCOMMI_UNROLL
            for (unsigned c = 0; c < CHAINS; c++) {
                s[c] = DCOMMI_L(philox_round)(s[c], q->rng, i);
            }
        }
        DCOMMI_UNROLL
        for (unsigned c = 0; c < CHAINS; c++) {
            const DCOMMI_L(random) r = DCOMMI_L(philox_end)(s[c]);
            DCOMMI_L(store_i)(q->soon[g + c], r.word[0], false);
            DCOMMI_L(store_i)(q->soon[g + c] + 16, r.word[1], false);
        }
    }
    q->soon_group = group;
}

/* ---- floats of few bits ---- */

/* Return |y| as a code, without clipping. Round to nearest even, or stochastically up with the
 * probability that the cut-off part gives. */
DCOMMI_LANE DCOMMI_L(i)
    DCOMMI_L(mini)(DCOMMI_L(f) y, DCOMMI_L(i) random, bool stochastic, const dcommi_mini *to)
{
    const int cut = 23 - to->fraction;
    const DCOMMI_L(i) down = DCOMMI_L(set_i)(cut);
    DCOMMI_L(i) a = DCOMMI_L(and_i)(DCOMMI_L(as_i)(y), DCOMMI_L(set_i)(0x7fffffff));
    DCOMMI_L(i) large, small;
    if (stochastic) {
        large = DCOMMI_L(add_i)(DCOMMI_L(sub_i)(a, DCOMMI_L(set_i)((int32_t)to->rebias)),
                                DCOMMI_L(srl)(random, DCOMMI_L(set_i)(32 - cut)));
        small = DCOMMI_L(to_int)(
            DCOMMI_L(mul_f)(DCOMMI_L(as_f)(DCOMMI_L(min_i)(
                                a, DCOMMI_L(set_i)((int32_t)dcommi_f32_bits(to->least)))),
                            DCOMMI_L(set_f)(to->units * 65536)));
        small = DCOMMI_L(srl)(DCOMMI_L(add_i)(small, DCOMMI_L(srl)(random, DCOMMI_L(set_i)(16))),
                              DCOMMI_L(set_i)(16));
    } else {
        /* Adding a number whose last place is the smallest number rounds to it. */
        const float magic = 8388608 / to->units;
        DCOMMI_L(i) odd = DCOMMI_L(and_i)(DCOMMI_L(srl)(a, down), DCOMMI_L(set_i)(1));
        large = DCOMMI_L(add_i)(DCOMMI_L(add_i)(a, odd),
                                DCOMMI_L(set_i)((1 << (cut - 1)) - 1 - (int32_t)to->rebias));
        small = DCOMMI_L(sub_i)(
            DCOMMI_L(as_i)(DCOMMI_L(add_f)(DCOMMI_L(as_f)(a), DCOMMI_L(set_f)(magic))),
            DCOMMI_L(set_i)((int32_t)dcommi_f32_bits(magic)));
    }
    large = DCOMMI_L(srl)(large, down);
    return DCOMMI_L(pick_less)(a, DCOMMI_L(set_i)((int32_t)dcommi_f32_bits(to->least)), small,
                               large);
}

/* Convert codes of e4m3 or e5m2 to numbers; those of e4m3 are divided by 256. */
DCOMMI_LANE DCOMMI_L(f) DCOMMI_L(from_f8)(DCOMMI_L(i) b, dcommi_format format)
{
    if (format == DCOMMI_FORMAT_E5M2) {
        return DCOMMI_L(from_f16)(DCOMMI_L(pack_h)(DCOMMI_L(sll)(b, DCOMMI_L(set_i)(8))));
    }
    /* As f16. The sign moves one bit further than the rest. */
    DCOMMI_L(i) sign = DCOMMI_L(and_i)(b, DCOMMI_L(set_i)(0x80));
    return DCOMMI_L(from_f16)(DCOMMI_L(pack_h)(DCOMMI_L(add_i)(
        DCOMMI_L(sll)(b, DCOMMI_L(set_i)(7)), DCOMMI_L(sll)(sign, DCOMMI_L(set_i)(7)))));
}

/* ---- encoding a bucket ---- */

/* Encode q->count elements of q->x, whole groups. Measure q->ahead, a later bucket, on the way, so
 * that every input comes from memory once. sums: q->x holds sums of wires and rounding is
 * stochastic. No such sum is denormal, and a denormal's code would be 0 too. */
DCOMMI_LANE uint32_t DCOMMI_L(encode_any)(dcommi_quant *q, dcommi_format format, bool feedback,
                                          bool measures, bool sums)
{
    const bool sign = format == DCOMMI_FORMAT_SIGN;
    const bool f8 = format >= DCOMMI_FORMAT_E4M3;
    const dcommi_mini *mini = format == DCOMMI_FORMAT_E4M3 ? &dcommi_mini_e4m3 : &dcommi_mini_e5m2;
    const unsigned bits = dcommi_format_bits[format];
    const DCOMMI_L(i) magnitude = DCOMMI_L(set_i)(0x7fffffff);
    const DCOMMI_L(i) top = DCOMMI_L(set_i)((int32_t)(0xffffffffu << (32 - bits)));
    const DCOMMI_L(i) width = DCOMMI_L(set_i)((int32_t)bits);
    const DCOMMI_L(i) rest = DCOMMI_L(set_i)((int32_t)(32 - bits));
    const DCOMMI_L(f) inverse = DCOMMI_L(set_f)(q->inverse);
    const DCOMMI_L(f) step = DCOMMI_L(set_f)(q->step);
    const DCOMMI_L(i) minus =
        DCOMMI_L(as_i)(DCOMMI_L(set_f)(format == DCOMMI_FORMAT_Q1 ? -q->step : q->step));
    const DCOMMI_L(i) mask = DCOMMI_L(set_i)((int32_t)q->mask);
    const DCOMMI_L(i) half = DCOMMI_L(set_i)((int32_t)q->half);
    const DCOMMI_L(f) f8_step =
        DCOMMI_L(set_f)(format == DCOMMI_FORMAT_E4M3 ? q->step * 256 : q->step);
    const bool stochastic = sums || q->rng != NULL;
    const bool stream = q->stream, stream_next = q->stream_next;
    const size_t lead = dcommi_codec_lead();
    unsigned char *out = q->wire;
    DCOMMI_L(i) most = DCOMMI_L(set_i)(0), line = DCOMMI_L(set_i)(0);
    DCOMMI_L(f) sum = DCOMMI_L(set_f)(0);
    for (size_t at = 0, group = q->group; at < q->count; at += DCOMMI_RNG_GROUP, group++) {
        DCOMMI_L(random) random = {{DCOMMI_L(set_i)(0), DCOMMI_L(set_i)(0)}};
        if (!sign && stochastic) {
            if (group - q->soon_group >= DCOMMI_CODEC_SOON) {
                DCOMMI_L(random_soon)(q, group);
            }
            random.word[0] = DCOMMI_L(load_i)(q->soon[group - q->soon_group]);
            random.word[1] = DCOMMI_L(load_i)(q->soon[group - q->soon_group] + 16);
        }
        DCOMMI_L(i) code[4];
        DCOMMI_UNROLL
        for (unsigned k = 0; k < 8; k++) {
            const size_t i = at + 16 * k;
            DCOMMI_L(f) v = DCOMMI_L(load_f)(q->x + i);
            DCOMMI_L(f) w = v;
            if (measures) {
                dcommi_ahead(q->ahead + i + lead);
                w = DCOMMI_L(load_f)(q->ahead + i);
            }
            if (measures && feedback) {
                dcommi_ahead(q->ahead_residual + i + lead);
                w = DCOMMI_L(add_f)(w, DCOMMI_L(load_f)(q->ahead_residual + i));
                DCOMMI_L(store_f)(q->ahead_sum + i, w, false);
            }
            if (sign) {
                w = DCOMMI_L(normal)(w); /* unused results are not computed */
                sum = DCOMMI_L(add_f)(
                    sum, DCOMMI_L(as_f)(DCOMMI_L(and_i)(DCOMMI_L(as_i)(w), magnitude)));
                line = DCOMMI_L(and_or)(DCOMMI_L(as_i)(v), top, DCOMMI_L(srl)(line, width));
                if (feedback) {
                    DCOMMI_L(f)
                    sent = DCOMMI_L(as_f)(DCOMMI_L(and_xor)(DCOMMI_L(as_i)(v), top, minus));
                    DCOMMI_L(store_f)(q->next + i, DCOMMI_L(sub_f)(v, sent), stream_next);
                }
                continue;
            }
            most = DCOMMI_L(max_i)(most, DCOMMI_L(and_i)(DCOMMI_L(as_i)(w), magnitude));
            DCOMMI_L(f) y = sums ? DCOMMI_L(mul_f)(v, inverse) : DCOMMI_L(mul_normal)(v, inverse);
            if (f8) {
                DCOMMI_L(i)
                turned = DCOMMI_L(rol)(random.word[k / 4], 8 * (k % 4));
                DCOMMI_L(i)
                a = DCOMMI_L(min_i)(DCOMMI_L(mini)(y, turned, stochastic, mini),
                                    DCOMMI_L(set_i)((int32_t)mini->most));
                a = DCOMMI_L(and_or)(DCOMMI_L(srl)(DCOMMI_L(as_i)(y), DCOMMI_L(set_i)(24)),
                                     DCOMMI_L(set_i)(0x80), a);
                code[k % 4] = a;
                if (feedback) {
                    DCOMMI_L(store_f)
                    (q->next + i, DCOMMI_L(exact_sub)(DCOMMI_L(from_f8)(a, format), f8_step, v),
                     stream_next);
                }
                if (k % 4 == 3) {
                    DCOMMI_L(store_b4)(out, code[0], code[1], code[2], code[3], stream);
                    out += DCOMMI_WIRE_LINE;
                }
                continue;
            }
            /* In units of 2^(bits-32): the top `bits` bits are the integer part, and a random
             * fraction carries into it. `half` keeps values within the ends despite rounding
             * errors. */
            DCOMMI_L(i)
            turned = DCOMMI_L(rol)(random.word[k / 4], (8 * (k % 4) + 32 - bits) % 32);
            DCOMMI_L(i)
            t = DCOMMI_L(add_i)(DCOMMI_L(to_int)(y), DCOMMI_L(and_or)(turned, mask, half));
            if (format == DCOMMI_FORMAT_Q1) {
                t = DCOMMI_L(add_i)(t, DCOMMI_L(set_i)(0x40000000));
            }
            line = DCOMMI_L(and_or)(t, top, DCOMMI_L(srl)(line, width));
            if (feedback && format == DCOMMI_FORMAT_Q1) {
                DCOMMI_L(f) sent = DCOMMI_L(as_f)(DCOMMI_L(and_xor)(t, top, minus));
                DCOMMI_L(store_f)(q->next + i, DCOMMI_L(sub_f)(v, sent), stream_next);
            } else if (feedback) {
                DCOMMI_L(f) level = DCOMMI_L(from_int)(DCOMMI_L(sra)(t, rest));
                DCOMMI_L(store_f)(q->next + i, DCOMMI_L(exact_sub)(level, step, v), stream_next);
            }
            if (bits >= 4 && (k + 1) * bits % 32 == 0) {
                DCOMMI_L(store_i)(out, line, stream);
                out += DCOMMI_WIRE_LINE;
                line = DCOMMI_L(set_i)(0); /* else each line would depend on the one before */
            }
        }
        if (bits < 4 && (at / DCOMMI_RNG_GROUP + 1) % (4 / bits) == 0) {
            DCOMMI_L(store_i)(out, line, stream);
            out += DCOMMI_WIRE_LINE;
            line = DCOMMI_L(set_i)(0);
        }
    }
    if (!measures) {
        return 0;
    }
    return sign ? dcommi_f32_bits(DCOMMI_L(sum)(sum)) : DCOMMI_L(most)(most);
}

/* ---- decoding ---- */

/* Return non-zero in a lane if the line holds the lowest code, which no encoder writes. */
DCOMMI_LANE DCOMMI_L(i) DCOMMI_L(lowest)(DCOMMI_L(i) line, unsigned bits)
{
    const uint32_t ones = bits == 8 ? 0x01010101u : bits == 4 ? 0x11111111u : 0x55555555u;
    const DCOMMI_L(i) high = DCOMMI_L(set_i)((int32_t)(ones << (bits - 1)));
    DCOMMI_L(i) t = DCOMMI_L(xor_i)(line, high);
    DCOMMI_L(i) less = DCOMMI_L(sub_i)(t, DCOMMI_L(set_i)((int32_t)ones));
    return DCOMMI_L(and_i)(DCOMMI_L(and_i)(less, high), DCOMMI_L(xor_i)(t, DCOMMI_L(set_i)(-1)));
}

/* Return the table of numbers that codes represent with this step. */
DCOMMI_LANE DCOMMI_L(table) DCOMMI_L(table_of)(float step, dcommi_format format)
{
    const bool binary = format == DCOMMI_FORMAT_SIGN || format == DCOMMI_FORMAT_Q1;
    return DCOMMI_L(make_table)(format == DCOMMI_FORMAT_Q1 ? -step : step,
                                dcommi_format_bits[format], binary);
}

/* Decode vector k of a line; added to `before` if `add`. 8-bit floats are read from `from` instead
 * of `line`. */
DCOMMI_LANE DCOMMI_L(f)
    DCOMMI_L(decode_one)(DCOMMI_L(i) line, const unsigned char *from, const DCOMMI_L(table) * table,
                         float step, unsigned k, dcommi_format format, DCOMMI_L(f) before, bool add)
{
    DCOMMI_L(f) level;
    if (format < DCOMMI_FORMAT_Q8 || format == DCOMMI_FORMAT_SIGN) {
        level = DCOMMI_L(look)(table, line, k, dcommi_format_bits[format]);
        return add ? DCOMMI_L(add_f)(before, level) : level;
    }
    if (format == DCOMMI_FORMAT_Q8) {
        DCOMMI_L(i) up = DCOMMI_L(sll)(line, DCOMMI_L(set_i)((int32_t)(24 - 8 * k)));
        level = DCOMMI_L(from_int)(DCOMMI_L(sra)(up, DCOMMI_L(set_i)(24)));
    } else {
        level =
            DCOMMI_L(from_f16)(format == DCOMMI_FORMAT_E4M3 ? DCOMMI_L(load_e4m3)(from + 16 * k)
                                                            : DCOMMI_L(load_e5m2)(from + 16 * k));
        step = format == DCOMMI_FORMAT_E4M3 ? step * 256 : step;
    }
    return add ? DCOMMI_L(exact_add)(level, DCOMMI_L(set_f)(step), before)
               : DCOMMI_L(mul_f)(level, DCOMMI_L(set_f)(step));
}

DCOMMI_LANE DCOMMI_L(i) DCOMMI_L(forbidden)(DCOMMI_L(i) w, dcommi_format format)
{
    if (format == DCOMMI_FORMAT_SIGN || format == DCOMMI_FORMAT_Q1) {
        return DCOMMI_L(set_i)(0);
    }
    if (format < DCOMMI_FORMAT_E4M3) {
        return DCOMMI_L(lowest)(w, dcommi_format_bits[format]);
    }
    /* Find codes above the largest number, byte by byte; no carry crosses bytes. */
    const uint32_t room = format == DCOMMI_FORMAT_E4M3 ? 0x01010101u : 0x04040404u;
    return DCOMMI_L(and_i)(DCOMMI_L(add_i)(DCOMMI_L(and_i)(w, DCOMMI_L(set_i)(0x7f7f7f7f)),
                                           DCOMMI_L(set_i)((int32_t)room)),
                           DCOMMI_L(set_i)((int32_t)0x80808080u));
}

/* Set x to the decoded numbers, or add them. Return false if a code is one that no encoder
 * writes. */
DCOMMI_LANE bool DCOMMI_L(decode_any)(const dcommi_dequant *d, dcommi_format format, bool add)
{
    const unsigned vectors = 32 / dcommi_format_bits[format];
    const bool stream = d->stream;
    const size_t lead = dcommi_codec_lead();
    const unsigned char *from = d->wires[0];
    const float step = d->steps[0];
    const DCOMMI_L(table) table = DCOMMI_L(table_of)(step, format);
    DCOMMI_L(i) bad = DCOMMI_L(set_i)(0);
    for (size_t at = 0; at < d->count; at += 16 * vectors, from += DCOMMI_WIRE_LINE) {
        const DCOMMI_L(i) line = DCOMMI_L(load_i)(from);
        bad = DCOMMI_L(or_i)(bad, DCOMMI_L(forbidden)(line, format));
        DCOMMI_UNROLL
        for (unsigned k = 0; k < vectors; k++) {
            float *x = d->x + at + 16 * k;
            if (add) {
                dcommi_ahead(x + lead);
            }
            DCOMMI_L(f) before = add ? DCOMMI_L(load_f)(x) : DCOMMI_L(set_f)(0);
            DCOMMI_L(store_f)
            (x, DCOMMI_L(decode_one)(line, from, &table, step, k, format, before, add), stream);
        }
    }
    return !DCOMMI_L(any)(bad);
}

/* Add eight vectors of wire w, from bit `down` of each word on, to the sums of the wires
 * before. */
DCOMMI_LANE void DCOMMI_L(sum_wire)(const dcommi_dequant *d, dcommi_format format, size_t w,
                                    const DCOMMI_L(table) * table, size_t from, unsigned down,
                                    bool marks, size_t lead, DCOMMI_L(f) * sum, DCOMMI_L(i) * bad)
{
    const unsigned vectors = 32 / dcommi_format_bits[format], some = vectors < 8 ? vectors : 8;
    const unsigned char *wire = d->wires[w] + from;
    DCOMMI_L(i) line = DCOMMI_L(load_i)(wire);
    dcommi_ahead(wire + lead / 2);
    if (down == 0 && !marks) {
        *bad = DCOMMI_L(or_i)(*bad, DCOMMI_L(forbidden)(line, format));
    } else if (down != 0) {
        line = DCOMMI_L(srl)(line, DCOMMI_L(set_i)((int32_t)down));
    }
    DCOMMI_UNROLL
    for (unsigned k = 0; k < some; k++) {
        sum[k] = DCOMMI_L(decode_one)(line, wire, &table[w], d->steps[w], k, format, sum[k], w > 0);
    }
}

/* Set x to factor * the sum of d->n wires, and *measured to its measure. */
DCOMMI_LANE bool DCOMMI_L(sum_any)(const dcommi_dequant *d, dcommi_format format, bool plain,
                                   uint32_t *measured)
{
    const unsigned bits = dcommi_format_bits[format];
    const unsigned vectors = 32 / bits, some = vectors < 8 ? vectors : 8;
    const bool sign = format == DCOMMI_FORMAT_SIGN;
    const size_t n = d->n;
    float *x = d->x;
    const DCOMMI_L(i) magnitude = DCOMMI_L(set_i)(0x7fffffff);
    const DCOMMI_L(f) factor = DCOMMI_L(set_f)(d->factor);
    const size_t lead = dcommi_codec_lead();
    const bool stream = !plain && d->stream, scaled = !plain && d->factor != 1;
    const bool marks = DCOMMI_JOIN(DCOMMI, DCOMMI_V, MARKS) &&
                       (format == DCOMMI_FORMAT_Q2 || format == DCOMMI_FORMAT_Q4);
    DCOMMI_L(table) table[DCOMMI_DEQUANT_WIRES];
    DCOMMI_L(i) bad = DCOMMI_L(set_i)(0), most = DCOMMI_L(set_i)(0);
    DCOMMI_L(f) total = DCOMMI_L(set_f)(0);
    for (size_t w = 0; w < n; w++) {
        table[w] = DCOMMI_L(table_of)(d->steps[w], format);
    }
    for (size_t at = 0; at < d->count; at += 16 * some) {
        const size_t from = at / (16 * vectors) * DCOMMI_WIRE_LINE;
        const unsigned down = (unsigned)(at / 16 % vectors) * bits;
        DCOMMI_L(f) sum[8] = {factor, factor, factor, factor, factor, factor, factor, factor};
        DCOMMI_L(sum_wire)(d, format, 0, table, from, down, marks, lead, sum, &bad);
        for (size_t w = 1; w < n; w++) {
            DCOMMI_L(sum_wire)(d, format, w, table, from, down, marks, lead, sum, &bad);
        }
        DCOMMI_UNROLL
        for (unsigned k = 0; k < some; k++) {
            DCOMMI_L(f) v = scaled ? DCOMMI_L(mul_f)(sum[k], factor) : sum[k];
            DCOMMI_L(i) size = DCOMMI_L(and_i)(DCOMMI_L(as_i)(v), magnitude);
            if (sign) {
                total = DCOMMI_L(add_f)(total, DCOMMI_L(normal)(DCOMMI_L(as_f)(size)));
            } else {
                most = DCOMMI_L(max_i)(most, size);
            }
            DCOMMI_L(store_f)(x + at + 16 * k, v, stream);
        }
    }
    *measured = sign ? dcommi_f32_bits(DCOMMI_L(sum)(total)) : DCOMMI_L(most)(most);
    /* A sum that is not finite is either too large or has a code that does not exist: find out. */
    for (size_t w = 0; marks && *measured >= dcommi_f32_bits(INFINITY) && w < n; w++) {
        for (size_t from = 0; from < d->count / 8 * bits; from += DCOMMI_WIRE_LINE) {
            bad = DCOMMI_L(or_i)(bad,
                                 DCOMMI_L(forbidden)(DCOMMI_L(load_i)(d->wires[w] + from), format));
        }
    }
    return !DCOMMI_L(any)(bad);
}

#define DCOMMI_LOOPS_OF(NAME, FORMAT)                                                              \
    DCOMMI_LOOP uint32_t DCOMMI_L(encode_##NAME)(dcommi_quant * q)                                 \
    {                                                                                              \
        if (q->ahead == NULL && q->next == NULL && q->rng != NULL && FORMAT <= DCOMMI_FORMAT_Q8) { \
            return DCOMMI_L(encode_any)(q, FORMAT, false, false, FORMAT <= DCOMMI_FORMAT_Q8);      \
        }                                                                                          \
        if (q->ahead == NULL) {                                                                    \
            return q->next == NULL ? DCOMMI_L(encode_any)(q, FORMAT, false, false, false)          \
                                   : DCOMMI_L(encode_any)(q, FORMAT, true, false, false);          \
        }                                                                                          \
        return q->next == NULL ? DCOMMI_L(encode_any)(q, FORMAT, false, true, false)               \
                               : DCOMMI_L(encode_any)(q, FORMAT, true, true, false);               \
    }                                                                                              \
    DCOMMI_LOOP bool DCOMMI_L(decode_##NAME)(const dcommi_dequant *d)                              \
    {                                                                                              \
        return d->add ? DCOMMI_L(decode_any)(d, FORMAT, true)                                      \
                      : DCOMMI_L(decode_any)(d, FORMAT, false);                                    \
    }                                                                                              \
    DCOMMI_LOOP bool DCOMMI_L(sum_##NAME)(const dcommi_dequant *d, uint32_t *measured)             \
    {                                                                                              \
        return d->stream || d->factor != 1 ? DCOMMI_L(sum_any)(d, FORMAT, false, measured)         \
                                           : DCOMMI_L(sum_any)(d, FORMAT, true, measured);         \
    }

DCOMMI_LOOPS_OF(q1, DCOMMI_FORMAT_Q1)
DCOMMI_LOOPS_OF(q2, DCOMMI_FORMAT_Q2)
DCOMMI_LOOPS_OF(q4, DCOMMI_FORMAT_Q4)
DCOMMI_LOOPS_OF(q8, DCOMMI_FORMAT_Q8)
DCOMMI_LOOPS_OF(sign, DCOMMI_FORMAT_SIGN)
DCOMMI_LOOPS_OF(e4m3, DCOMMI_FORMAT_E4M3)
DCOMMI_LOOPS_OF(e5m2, DCOMMI_FORMAT_E5M2)
#undef DCOMMI_LOOPS_OF

/* ---- 16-bit numbers ---- */

/* Cast q->count elements, a multiple of 128. Return the largest |x| as bits. */
DCOMMI_LANE uint32_t DCOMMI_L(cast_any)(const dcommi_quant *q, bool half)
{
    const DCOMMI_L(i) magnitude = DCOMMI_L(set_i)(0x7fffffff);
    const DCOMMI_L(i) top = DCOMMI_L(set_i)((int32_t)0x80000000u);
    const DCOMMI_L(i) sixteen = DCOMMI_L(set_i)(16);
    const bool stochastic = q->rng != NULL, stream = q->stream, stream_next = q->stream_next;
    const size_t lead = dcommi_codec_lead();
    DCOMMI_L(i) most = DCOMMI_L(set_i)(0);
    for (size_t at = 0, group = q->group; at < q->count; at += DCOMMI_RNG_GROUP, group++) {
        DCOMMI_L(random) random = {{DCOMMI_L(set_i)(0), DCOMMI_L(set_i)(0)}};
        if (stochastic) {
            random = DCOMMI_L(random_of)(q->rng, group);
        }
        DCOMMI_L(h) first = DCOMMI_L(pack_h)(most);
        DCOMMI_UNROLL
        for (unsigned k = 0; k < 8; k++) {
            const size_t i = at + 16 * k;
            dcommi_ahead(q->x + i + lead);
            DCOMMI_L(f) v = DCOMMI_L(load_f)(q->x + i);
            DCOMMI_L(i)
            turned = DCOMMI_L(rol)(random.word[k / 4], 8 * (k % 4));
            most = DCOMMI_L(max_i)(most, DCOMMI_L(and_i)(DCOMMI_L(as_i)(v), magnitude));
            DCOMMI_L(i)
            a = DCOMMI_L(and_or)(DCOMMI_L(as_i)(v), top, DCOMMI_L(as_i)(DCOMMI_L(normal)(v)));
            DCOMMI_L(h) packed;
            if (half && stochastic) {
                DCOMMI_L(i) code = DCOMMI_L(mini)(v, turned, true, &dcommi_mini_f16);
                code = DCOMMI_L(and_or)(DCOMMI_L(srl)(a, sixteen), DCOMMI_L(set_i)(0x8000), code);
                packed = DCOMMI_L(pack_h)(code);
            } else if (half) {
                packed = DCOMMI_L(to_f16)(DCOMMI_L(as_f)(a));
            } else {
                DCOMMI_L(i) odd = DCOMMI_L(and_i)(DCOMMI_L(srl)(a, sixteen), DCOMMI_L(set_i)(1));
                DCOMMI_L(i)
                up = stochastic ? DCOMMI_L(srl)(turned, sixteen)
                                : DCOMMI_L(add_i)(odd, DCOMMI_L(set_i)(0x7fff));
                packed = DCOMMI_L(pack_h)(DCOMMI_L(srl)(DCOMMI_L(add_i)(a, up), sixteen));
            }
            if (q->next != NULL) {
                DCOMMI_L(f)
                sent = half ? DCOMMI_L(from_f16)(packed)
                            : DCOMMI_L(as_f)(DCOMMI_L(sll)(DCOMMI_L(unpack_h)(packed), sixteen));
                DCOMMI_L(store_f)(q->next + i, DCOMMI_L(sub_f)(v, sent), stream_next);
            }
            if (k % 2 == 0) {
                first = packed;
            } else {
                DCOMMI_L(store_h2)(q->wire + 2 * (i - 16), first, packed, stream);
            }
        }
    }
    return DCOMMI_L(most)(most);
}

/* Add 64 numbers of wire w to the sums of the wires before. *most: the largest magnitude. */
DCOMMI_LANE void DCOMMI_L(uncast_wire)(const dcommi_dequant *d, size_t at, size_t w, bool half,
                                       size_t lead, DCOMMI_L(f) * sum, DCOMMI_L(i) * most)
{
    const DCOMMI_L(i) magnitude = DCOMMI_L(set_i)(0x7fff);
    const DCOMMI_L(i) sixteen = DCOMMI_L(set_i)(16);
    const unsigned char *wire = d->wires[w] + 2 * at;
    DCOMMI_UNROLL
    for (unsigned k = 0; k < 4; k++) {
        DCOMMI_L(h) packed = DCOMMI_L(load_h)(wire + 32 * k);
        DCOMMI_L(i) wide = DCOMMI_L(unpack_h)(packed);
        *most = DCOMMI_L(max_i)(*most, DCOMMI_L(and_i)(wide, magnitude));
        DCOMMI_L(f)
        v = half ? DCOMMI_L(from_f16)(packed) : DCOMMI_L(as_f)(DCOMMI_L(sll)(wide, sixteen));
        sum[k] = w == 0 ? v : DCOMMI_L(add_f)(sum[k], v);
        if (lead > 0 && k % 2 == 0) {
            dcommi_ahead(wire + 32 * k + 4 * lead);
        }
    }
}

/* Set x to the sum of d->n casts of d->count elements, a multiple of 64, times the factor. If n =
 * 1, there is no factor, and d->add adds to x. Return the largest magnitude as 16 bits. */
DCOMMI_LANE uint32_t DCOMMI_L(uncast_any)(const dcommi_dequant *d, bool half, bool one)
{
    const DCOMMI_L(f) factor = DCOMMI_L(set_f)(d->factor);
    const bool add = d->add, stream = d->stream;
    const size_t lead = dcommi_codec_lead();
    DCOMMI_L(i) most = DCOMMI_L(set_i)(0);
    const size_t n = one ? 1 : d->n;
    for (size_t at = 0; at < d->count; at += 64) {
        DCOMMI_L(f) zero = DCOMMI_L(set_f)(0), sum[4] = {zero, zero, zero, zero};
        DCOMMI_L(uncast_wire)(d, at, 0, half, one && !add ? lead : 0, sum, &most);
        /* Each of the first wires has its own load instructions; see kernels/cpu/simd.h. */
        if (n > 1) {
            DCOMMI_L(uncast_wire)(d, at, 1, half, 0, sum, &most);
        }
        if (n > 2) {
            DCOMMI_L(uncast_wire)(d, at, 2, half, 0, sum, &most);
        }
        if (n > 3) {
            DCOMMI_L(uncast_wire)(d, at, 3, half, 0, sum, &most);
        }
        for (size_t w = 4; w < n; w++) {
            DCOMMI_L(uncast_wire)(d, at, w, half, 0, sum, &most);
        }
        DCOMMI_UNROLL
        for (unsigned k = 0; k < 4; k++) {
            float *x = d->x + at + 16 * k;
            DCOMMI_L(f) v = sum[k];
            if (!one) {
                v = DCOMMI_L(mul_f)(v, factor);
            } else if (add) {
                dcommi_ahead(x + lead);
                v = DCOMMI_L(add_f)(DCOMMI_L(load_f)(x), v);
            }
            DCOMMI_L(store_f)(x, v, stream);
        }
    }
    return DCOMMI_L(most)(most);
}

DCOMMI_LOOP uint32_t DCOMMI_L(cast)(const dcommi_quant *q, bool half)
{
    return half ? DCOMMI_L(cast_any)(q, true) : DCOMMI_L(cast_any)(q, false);
}

DCOMMI_LOOP uint32_t DCOMMI_L(uncast)(const dcommi_dequant *d, bool half)
{
    if (d->n == 1) {
        return half ? DCOMMI_L(uncast_any)(d, true, true) : DCOMMI_L(uncast_any)(d, false, true);
    }
    return half ? DCOMMI_L(uncast_any)(d, true, false) : DCOMMI_L(uncast_any)(d, false, false);
}

DCOMMI_CODEC_KERNELS const dcommi_codec_kernels DCOMMI_L(codec_kernels) = {
    DCOMMI_L(measure),
    DCOMMI_L(add_measure),
    DCOMMI_L(squares),
    {DCOMMI_L(encode_q1), DCOMMI_L(encode_q2), DCOMMI_L(encode_q4), DCOMMI_L(encode_q8),
     DCOMMI_L(encode_sign), DCOMMI_L(encode_e4m3), DCOMMI_L(encode_e5m2)},
    {DCOMMI_L(decode_q1), DCOMMI_L(decode_q2), DCOMMI_L(decode_q4), DCOMMI_L(decode_q8),
     DCOMMI_L(decode_sign), DCOMMI_L(decode_e4m3), DCOMMI_L(decode_e5m2)},
    {DCOMMI_L(sum_q1), DCOMMI_L(sum_q2), DCOMMI_L(sum_q4), DCOMMI_L(sum_q8), DCOMMI_L(sum_sign),
     DCOMMI_L(sum_e4m3), DCOMMI_L(sum_e5m2)},
    DCOMMI_L(cast),
    DCOMMI_L(uncast),
    DCOMMI_L(compare),
    DCOMMI_L(held),
};
