// Divides every row of COLUMNS floats by its sum.  Macros: COLUMNS; ALIGNED: rows start on 16 bytes.
#include "vector.cuh"

extern "C" __global__ void __launch_bounds__(256) unit_sum(float* x, long long rows) {
    __shared__ float sums[8];
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        vector* at = reinterpret_cast<vector*>(x + row * COLUMNS) + threadIdx.x;
        vector value = *at;
        float sum = total(value);
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (int warp = 0; warp < 8; ++warp) sum += sums[warp];
        __syncthreads();
        *at = scaled(value, 1.0f / sum);
    }
}
