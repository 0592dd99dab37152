/* What this machine is, in the words of the data files' first line. */
#ifndef CP_HOST_H
#define CP_HOST_H

#include <stdio.h>

#include "ground/ground.h"

/* This machine, system and compiler: "2 cores of AMD EPYC (Zen 3), Debian 12,
 * gcc 12.2.0". text has room for size bytes. */
void cp_host_describe(char *text, size_t size);

/* The first lines of a data file: machine, date, and this program's commit. */
void cp_host_sign(FILE *out);

/* What follows key in the first line of the file at path that begins with it,
 * without what only separates or quotes. Left as it is if there is none. */
void cp_host_fact(const char *path, const char *key, char text[128]);

/* What limits the cores of a process. */
typedef struct {
    int64_t affinity;    /* cores that it may run on */
    const char *threads; /* OMP_NUM_THREADS; NULL: not set */
    const char *root;    /* its /proc and /sys are below; "" as a rule */
} cp_host_limits;

enum { CP_HOST_CORES = 4096 }; /* more are refused */

/* The smallest of affinity, threads and the quotas of its control groups and
 * those around them (cpu.max; cpu.cfs_quota_us of version 1), rounded up to
 * whole cores. Fails with CP_INVALID where threads is no number from 1 to
 * CP_HOST_CORES; of a list of these the first counts. */
cp_status cp_host_limit(const cp_host_limits *limits, int *cores);

/* How many cores this process may use by all of these, the same at every call;
 * a wrong OMP_NUM_THREADS does not count. Any thread may ask. */
int cp_host_cores(void);

/* Fails as cp_host_limit where this process's OMP_NUM_THREADS is wrong. */
cp_status cp_host_check(void);

#endif
