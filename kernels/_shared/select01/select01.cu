// norm_scale_shift_gate_select01 and its residual form in CUDA C++: WARPS warps per row, the row in registers, persistent grid.
//
// Macros beside those of row_norm.cuh and row_sets.cuh:
//
//   RESIDUAL                     1: v = residual + residual_gate * x first; the norm takes the unrounded v
//   ROW_DTYPE                    dtype of the six rows, coded as DTYPE
//   WEIGHT_DTYPE, BIAS_DTYPE     likewise; -1: none
//   ALIGNED                      1: every row of x, residual and residual_gate starts on 16 bytes
//   SHARED_ALIGNED               1: every one of the six rows, the weight and the bias do
//   MIN_BLOCKS                   blocks resident per multiprocessor
//   ALONE                        1: a block for every row, so that there is no next one

#include "../row_norm.cuh"
#include "../kept_row.cuh"
#include "row_sets.cuh"

// A lane's share of the row that is normed: x as it came, packed, or the unrounded v in float32.  The other takes no registers.
struct Row {
    Vector packed[PER_LANE];
    float wide[PER_LANE][VEC];

    __device__ __forceinline__ void values(int i, float (&out)[VEC]) const {
        if constexpr (RESIDUAL) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) out[e] = wide[i][e];
        } else {
            unpack(packed[i], out);
        }
    }
};

// Where the registers hold them, scale and shift are asked for before the row's sums, and v is stored behind these.
constexpr bool EARLY = ALONE && ITEM == 2 && PER_LANE * 2 * Kept<ROW_DTYPE, CHANNEL>::WORDS <= 16;

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
select01(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ residual_gate,
         const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale0,
         const char* __restrict__ shift0, const char* __restrict__ gate0, const char* __restrict__ scale1,
         const char* __restrict__ shift1, const char* __restrict__ gate1, const char* __restrict__ index, char* __restrict__ y,
         char* __restrict__ v, char* __restrict__ gate_out, i64 rows, i64 tokens, i64 x_batch_stride, i64 x_row_stride,
         i64 residual_batch_stride, i64 residual_row_stride, i64 residual_gate_batch_stride, i64 residual_gate_row_stride,
         i64 scale0_stride, i64 shift0_stride, i64 gate0_stride, i64 scale1_stride, i64 shift1_stride, i64 gate1_stride,
         i64 index_batch_stride, i64 index_token_stride, float eps) {
    __shared__ Exchange exchange;  // takes no space while WARPS is 1, as nothing reads it
    constexpr int ROW_ITEM = ROW_DTYPE == FLOAT32 ? 4 : 2;
    const int group = threadIdx.x / LANES;
    const int member = threadIdx.x % LANES;
    int turn = 0;
    for (i64 row = (i64)blockIdx.x * GROUPS + group; row < rows; row += (i64)gridDim.x * GROUPS, ++turn) {
        const auto [batch, token] = place_of(row, tokens);
        // First, because the rows' addresses wait for it.
        const bool one = takes_set_one(index, batch * index_batch_stride + token * index_token_stride);

        Row own;
        if constexpr (RESIDUAL) {
            Vector product[PER_LANE], factor[PER_LANE], sum[PER_LANE];
            load_row<ALIGNED>(x + (batch * x_batch_stride + token * x_row_stride) * ITEM, member, product);
            load_row<ALIGNED>(residual_gate + (batch * residual_gate_batch_stride + token * residual_gate_row_stride) * ITEM, member, factor);
            load_row<ALIGNED>(residual + (batch * residual_batch_stride + token * residual_row_stride) * ITEM, member, sum);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                float values[VEC], factors[VEC];
                unpack(product[i], values);
                unpack(factor[i], factors);
                unpack(sum[i], own.wide[i]);
                // Not contracted, so that v rounds as torch's float32 chain does.
#pragma unroll
                for (int e = 0; e < VEC; ++e) own.wide[i][e] = __fadd_rn(own.wide[i][e], __fmul_rn(values[e], factors[e]));
                if constexpr (!EARLY) store_vector(v + row * (D * ITEM) + vector_of(i, member) * 16, pack(own.wide[i]));
            }
        } else {
            load_row<ALIGNED>(x + (batch * x_batch_stride + token * x_row_stride) * ITEM, member, own.packed);
        }

        const char* scales = one ? scale1 + batch * scale1_stride * ROW_ITEM : scale0 + batch * scale0_stride * ROW_ITEM;
        const char* shifts = one ? shift1 + batch * shift1_stride * ROW_ITEM : shift0 + batch * shift0_stride * ROW_ITEM;
        Kept<ROW_DTYPE, EARLY ? CHANNEL : ABSENT> early_scale, early_shift;
        early_scale.load(scales, member);
        early_shift.load(shifts, member);

        // Needs nothing of the row, so it is done while the row is on its way.
        const char* gates = one ? gate1 + batch * gate1_stride * ROW_ITEM : gate0 + batch * gate0_stride * ROW_ITEM;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int vector = vector_of(i, member);
            float values[VEC];
            load_shared_values<ROW_DTYPE, SHARED_ALIGNED>(gates, vector * VEC, values);
            store_vector(gate_out + row * (D * ITEM) + vector * 16, pack(values));
        }

        const Statistics found =
            row_statistics([&](int i, float (&values)[VEC]) { own.values(i, values); }, member, group, turn, eps, exchange);

#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int vector = vector_of(i, member);
            float values[VEC], factors[VEC], terms[VEC];
            if constexpr (EARLY) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) factors[e] = early_scale.value(i, e), terms[e] = early_shift.value(i, e);
            } else {
                load_shared_values<ROW_DTYPE, SHARED_ALIGNED>(scales, vector * VEC, factors);
                load_shared_values<ROW_DTYPE, SHARED_ALIGNED>(shifts, vector * VEC, terms);
            }
            own.values(i, values);
            if constexpr (RESIDUAL && EARLY) store_vector(v + row * (D * ITEM) + vector * 16, pack(values));
            normalise<WEIGHT_DTYPE, BIAS_DTYPE, SHARED_ALIGNED>(values, found, weight, bias, vector * VEC);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = values[e] * (1.0f + factors[e]) + terms[e];
            store_vector(y + row * (D * ITEM) + vector * 16, pack(values));
        }
        if constexpr (ALONE) return;  // says to the compiler what the grid says to the hardware: registers for one pass suffice
    }
}
