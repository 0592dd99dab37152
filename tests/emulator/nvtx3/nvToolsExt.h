/* The part of NVTX that this project calls; here it only counts. */
#ifndef EMULATOR_NVTX_H
#define EMULATOR_NVTX_H

#define NVTX_VERSION 3

int nvtxRangePushA(const char *message);
int nvtxRangePop(void);

#endif
