/* Preloaded into a daemon. Moves its wall clock, and nothing else, by the seconds that the file CHAOS_CLOCK holds: the time since
 * the machine was started runs on, as it does when somebody sets the clock. And while the file CHAOS_DISK holds something, the disk
 * under history.db and what belongs to it fails or is slow: "ro" (read-only file system), "io" (input/output error), "slow". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int held(const char *name, char *text, size_t size) {
    const char *path = getenv(name);
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return 0;
    ssize_t got = syscall(SYS_read, file, text, size - 1);
    syscall(SYS_close, file);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

int clock_gettime(clockid_t which, struct timespec *out) {
    char text[32];
    long code = syscall(SYS_clock_gettime, which, out);
    if (code == 0 && which == CLOCK_REALTIME && held("CHAOS_CLOCK", text, sizeof text))
        out->tv_sec += atol(text);
    return (int)code;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

/* What the disk answers to a change of this file: 0, or -1 with errno. */
static int disk(int file) {
    char what[32], link[64], path[4096];
    struct timespec pause = {0, 300000000};
    if (!held("CHAOS_DISK", what, sizeof what))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    if (!strstr(path, "/history.db"))
        return 0;
    if (!strcmp(what, "slow")) {
        nanosleep(&pause, NULL);
        return 0;
    }
    errno = !strcmp(what, "ro") ? EROFS : EIO;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) {
    return disk(file) ? -1 : syscall(SYS_write, file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return disk(file) ? -1 : syscall(SYS_pwrite64, file, data, size, at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return disk(file) ? -1 : syscall(SYS_pwrite64, file, data, size, at);
}

int fsync(int file) {
    return disk(file) ? -1 : REAL(fsync)(file);
}

int fdatasync(int file) {
    return disk(file) ? -1 : REAL(fdatasync)(file);
}
