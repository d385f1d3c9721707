/* Preloaded into a program by disk.py: its disk is slow, and forgets what was not synced when the power is cut.

   DISK_CONTROL  a file: each sync takes as many nanoseconds more as it says, and counts itself in it. It is mapped: a
                 change reaches all processes at once, those in the middle of a sync, too.
   DISK_UNDO     a directory, if anything is to be forgotten: a file for each inode, with what disk.py puts back.
   DISK_FORGETS  which files are forgotten: those with this text in their path.

   Before a write the bytes that it replaces, and the size of the file, are appended to the undo file; a sync takes away
   what stood there when it began. So several processes can write one file, and a write during a sync is not synced by
   it. All state is in the undo file, which is locked meanwhile: a process may be killed anywhere.

   Not forgotten: names (a new file, a rename, a removal), sizes that truncate and fallocate set, what is written through
   mmap, copy_file_range, io_uring or a file opened with O_DSYNC. sync and syncfs take the time, and make nothing last.
   sync_file_range takes no time: it starts writing, and waits for nothing as PostgreSQL calls it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define OTHER (-2) /* a file that is not forgotten */
#define STEP_NS 10000000

static struct {
    volatile int64_t delay_ns, syncs;
} *control;
static const char *undo_directory, *forgets;

typedef struct {
    int64_t start, end; /* where records stand in the file */
    int64_t before;     /* as many bytes of records were dropped when all were, and the file was begun again */
} Head;

typedef struct {
    int64_t size, offset, length; /* of the file before the write; `length` bytes follow, which were at `offset` */
} Record;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        dprintf(2, "disk.c: cannot map DISK_CONTROL (%s): %s\n", path ? path : "not set", strerror(errno));
        _exit(127);
    }
    close(fd);
    control = mapped;
    if (getenv("DISK_UNDO") && getenv("DISK_FORGETS")) { /* copied: PostgreSQL shows in `ps` what it does over its environment */
        undo_directory = strdup(getenv("DISK_UNDO"));
        forgets = strdup(getenv("DISK_FORGETS"));
    }
}

