#!/usr/bin/env bash
# test_amalgamate.sh - tools/amalgamate.py on a small tree of parts.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
amalgamate=$PWD/tools/amalgamate.py

# tree: a fresh copy of the small tree, entered.
tree() {
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree"/{tools,kernels,include/dcomm/{impl,nccl}}
    cd "$scratch/tree" || exit 2
    cp "$amalgamate" tools/
    cat >include/dcomm/all.h <<'END'
/* all.h - speaks of
 * the parts. */
#include "base.h"
#ifdef DCOMM_IMPLEMENTATION
#include "impl/one.h"
#include "impl/two.h"
#endif
END
    printf '#ifndef DCOMM_BASE_H\n#define DCOMM_BASE_H\n#include <stddef.h>\n#define DCOMM_VERSION_STRING "1.2.3"\n#endif\n' >include/dcomm/base.h
    printf '#ifndef DCOMMI_ONE_H\n#define DCOMMI_ONE_H\n#include "../base.h"\n#include "../../../kernels/k.h"\n#define DCOMMI_KEPT(x) \\\n    (x)\n#define DCOMMI_GONE 1\n#undef DCOMMI_GONE\nstatic int one;\n#endif\n' >include/dcomm/impl/one.h
    printf '#ifndef DCOMMI_TWO_H\n#define DCOMMI_TWO_H\n#include "one.h"\n#define DCOMMI_N 1\n#include "../../../kernels/template.h"\n#undef DCOMMI_N\n#define DCOMMI_N 2\n#include "../../../kernels/template.h"\n#undef DCOMMI_N\n#endif\n' >include/dcomm/impl/two.h
    printf '#ifndef DCOMMI_K_H\n#define DCOMMI_K_H\n#include <math.h>\nstatic int k;\n#endif\n' >kernels/k.h
    printf 'static int in_template;\n' >kernels/template.h
    printf '/* all.h - speaks too. */\n#include "face.h"\n#ifdef I\n#include "made.h"\n#endif\n' >include/dcomm/nccl/all.h
    printf '#ifndef FACE_H\n#define FACE_H\n#include <limits.h>\nstatic int face;\n#endif\n' >include/dcomm/nccl/face.h
    printf '#ifndef MADE_H\n#define MADE_H\n#include "dcomm.h"\n#include "face.h"\nstatic int made;\n#endif\n' >include/dcomm/nccl/made.h
}
header=include/dcomm.h

