/* huge.h - reserves address ranges aligned to huge pages, populates them without the risk of
 * SIGBUS, and collapses them onto huge pages. */
#ifndef DCOMMI_HUGE_H
#define DCOMMI_HUGE_H

#include "sys.h"
#include "util.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define DCOMMI_HUGE_PAGE ((size_t)2 << 20)

/* The C library's headers may be too old to define these. */
#define DCOMMI_MADV_POPULATE_READ 22
#define DCOMMI_MADV_POPULATE_WRITE 23
#define DCOMMI_MADV_COLLAPSE 25

static inline size_t dcommi_huge_round(size_t len)
{
    return (len + DCOMMI_HUGE_PAGE - 1) & ~(DCOMMI_HUGE_PAGE - 1);
}

/* Reserve address space for `len` bytes, aligned to huge pages at both ends, without memory behind
 * it. Return NULL if there is none. */
static uint8_t *dcommi_huge_reserve(size_t len)
{
    if (len > SIZE_MAX / 2) {
        return NULL;
    }
    size_t whole = dcommi_huge_round(len);
    uint8_t *start = mmap(NULL, whole + DCOMMI_HUGE_PAGE, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    size_t before = -(uintptr_t)start & (DCOMMI_HUGE_PAGE - 1);
    if (before > 0) {
        munmap(start, before);
    }
    munmap(start + before + whole, DCOMMI_HUGE_PAGE - before);
    return start + before;
}

static void dcommi_huge_release(void *at, size_t len)
{
    if (at != NULL) {
        munmap(at, dcommi_huge_round(len));
    }
}

/* Allocate zeroed private memory, advised to be on huge pages. Return NULL if there is none. */
static uint8_t *dcommi_huge_advised(size_t len)
{
    uint8_t *at = dcommi_huge_reserve(len);
    if (at == NULL || mprotect(at, dcommi_huge_round(len), PROT_READ | PROT_WRITE) != 0) {
        dcommi_huge_release(at, len);
        return NULL;
    }
    madvise(at, dcommi_huge_round(len), MADV_HUGEPAGE);
    memset(at, 0, len);
    return at;
}

/* Allocate as dcommi_alloc_raw does, with its whole huge pages advised: memory that is touched for
 * the first time then costs one page fault for 2 MiB. */
static inline void *dcommi_huge_alloc(size_t bytes)
{
    void *at = dcommi_alloc_raw(bytes);
    const uintptr_t begin = ((uintptr_t)at + DCOMMI_HUGE_PAGE - 1) & ~(DCOMMI_HUGE_PAGE - 1);
    const uintptr_t end = ((uintptr_t)at + bytes) & ~(DCOMMI_HUGE_PAGE - 1);
    if (at != NULL && begin < end) {
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
    return at;
}

/* Populate every page; new pages are zero. Return false if there is no memory for them. */
static bool dcommi_huge_populate(void *at, size_t len)
{
    if (madvise(at, len, DCOMMI_MADV_POPULATE_WRITE) == 0) {
        return true;
    }
    if (errno != EINVAL) {
        return false;
    }
    /* Before Linux 5.14, let a system call write: it returns EFAULT where our store would raise
     * SIGBUS. */
    int zero = dcommi_sys_open("/dev/zero", O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    while (zero >= 0 && done < len) {
        ssize_t n = dcommi_sys_read(zero, (char *)at + done, len - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        done += (size_t)n;
    }
    dcommi_sys_close(zero);
    return done == len;
}

/* Return true if every byte of a mapping can be read. Its pages are then populated. Before Linux
 * 5.14, try the last byte only: a file that is too short lacks it. */
static bool dcommi_huge_readable(void *at, size_t len)
{
    if (len == 0 || madvise(at, len, DCOMMI_MADV_POPULATE_READ) == 0) {
        return true;
    }
    if (errno != EINVAL) {
        return false;
    }
    char byte;
    struct iovec to = {&byte, 1}, from = {(char *)at + len - 1, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

/* Populate new memory, on huge pages where the kernel agrees, whatever its settings for shared
 * memory. Set *huge to the bytes that are on huge pages. Return false if there is no memory. */
static bool dcommi_huge_fill(uint8_t *at, size_t len, size_t *huge)
{
    *huge = 0;
    if (len >= DCOMMI_HUGE_PAGE) {
        madvise(at, len, MADV_HUGEPAGE);
    }
    for (size_t done = 0; done + DCOMMI_HUGE_PAGE <= len; done += DCOMMI_HUGE_PAGE) {
        if (!dcommi_huge_populate(at + done, 1)) { /* a range without any page does not collapse */
            return false;
        }
        if (madvise(at + done, DCOMMI_HUGE_PAGE, DCOMMI_MADV_COLLAPSE) == 0) {
            *huge += DCOMMI_HUGE_PAGE;
        } else if (errno == EINVAL) {
            break; /* this kernel cannot, or not for this memory */
        }
    }
    return dcommi_huge_populate(at, len);
}

#endif