static int64_t now_ns(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* In steps, so that a disk that has answered nothing for long answers all at once. */
static void take_time(void) {
    int64_t began = now_ns(), left;
    __atomic_add_fetch(&control->syncs, 1, __ATOMIC_SEQ_CST);
    while ((left = control->delay_ns - (now_ns() - began)) > 0) {
        struct timespec step = {0, left < STEP_NS ? left : STEP_NS};
        nanosleep(&step, NULL);
    }
}

/* ---- the undo file, locked; OTHER; or -1 */

static int undo_of(int fd, struct stat *found) {
    char link[32], path[PATH_MAX], undo[PATH_MAX];
    if (!undo_directory) return OTHER;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return OTHER;
    path[length] = 0;
    if (!strstr(path, forgets) || fstat(fd, found) != 0 || !S_ISREG(found->st_mode)) return OTHER;
    snprintf(undo, sizeof undo, "%s/%lu", undo_directory, (unsigned long)found->st_ino);
    int undo_fd = open(undo, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (undo_fd < 0) return -1;
    while (flock(undo_fd, LOCK_EX) != 0)
        if (errno != EINTR) return -1;
    return fstat(fd, found) == 0 ? undo_fd : -1; /* again: others may have written meanwhile */
}

static int put(int fd, const void *bytes, size_t size, int64_t at) {
    while (size > 0) {
        long done = syscall(SYS_pwrite64, fd, bytes, size, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        bytes = (const char *)bytes + done, size -= done, at += done;
    }
    return 0;
}

static int get(int fd, void *bytes, size_t size, int64_t at) {
    while (size > 0) {
        ssize_t done = pread(fd, bytes, size, at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        bytes = (char *)bytes + done, size -= done, at += done;
    }
    return 0;
}

static int read_head(int undo, Head *head) {
    *head = (Head){sizeof *head, sizeof *head, 0};
    return pread(undo, head, sizeof *head, 0) < 0 ? -1 : 0;
}

static void drop_all(Head *head) {
    head->before += head->end - (int64_t)sizeof *head;
    head->start = head->end = sizeof *head;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int remember(int undo, int fd, const struct stat *found, int64_t offset, int64_t size) {
    Head head;
    Record record = {found->st_size, offset, least(found->st_size - offset, size)};
    char link[32], bytes[65536];
    int64_t done = 0;
    if (record.length < 0) record.length = 0;
    if (read_head(undo, &head) != 0) return -1;
    if (found->st_size == 0) /* a new file, whose inode may have been that of another */
        drop_all(&head);
    if (put(undo, &record, sizeof record, head.end) != 0) return -1;
    if (record.length > 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int reader = open(link, O_RDONLY | O_CLOEXEC); /* fd may be open for writing only */
        if (reader < 0) return -1;
        for (int64_t step; done < record.length; done += step) {
            step = least(record.length - done, sizeof bytes);
            if (get(reader, bytes, step, offset + done) != 0) break;
            if (put(undo, bytes, step, head.end + (int64_t)sizeof record + done) != 0) break;
        }
        close(reader);
        if (done < record.length) return -1;
    }
    head.end += (int64_t)sizeof record + record.length; /* only now is it there: who is killed before writes nothing */
    return put(undo, &head, sizeof head, 0);
}

/* ---- what is called instead of libc's */

typedef long Write(int fd, const struct iovec *parts, int count, int64_t offset);

static long write_here(int fd, const struct iovec *parts, int count, int64_t offset) {
    (void)offset;
    return syscall(SYS_writev, fd, parts, (long)count);
}

static long write_there(int fd, const struct iovec *parts, int count, int64_t offset) {
    return syscall(SYS_pwritev, fd, parts, (long)count, offset, 0L);
}

static ssize_t write_by(Write *write, int fd, const struct iovec *parts, int count, int64_t offset) {
    struct stat found;
    int64_t size = 0;
    int undo = undo_of(fd, &found);
    if (undo == -1) return -1;
    if (undo == OTHER) return write(fd, parts, count, offset);
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    if (write == write_here) offset = fcntl(fd, F_GETFL) & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
    ssize_t done = remember(undo, fd, &found, offset, size) == 0 ? write(fd, parts, count, offset) : -1;
    int error = errno;
    close(undo);
    errno = error;
    return done;
}

static int sync_by(long call, int fd) {
    struct stat found;
    Head head;
    int64_t synced = 0;
    int undo = undo_of(fd, &found);
    if (undo == -1) return -1;
    if (undo != OTHER) {
        if (read_head(undo, &head) != 0) return -1;
        synced = head.before + head.end;
        flock(undo, LOCK_UN);
    }
    take_time();
    int result = syscall(call, fd), error = errno;
    if (undo == OTHER) return result;
    while (flock(undo, LOCK_EX) != 0)
        if (errno != EINTR) return -1;
    if (read_head(undo, &head) != 0) return -1;
    if (result == 0 && synced - head.before > head.start) { /* else another sync was faster */
        head.start = synced - head.before;
        if (head.start == head.end) drop_all(&head);
        if (put(undo, &head, sizeof head, 0) != 0) return -1;
    }
    close(undo);
    errno = error;
    return result;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    struct iovec part = {(void *)bytes, size};
    return undo_directory ? write_by(write_here, fd, &part, 1, 0) : syscall(SYS_write, fd, bytes, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) { return write_by(write_here, fd, parts, count, 0); }

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
    struct iovec part = {(void *)bytes, size};
    return write_by(write_there, fd, &part, 1, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return write_by(write_there, fd, parts, count, offset);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    if (flags == 0) return pwritev(fd, parts, count, offset); /* as Python calls it */
    errno = EOPNOTSUPP;
    return -1;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset) __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) __attribute__((alias("pwritev")));
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) __attribute__((alias("pwritev2")));

int fsync(int fd) { return sync_by(SYS_fsync, fd); }

int fdatasync(int fd) { return sync_by(SYS_fdatasync, fd); }

int msync(void *address, size_t size, int flags) {
    if (flags & MS_SYNC) take_time();
    return syscall(SYS_msync, address, size, (long)flags);
}

int syncfs(int fd) {
    take_time();
    return syscall(SYS_syncfs, fd);
}

void sync(void) {
    take_time();
    syscall(SYS_sync);
}
