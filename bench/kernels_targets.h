/* kernels_targets.h - speed targets of the kernels on a device of the class of an H200, and a
 * check of the rows of kernels_time.h against them. */
#ifndef DCOMM_KERNELS_TARGETS_H
#define DCOMM_KERNELS_TARGETS_H

#include "kernels_time.h"

/* A target for the rows at 2^28 elements whose name begins with `first` and contains `word`. */
struct target {
    const char *what, *first, *word;
    double fraction; /* least fraction of the copy's rate */
};

static const target targets[] = {
    {"reduce of N operands", "reduce ", "", 0.9},
    {"casts to 16 bits, one way", "f16", " encode", 0.9},
    {"casts to 16 bits, one way", "bf16", " encode", 0.9},
    {"casts to 16 bits, back", "f16", " decode", 0.9},
    {"casts to 16 bits, back", "bf16", " decode", 0.9},
    {"qsgd encode", "qsgd", " encode", 0.85},
    {"qsgd decode-and-add", "qsgd", " decode-and-add", 0.88},
    {"qsgd decode-sum-re-encode", "qsgd", " decode-sum-re-encode", 0.8},
    {"threshold select", "threshold", " encode", 0.8},
    {"exact top-k with error feedback", "topk", " encode, feedback", 0.7},
};

/* Return true if a target is for this row. "decode" does not match "decode-and-add". Rows with a
 * ledger match no target, because a ledger does more than an encoding. */
static bool of_target(const row &r, const target &t)
{
    const std::string word = t.word;
    const size_t at = r.kernel.find(word);
    return r.kernel.rfind(t.first, 0) == 0 && at != std::string::npos &&
           (word != " decode" || r.kernel.size() == at + word.size()) &&
           r.kernel.find(", ledger") == std::string::npos;
}

static void print_target(const char *what, size_t good, size_t all, const row *worst, double of,
                         double wanted)
{
    if (all == 0) {
        std::printf("# %s: not measured\n", what);
    } else {
        std::printf("# %s: %s, %zu of %zu rows; worst: %s, %.2f for %.2f\n", what,
                    good == all ? "met" : "missed", good, all, worst->kernel.c_str(), of, wanted);
    }
}

static void print_fraction(const target &t)
{
    size_t good = 0, all = 0;
    const row *worst = NULL;
    for (const row &r : rows) {
        if (r.count == (size_t)1 << 28 && of_target(r, t)) {
            all++;
            good += r.fraction >= t.fraction;
            worst = worst == NULL || r.fraction < worst->fraction ? &r : worst;
        }
    }
    char text[160];
    std::snprintf(text, sizeof text, "2^28, %s (%s*) >= %.2f of copy", t.what, t.first, t.fraction);
    print_target(text, good, all, worst, worst != NULL ? worst->fraction : 0, t.fraction);
}

/* Check the rows at 2^22 elements. The time allowed is that of three launches, plus that of the
 * bytes at the rate of a copy in the cache, without the copy's own launch. Print each row that
 * takes longer, and always those of top-k, which has more launches. */
static void print_short(void)
{
    const size_t n = (size_t)1 << 22;
    double launch = -1, copy = -1;
    for (const row &r : rows) {
        launch = r.kernel == "launch" ? r.us : launch;
        copy = r.kernel == "copy" && r.count == n ? r.us : copy;
    }
    size_t good = 0, all = 0;
    const row *worst = NULL;
    double most = 0;
    for (const row &r : rows) {
        if (r.count == n && r.kernel.rfind("copy", 0) != 0 && launch > 0 && copy > launch) {
            const double allowed =
                3 * launch + (double)r.bytes / (8.0 * (double)n) * (copy - launch);
            const double times = r.us > 0 ? r.us / allowed : 1e9;
            all++;
            good += times <= 1;
            if (times > 1 || r.kernel.rfind("topk", 0) == 0) {
                std::printf("# 2^22, %s: %.2f of what is allowed\n", r.kernel.c_str(), times);
            }
            worst = times > most ? &r : worst;
            most = times > most ? times : most;
        }
    }
    print_target("2^22, at most 3 launches and the traffic at the cache's speed", good, all, worst,
                 most, 1);
}

static void print_targets(void)
{
    for (const target &t : targets) {
        print_fraction(t);
    }
    print_short();
    std::fflush(stdout);
}

#endif
