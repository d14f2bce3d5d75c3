/* basis.h - bases: the numbers that a codec (powersgd: Q) remembers from step to step for each
 * range that this rank encodes by itself. A range of its gradient and a range of a sum each have a
 * basis of their own. */
#ifndef DCOMMI_FEEDBACK_BASIS_H
#define DCOMMI_FEEDBACK_BASIS_H

#include "move.h"

/* Begin a step. Forget the ranges that the last step did not encode. */
static void dcommi_feedback_bases_begin(dcomm_feedback *fb)
{
    for (dcommi_feedback_basis **at = &fb->bases; *at != NULL;) {
        dcommi_feedback_basis *basis = *at;
        basis->learned = false;
        if (basis->step + 1 >= fb->step) {
            at = &basis->next;
            continue;
        }
        *at = basis->next;
        dcommi_feedback_store_free(&basis->numbers);
        dcommi_free(basis);
    }
}

/* Find the basis of a range, or add one of zeros in host memory. */
static dcomm_status dcommi_feedback_basis_of(dcomm_feedback *fb, size_t first, size_t count,
                                             bool owner, dcommi_feedback_basis **basis_p)
{
    dcommi_feedback_basis **last = &fb->bases, *basis;
    while ((basis = *last) != NULL &&
           (basis->first != first || basis->count != count || basis->owner != owner)) {
        last = &basis->next;
    }
    if (basis == NULL) {
        basis = dcommi_alloc(sizeof *basis);
        if (basis == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        *basis = (dcommi_feedback_basis){.first = first, .count = count, .owner = owner};
        dcomm_status status = dcommi_feedback_store_make(
            &basis->numbers, dcommi_feedback_basis_count(fb->codec, count), false,
            fb->opts.in_place);
        if (status < 0) {
            dcommi_free(basis);
            return status;
        }
        *last = basis;
    }
    *basis_p = basis;
    return DCOMM_OK;
}

/* Note that this step encodes the range. */
static void dcommi_feedback_basis_used(const dcomm_feedback *fb, dcommi_feedback_basis *basis)
{
    basis->learned = true;
    basis->step = fb->step;
}

/* Return true if this rank's encodings of `count` elements begin with what the last step learned.
 * A device's kernels encode nonfinite=pass in one piece and without memory, so host memory does
 * the same. */
static inline bool dcommi_feedback_remembers(const dcomm_feedback *fb, size_t count)
{
    return count > 0 && dcommi_feedback_basis_count(fb->codec, count) > 0 &&
           !(fb->collective && fb->codec->nonfinite == DCOMMI_NONFINITE_PASS);
}

/* Set *state_p to where the codec finds what it remembers of a range and leaves what it learns.
 * NULL: this codec remembers nothing. Use this only for an encoding in host memory. */
static dcomm_status dcommi_feedback_recall(dcomm_feedback *fb, size_t first, size_t count,
                                           bool owner, void **state_p)
{
    *state_p = NULL;
    if (!dcommi_feedback_remembers(fb, count)) {
        return DCOMM_OK;
    }
    dcommi_feedback_basis *basis;
    DCOMMI_TRY(dcommi_feedback_basis_of(fb, first, count, owner, &basis));
    if (basis->numbers.place != NULL) {
        dcommi_feedback_store home;
        DCOMMI_TRY(dcommi_feedback_store_copy(fb, &basis->numbers, &home));
        dcommi_feedback_store_free(&basis->numbers);
        basis->numbers = home;
    }
    dcommi_feedback_store_level(&basis->numbers);
    dcommi_feedback_basis_used(fb, basis);
    *state_p = basis->numbers.next;
    return DCOMM_OK;
}

#endif
