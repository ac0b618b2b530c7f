// norm_tanh_mul_add and norm_tanh_mul_add_norm_scale in CUDA C++, over streamed rows (row_stream.cuh).
//
// Macros beside those of row_stream.cuh:
//
//   SECOND                            1: y2 = norm(y) * (1 + scale2) too
//   RESIDUAL, GATE, SCALE2            addressing (0 one value, 1 one row, 2 to 4 a row per sample or token); SCALE2 is not read without SECOND
//   SHIFTED                           1: the second norm takes y less the residual's one value
//   STREAM                            1: the residual has a row for every row of x, in x's dtype, and is read once
//   RESIDUAL_SHARED                   1: neighbouring rows take the same residual
//   COMBINED                          1: of the first norm; 2: of both
//   RESIDUAL_DTYPE, GATE_DTYPE, SCALE2_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE, WEIGHT2_DTYPE, BIAS2_DTYPE
//                                     dtypes, coded as DTYPE; those of weights and biases are -1 where there is none

#define STREAMS (STREAM ? 2 : 1)
#include "../row_stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
norm_tanh_stream(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
                 const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ weight2,
                 const char* __restrict__ bias2, const char* __restrict__ scale2, char* __restrict__ y, char* __restrict__ y2,
                 i64 least, i64 more, i64 step, i64 parts, i64 part_rows, i64 tokens, i64 x_batch_stride, i64 x_row_stride,
                 i64 residual_batch_stride, i64 residual_group_stride, i64 residual_rows, i64 gate_batch_stride, i64 gate_group_stride, i64 gate_rows,
                 i64 scale2_batch_stride, i64 scale2_group_stride, i64 scale2_rows, float eps) {
    __shared__ Exchange exchange;
    const int member = threadIdx.x;
    const Rows rows(least, more, step, parts, part_rows);
    const auto residual_row = [&](u32 batch, u32 token) {
        const Broadcast at = {residual_batch_stride, residual_group_stride, residual_rows};
        return modulation_row<RESIDUAL_DTYPE, RESIDUAL>(residual, at, batch, token);
    };
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return stream == 0 ? x + (batch * x_batch_stride + token * x_row_stride) * ITEM : residual_row(batch, token);
    };
    Stream stream(ring_of(0), source, rows, member);
    constexpr bool KEEPS2 = SECOND && COMBINED < 2;
    // The residual is part of the line's terms, but in float32 with a bias: their sum would be rounded once more.
    constexpr bool WITH_RESIDUAL = COMBINED && RESIDUAL_SHARED && (BIAS_DTYPE < 0 || DTYPE != FLOAT32);
    Kept<WEIGHT_DTYPE, !COMBINED && WEIGHT_DTYPE >= 0 ? CHANNEL : ABSENT> weights;
    Kept<BIAS_DTYPE, !COMBINED && BIAS_DTYPE >= 0 ? CHANNEL : ABSENT> biases;
    Kept<WEIGHT2_DTYPE, KEEPS2 && WEIGHT2_DTYPE >= 0 ? CHANNEL : ABSENT> weights2;
    Kept<BIAS2_DTYPE, KEEPS2 && BIAS2_DTYPE >= 0 ? CHANNEL : ABSENT> biases2;
    Kept<RESIDUAL_DTYPE, STREAM || WITH_RESIDUAL ? ABSENT : RESIDUAL> residuals;
    Kept<GATE_DTYPE, COMBINED ? ABSENT : GATE> gates;
    Kept<SCALE2_DTYPE, KEEPS2 ? SCALE2 : ABSENT> scales2;
    Line line, line2;
    i64 until = rows.first, until2 = rows.first;  // with COMBINED: the row that needs another line, another line2
    weights.load(weight, member);
    biases.load(bias, member);
    weights2.load(weight2, member);
    biases2.load(bias2, member);
    // tanh of the gate's row, kept from row to row: computed anew for every element it would be half of all instructions.
    float factors[PER_LANE][VEC];
    const char* held = nullptr;
    int turn = 0;
    for (i64 row = rows.first; row < rows.end; row += rows.step) {
        const auto [batch, token] = place_of(row, tokens);
        Vector own[PER_LANE], other[PER_LANE];  // x, then the rounded y; the residual where it is a STREAM
        if constexpr (!BULK) {
            stream.take(0, row, own);
            if constexpr (STREAM) stream.take(1, row, other);
        }
        const char* gate_row = modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token);
        if constexpr (SECOND) {
            const char* scale2_row =
                modulation_row<SCALE2_DTYPE, SCALE2>(scale2, {scale2_batch_stride, scale2_group_stride, scale2_rows}, batch, token);
            if constexpr (KEEPS2) {
                scales2.keep(scale2_row, member);
            } else if (row == until2) {
                until2 = row + rows_left<SCALE2>(scale2_rows, token);
                combine<WEIGHT2_DTYPE, BIAS2_DTYPE, SCALE2_DTYPE, SCALE2, SCALE2_DTYPE, ABSENT>(line2, weight2, bias2, scale2_row, nullptr, member);
            }
        }
        if constexpr (!STREAM && !WITH_RESIDUAL) residuals.keep(residual_row(batch, token), member);
        if constexpr (COMBINED) {
            if (row == until) {
                const char* shared_residual = WITH_RESIDUAL ? residual_row(batch, token) : nullptr;
                until = row + min(rows_left<GATE>(gate_rows, token), rows_left<WITH_RESIDUAL ? RESIDUAL : SCALAR>(residual_rows, token));
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) {
                    if (skips(i, member)) continue;
                    const int index = vector_of(i, member) * VEC;
                    float values[VEC];
                    load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gate_row, index, line.factor[i]);
                    if constexpr (WITH_RESIDUAL) load_modulation<RESIDUAL_DTYPE, RESIDUAL, SHARED_ALIGNED>(shared_residual, index, line.term[i]);
#pragma unroll
                    for (int e = 0; e < VEC; ++e) {
                        line.factor[i][e] = tanhf(line.factor[i][e]);
                        if constexpr (!WITH_RESIDUAL) line.term[i][e] = 0.0f;
                    }
                    if constexpr (BIAS_DTYPE >= 0) {
                        load_shared_values<BIAS_DTYPE, SHARED_ALIGNED>(bias, index, values);
#pragma unroll
                        for (int e = 0; e < VEC; ++e) line.term[i][e] += values[e] * line.factor[i][e];
                    }
                    if constexpr (WEIGHT_DTYPE >= 0) {
                        load_shared_values<WEIGHT_DTYPE, SHARED_ALIGNED>(weight, index, values);
#pragma unroll
                        for (int e = 0; e < VEC; ++e) line.factor[i][e] *= values[e];
                    }
                }
            }
        } else if (gate_row != held) {
            held = gate_row;
            gates.load(gate_row, member);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
#pragma unroll
                for (int e = 0; e < VEC; ++e) factors[i][e] = tanhf(gates.value(i, e));
            }
        }
        if constexpr (BULK) {
            stream.wait();
            stream.take(0, row, own);
            if constexpr (STREAM) stream.take(1, row, other);
        }

        const auto value = [&](int i, float (&values)[VEC]) { unpack(own[i], values); };
        const Statistics found = row_statistics<SPREAD>(value, member, 0, turn++, eps, exchange);
        stream.release(row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            float values[VEC], terms[VEC];
            unpack(own[i], values);
            if constexpr (STREAM) unpack(other[i], terms);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                if constexpr (!STREAM && !WITH_RESIDUAL) terms[e] = residuals.value(i, e);
                values[e] = (values[e] - found.mean) * found.inverse;
                if constexpr (WITH_RESIDUAL) {
                    values[e] = line.at(i, e, values[e]);
                } else if constexpr (COMBINED && BIAS_DTYPE >= 0) {
                    values[e] = terms[e] + line.at(i, e, values[e]);
                } else if constexpr (COMBINED) {
                    values[e] = terms[e] + line.factor[i][e] * values[e];
                } else {
                    if constexpr (WEIGHT_DTYPE >= 0) values[e] *= weights.value(i, e);
                    if constexpr (BIAS_DTYPE >= 0) values[e] += biases.value(i, e);
                    values[e] = terms[e] + factors[i][e] * values[e];
                }
            }
            own[i] = pack(values);
            store_vector(y + row * ROW_BYTES + vector_of(i, member) * 16, own[i]);
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
            const Statistics second = row_statistics<SPREAD>(shifted, member, 0, turn++, eps, exchange);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                float values[VEC];
                shifted(i, values);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    values[e] = (values[e] - second.mean) * second.inverse;
                    if constexpr (COMBINED == 2) {
                        values[e] = BIAS2_DTYPE >= 0 ? line2.at(i, e, values[e]) : values[e] * line2.factor[i][e];
                    } else {
                        if constexpr (WEIGHT2_DTYPE >= 0) values[e] *= weights2.value(i, e);
                        if constexpr (BIAS2_DTYPE >= 0) values[e] += biases2.value(i, e);
                        values[e] *= 1.0f + scales2.value(i, e);
                    }
                }
                store_vector(y2 + row * ROW_BYTES + vector_of(i, member) * 16, pack(values));
            }
        }
    }
}
