// norm_tanh_mul_add and norm_tanh_mul_add_norm_scale in CUDA C++, by teams of warps beside tables of what rows share (row_tables.cuh).
//
// Macros beside those of row_tables.cuh:
//
//   SECOND                            1: y2 = norm(y) * (1 + scale2) too
//   RESIDUAL, GATE, SCALE2            addressing (0 one value, 1 one row, 2 to 4 a row per sample or token); SCALE2 is not read without SECOND
//   SHIFTED                           1: the second norm takes y less the residual's one value
//   RESIDUAL_OWN                      1: the residual has a row for every token
//   RESIDUAL_SHARED, SCALE2_SHARED    1: a section's rows take the same values, which are in its table; 0: each loads its own
//   MERGED                            1: the residual is part of the terms (cuda.py, is_merged)
//   RESIDUAL_DTYPE, GATE_DTYPE, SCALE2_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE, WEIGHT2_DTYPE, BIAS2_DTYPE
//                                     dtypes, coded as DTYPE; those of weights and biases are -1 where there is none

#define STREAM_ITEMS ITEM, RESIDUAL_OWN * item_of(RESIDUAL_DTYPE)
#define APART (RESIDUAL_SHARED && !MERGED)
#define TERM (MERGED || BIAS_DTYPE >= 0)
#define TERM2 (BIAS2_DTYPE >= 0)
// tanh of the gate times the weight, the term, the residual; factor and term of the second norm.
#define KINDS (1 + TERM + APART + (SECOND ? 1 + TERM2 : 0))
#include "../row_tables.cuh"

constexpr int RESIDUAL_KIND = 1 + TERM, SECOND_KIND = RESIDUAL_KIND + APART;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
norm_tanh_tables(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
                 const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ weight2,
                 const char* __restrict__ bias2, const char* __restrict__ scale2, char* __restrict__ y, char* __restrict__ y2,
                 i64 least, i64 more, i64 section_rows, i64 tokens, i64 x_batch_stride, i64 x_row_stride, i64 residual_batch_stride,
                 i64 residual_group_stride, i64 residual_rows, i64 gate_batch_stride, i64 gate_group_stride, i64 gate_rows,
                 i64 scale2_batch_stride, i64 scale2_group_stride, i64 scale2_rows, float eps) {
    __shared__ Exchange exchange;
    const int group = threadIdx.x / LANES, member = threadIdx.x % LANES;
    const Rows block(least, more, 1, 1, 0), own_rows = team_rows(block, group);
    const auto residual_row = [&](i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        const Broadcast at = {residual_batch_stride, residual_group_stride, residual_rows};
        return modulation_row<RESIDUAL_DTYPE, RESIDUAL>(residual, at, batch, token);
    };
    const auto scale2_row = [&](i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        const Broadcast at = {scale2_batch_stride, scale2_group_stride, scale2_rows};
        return modulation_row<SCALE2_DTYPE, SCALE2>(scale2, at, batch, token);
    };
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return stream == 0 ? x + (batch * x_batch_stride + token * x_row_stride) * ITEM : residual_row(row);
    };
    Stream stream(ring_of(group), source, own_rows, member);
    const auto fill = [&](u32 section, int number) {
        const Table table(number);
        const i64 row = (i64)section * section_rows;
        const auto [batch, token] = place_of(row, tokens);
        const char* gate_row = modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token);
        for (int vector = threadIdx.x; vector < VECTORS; vector += THREADS) {
            const int index = vector * VEC;
            float factor[VEC], term[VEC], values[VEC];
            load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gate_row, index, factor);
            if constexpr (RESIDUAL_SHARED) load_modulation<RESIDUAL_DTYPE, RESIDUAL, SHARED_ALIGNED>(residual_row(row), index, term);
            if constexpr (APART) table.put(RESIDUAL_KIND, vector, term);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                factor[e] = tanhf(factor[e]);
                if constexpr (!MERGED) term[e] = 0.0f;
            }
            fold<WEIGHT_DTYPE, BIAS_DTYPE>(factor, term, weight, bias, index);
            table.put(0, vector, factor);
            if constexpr (TERM) table.put(1, vector, term);
            if constexpr (SECOND) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) factor[e] = 0.0f;
                if constexpr (SCALE2_SHARED) load_modulation<SCALE2_DTYPE, SCALE2, SHARED_ALIGNED>(scale2_row(row), index, factor);
