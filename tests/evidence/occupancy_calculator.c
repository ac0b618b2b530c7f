/* CUDA's occupancy calculator as a filter: a device and a launch per line in, resident blocks per multiprocessor out. */

#include <stdio.h>
#include <string.h>

#include <cuda_occupancy.h>

int main(void) {
    int major, minor, block_threads, held_threads, held_registers, threads, registers, barriers;
    long held_shared, block_shared, reserved_shared, shared;
    while (scanf("%d %d %d %d %d %ld %ld %ld %d %d %ld %d", &major, &minor, &block_threads, &held_threads, &held_registers, &held_shared,
                 &block_shared, &reserved_shared, &threads, &registers, &shared, &barriers) == 12) {
        cudaOccDeviceProp device;
        cudaOccFuncAttributes function;
        cudaOccDeviceState state;
        cudaOccResult found;
        memset(&device, 0, sizeof device);
        memset(&function, 0, sizeof function);
        memset(&state, 0, sizeof state);
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = block_threads;
        device.maxThreadsPerMultiprocessor = held_threads;
        device.regsPerBlock = held_registers;
        device.regsPerMultiprocessor = held_registers;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = held_shared;
        device.sharedMemPerBlockOptin = block_shared;
        device.reservedSharedMemPerBlock = reserved_shared;
        device.numSms = 1;
        function.maxThreadsPerBlock = block_threads;
        function.numRegs = registers;
        function.partitionedGCConfig = PARTITIONED_GC_OFF;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.maxDynamicSharedSizeBytes = block_shared;
        function.numBlockBarriers = barriers;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &device, &function, &state, threads, shared) != CUDA_OCC_SUCCESS) return 1;
        printf("%d\n", found.activeBlocksPerMultiprocessor);
    }
    return 0;
}
