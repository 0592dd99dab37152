/* Calibration of ranks on GPUs, and what a bench of them shares with it. */
#ifndef CP_DEVICE_LABORATORY_H
#define CP_DEVICE_LABORATORY_H

#include "app/bench.h"
#include "predict/calibrate.h"

#include "cuda/model/device_engine.h"
#include "cuda/kernels/multiply.h"

/* Measure ranks on GPUs at a place, with matrices of such numbers; keys and
 * values are fp32 with fp32 matrices, and bf16 otherwise. Fills in the
 * description of wanted, which was checked. Every process of the place's crew
 * calls it alike. Fails with CP_MEMORY, naming the bytes, or with CP_INVALID
 * where a matrix cannot be multiplied so; and with CP_BROKEN as CUDA and the
 * link do. */
cp_status cp_device_calibrate(const cp_device_place *place, cp_numbers numbers,
                              const cp_calibration *wanted);

/* Fill memory on the device with numbers in any format, of either sign: a GPU
 * that multiplies zeros runs cooler, and faster. */
cp_status cp_device_numbers(char *memory, int64_t bytes, cudaStream_t stream);

/* Rows of rings of each of bench->ranks, all on this GPU, against one rank: a
 * prefill of the longest of bench->tokens. Fails as walks do. */
cp_status cp_cuda_bench_ring(const cp_bench *bench, cp_element element);

#endif
