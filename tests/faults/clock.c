/* Preloaded into a server: its system time is off by as many seconds as the file CLOCK_OFFSET says at the moment. A second
   number in the file, if there is one, is for how many seconds the machine was suspended since the server started. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(clockid_t clock) {
    const char *name = getenv("CLOCK_OFFSET");
    FILE *file = name ? fopen(name, "r") : NULL;
    long step = 0, suspended = 0;
    if (file != NULL) {
        if (fscanf(file, "%ld %ld", &step, &suspended) < 1) step = 0;
        fclose(file);
    }
    return clock == CLOCK_REALTIME ? step + suspended : suspended;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_BOOTTIME)) now->tv_sec += offset(clock);
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    int status = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t *seconds) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (seconds != NULL) *seconds = precise.tv_sec;
    return precise.tv_sec;
}
