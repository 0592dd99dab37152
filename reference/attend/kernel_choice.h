/* Tangled from book/11-fast-kernel.nw; edit the chapter. */
/* Choose between our micro-kernel and BLIS's, by what the processor can do and
 * not by its name. micro.h then uses the choice. */
#ifndef CP_KERNEL_CHOICE_H
#define CP_KERNEL_CHOICE_H

#include "ground/ground.h"

/* The facts that decide. */
typedef struct {
    const char *arch_type; /* BLIS_ARCH_TYPE, which wins, or NULL */
    bool avx512;           /* F, DQ, BW and VL, and the system saves them */
    double wide, narrow;   /* multiply-adds a second, 512 and 256 bits wide */
} cp_processor;

typedef struct {
    bool wide; /* take our own kernel for AVX-512 (wide.h), not BLIS's */
    char reason[96];
} cp_kernel_choice;

/* Decide from the argument alone. */
cp_kernel_choice cp_kernel_decide(const cp_processor *processor);

/* The processor of this process. Rates are measured, in a few milliseconds,
 * only where they decide, and are 0 otherwise. */
cp_processor cp_processor_read(void);

#endif
