/* Tangled from book/13-nccl.nw; edit the chapter. */
/* A watchdog counts looks since the host last reported. */
#define _POSIX_C_SOURCE 200809L /* a condition's clock */
#include "cuda/run/watchdog.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static const double LOOK = 0.1; /* seconds between looks */

struct cp_watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double timeout;
    bool (*broken)(void *context);
    void (*unblock)(void *context);
    void *context;
    bool working, inside; /* the host */
    int64_t looks;        /* since it last reported */
    const char *why;      /* unblock was called; or NULL */
    bool over, joined;
};

/* Wait until the host works; or, if it does, until the next look. */
static void wait_for_a_look(cp_watchdog *w) {
    struct timespec until;
    if (!w->working) {
        pthread_cond_wait(&w->changed, &w->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(LOOK * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&w->changed, &w->lock, &until);
}

static bool is_stuck(cp_watchdog *w) {
    if (w->timeout > 0 && (double)w->looks * LOOK > w->timeout)
        w->why = "a call did not return";
    else if (!w->inside && w->broken(w->context))
        w->why = "one of them failed while a call did not return";
    return w->why != NULL;
}

static void *look(void *context) {
    cp_watchdog *w = context;
    bool stuck = false;
    pthread_mutex_lock(&w->lock);
    while (!w->over && !stuck) {
        wait_for_a_look(w);
        stuck = w->working && ++w->looks > 1 && is_stuck(w);
    }
    pthread_mutex_unlock(&w->lock);
    if (stuck)
        w->unblock(w->context);
    return NULL;
}

cp_status cp_watchdog_new(double timeout, bool (*broken)(void *),
                          void (*unblock)(void *), void *context,
                          cp_watchdog **out) {
    pthread_condattr_t monotonic;
    CP_TRY(cp_allocate(out, 1, sizeof(**out), "a watchdog"));
    cp_watchdog *w = *out;
    w->timeout = timeout;
    w->broken = broken;
    w->unblock = unblock;
    w->context = context;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    w->joined = pthread_create(&w->thread, NULL, look, w) != 0;
    return w->joined ? cp_fail(CP_BROKEN, "cannot start the watchdog's thread")
                     : CP_OK;
}

void cp_watchdog_end(cp_watchdog *w) {
    if (w == NULL || w->joined)
        return;
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->joined = true;
}

void cp_watchdog_free(cp_watchdog *w) {
    if (w == NULL)
        return;
    cp_watchdog_end(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void cp_watchdog_set_timeout(cp_watchdog *w, double seconds) {
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->timeout = seconds;
    pthread_mutex_unlock(&w->lock);
}

const char *cp_watchdog_enter(cp_watchdog *w, bool works) {
    if (w == NULL)
        return NULL;
    pthread_mutex_lock(&w->lock);
    const char *why = w->why;
    w->inside = why == NULL;
    w->looks = 0;
    if (works && !w->working)
        pthread_cond_signal(&w->changed);
    w->working |= works;
    pthread_mutex_unlock(&w->lock);
    return why;
}

static void leave(cp_watchdog *w, bool idle) {
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->inside = false;
    w->looks = 0;
    w->working = w->working && !idle;
    pthread_mutex_unlock(&w->lock);
}

void cp_watchdog_leave(cp_watchdog *w) {
    leave(w, false);
}

void cp_watchdog_idle(cp_watchdog *w) {
    leave(w, true);
}
