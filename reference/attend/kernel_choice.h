/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Choose one of BLIS's micro-kernels, by what the processor can do and not by
 * its name. micro.h then uses the choice. */
#ifndef CP_KERNEL_CHOICE_H
#define CP_KERNEL_CHOICE_H

#include "ground/ground.h"

/* The facts that decide. */
typedef struct {
    const char *arch_type; /* BLIS_ARCH_TYPE, which wins, or NULL */
    bool built;            /* BLIS has the kernel for AVX-512 */
    bool avx512;           /* F, DQ, BW and VL, and the system saves them */
    double wide, narrow;   /* multiply-adds a second, 512 and 256 bits wide */
} cp_processor;

typedef struct {
    bool wide; /* tell BLIS to take its kernel for AVX-512 */
    char reason[96];
} cp_kernel_choice;

/* Decide from the argument alone. */
cp_kernel_choice cp_kernel_decide(const cp_processor *processor);

/* The processor of this process. Rates are measured, in a few milliseconds,
 * only where they decide, and are 0 otherwise. */
cp_processor cp_processor_read(void);

/* Decide for this process and tell BLIS, which must not have been called yet.
 * Sets and then clears an environment variable: call it, or cp_micro_get,
 * before there are threads that read the environment. */
cp_kernel_choice cp_kernel_choose(void);

#endif
