/* Writes to files below a folder fail with the errno in a flag file, while that file is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refused(int fd) {
    const char *flag = getenv("REFUSE_FLAG"), *below = getenv("REFUSE_BELOW");
    char text[16] = {0}, link[64], path[PATH_MAX] = {0};
    if (!flag || !below) return 0;
    int saved = errno, file = syscall(SYS_openat, AT_FDCWD, flag, O_RDONLY);
    if (file < 0) { errno = saved; return 0; }
    long got = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (got > 0 && readlink(link, path, sizeof path - 1) > 0 && strstr(path, below) == path) {
        errno = atoi(text);
        return 1;
    }
    errno = saved;
    return 0;
}

#define WRAP(type, name, params, args)                                   \
    type name params {                                                   \
        static type (*real) params;                                      \
        if (!real) real = dlsym(RTLD_NEXT, #name);                       \
        return refused(fd) ? -1 : real args;                             \
    }
WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size))
