/* What a test says to the stand-in for cuBLASLt. */
#ifndef STAND_IN_CUBLAS_H
#define STAND_IN_CUBLAS_H

#include <stdbool.h>

/* Whether the pretended device multiplies FP8 rows, each with its scale, as a
 * GPU of compute capability 9.0 does. It does at first. */
void stand_in_pretend_f8(bool has);

#endif
