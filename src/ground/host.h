/* A description of this machine, as in the data files' first line. */
#ifndef CP_HOST_H
#define CP_HOST_H

#include <stdio.h>

#include "ground/ground.h"

/* This machine, system and compiler: "2 cores of AMD EPYC (Zen 3), Debian 12,
 * gcc 12.2.0". text has room for size bytes. */
void cp_host_describe(char *text, size_t size);

/* The first lines of a data file: machine, date, and this program's commit. */
void cp_host_sign(FILE *out);

/* The text after key in the first line of the file at path that begins with
 * key, without separators and quotes. text is untouched if there is no such
 * line. */
void cp_host_fact(const char *path, const char *key, char text[128]);

/* The limits on a process's cores. */
typedef struct {
    int64_t affinity;    /* cores that it may run on */
    const char *threads; /* OMP_NUM_THREADS; NULL: not set */
    const char *root;    /* directory with its /proc and /sys; normally "" */
} cp_host_limits;

enum { CP_HOST_CORES = 4096 }; /* the most that are accepted */

/* The smallest of affinity, threads, and the quotas of its control groups and
 * their ancestors (cpu.max; version 1: cpu.cfs_quota_us), rounded up to whole
 * cores. Fails with CP_INVALID unless threads is a number from 1 to
 * CP_HOST_CORES, or a list of these, whose first number counts. */
cp_status cp_host_limit(const cp_host_limits *limits, int *cores);

/* How many cores this process may use by these limits; the same at every call.
 * An invalid OMP_NUM_THREADS is ignored. Any thread may call it. */
int cp_host_cores(void);

/* Fails as cp_host_limit does if this process's OMP_NUM_THREADS is invalid. */
cp_status cp_host_check(void);

#endif
