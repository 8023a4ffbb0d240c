/* A disk that syncs slowly: preloaded into a process, it makes each sync take at least LEAST_US microseconds.
 *
 * These are the calls by which a JVM syncs: FileChannel.force and FileDescriptor.sync call fsync or fdatasync,
 * MappedByteBuffer.force calls msync. A sync that takes longer is not made longer still. Syncs do not wait for each
 * other.
 */

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long slowed(long number, long first, long second, long third) {
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_nsec += LEAST_US % 1000000L * 1000L;
    due.tv_sec += LEAST_US / 1000000L + due.tv_nsec / 1000000000L;
    due.tv_nsec %= 1000000000L;
    long answer = syscall(number, first, second, third);
    int error = errno;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) {
    }
    errno = error;
    return answer;
}

int fsync(int file) {
    return (int)slowed(SYS_fsync, file, 0, 0);
}

int fdatasync(int file) {
    return (int)slowed(SYS_fdatasync, file, 0, 0);
}

int msync(void *address, size_t length, int flags) {
    return (int)slowed(SYS_msync, (long)address, (long)length, flags);
}
