/* Ranks of NCCL that are processes: each sends news to the others in a file
 * that only it appends to, and that it keeps locked while it lives. Two
 * processes of one NCCL_COMM_ID find each other by the files' names. Not a
 * network: hosts that share no /tmp never meet. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "nccl_meetings.h"

typedef struct {
    int file; /* -1: has not come */
    bool lost;
    off_t at; /* read up to here */
} peer;

static struct {
    char root[200];
    int rank, size, listener, times; /* that they have met */
    peer *all;                       /* [size]; NULL: this process is alone */
} job;

static const char *path_of(int rank) {
    static char path[300];
    snprintf(path, sizeof path, "/tmp/emulator-%s-%d", job.root, rank);
    return path;
}

static bool is_locked(int file) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Rank 0 listens, as NCCL's does, until all have come, and cannot if another
 * does. */
static int listen_at(const char *root) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)atoi(strrchr(root, ':') + 1))};
    const int yes = 1,
              listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (const struct sockaddr *)&address, sizeof address) ==
            0 &&
        listen(listener, 8) == 0)
        return listener;
    close(listener);
    return -1;
}

bool peers_join(const char *root, int rank, int size) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    job.rank = rank;
    job.size = size;
    job.listener = -1;
    job.times++;
    snprintf(job.root, sizeof job.root, "%s", root);
    if (rank == 0 && strchr(root, ':') != NULL &&
        (job.listener = listen_at(root)) < 0)
        return false;
    job.all = take((size_t)size, sizeof *job.all);
    for (int r = 0; r < size; r++)
        job.all[r].file = -1;
    const int news_file =
        open(path_of(rank), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    job.all[rank].file = news_file;
    if (news_file >= 0 && fcntl(news_file, F_SETLK, &lock) == 0 &&
        ftruncate(news_file, 0) == 0)
        return true;
    close(news_file);
    free(job.all); /* the file belongs to another process */
    job.all = NULL;
    return false;
}

void peers_leave(void) {
    if (job.all == NULL)
        return;
    unlink(path_of(job.rank));
    for (int r = 0; r < job.size; r++)
        close(job.all[r].file);
    close(job.listener);
    free(job.all);
    job.all = NULL;
}

const char *peers_next_root(void) {
    static char root[sizeof job.root];
    snprintf(root, sizeof root, "again-%d-%d", (int)getpid(), job.times);
    return job.times > 0 ? root : NULL;
}

int peers(void) {
    return job.all != NULL ? job.size : 0;
}

void peers_send(const news *what, const void *bytes) {
    const int news_file = job.all != NULL ? job.all[job.rank].file : -1;
    const struct iovec both[] = {
        {(void *)(uintptr_t)what, sizeof *what},
        {(void *)(uintptr_t)bytes, what->bytes},
    };
    if (news_file >= 0 && what->clique > 0 && writev(news_file, both, 2) < 0)
        fail_machine();
}

bool peers_come(int rank) {
    peer *one = &job.all[rank];
    if (one->file >= 0 || rank == job.rank)
        return false;
    const int file = open(path_of(rank), O_RDONLY | O_CLOEXEC);
    if (file < 0 || !is_locked(file)) {
        close(file);
        return false;
    }
    one->file = file;
    for (int r = 0; r < job.size; r++)
        if (job.all[r].file < 0)
            return true;
    close(job.listener); /* all have come */
    job.listener = -1;
    return true;
}

/* Read the next news of a rank, and its bytes, which the caller frees; the same
 * news is read again until peers_consume. */
bool peers_peek(int rank, news *what, char **bytes) {
    const peer *one = &job.all[rank];
    if (one->file < 0 || rank == job.rank ||
        pread(one->file, what, sizeof *what, one->at) < (ssize_t)sizeof *what)
        return false;
    *bytes = take(1, what->bytes + 1);
    if (pread(one->file, *bytes, what->bytes, one->at + (off_t)sizeof *what) ==
        (ssize_t)what->bytes)
        return true;
    free(*bytes);
    return false;
}

void peers_consume(int rank, const news *what) {
    job.all[rank].at += (off_t)(sizeof *what + what->bytes);
}

/* Has this process ended? True only once, and not before all its news have been
 * read. */
bool peers_lost(int rank) {
    news what;
    char *bytes;
    peer *one = &job.all[rank];
    if (one->file < 0 || one->lost || rank == job.rank || is_locked(one->file))
        return false;
    if (peers_peek(rank, &what, &bytes)) {
        free(bytes);
        return false;
    }
    one->lost = true;
    unlink(path_of(rank));
    return true;
}