#pragma unroll
                for (int e = 0; e < VEC; ++e) factor[e] += 1.0f;
                if constexpr (TERM2) {
                    load_shared_values<BIAS2_DTYPE, SHARED_ALIGNED>(bias2, index, term);
#pragma unroll
                    for (int e = 0; e < VEC; ++e) term[e] *= factor[e];
                    table.put(SECOND_KIND + 1, vector, term);
                }
                if constexpr (WEIGHT2_DTYPE >= 0) {
                    load_shared_values<WEIGHT2_DTYPE, SHARED_ALIGNED>(weight2, index, values);
#pragma unroll
                    for (int e = 0; e < VEC; ++e) factor[e] *= values[e];
                }
                table.put(SECOND_KIND, vector, factor);
            }
        }
    };
    int turn = 0;
    const auto work = [&](i64 row, int number) {
        const Table table(number);
        Vector own[PER_LANE];  // x, then the rounded y
        Kept<RESIDUAL_DTYPE, RESIDUAL_OWN ? RESIDUAL : ABSENT> residuals;
        stream.wait();
        stream.take<0>(row, own);
        if constexpr (RESIDUAL_OWN) stream.take<1>(row, stream.slot, residuals);
        const auto value = [&](int i, float (&values)[VEC]) { unpack(own[i], values); };
        const Statistics found = row_statistics<SPREAD>(value, member, group, turn++, eps, exchange);
        stream.release(row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int vector = vector_of(i, member);
            float values[VEC], terms[VEC];
            unpack(own[i], values);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = (values[e] - found.mean) * found.inverse;
            if constexpr (TERM) {
                table.apply(0, vector, values);
            } else {
                table.get(0, vector, terms);
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] *= terms[e];
            }
            if constexpr (!MERGED) {
                if constexpr (APART) table.get(RESIDUAL_KIND, vector, terms);
                else if constexpr (!RESIDUAL_OWN) load_modulation<RESIDUAL_DTYPE, RESIDUAL, SHARED_ALIGNED>(residual_row(row), vector * VEC, terms);
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] += RESIDUAL_OWN ? residuals.value(i, e) : terms[e];
            }
            own[i] = pack(values);
            store_vector(y + row * ROW_BYTES + vector * 16, own[i]);
        }
        if constexpr (SECOND) {
            // Rounded as y is: equal values leave zeros (plan.py, is_shifted).
            const float shift = SHIFTED ? widen<DTYPE>(narrow<DTYPE>(load_scalar<RESIDUAL_DTYPE>(residual))) : 0.0f;
            const auto shifted = [&](int i, float (&values)[VEC]) {
                unpack(own[i], values);
                if constexpr (SHIFTED) {
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] -= shift;
                }
            };
            const Statistics second = row_statistics<SPREAD>(shifted, member, group, turn++, eps, exchange);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                const int vector = vector_of(i, member);
                float values[VEC], factor[VEC];
                shifted(i, values);
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] = (values[e] - second.mean) * second.inverse;
                if constexpr (TERM2) {
                    table.apply(SECOND_KIND, vector, values);
                } else {
                    table.get(SECOND_KIND, vector, factor);
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] *= factor[e];
                }
                if constexpr (!SCALE2_SHARED) {
                    load_modulation<SCALE2_DTYPE, SCALE2, SHARED_ALIGNED>(scale2_row(row), vector * VEC, factor);
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] *= 1.0f + factor[e];
                }
                store_vector(y2 + row * ROW_BYTES + vector * 16, pack(values));
            }
        }
    };
    in_sections<TABLES>(block, own_rows, section_rows, fill, work);
}
