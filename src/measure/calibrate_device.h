/* Calibration of ranks on GPUs. */
#ifndef CP_CALIBRATE_DEVICE_H
#define CP_CALIBRATE_DEVICE_H

#include "predict/calibrate.h"

#include "cuda/model/device_engine.h"
#include "cuda/kernels/multiply.h"

/* Measure the ranks on a runner's GPUs, with matrices of these numbers; keys
 * and values are fp32 with fp32 matrices, and bf16 otherwise. Fills in the
 * description of calibration, which must have been checked. Every process of
 * the group calls it with the same arguments. Fails with CP_MEMORY, naming the
 * bytes; with CP_INVALID if such matrices cannot be multiplied; and with
 * CP_BROKEN as CUDA and the link do. */
cp_status cp_calibrate_device(const cp_device_runner *runner,
                              cp_numbers numbers,
                              const cp_calibration *calibration);

#endif
