/* tune_cache.h - tunings that outlive the process: one text file for each machine, arrangement of
 * ranks and version of the library, in the user's cache directory. Only rank 0 reads and writes. */
#ifndef DCOMMI_TUNE_CACHE_H
#define DCOMMI_TUNE_CACHE_H

#include "../base/environment.h"
#include "../base/sys.h"
#include "../model/tuning_file.h"

#include <sys/stat.h>
#include <unistd.h>

#define DCOMMI_TUNE_CACHE_PATH 512

/* Write the cache directory to `path`: DCOMM_TUNE_CACHE, else dcomm in XDG_CACHE_HOME, else in
 * ~/.cache. Skip relative paths; dcommi_env_check has warned of them. Return false if there is no
 * directory, or if DCOMM_TUNE_CACHE is a flag that is off. */
static bool dcommi_tune_cache_directory(char *path, size_t len)
{
    static const char *const bases[][2] = {
        {"DCOMM_TUNE_CACHE", ""}, {"XDG_CACHE_HOME", "/dcomm"}, {"HOME", "/.cache/dcomm"}};
    bool on = true;
    if (dcommi_env(bases[0][0]) != NULL && dcommi_text_flag(dcommi_env(bases[0][0]), &on) && !on) {
        return false;
    }
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        const char *base = dcommi_env(bases[i][0]);
        if (base != NULL && base[0] == '/') {
            return (size_t)snprintf(path, len, "%s%s", base, bases[i][1]) < len;
        }
    }
    return false;
}

/* Mix the model and the number of this machine's processors into the key of the ranks. */
static uint64_t dcommi_tune_cache_key(uint64_t key)
{
    static const char name[] = "model name";
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        found = strncmp(line, name, sizeof name - 1) == 0;
    }
    if (file != NULL) {
        fclose(file);
    }
    for (const char *c = found ? line : ""; *c != 0; c++) {
        key = dcommi_mix(key, (uint64_t)(unsigned char)*c);
    }
    return dcommi_mix(key, (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
}

static bool dcommi_tune_cache_file(uint64_t key, char *path, size_t len)
{
    char directory[DCOMMI_TUNE_CACHE_PATH];
    return dcommi_tune_cache_directory(directory, sizeof directory) &&
           (size_t)snprintf(path, len, "%s/tuning-" DCOMM_VERSION_STRING "-%016" PRIx64 ".txt",
                            directory, dcommi_tune_cache_key(key)) < len;
}

/* Return true if a tuning was kept under this key. A file that cannot be read counts as none. */
static bool dcommi_tune_cache_load(uint64_t key, dcomm_tuning *tuning)
{
    char path[DCOMMI_TUNE_CACHE_PATH + 64];
    if (!dcommi_tune_cache_file(key, path, sizeof path) || dcommi_sys_access(path, R_OK) != 0) {
        return false;
    }
    if (dcomm_tuning_load(path, tuning) < 0) {
        dcommi_log(DCOMMI_LOG_WARN, "%s; measuring again", dcommi_message);
        return false;
    }
    dcommi_log(DCOMMI_LOG_INFO, "tuning read from %s; DCOMM_TUNE_CACHE=off measures anew", path);
    return true;
}

/* Make the missing directories of a path, for the user alone. */
static void dcommi_tune_cache_mkdir(char *path)
{
    for (char *c = path + 1; *c != 0; c++) {
        if (*c == '/') {
            *c = 0;
            dcommi_sys_mkdir(path, 0700);
            *c = '/';
        }
    }
}

/* Keep a tuning. Readers see the whole file or none. If it cannot be written, the next run
 * measures again. */
static void dcommi_tune_cache_save(uint64_t key, const dcomm_tuning *tuning)
{
    char path[DCOMMI_TUNE_CACHE_PATH + 64], fresh[DCOMMI_TUNE_CACHE_PATH + 96];
    if (!dcommi_tune_cache_file(key, path, sizeof path)) {
        return;
    }
    dcommi_tune_cache_mkdir(path);
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    if (dcomm_tuning_save(tuning, fresh) < 0 || dcommi_sys_rename(fresh, path) != 0) {
        dcommi_log(DCOMMI_LOG_INFO, "no tuning is kept in %s", path);
        dcommi_sys_unlink(fresh);
    }
}

#endif
