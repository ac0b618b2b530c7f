// norm_tanh_mul_add and norm_tanh_mul_add_norm_scale in CUDA C++: a block for a few neighbouring rows, which it works on at once and in
// registers.  The hardware deals out the blocks; the tanh of the gate, and what else the rows share, is made once for all of them.
//
// Macros beside those of row_norm.cuh and norm_tanh.cu, but for PREFETCH:
//
//   TOGETHER                          rows of a block, all of whose warps share each of them (THREADS = 32 * WARPS)
//   RESIDUAL_SHARED, SCALE2_SHARED    1: a section's rows take the same values; 0: each loads its own

#include "../row_norm.cuh"

static_assert(LANES == THREADS, "all warps of a block share each row");
constexpr bool SPREAD = WARPS > 6;  // of rows_statistics

// The float32 values of one vector of KIND, which is -1 for none.
template <int KIND> __device__ __forceinline__ void shared_values(const char* base, int index, float (&out)[VEC], float absent) {
    if constexpr (KIND >= 0) {
        load_shared_values<KIND, SHARED_ALIGNED>(base, index, out);
    } else {
#pragma unroll
        for (int e = 0; e < VEC; ++e) out[e] = absent;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
norm_tanh_rows(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
               const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ weight2,
               const char* __restrict__ bias2, const char* __restrict__ scale2, char* __restrict__ y, char* __restrict__ y2, i64 rows,
               i64 section_rows, i64 tokens, i64 x_batch_stride, i64 x_row_stride, i64 residual_batch_stride, i64 residual_group_stride,
               i64 residual_rows, i64 gate_batch_stride, i64 gate_group_stride, i64 gate_rows, i64 scale2_batch_stride,
               i64 scale2_group_stride, i64 scale2_rows, float eps) {
    __shared__ ExchangeOf<TOGETHER> exchange;  // takes no space while WARPS is 1, as nothing reads it
    const int member = threadIdx.x;
    // Blocks do not cross sections, whose rows share the gate: the last of a section is not whole where TOGETHER does not divide it.
    const u32 blocks = ((u32)section_rows + TOGETHER - 1) / TOGETHER;
    const u32 section = blockIdx.x / blocks;
    const i64 first = section * section_rows + (i64)(blockIdx.x - section * blocks) * TOGETHER;
    const i64 last = min((section + 1) * section_rows, rows) - 1;
    // The r-th row; behind the section's last one that one again, which is then computed and written twice, with the same values.
    const auto nth = [&](int r) { return min(first + r, last); };
    Place places[TOGETHER];
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) places[r] = place_of(nth(r), tokens);
    const Broadcast residual_at = {residual_batch_stride, residual_group_stride, residual_rows};
    const Broadcast scale2_at = {scale2_batch_stride, scale2_group_stride, scale2_rows};
    const auto residual_row = [&](const Place& at) {
        return modulation_row<RESIDUAL_DTYPE, RESIDUAL>(residual, residual_at, at.batch, at.token);
    };
    const auto fetch = [&](const char* source, Vector(&into)[PER_LANE]) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (holds(i, member)) into[i] = load_once<DTYPE, ALIGNED>(source + (member + i * LANES) * 16);
    };
    Vector own[TOGETHER][PER_LANE], other[TOGETHER][PER_LANE];  // x, then the rounded y; the residual where it is a STREAM
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) {
        fetch(x + (places[r].batch * x_batch_stride + places[r].token * x_row_stride) * ITEM, own[r]);
        if constexpr (STREAM) fetch(residual_row(places[r]), other[r]);
    }

    // While the rows are on their way.
    float factors[PER_LANE][VEC];
    const Broadcast gate_at = {gate_batch_stride, gate_group_stride, gate_rows};
    const char* gates = modulation_row<GATE_DTYPE, GATE>(gate, gate_at, places[0].batch, places[0].token);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        if (!holds(i, member)) continue;
        load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gates, (member + i * LANES) * VEC, factors[i]);
#pragma unroll
        for (int e = 0; e < VEC; ++e) factors[i][e] = tanhf(factors[i][e]);
    }

    Statistics found[TOGETHER];
    const auto value = [&](int r, int i, float (&values)[VEC]) { unpack(own[r][i], values); };
    rows_statistics<TOGETHER, SPREAD>(value, member, 0, 0, eps, exchange, found);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        if (!holds(i, member)) continue;
        const int vector = member + i * LANES;
        float weights[VEC], offsets[VEC], terms[VEC];
        shared_values<WEIGHT_DTYPE>(weight, vector * VEC, weights, 1.0f);
        shared_values<BIAS_DTYPE>(bias, vector * VEC, offsets, 0.0f);
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) {
            if constexpr (STREAM) unpack(other[r][i], terms);
            else if (r == 0 || !RESIDUAL_SHARED)
                load_modulation<RESIDUAL_DTYPE, RESIDUAL, SHARED_ALIGNED>(residual_row(places[r]), vector * VEC, terms);
            float values[VEC];
            unpack(own[r][i], values);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float normed = (values[e] - found[r].mean) * found[r].inverse * weights[e] + offsets[e];
                values[e] = terms[e] + factors[i][e] * normed;
            }
            own[r][i] = pack(values);
            store_vector(y + nth(r) * (D * ITEM) + vector * 16, own[r][i]);
        }
    }

    if constexpr (SECOND) {
        // Rounded as y is: equal values leave zeros (plan.py, is_shifted).
        const float shift = SHIFTED ? widen<DTYPE>(narrow<DTYPE>(load_scalar<RESIDUAL_DTYPE>(residual))) : 0.0f;
        const auto shifted = [&](int r, int i, float (&values)[VEC]) {
            unpack(own[r][i], values);
            if constexpr (SHIFTED) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] -= shift;
            }
        };
        rows_statistics<TOGETHER, SPREAD>(shifted, member, 0, 1, eps, exchange, found);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            const int vector = member + i * LANES;
            float weights[VEC], offsets[VEC], scale[VEC];
            shared_values<WEIGHT2_DTYPE>(weight2, vector * VEC, weights, 1.0f);
            shared_values<BIAS2_DTYPE>(bias2, vector * VEC, offsets, 0.0f);
#pragma unroll
            for (int r = 0; r < TOGETHER; ++r) {
                if (r == 0 || !SCALE2_SHARED) {
                    const char* scales = modulation_row<SCALE2_DTYPE, SCALE2>(scale2, scale2_at, places[r].batch, places[r].token);
                    load_modulation<SCALE2_DTYPE, SCALE2, SHARED_ALIGNED>(scales, vector * VEC, scale);
                }
                float values[VEC];
                shifted(r, i, values);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    const float normed = (values[e] - found[r].mean) * found[r].inverse * weights[e] + offsets[e];
                    values[e] = normed * (1.0f + scale[e]);
                }
                store_vector(y2 + nth(r) * (D * ITEM) + vector * 16, pack(values));
            }
        }
    }
}
