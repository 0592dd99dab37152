/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Which of BLIS's micro-kernels: decided by what the processor can do, not by
 * its name. What is chosen then is micro.h's. */
#ifndef CP_KERNEL_CHOICE_H
#define CP_KERNEL_CHOICE_H

#include "ground/ground.h"

/* What decides. */
typedef struct {
    const char *asked;   /* BLIS_ARCH_TYPE, or NULL; it wins */
    bool built;          /* BLIS has the kernel for AVX-512 */
    bool avx512;         /* F, DQ, BW and VL, and the system saves them */
    double wide, narrow; /* multiply-adds a second, 512 and 256 bits wide */
} cp_processor;

typedef struct {
    bool wide; /* tell BLIS to take its kernel for AVX-512; else leave it */
    char reason[96];
} cp_kernel_choice;

/* The choice follows from the argument alone. */
cp_kernel_choice cp_kernel_decide(const cp_processor *processor);

/* What this process has; rates are measured, in a few milliseconds, only where
 * they decide, and are 0 otherwise. */
cp_processor cp_processor_read(void);

/* Decide for this process and tell BLIS, which must not have been called yet.
 * Sets and then clears an environment variable: call it, or cp_micro_get,
 * before there are threads that read the environment. */
cp_kernel_choice cp_kernel_choose(void);

#endif
