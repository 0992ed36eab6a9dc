/* Preloaded into a server: keeps, beside its folder, what a power cut would leave of it.
 *
 * A file's content reaches `content/NAME` with fsync of the file, and its name `names/NAME` with fsync of the folder.
 * Whatever was written since is lost: the strictest that a disk may do.
 * POWER_FROM names the folder that is watched, POWER_TO the one that holds `content` and `names`.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH (2 * PATH_MAX)

static void keep_content(int from, const char *to, const char *name) {
    char path[LENGTH], block[1 << 16];
    snprintf(path, sizeof path, "%s/content/%s", to, name);
    int copy = open(path, O_WRONLY | O_CREAT, 0600);
    off_t at = 0;
    ssize_t got;
    while ((got = pread(from, block, sizeof block, at)) > 0) {
        if (pwrite(copy, block, (size_t)got, at) != got) abort();
        at += got;
    }
    /* A descriptor that cannot be read would look like an empty file. */
    if (got < 0 || ftruncate(copy, at) != 0) abort();
    close(copy);
}

static void keep_names(const char *from, const char *to) {
    char names[LENGTH], path[LENGTH + NAME_MAX];
    struct dirent *entry;
    snprintf(names, sizeof names, "%s/names", to);
    DIR *folder = opendir(from);
    while ((entry = readdir(folder)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", names, entry->d_name);
        if (entry->d_name[0] != '.') close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    closedir(folder);
    folder = opendir(names);
    while ((entry = readdir(folder)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        if (entry->d_name[0] != '.' && access(path, F_OK) != 0) {
            snprintf(path, sizeof path, "%s/%s", names, entry->d_name);
            unlink(path);
            snprintf(path, sizeof path, "%s/content/%s", to, entry->d_name);
            unlink(path);
        }
    }
    closedir(folder);
}

static void keep(int descriptor) {
    const char *from = getenv("POWER_FROM"), *to = getenv("POWER_TO");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || from == NULL || to == NULL) return;
    path[length] = '\0';
    if (strcmp(path, from) == 0) {
        keep_names(from, to);
    } else if (strncmp(path, from, strlen(from)) == 0 && path[strlen(from)] == '/') {
        keep_content(descriptor, to, path + strlen(from) + 1);
    }
}

static int synced(int descriptor, long call) {
    int saved = (int)syscall(call, descriptor);
    if (saved == 0) keep(descriptor);
    return saved;
}

int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }

int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }
