/* Counts the calls that change files below a folder, and lets one of them fail in a chosen way. Loaded by LD_PRELOAD.

   Also keeps what is needed to take back everything that was not synced: a power cut. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NONE, IO_ERROR, DISK_FULL, SHORT_WRITE, DIE, DIE_HALF_WRITTEN, POWER_CUT };
enum { EXIT_STATUS = 137, MOST_CALLS = 10000, MOST_UNSYNCED = 10000 };

static char folder[PATH_MAX];
static int at, kind, fails, count;
static char calls[MOST_CALLS]; /* 'w'rite, 's'ync, 't'runcate, 'u'nlink, 'r'ename, 'c'reate */

struct change { /* bytes of a file before a change that is not synced */
    char path[PATH_MAX];
    off_t offset, size_before;
    size_t length;
    char *bytes;
};
static struct change *unsynced[MOST_UNSYNCED];
static int num_unsynced;

static void forget(struct change *change) {
    free(change->bytes);
    free(change);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* From now on calls below that folder are counted; those from `number` (of 1, 2, …) fail `times` times as `how` says. */
void faults_arm(const char *below, int number, int how, int times) {
    snprintf(folder, sizeof folder, "%s/", below);
    at = number, kind = how, fails = times, count = 0;
    memset(calls, 0, sizeof calls);
    while (num_unsynced) forget(unsynced[--num_unsynced]);
}

void faults_disarm(void) { folder[0] = 0; }

const char *faults_calls(void) { return calls; }

static int is_watched(const char *path) { return folder[0] && !strncmp(path, folder, strlen(folder)); }

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0 && is_watched(path);
}

static void take_back_unsynced(void) {
    while (num_unsynced) {
        struct change *change = unsynced[--num_unsynced];
        int fd = (int)syscall(SYS_openat, AT_FDCWD, change->path, O_WRONLY, 0);
        if (fd < 0) continue;
        if (change->length) syscall(SYS_pwrite64, fd, change->bytes, change->length, change->offset);
        syscall(SYS_ftruncate, fd, change->size_before);
    }
}

static void synced(const char *path) {
    int kept = 0;
    for (int i = 0; i < num_unsynced; i++)
        if (strcmp(unsynced[i]->path, path)) unsynced[kept++] = unsynced[i];
        else forget(unsynced[i]);
    num_unsynced = kept;
}

static void remember(int fd, const char *path, off_t offset, size_t length) {
    struct stat status;
    if (num_unsynced == MOST_UNSYNCED || fstat(fd, &status)) abort();
    struct change *change = calloc(1, sizeof *change);
    strcpy(change->path, path);
    change->offset = offset, change->size_before = status.st_size;
    if (offset < status.st_size) {
        size_t there = (size_t)(status.st_size - offset);
        change->length = length < there ? length : there;
        change->bytes = malloc(change->length);
        if (pread(fd, change->bytes, change->length, offset) != (ssize_t)change->length) abort();
    }
    unsynced[num_unsynced++] = change;
}

/* Counts a call; 0 where it is to go on, else what fails: the errno, or -1 for a half write. */
static int fault(char what) {
    if (count + 1 < MOST_CALLS) calls[count] = what;
    count++;
    if (kind == NONE || count < at || count >= at + fails) return 0;
    switch (kind) {
    case POWER_CUT: take_back_unsynced(); _exit(EXIT_STATUS);
    case DIE: _exit(EXIT_STATUS);
    case DIE_HALF_WRITTEN:
    case SHORT_WRITE: return what == 'w' ? -1 : 0;
    default: return kind == DISK_FULL ? ENOSPC : EIO;
    }
}

static ssize_t half(int fd, const void *bytes, size_t length, off_t offset) {
    length = length > 1 ? length / 2 : length;
    ssize_t written = offset < 0 ? syscall(SYS_write, fd, bytes, length) : syscall(SYS_pwrite64, fd, bytes, length, offset);
    if (kind == DIE_HALF_WRITTEN) _exit(EXIT_STATUS);
    return written;
}

static ssize_t write_at(int fd, const void *bytes, size_t length, off_t offset) {
    char path[PATH_MAX];
    if (path_of(fd, path)) {
        int wrong = fault('w');
        if (wrong > 0) return errno = wrong, -1;
        remember(fd, path, offset < 0 ? lseek(fd, 0, SEEK_CUR) : offset, length);
        if (wrong < 0) return half(fd, bytes, length, offset);
    }
    return offset < 0 ? syscall(SYS_write, fd, bytes, length) : syscall(SYS_pwrite64, fd, bytes, length, offset);
}

ssize_t write(int fd, const void *bytes, size_t length) { return write_at(fd, bytes, length, -1); }
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return write_at(fd, bytes, length, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return write_at(fd, bytes, length, offset); }

static int sync_with(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    int is_ours = path_of(fd, path), wrong = is_ours ? fault('s') : 0;
    if (wrong) return errno = wrong, -1;
    if (is_ours) synced(path);
    return real(fd);
}

int fsync(int fd) {
    REAL(fsync);
    return sync_with(fd, real);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return sync_with(fd, real);
}

static int cut(int fd, off_t length) {
    char path[PATH_MAX];
    if (path_of(fd, path)) {
        int wrong = fault('t');
        if (wrong) return errno = wrong, -1;
        remember(fd, path, length, SIZE_MAX);
    }
    return (int)syscall(SYS_ftruncate, fd, length);
}

int ftruncate(int fd, off_t length) { return cut(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut(fd, length); }

int unlink(const char *path) {
    REAL(unlink);
    int wrong = is_watched(path) ? fault('u') : 0;
    if (wrong) return errno = wrong, -1;
    synced(path);
    return real(path);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    int wrong = is_watched(to) ? fault('r') : 0;
    return wrong ? (errno = wrong, -1) : real(from, to);
}

static int open_with(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    int creates = flags & O_CREAT && is_watched(path) && access(path, F_OK);
    int wrong = creates ? fault('c') : 0;
    return wrong ? (errno = wrong, -1) : real(path, flags, mode);
}

static mode_t mode_of(int flags, va_list more) { return flags & O_CREAT ? (mode_t)va_arg(more, int) : 0; }

int open(const char *path, int flags, ...) {
    REAL(open);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return open_with(real, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return open_with(real, path, flags, mode);
}
