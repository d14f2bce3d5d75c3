/* share.h - memory that processes of one host share. It is an anonymous file that each of them
 * maps. It needs no room in /dev/shm and has no name. It ends with the last process that has it
 * open or mapped, however that process ends. */
#ifndef DCOMMI_SHARE_H
#define DCOMMI_SHARE_H

#include "../../base/huge.h"

#include <sys/stat.h>

/* The C library's headers may be too old to define these. */
#define DCOMMI_MFD_CLOEXEC 1u
#define DCOMMI_MFD_ALLOW_SEALING 2u
#define DCOMMI_MFD_NOEXEC_SEAL 8u
#define DCOMMI_F_ADD_SEALS 1033
#define DCOMMI_F_GET_SEALS 1034
#define DCOMMI_F_SEAL_SEAL 1
#define DCOMMI_F_SEAL_SHRINK 2
#define DCOMMI_F_SEAL_GROW 4

/* Create a zeroed file of `len` bytes. Seal its length, so that no process can cut it and make
 * another's loads fail. Return its descriptor, or -1 with errno set. */
static int dcommi_share_file(size_t len)
{
    /* Linux 6.3 can be set to refuse files without NOEXEC_SEAL. Older kernels do not know it. */
    unsigned flags = DCOMMI_MFD_CLOEXEC | DCOMMI_MFD_ALLOW_SEALING;
    int fd = (int)syscall(SYS_memfd_create, "dcomm", flags | DCOMMI_MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) {
        fd = (int)syscall(SYS_memfd_create, "dcomm", flags);
    }
    if (fd < 0) {
        return -1;
    }
    if (ftruncate(fd, (off_t)len) != 0 ||
        fcntl(fd, DCOMMI_F_ADD_SEALS,
              DCOMMI_F_SEAL_SHRINK | DCOMMI_F_SEAL_GROW | DCOMMI_F_SEAL_SEAL) != 0) {
        dcommi_sys_close(fd);
        return -1;
    }
    return fd;
}

/* Return true if a peer's descriptor is a file of at least `len` bytes that nobody can shorten. */
static bool dcommi_share_holds(int fd, size_t len)
{
    struct stat st;
    int seals = fcntl(fd, DCOMMI_F_GET_SEALS);
    return seals >= 0 && (seals & DCOMMI_F_SEAL_SHRINK) != 0 && dcommi_sys_fstat(fd, &st) == 0 &&
           st.st_size >= 0 && (uint64_t)st.st_size >= len;
}

/* Map part of a file, at any page. Return NULL, with errno set, without address space. */
static void *dcommi_share_map(int fd, size_t offset, size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    return at != MAP_FAILED ? at : NULL;
}

/* Map a whole file, aligned to huge pages. Unmap it by dcommi_huge_release. `protection` is
 * mmap's. */
static uint8_t *dcommi_share_map_huge(int fd, size_t len, int protection)
{
    uint8_t *place = dcommi_huge_reserve(len);
    if (place == NULL) {
        return NULL;
    }
    if (mmap(place, len, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int saved = errno;
        dcommi_huge_release(place, len);
        errno = saved;
        return NULL;
    }
    return place;
}

#endif
