/* Print the name of the first GPU, or on stderr why there is none. */
#include "cuda/kernels/device.h"

#include <stdio.h>

int main(void) {
    int count = 0, major = 0, minor = 0;
    if (cp_device_count(&count) != CP_OK) {
        fprintf(stderr, "%s\n", cp_message());
        return 1;
    }
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    printf("%d GPU%s, the first of compute capability %d.%d\n", count,
           count == 1 ? "" : "s", major, minor);
    return 0;
}
