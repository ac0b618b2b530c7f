// norm_scale_shift and residual_gate_norm_scale_shift in CUDA C++: WARPS warps per row, the row in registers, persistent grid.
//
// Macros beside those of row_norm.cuh:
//
//   RESIDUAL                          1: v = residual + gate * x first
//   GATE, SCALE, SHIFT                addressing of the modulation (0 one value, 1 one row, 2 to 4 a row per sample or token); GATE -1: none
//   GATE_DTYPE, SCALE_DTYPE, SHIFT_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE   dtypes, coded as DTYPE; WEIGHT_DTYPE, BIAS_DTYPE -1: none
//   ALIGNED                           1: every row of x and residual starts on 16 bytes
//   SHARED_ALIGNED                    1: every row of the modulations, the weight and the bias do
//   MIN_BLOCKS                        blocks resident per multiprocessor
//   PREFETCH                          1: a row is asked for before the row before it is worked on

#include "row_norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
modulated_norm(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
               const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale,
               const char* __restrict__ shift, char* __restrict__ y, char* __restrict__ v, i64 rows, i64 tokens, i64 x_batch_stride,
               i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride, i64 gate_batch_stride, i64 gate_group_stride,
               i64 gate_rows, i64 scale_batch_stride, i64 scale_group_stride, i64 scale_rows, i64 shift_batch_stride,
               i64 shift_group_stride, i64 shift_rows, float eps) {
    __shared__ Exchange exchange;  // takes no space while WARPS is 1, as nothing reads it
    const int group = threadIdx.x / LANES;
    const int member = threadIdx.x % LANES;
    int turn = 0;
    const auto fetch = [&](const char* base, i64 batch_stride, i64 row_stride, i64 row, Vector(&into)[PER_LANE]) {
        const auto [batch, token] = place_of(row, tokens);
        load_row<ALIGNED>(base + (batch * batch_stride + token * row_stride) * ITEM, member, into);
    };
    const auto fetch_row = [&](i64 row, Vector(&own)[PER_LANE], Vector(&other)[PER_LANE]) {
        fetch(x, x_batch_stride, x_row_stride, row, own);
        if constexpr (RESIDUAL) fetch(residual, residual_batch_stride, residual_row_stride, row, other);
    };
    const i64 step = (i64)gridDim.x * GROUPS;
    i64 row = (i64)blockIdx.x * GROUPS + group;
    Vector ahead[PER_LANE], ahead_other[PER_LANE];
    if constexpr (PREFETCH)
        if (row < rows) fetch_row(row, ahead, ahead_other);
    for (; row < rows; row += step, ++turn) {
        const auto [batch, token] = place_of(row, tokens);

        Vector own[PER_LANE], other[PER_LANE];  // x, then the rounded v; the residual
        if constexpr (PREFETCH) {
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) own[i] = ahead[i], other[i] = ahead_other[i];
            if (row + step < rows) fetch_row(row + step, ahead, ahead_other);
        } else {
            fetch_row(row, own, other);
        }
        if constexpr (RESIDUAL) {
            const char* gates = gate;
            if constexpr (GATE >= 0)
                gates = modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                const int vector = vector_of(i, member);
                float values[VEC], sums[VEC];
                unpack(own[i], values);
                unpack(other[i], sums);
                if constexpr (GATE >= 0) {
                    float factors[VEC];
                    load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gates, vector * VEC, factors);
                    // Not contracted, so that v rounds as torch's float32 chain does.
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] = __fmul_rn(values[e], factors[e]);
                }
#pragma unroll
                for (int e = 0; e < VEC; ++e) sums[e] = __fadd_rn(sums[e], values[e]);
                own[i] = pack(sums);
                store_vector(v + row * (D * ITEM) + vector * 16, own[i]);
            }
        }

        const Statistics found =
            row_statistics([&](int i, float (&values)[VEC]) { unpack(own[i], values); }, member, group, turn, eps, exchange);

        const char* scales = modulation_row<SCALE_DTYPE, SCALE>(scale, {scale_batch_stride, scale_group_stride, scale_rows}, batch, token);
        const char* shifts = modulation_row<SHIFT_DTYPE, SHIFT>(shift, {shift_batch_stride, shift_group_stride, shift_rows}, batch, token);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int vector = vector_of(i, member);
            float values[VEC], factors[VEC], terms[VEC];
            load_modulation<SCALE_DTYPE, SCALE, SHARED_ALIGNED>(scales, vector * VEC, factors);
            load_modulation<SHIFT_DTYPE, SHIFT, SHARED_ALIGNED>(shifts, vector * VEC, terms);
            unpack(own[i], values);
            normalise<WEIGHT_DTYPE, BIAS_DTYPE, SHARED_ALIGNED>(values, found, weight, bias, vector * VEC);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = values[e] * (1.0f + factors[e]) + terms[e];
            store_vector(y + row * (D * ITEM) + vector * 16, pack(values));
        }
    }
}