expanded() {
    tree && tools/amalgamate.py && cat $header &&
        [ "$(grep -c 'static int one' $header)" = 1 ] &&
        [ "$(grep -c 'static int k' $header)" = 1 ] &&
        [ "$(grep -c '#include <' $header)" = 2 ] &&
        [ "$(grep '^#include "' $header | sort -u)" = '#include "dcomm.h"' ] &&
        ! grep -q 'speaks of' $header && grep -q 'dcomm.h 1.2.3' $header
}
check "each part once, system includes kept" expanded
templates() { # one with another inside, where it is used twice
    tree && printf 'static int in_template_DCOMMI_N;\n#include "inner.h"\n' >kernels/template.h &&
        printf 'static int inner_DCOMMI_N;\n' >kernels/inner.h &&
        sed -i 's/_DCOMMI_N/[DCOMMI_N]/' kernels/*.h && tools/amalgamate.py && cat $header &&
        [ "$(grep -c 'static int in_template' $header)" = 1 ] &&
        printf '#define DCOMM_IMPLEMENTATION\n#include "include/dcomm.h"\n' >used.c &&
        [ "$(gcc -E -P -I. used.c | grep -oE '(in_template|inner)\[[12]\]' | tr '\n' ' ')" = \
            "in_template[1] inner[1] in_template[2] inner[2] " ]
}
check "a template once, and its text in each place that includes it" templates
spared() { # two.h comes to include what one.h has, and something that base.h has
    tree && sed -i 's|#define DCOMMI_N 1|#include <math.h>\n#include <stddef.h>\n\n\n#define DCOMMI_N 1|' \
        include/dcomm/impl/two.h && tools/amalgamate.py && cat $header &&
        [ "$(grep -c '#include <' $header)" = 2 ] && ! grep -qE 'DCOMMI_(ONE|TWO|K)_H' $header &&
        [ "$(grep -c '^#if' $header)" = "$(grep -c '^#endif' $header)" ] &&
        ! sed -n '/^#ifdef DCOMM_IMPLEMENTATION/,/^#endif/p' $header | grep -q '^$'
}
check "an implementation goes without guards, blank lines and repeated system includes" spared
tree && tools/amalgamate.py
beside() {
    cat include/dcomm_nccl.h &&
        [ "$(grep -c 'static int face' include/dcomm_nccl.h)" = 1 ] &&
        [ "$(grep -c 'static int made' include/dcomm_nccl.h)" = 1 ] &&
        [ "$(grep -c '^#include "' include/dcomm_nccl.h)" = 1 ] &&
        grep -q '^#include "dcomm.h"' include/dcomm_nccl.h && ! grep -q 'speaks' include/dcomm_nccl.h
}
check "the other header includes the first" beside
undefined() {
    [ "$(grep '^#undef' $header | tail -1)" = "#undef DCOMMI_KEPT" ] &&
        [ "$(grep -c '#undef DCOMMI_GONE' $header)" = 1 ]
}
check "helper macros that are left are undefined at the end" undefined
check "--check accepts what was just written" tools/amalgamate.py --check
again() {
    cp $header before && tools/amalgamate.py && cmp before $header
}
check "the same parts give the same bytes" again
echo 'static int more;' >>kernels/template.h
expect "--check refuses a stale header and shows the difference" 1 '^\+static int more;' \
    tools/amalgamate.py --check
tree
expect "--check refuses a missing header" 1 "is stale" tools/amalgamate.py --check
rm kernels/k.h
expect "a missing part" 1 "k.h, included by .*one.h: No such file" tools/amalgamate.py
tree
echo '#include "impl/two.h"' >kernels/template.h
sed -i 's|impl/two.h|../include/dcomm/impl/two.h|' kernels/template.h
expect "parts that include each other" 1 "includes itself" tools/amalgamate.py
tree
cp include/dcomm/base.h include/dcomm/late.h
sed -i 's/BASE/LATE/' include/dcomm/late.h
sed -i 's|#define DCOMMI_N 1|#include "../late.h"|' include/dcomm/impl/two.h
expect "a public part that only the implementation includes" 1 "late.h is public" tools/amalgamate.py
tree
sed -i 's|#include "impl/one.h"|#ifdef X\n#include "impl/one.h"\n#endif|' include/dcomm/all.h
expect "a part that is first met under a narrower condition" 1 "include it earlier" tools/amalgamate.py
shared() { # what C and CUDA share stands under a condition that both imply
    tree && sed -i 's|#ifdef DCOMM_IMPLEMENTATION|#if defined(DCOMM_IMPLEMENTATION) \|\| defined(DCOMM_CUDA_IMPLEMENTATION)\n#include "../../kernels/k.h"\n#endif\n&|' include/dcomm/all.h &&
        printf '#ifdef DCOMM_CUDA_IMPLEMENTATION\n#include "../../kernels/g.cuh"\n#endif\n' >>include/dcomm/all.h &&
        printf '#ifndef DCOMMI_G_H\n#define DCOMMI_G_H\n#include "k.h"\nstatic int g;\n#endif\n' >kernels/g.cuh &&
        tools/amalgamate.py && [ "$(grep -c 'static int k' $header)" = 1 ]
}
check "parts that C and CUDA share" shared
tree
echo '#if 1' >>include/dcomm/impl/one.h
expect "#if without #endif" 1 "one.h: #if without #endif" tools/amalgamate.py
tree
echo '<<<<<<< HEAD' >>include/dcomm/all.h
expect "an unresolved merge" 1 "all.h holds an unresolved merge" tools/amalgamate.py
finish
