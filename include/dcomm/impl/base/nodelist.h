/* nodelist.h - reads the first host of Slurm's host list: "n01-ib" of "n[01-03,7]-ib,m2". */
#ifndef DCOMMI_NODELIST_H
#define DCOMMI_NODELIST_H

#include "util.h"

/* Copy the first host's name into `host`. Return false if `list` is no such list, or if the name
 * does not fit into `max` bytes. A name may hold several brackets; the first number of each
 * counts. */
static bool dcommi_nodelist_first(const char *list, char *host, size_t max)
{
    size_t n = 0;
    const char *p = list;
    while (*p != '\0' && *p != ',') {
        if (*p == '[') {
            size_t digits = strspn(p + 1, "0123456789");
            const char *close = strchr(p, ']');
            if (digits == 0 || close == NULL || strchr(",-]", p[1 + digits]) == NULL ||
                strspn(p + 1, "0123456789,-") != (size_t)(close - p - 1) || n + digits >= max) {
                return false;
            }
            memcpy(host + n, p + 1, digits);
            n += digits;
            p = close + 1;
            continue;
        }
        bool good = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                    (*p >= '0' && *p <= '9') || *p == '-' || *p == '.' || *p == '_';
        if (!good || n + 1 >= max) {
            return false;
        }
        host[n++] = *p++;
    }
    if (max == 0 || n == 0) {
        return false;
    }
    host[n] = '\0';
    return true;
}

#endif
