/* captured.h - functions of the program that UCX and hwloc call instead of the C library's. The
 * dynamic linker binds their calls to what the program exports by the same name. We cannot prevent
 * that, so we warn before they fail. A program without both libraries needs none of this. */
#ifndef DCOMMI_CAPTURED_H
#define DCOMMI_CAPTURED_H

#include "environment.h"

#if !defined(DCOMM_NO_UCX) || !defined(DCOMM_NO_HWLOC)
#ifdef __GLIBC__ /* its dladdr1 tells a definition in the program from a mere call */
#include <dlfcn.h>
#include <link.h>
#include <sys/auxv.h>

/* Return true if the program itself exports a function of this name. */
static bool dcommi_captured(const char *name)
{
    Dl_info here, program;
    void *symbol = NULL, *at = dlsym(RTLD_DEFAULT, name);
    return at != NULL && dladdr1(at, &here, &symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL &&
           ((const ElfW(Sym) *)symbol)->st_shndx != SHN_UNDEF &&
           dladdr((const void *)getauxval(AT_PHDR), &program) != 0 &&
           here.dli_fbase == program.dli_fbase;
}

/* Warn about each of `names` ("a b c") that the program exports. Do so once: *warned remembers it.
 * A sanitizer exports such functions too; they call the C library's, so do not warn then. */
static void dcommi_captured_warn(const char *names, _Atomic bool *warned)
{
    if (atomic_exchange(warned, true) || !dcommi_env_first_rank() ||
        dlsym(RTLD_DEFAULT, "__sanitizer_print_stack_trace") != NULL) {
        return;
    }
    char found[128] = "", name[16];
    for (size_t len = 0, used = 0; *names != '\0'; names += len + (names[len] == ' ')) {
        len = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)len, names);
        if (dcommi_captured(name) && used < sizeof found) {
            used += (size_t)snprintf(found + used, sizeof found - used, "%s%s",
                                     used > 0 ? ", " : "", name);
        }
    }
    if (found[0] != '\0') {
        dcommi_log(DCOMMI_LOG_WARN,
                   "this program defines %s: UCX and hwloc then call that instead of the C "
                   "library's, and may crash; make it static, rename it, or compile its file with "
                   "-fvisibility=hidden",
                   found);
    }
}
#else
static void dcommi_captured_warn(const char *names, _Atomic bool *warned)
{
    (void)names, (void)warned;
}
#endif

/* Warn about functions that UCX or hwloc calls on every rank. */
static void dcommi_captured_warn_host(void)
{
    static _Atomic bool warned;
    dcommi_captured_warn("access close getrandom open read stat", &warned);
}
#endif

#endif
