/* Calibration of ranks on GPUs, and what their benchmark shares with it. */
#ifndef CP_CALIBRATE_DEVICE_H
#define CP_CALIBRATE_DEVICE_H

#include "measure/bench.h"
#include "predict/calibrate.h"

#include "cuda/model/device_engine.h"
#include "cuda/kernels/multiply.h"

/* Measure the ranks on a runner's GPUs, with matrices of these numbers; keys
 * and values are fp32 with fp32 matrices, and bf16 otherwise. Fills in the
 * description of calibration, which must have been checked. Every process of
 * the group calls it with the same arguments. Fails with CP_MEMORY, naming the
 * bytes; with CP_INVALID if such matrices cannot be multiplied; and with
 * CP_BROKEN as CUDA and the link do. */
cp_status cp_device_calibrate(const cp_device_runner *runner,
                              cp_numbers numbers,
                              const cp_calibration *calibration);

/* Report rows that compare rings of each size in bench->ranks, all on this GPU,
 * with one rank: a prefill of the largest of bench->tokens. Fails as walks
 * do. */
cp_status cp_cuda_bench_ring(const cp_bench *bench, cp_element element);

#endif
