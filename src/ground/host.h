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

/* How many cores this process may use. */
int cp_host_cores(void);

#endif
