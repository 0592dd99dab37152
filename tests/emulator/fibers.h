/* The interface of what runs a block's threads (kernels.c), for the
 * implementation of instructions (sm90.c). All of it is called from a running
 * thread of a kernel, unless stated otherwise. */
#ifndef EMULATOR_FIBERS_H
#define EMULATOR_FIBERS_H

#include <stdbool.h>
#include <stddef.h>

/* The running thread's number, and how many a block has. */
int this_thread(void);
int block_threads(void);

/* Let other threads run until one wakes the threads that wait for this object.
 * If none does, that is a deadlock, and the report names this location. */
void wait_for(const void *object, const char *file, int line);
void wake(const void *object);

/* Bytes that the launch named; they begin at emulator_dynamic(). */
size_t dynamic_bytes(void);

/* Report an error of the block, once, and let it end. */
void accuse_block(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Functions of sm90.c that the scheduler calls: when a block begins; when
 * something may complete, and when nothing else can run (true: something has);
 * and when all threads have ended. */
void instructions_begin(void);
bool instructions_complete(bool idle);
void instructions_end(void);

#endif
