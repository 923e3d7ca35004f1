/* File-system calls of this process below one folder: counted, logged, and on demand failing.

   Loaded with LD_PRELOAD, so that the calls of Python and those inside SQLite are seen alike. Each call that is
   watched gets the next number and one record in the log: number, kind, descriptor, offset, and two byte strings
   (a path; a second path or the bytes written). Calls outside the folder pass untouched. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES = 1024 };
enum { NONE, ONCE, FROM_THEN_ON, SHORT };

static char root[PATH_MAX];
static char name[FILES][PATH_MAX];
static int record = -1, fault = NONE, code;
static long calls, point;


static void note(char kind, int fd, int64_t offset, const char *a, size_t m, const void *b, size_t n) {
    if (record < 0) return;
    struct __attribute__((packed)) { int64_t number; char kind; int32_t fd; int64_t offset; uint32_t m, n; }
        head = {calls, kind, fd, offset, (uint32_t)m, (uint32_t)n};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)a, m}, {(void *)b, n}};
    syscall(SYS_writev, record, parts, 3);
}

static void note_path(char kind, int fd, const char *path) { note(kind, fd, 0, path, strlen(path), "", 0); }

/* Write the absolute path to `out`; return whether it is in the watched folder. */
static int watched(int folder, const char *path, char *out) {
    if (!root[0] || !path) return 0;
    if (path[0] == '/') snprintf(out, PATH_MAX, "%s", path);
    else if (folder >= 0 && folder < FILES && name[folder][0]) snprintf(out, PATH_MAX, "%s/%s", name[folder], path);
    else return 0;
    size_t n = strlen(root);
    return strncmp(out, root, n) == 0 && (out[n] == '/' || !out[n]);
}

static int known(int fd) { return root[0] && fd >= 0 && fd < FILES && name[fd][0]; }

/* Count a call; return whether it fails. `changes`: whether the call can change anything on the disk. */
static int fails(int changes) {
    calls++;
    if (fault == NONE || fault == SHORT || calls < point) return 0;
    if (calls > point && (fault == ONCE || !changes)) return 0;
    errno = code;
    return 1;
}

/* Begin: watch a folder, log to a file (or not, where it is empty), fail at a call. */
void faults_begin(const char *folder, const char *log, long at, int kind, int error) {
    memset(name, 0, sizeof name);
    calls = 0, point = at, fault = kind, code = error;
    record = log[0] ? (int)syscall(SYS_openat, AT_FDCWD, log, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600) : -1;
    snprintf(root, sizeof root, "%s", folder);
}

void faults_mark(const char *text) { note('m', -1, 0, text, strlen(text), "", 0); }

long faults_end(void) {
    root[0] = 0;
    if (record >= 0) syscall(SYS_close, record);
    record = -1;
    return calls;
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    if (!watched(folder, path, full)) return (int)syscall(SYS_openat, folder, path, flags, mode);
    struct stat before;
    int was_there = syscall(SYS_newfstatat, AT_FDCWD, full, &before, 0) == 0;
    int creates = (flags & O_CREAT) && !was_there;
    if (fails(creates || (flags & O_TRUNC))) return -1;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd < 0) return fd;
    if (fd >= FILES) _exit(99);
    snprintf(name[fd], PATH_MAX, "%s", full);
    note_path(creates ? 'c' : 'o', fd, full);
    if ((flags & O_TRUNC) && !creates) note('t', fd, 0, full, strlen(full), "", 0);
    return fd;
}

#define MODE \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags | O_LARGEFILE, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags | O_LARGEFILE, 0); }

int close(int fd) {
    if (known(fd)) {
        note_path('x', fd, name[fd]);
        name[fd][0] = 0;
    }
    return (int)syscall(SYS_close, fd);
}

ssize_t read(int fd, void *to, size_t n) {
    if (known(fd)) {
        if (fails(0)) return -1;
        note_path('i', fd, name[fd]);
    }
    return syscall(SYS_read, fd, to, n);
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    if (known(fd)) {
        if (fails(0)) return -1;
        note_path('i', fd, name[fd]);
    }
    return syscall(SYS_pread64, fd, to, n, at);
}
ssize_t pread(int fd, void *to, size_t n, off_t at) { return pread64(fd, to, n, at); }

static ssize_t written(int fd, const void *from, size_t n, int64_t at) {
    if (fails(1)) return -1;
    if (fault == SHORT && calls == point && n > 1) n /= 2;
    int64_t place = at;
    if (at < 0) {
        struct stat now;
        int flags = fcntl(fd, F_GETFL);
        fstat(fd, &now);
        place = (flags & O_APPEND) ? now.st_size : lseek(fd, 0, SEEK_CUR);
    }
    ssize_t did = at < 0 ? syscall(SYS_write, fd, from, n) : syscall(SYS_pwrite64, fd, from, n, at);
    if (did > 0) note('w', fd, place, name[fd], strlen(name[fd]), from, (size_t)did);
    return did;
}
ssize_t write(int fd, const void *from, size_t n) {
    return known(fd) ? written(fd, from, n, -1) : syscall(SYS_write, fd, from, n);
}
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) {
    return known(fd) ? written(fd, from, n, at) : syscall(SYS_pwrite64, fd, from, n, at);
}
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { return pwrite64(fd, from, n, at); }

int ftruncate64(int fd, off64_t n) {
    if (!known(fd)) return (int)syscall(SYS_ftruncate, fd, n);
    if (fails(1)) return -1;
    int did = (int)syscall(SYS_ftruncate, fd, n);
    if (did == 0) note('t', fd, n, name[fd], strlen(name[fd]), "", 0);
    return did;
}
int ftruncate(int fd, off_t n) { return ftruncate64(fd, n); }

static int synced(int fd) {
    if (fails(0)) return -1;
    note_path('s', fd, name[fd]);
    return 0; /* nothing is lost while this machine runs: the log says what was asked for */
}
int fsync(int fd) { return known(fd) ? synced(fd) : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return known(fd) ? synced(fd) : (int)syscall(SYS_fdatasync, fd); }

static int named(char kind, long call, int folder, const char *path, int extra) {
    char full[PATH_MAX];
    int ours = watched(folder, path, full);
    if (ours && fails(1)) return -1;
    int did = (int)syscall(call, folder, path, extra);
    if (ours && did == 0) note_path(kind, -1, full);
    return did;
}
int unlink(const char *path) { return named('u', SYS_unlinkat, AT_FDCWD, path, 0); }
int unlinkat(int folder, const char *path, int flags) { return named('u', SYS_unlinkat, folder, path, flags); }
int rmdir(const char *path) { return named('u', SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
int mkdir(const char *path, mode_t mode) { return named('d', SYS_mkdirat, AT_FDCWD, path, (int)mode); }
int chmod(const char *path, mode_t mode) { return named('h', SYS_fchmodat, AT_FDCWD, path, (int)mode); }

static int moved(char kind, const char *from, const char *to) {
    char a[PATH_MAX], b[PATH_MAX];
    int ours = watched(AT_FDCWD, from, a) && watched(AT_FDCWD, to, b);
    if (ours && fails(1)) return -1;
    int did = kind == 'r' ? (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to)
                          : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (ours && did == 0) note(kind, -1, 0, a, strlen(a), b, strlen(b));
    return did;
}
int rename(const char *from, const char *to) { return moved('r', from, to); }
int link(const char *from, const char *to) { return moved('l', from, to); }
