// norm_scale_shift and residual_gate_norm_scale_shift in CUDA C++: a block for a few neighbouring rows, which it works on at once and in
// registers.  The hardware deals out the blocks, and values that the rows share are loaded once for all of them.
//
// Macros beside those of row_norm.cuh and modulated_norm.cu, but for PREFETCH:
//
//   TOGETHER                          rows of a block, all of whose warps share each of them (THREADS = 32 * WARPS)

#include "row_norm.cuh"
#include "kept_row.cuh"

static_assert(LANES == THREADS, "all warps of a block share each row");
constexpr bool SPREAD = TOGETHER > 1 && WARPS > 6;  // of rows_statistics

// Scale and shift are asked for before the row's sums, not behind them, where that is faster and the registers hold them: without a residual
// of 16-bit values in two vectors to a lane, with one where they change by frame.
constexpr int ASKED = PER_LANE * (Kept<SCALE_DTYPE, SCALE>::WORDS + Kept<SHIFT_DTYPE, SHIFT>::WORDS);
constexpr bool EARLY = TOGETHER == 1 && ITEM == 2 && (RESIDUAL ? ASKED <= 32 && (SCALE == ROW || SHIFT == ROW) : ASKED <= 16);

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
modulated_rows(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
               const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale,
               const char* __restrict__ shift, char* __restrict__ y, char* __restrict__ v, i64 rows, i64 tokens, i64 x_batch_stride,
               i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride, i64 gate_batch_stride, i64 gate_group_stride,
               i64 gate_rows, i64 scale_batch_stride, i64 scale_group_stride, i64 scale_rows, i64 shift_batch_stride,
               i64 shift_group_stride, i64 shift_rows, float eps) {
    __shared__ ExchangeOf<TOGETHER> exchange;  // takes no space while WARPS is 1, as nothing reads it
    const int member = threadIdx.x;
    const i64 first = (i64)blockIdx.x * TOGETHER;
    // The r-th row; behind the last one the last one again, which is then computed and written twice, with the same values.
    const auto nth = [&](int r) { return TOGETHER == 1 ? first : min(first + r, rows - 1); };
    Place places[TOGETHER];
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) places[r] = place_of(nth(r), tokens);
    const auto fetch = [&](const char* base, i64 batch_stride, i64 row_stride, const Place& at, Vector(&into)[PER_LANE]) {
        load_row<ALIGNED>(base + (at.batch * batch_stride + at.token * row_stride) * ITEM, member, into);
    };
    Vector own[TOGETHER][PER_LANE], other[TOGETHER][PER_LANE];  // x, then the rounded v; the residual
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) {
        fetch(x, x_batch_stride, x_row_stride, places[r], own[r]);
        if constexpr (RESIDUAL) fetch(residual, residual_batch_stride, residual_row_stride, places[r], other[r]);
    }

    const char *scales[TOGETHER], *shifts[TOGETHER];
    const Broadcast scale_at = {scale_batch_stride, scale_group_stride, scale_rows};
    const Broadcast shift_at = {shift_batch_stride, shift_group_stride, shift_rows};
#pragma unroll
    for (int r = 0; r < TOGETHER; ++r) {
        scales[r] = modulation_row<SCALE_DTYPE, SCALE>(scale, scale_at, places[r].batch, places[r].token);
        shifts[r] = modulation_row<SHIFT_DTYPE, SHIFT>(shift, shift_at, places[r].batch, places[r].token);
    }
    Kept<SCALE_DTYPE, EARLY ? SCALE : ABSENT> early_scale;
    Kept<SHIFT_DTYPE, EARLY ? SHIFT : ABSENT> early_shift;
    early_scale.load(scales[0], member);
    early_shift.load(shifts[0], member);

    if constexpr (RESIDUAL) {
        const char* gates[TOGETHER];
        if constexpr (GATE >= 0) {
            const Broadcast at = {gate_batch_stride, gate_group_stride, gate_rows};
#pragma unroll
            for (int r = 0; r < TOGETHER; ++r) gates[r] = modulation_row<GATE_DTYPE, GATE>(gate, at, places[r].batch, places[r].token);
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int vector = vector_of(i, member);
            float factors[VEC];  // of the row before, where this row has the same
#pragma unroll
            for (int r = 0; r < TOGETHER; ++r) {
                float values[VEC], sums[VEC];
                unpack(own[r][i], values);
                unpack(other[r][i], sums);
                if constexpr (GATE >= 0) {
                    if (r == 0 || gates[r] != gates[r - 1])
                        load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gates[r], vector * VEC, factors);
                    // Not contracted, so that v rounds as torch's float32 chain does.
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] = __fmul_rn(values[e], factors[e]);
                }
#pragma unroll
                for (int e = 0; e < VEC; ++e) sums[e] = __fadd_rn(sums[e], values[e]);
                own[r][i] = pack(sums);
                store_vector(v + nth(r) * (D * ITEM) + vector * 16, own[r][i]);
            }
        }
    }

    Statistics found[TOGETHER];
    const auto value = [&](int r, int i, float (&values)[VEC]) { unpack(own[r][i], values); };
    rows_statistics<TOGETHER, SPREAD>(value, member, 0, 0, eps, exchange, found);

#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        if (skips(i, member)) continue;
        const int vector = vector_of(i, member);
        float factors[VEC], terms[VEC], weights[VEC], offsets[VEC];  // likewise
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) {
            if constexpr (EARLY) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) factors[e] = early_scale.value(i, e), terms[e] = early_shift.value(i, e);
            } else {
                if (r == 0 || scales[r] != scales[r - 1])
                    load_modulation<SCALE_DTYPE, SCALE, SHARED_ALIGNED>(scales[r], vector * VEC, factors);
                if (r == 0 || shifts[r] != shifts[r - 1])
                    load_modulation<SHIFT_DTYPE, SHIFT, SHARED_ALIGNED>(shifts[r], vector * VEC, terms);
            }
            float values[VEC];
            unpack(own[r][i], values);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = (values[e] - found[r].mean) * found[r].inverse;
            if constexpr (WEIGHT_DTYPE >= 0) {
                if (r == 0) load_shared_values<WEIGHT_DTYPE, SHARED_ALIGNED>(weight, vector * VEC, weights);
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] *= weights[e];
            }
            if constexpr (BIAS_DTYPE >= 0) {
                if (r == 0) load_shared_values<BIAS_DTYPE, SHARED_ALIGNED>(bias, vector * VEC, offsets);
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] += offsets[e];
            }
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = values[e] * (1.0f + factors[e]) + terms[e];
            store_vector(y + nth(r) * (D * ITEM) + vector * 16, pack(values));
        }
    }
}
