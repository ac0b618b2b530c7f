// norm_tanh_mul_add and norm_tanh_mul_add_norm_scale in CUDA C++: WARPS warps per row, the row in registers, persistent grid.
//
// Macros beside those of row_norm.cuh:
//
//   SECOND                            1: y2 = norm(y) * (1 + scale2) too
//   RESIDUAL, GATE, SCALE2            addressing (0 one value, 1 one row, 2 to 4 a row per sample or token); SCALE2 is not read without SECOND
//   SHIFTED                           1: the second norm takes y less the residual's one value
//   STREAM                            1: the residual has a row for every row of x, in x's dtype, and is read once
//   RESIDUAL_DTYPE, GATE_DTYPE, SCALE2_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE, WEIGHT2_DTYPE, BIAS2_DTYPE
//                                     dtypes, coded as DTYPE; those of weights and biases are -1 where there is none
//   ALIGNED                           1: every row of x, and of a STREAM residual, starts on 16 bytes
//   SHARED_ALIGNED                    1: every row of the other tensors does
//   MIN_BLOCKS                        blocks resident per multiprocessor
//   PREFETCH                          1: a row is asked for before the row before it is worked on

#include "../row_norm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
norm_tanh(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate, const char* __restrict__ weight,
          const char* __restrict__ bias, const char* __restrict__ weight2, const char* __restrict__ bias2,
          const char* __restrict__ scale2, char* __restrict__ y, char* __restrict__ y2, i64 rows, i64 tokens, i64 x_batch_stride,
          i64 x_row_stride, i64 residual_batch_stride, i64 residual_group_stride, i64 residual_rows, i64 gate_batch_stride,
          i64 gate_group_stride, i64 gate_rows, i64 scale2_batch_stride, i64 scale2_group_stride, i64 scale2_rows, float eps) {
    __shared__ Exchange exchange;  // takes no space while WARPS is 1, as nothing reads it
    const int group = threadIdx.x / LANES;
    const int member = threadIdx.x % LANES;
    int turn = 0;
    const auto residual_row = [&](u32 batch, u32 token) {
        const Broadcast at = {residual_batch_stride, residual_group_stride, residual_rows};
        return modulation_row<RESIDUAL_DTYPE, RESIDUAL>(residual, at, batch, token);
    };
    const auto fetch_row = [&](i64 row, Vector(&own)[PER_LANE], Vector(&other)[PER_LANE]) {
        const auto [batch, token] = place_of(row, tokens);
        load_row<ALIGNED>(x + (batch * x_batch_stride + token * x_row_stride) * ITEM, member, own);
        if constexpr (STREAM) load_row<ALIGNED>(residual_row(batch, token), member, other);
    };
    // tanh of the gate's row at `held`, kept from row to row: computed anew for every element it would be half of all instructions.
    float factors[PER_LANE][VEC];
    const char* held = nullptr;
    const i64 step = (i64)gridDim.x * GROUPS;
    i64 row = (i64)blockIdx.x * GROUPS + group;
    Vector ahead[PER_LANE], ahead_other[PER_LANE];
    if constexpr (PREFETCH)
        if (row < rows) fetch_row(row, ahead, ahead_other);
    for (; row < rows; row += step) {
        const auto [batch, token] = place_of(row, tokens);

        Vector own[PER_LANE], other[PER_LANE];  // x, then the rounded y; the residual where it is a STREAM
        if constexpr (PREFETCH) {
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                own[i] = ahead[i];
                if constexpr (STREAM) other[i] = ahead_other[i];
            }
            if (row + step < rows) fetch_row(row + step, ahead, ahead_other);
        } else {
            fetch_row(row, own, other);
        }
        const char* gates = modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token);

        if (gates != held) {
            held = gates;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gates, vector_of(i, member) * VEC, factors[i]);
#pragma unroll
                for (int e = 0; e < VEC; ++e) factors[i][e] = tanhf(factors[i][e]);
            }
        }

        const char* residuals = residual_row(batch, token);
        const auto value = [&](int i, float (&values)[VEC]) { unpack(own[i], values); };
        const Statistics found = row_statistics(value, member, group, turn++, eps, exchange);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int vector = vector_of(i, member);
            float values[VEC], terms[VEC];
            if constexpr (STREAM) unpack(other[i], terms);
            else load_modulation<RESIDUAL_DTYPE, RESIDUAL, SHARED_ALIGNED>(residuals, vector * VEC, terms);
            unpack(own[i], values);
            normalise<WEIGHT_DTYPE, BIAS_DTYPE, SHARED_ALIGNED>(values, found, weight, bias, vector * VEC);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = terms[e] + factors[i][e] * values[e];
            own[i] = pack(values);
            store_vector(y + row * (D * ITEM) + vector * 16, own[i]);
        }

        if constexpr (SECOND) {
            const char* scales =
                modulation_row<SCALE2_DTYPE, SCALE2>(scale2, {scale2_batch_stride, scale2_group_stride, scale2_rows}, batch, token);
            // Rounded as y is: equal values leave zeros (plan.py, is_shifted).
            const float shift = SHIFTED ? widen<DTYPE>(narrow<DTYPE>(load_scalar<RESIDUAL_DTYPE>(residual))) : 0.0f;
            const auto shifted = [&](int i, float (&values)[VEC]) {
                unpack(own[i], values);
                if constexpr (SHIFTED) {
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] -= shift;
                }
            };
            const Statistics second = row_statistics(shifted, member, group, turn++, eps, exchange);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                const int vector = vector_of(i, member);
                float values[VEC], scale[VEC];
                load_modulation<SCALE2_DTYPE, SCALE2, SHARED_ALIGNED>(scales, vector * VEC, scale);
                shifted(i, values);
                normalise<WEIGHT2_DTYPE, BIAS2_DTYPE, SHARED_ALIGNED>(values, second, weight2, bias2, vector * VEC);
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] *= 1.0f + scale[e];
                store_vector(y2 + row * (D * ITEM) + vector * 16, pack(values));
            }
        }
    }
}
