/* expr.h - make expressions and operands. */
#ifndef DCOMMI_EXPR_H
#define DCOMMI_EXPR_H

#include "../../build.h"
#include "../base/util.h"

/* ---- expressions ---- */

/* Return an expression of a kind. If no loop can have this depth, the kind is invalid, and the
 * check refuses the plan. */
static dcomm_expr dcommi_expr_make(dcomm_expr_kind kind, int depth)
{
    bool good = depth >= 0 && depth < DCOMM_LOOP_DEPTH;
    dcomm_expr e = {.kind = good ? (uint8_t)kind : UINT8_MAX};
    return e;
}

/* Return the place of the factor of i[depth]; any place for a depth that is refused. */
static int dcommi_expr_depth(int depth)
{
    return depth >= 0 && depth < DCOMM_LOOP_DEPTH ? depth : 0;
}

DCOMM_API dcomm_expr dcomm_const(int64_t value)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_CONST, .add = value};
    return e;
}

DCOMM_API dcomm_expr dcomm_linear(int64_t add, int depth, int64_t per)
{
    dcomm_expr e = dcommi_expr_make(DCOMM_EXPR_AFFINE, depth);
    e.add = add;
    e.post[dcommi_expr_depth(depth)] = per;
    return e;
}

DCOMM_API dcomm_expr dcomm_modular(int64_t scale, int64_t base, int depth, int64_t coef,
                                   int64_t mod)
{
    dcomm_expr e = dcommi_expr_make(DCOMM_EXPR_AFFINE, depth);
    e.scale = scale;
    e.base = base;
    e.mod = mod;
    e.coef[dcommi_expr_depth(depth)] = coef;
    return e;
}

DCOMM_API dcomm_expr dcomm_lookup(int64_t first, int64_t base, int depth, int64_t coef, int64_t mod)
{
    dcomm_expr e = dcommi_expr_make(DCOMM_EXPR_TABLE, depth);
    e.scale = 1;
    e.base = base;
    e.mod = mod;
    e.first = first;
    e.coef[dcommi_expr_depth(depth)] = coef;
    return e;
}

/* Return the expression words[index]. */
static inline dcomm_expr dcommi_word(int64_t index)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_WORD, .scale = 1, .base = index};
    return e;
}

DCOMM_API dcomm_expr dcomm_plus(dcomm_expr e, int64_t add)
{
    e.add += add;
    return e;
}

DCOMM_API dcomm_expr dcomm_plus_loop(dcomm_expr e, int depth, int64_t per)
{
    dcomm_expr term = dcomm_linear(0, depth, per);
    if (e.kind == DCOMM_EXPR_CONST || term.kind != DCOMM_EXPR_AFFINE) {
        e.kind = term.kind;
    }
    e.post[dcommi_expr_depth(depth)] += per;
    return e;
}

/* ---- operands ---- */

DCOMM_API dcomm_operand dcomm_at(dcomm_space space, dcomm_expr offset, int64_t length)
{
    dcomm_operand o = {.space = (uint8_t)space,
                       .offset = offset,
                       .length = dcomm_const(length),
                       .max_length = length};
    return o;
}

DCOMM_API dcomm_operand dcomm_span(dcomm_space space, int64_t offset, int64_t length)
{
    return dcomm_at(space, dcomm_const(offset), length);
}

DCOMM_API dcomm_operand dcomm_block(dcomm_space space, dcomm_expr offset, int64_t length,
                                    int64_t end)
{
    dcomm_operand o = dcomm_at(space, offset, length);
    o.clip = end;
    return o;
}

DCOMM_API dcomm_operand dcomm_msg(void)
{
    dcomm_operand o = {.space = DCOMM_SPACE_MSG};
    return o;
}

DCOMM_API dcomm_operand dcomm_exposed(dcomm_expr peer, uint16_t slot, dcomm_expr offset,
                                      int64_t length)
{
    dcomm_operand o = dcomm_at(DCOMM_SPACE_PEER, offset, length);
    o.peer = peer;
    o.slot = slot;
    return o;
}

#endif
