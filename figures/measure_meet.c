/* Measures what meeting costs: so many processes of this machine find each
 * other, and collect what they compare before each call. The fastest of some
 * repeats. Writes rows for figures/data/meet.csv:
 *
 *   build/figures/measure_meet [REPEATS] */
#define _DEFAULT_SOURCE

#include "ring/meet.h"
#include "ring/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64, BYTES = 48, COLLECTIONS = 300 };

typedef struct {
    double met, collected; /* seconds: on the clock; of one collection */
} times;

static void play(cp_meet_options options, int rank, times *out) {
    char items[MOST * BYTES];
    cp_crew crew;
    options.launch.rank = rank;
    memset(items, 0, sizeof(items));
    if (cp_meet(&options, &crew) != CP_OK) {
        fprintf(stderr, "measure_meet: %s\n", cp_message());
        _exit(1);
    }
    out->met = cp_clock();
    for (int i = 0; i < COLLECTIONS; i++)
        if (crew.collect(items, BYTES) != CP_OK)
            _exit(1);
    out->collected = (cp_clock() - out->met) / COLLECTIONS;
    _exit(crew.leave(0));
}

/* One meeting: the time until the last has met, and of a collection on rank 0. */
static times meet(int ranks, times *shared) {
    cp_meet_options options = {.patience = 30};
    int listener, bad = 0, status;
    options.launch = (cp_launch){.launcher = "measure_meet",
                                 .ranks = ranks,
                                 .locals = ranks,
                                 .address = "127.0.0.1"};
    if (cp_wire_listen("127.0.0.1", &options.launch.port, &listener) != CP_OK)
        exit(1);
    close(listener);
    const double began = cp_clock();
    for (int r = 0; r < ranks; r++)
        if (fork() == 0)
            play(options, r, &shared[r]);
    while (wait(&status) > 0)
        bad += status != 0;
    if (bad > 0)
        exit(1);
    times worst = {0, shared[0].collected};
    for (int r = 0; r < ranks; r++)
        if (shared[r].met - began > worst.met)
            worst.met = shared[r].met - began;
    return worst;
}

int main(int count, char **words) {
    const int repeats = count > 1 ? atoi(words[1]) : 15;
    times *shared = mmap(NULL, MOST * sizeof(*shared), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    puts("ranks,meet_ms,collect_us");
    fflush(stdout);
    for (int ranks = 2; ranks <= MOST; ranks *= 2) {
        times best = {1e9, 1e9};
        for (int i = 0; i < repeats; i++) {
            const times now = meet(ranks, shared);
            best.met = now.met < best.met ? now.met : best.met;
            best.collected =
                now.collected < best.collected ? now.collected : best.collected;
        }
        printf("%d,%.2f,%.1f\n", ranks, best.met * 1e3, best.collected * 1e6);
        fflush(stdout);
    }
    return 0;
}
