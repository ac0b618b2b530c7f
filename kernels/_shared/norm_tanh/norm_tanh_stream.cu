// norm_tanh_mul_add and norm_tanh_mul_add_norm_scale in CUDA C++, over streamed rows (row_stream.cuh).
//
// Macros beside those of row_stream.cuh:
//
//   SECOND                            1: y2 = norm(y) * (1 + scale2) too
//   RESIDUAL, GATE, SCALE2            addressing (0 one value, 1 one row, 2 to 4 a row per sample or token); SCALE2 is not read without SECOND
//   SHIFTED                           1: the second norm takes y less the residual's one value
//   RESIDUAL_OWN, GATE_OWN, SCALE2_OWN   1: there is a row for every token
//   MERGED                            1: the residual is part of what neighbouring rows share (cuda.py, is_merged), with shared gates
//   SCALE2_SHARED                     1: neighbouring rows take the same scales.  COMBINED: with shared gates of the first norm, with
//                                     shared scales of the second
//   RESIDUAL_DTYPE, GATE_DTYPE, SCALE2_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE, WEIGHT2_DTYPE, BIAS2_DTYPE
//                                     dtypes, coded as DTYPE; those of weights and biases are -1 where there is none

#define STREAM_ITEMS \
    ITEM, RESIDUAL_OWN * item_of(RESIDUAL_DTYPE), GATE_OWN * item_of(GATE_DTYPE), SECOND * SCALE2_OWN * item_of(SCALE2_DTYPE)
#include "../row_stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
norm_tanh_stream(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
                 const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ weight2,
                 const char* __restrict__ bias2, const char* __restrict__ scale2, char* __restrict__ y, char* __restrict__ y2,
                 i64 least, i64 more, i64 step, i64 parts, i64 part_rows, i64 tokens, i64 x_batch_stride, i64 x_row_stride,
                 i64 residual_batch_stride, i64 residual_group_stride, i64 residual_rows, i64 gate_batch_stride,
                 i64 gate_group_stride, i64 gate_rows, i64 scale2_batch_stride, i64 scale2_group_stride, i64 scale2_rows, float eps) {
    __shared__ Exchange exchange;
    const int member = threadIdx.x;
    const Rows rows(least, more, step, parts, part_rows);
    const auto residual_row = [&](u32 batch, u32 token) {
        const Broadcast at = {residual_batch_stride, residual_group_stride, residual_rows};
        return modulation_row<RESIDUAL_DTYPE, RESIDUAL>(residual, at, batch, token);
    };
    const auto gate_row = [&](u32 batch, u32 token) {
        return modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token);
    };
    const auto scale2_row = [&](u32 batch, u32 token) {
        const Broadcast at = {scale2_batch_stride, scale2_group_stride, scale2_rows};
        return modulation_row<SCALE2_DTYPE, SCALE2>(scale2, at, batch, token);
    };
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        if (stream == 0) return x + (batch * x_batch_stride + token * x_row_stride) * ITEM;
        if (stream == 1) return residual_row(batch, token);
        return stream == 2 ? gate_row(batch, token) : scale2_row(batch, token);
    };
    Stream stream(ring_of(0), source, rows, member);
    constexpr bool LINE = COMBINED && !GATE_OWN, LINE2 = COMBINED && SECOND && SCALE2_SHARED;
    constexpr bool WITH_RESIDUAL = LINE && MERGED;
    Kept<WEIGHT_DTYPE, !LINE && WEIGHT_DTYPE >= 0 ? CHANNEL : ABSENT> weights;
    Kept<BIAS_DTYPE, !LINE && BIAS_DTYPE >= 0 ? CHANNEL : ABSENT> biases;
    Kept<WEIGHT2_DTYPE, SECOND && !LINE2 && WEIGHT2_DTYPE >= 0 ? CHANNEL : ABSENT> weights2;
    Kept<BIAS2_DTYPE, SECOND && !LINE2 && BIAS2_DTYPE >= 0 ? CHANNEL : ABSENT> biases2;
    Kept<RESIDUAL_DTYPE, WITH_RESIDUAL ? ABSENT : RESIDUAL> residuals;
    Kept<GATE_DTYPE, LINE ? ABSENT : GATE> gates;
    Kept<SCALE2_DTYPE, SECOND && !LINE2 ? SCALE2 : ABSENT> scales2;
    Line line, line2;
    i64 until = rows.first, until2 = rows.first;  // with COMBINED: the row that needs another line, another line2
    weights.load(weight, member);
    biases.load(bias, member);
    weights2.load(weight2, member);
    biases2.load(bias2, member);
    // tanh of the gate's row, kept from row to row: computed anew for every element it would be half of all instructions.
    float factors[PER_LANE][VEC];
    const char* held = nullptr;
    const auto renew_line2 = [&](i64 row) {
        if (row != until2) return;
        const auto [batch, token] = place_of(row, tokens);
        until2 = row + rows_left<SCALE2>(scale2_rows, token);
        combine<WEIGHT2_DTYPE, BIAS2_DTYPE, SCALE2_DTYPE, SCALE2, SCALE2_DTYPE, ABSENT>(
            line2, weight2, bias2, scale2_row(batch, token), nullptr, member);
    };
    const auto renew_line = [&](i64 row) {
        if (row != until) return;
        const auto [batch, token] = place_of(row, tokens);
        const char* shared_residual = WITH_RESIDUAL ? residual_row(batch, token) : nullptr;
        until = row + min(rows_left<GATE>(gate_rows, token), rows_left<WITH_RESIDUAL ? RESIDUAL : SCALAR>(residual_rows, token));
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            const int index = vector_of(i, member) * VEC;
            load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gate_row(batch, token), index, line.factor[i]);
            if constexpr (WITH_RESIDUAL) load_modulation<RESIDUAL_DTYPE, RESIDUAL, SHARED_ALIGNED>(shared_residual, index, line.term[i]);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                line.factor[i][e] = tanhf(line.factor[i][e]);
                if constexpr (!WITH_RESIDUAL) line.term[i][e] = 0.0f;
            }
            fold<WEIGHT_DTYPE, BIAS_DTYPE>(line.factor[i], line.term[i], weight, bias, index);
        }
    };
    const auto renew_gates = [&](const char* at) {
        if (at == held) return;
        held = at;
        gates.load(at, member);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
#pragma unroll
            for (int e = 0; e < VEC; ++e) factors[i][e] = tanhf(gates.value(i, e));
        }
    };
    // What the first norm takes beside the row itself.
    const auto renew_first = [&](i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        if constexpr (!RESIDUAL_OWN && !WITH_RESIDUAL) residuals.keep(residual_row(batch, token), member);
        if constexpr (LINE) renew_line(row);
        else if constexpr (!GATE_OWN) renew_gates(gate_row(batch, token));
    };
    // y of a vector of x, which is stored too.
    const auto put_first = [&](i64 row, int i, const Vector& own, const Statistics& found) {
        float values[VEC];
        unpack(own, values);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            values[e] = (values[e] - found.mean) * found.inverse;
            if constexpr (WITH_RESIDUAL) {
                values[e] = line.at(i, e, values[e]);
            } else if constexpr (LINE && BIAS_DTYPE >= 0) {
                values[e] = residuals.value(i, e) + line.at(i, e, values[e]);
            } else if constexpr (LINE) {
                values[e] = residuals.value(i, e) + line.factor[i][e] * values[e];
            } else {
                if constexpr (WEIGHT_DTYPE >= 0) values[e] *= weights.value(i, e);
                if constexpr (BIAS_DTYPE >= 0) values[e] += biases.value(i, e);
                values[e] = residuals.value(i, e) + (GATE_OWN ? tanhf(gates.value(i, e)) : factors[i][e]) * values[e];
            }
        }
        const Vector result = pack(values);
        store_vector(y + row * ROW_BYTES + vector_of(i, member) * 16, result);
        return result;
    };
    // Rounded as y is: equal values leave zeros (plan.py, is_shifted).
    const float shift = SECOND && SHIFTED ? widen<DTYPE>(narrow<DTYPE>(load_scalar<RESIDUAL_DTYPE>(residual))) : 0.0f;
    const auto shifted = [&](const Vector& own, float (&values)[VEC]) {
        unpack(own, values);
        if constexpr (SHIFTED) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] -= shift;
        }
    };
    const auto put_second = [&](i64 row, int i, const Vector& own, const Statistics& second) {
        float values[VEC];
        shifted(own, values);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            values[e] = (values[e] - second.mean) * second.inverse;
            if constexpr (LINE2) {
                values[e] = BIAS2_DTYPE >= 0 ? line2.at(i, e, values[e]) : values[e] * line2.factor[i][e];
            } else {
                if constexpr (WEIGHT2_DTYPE >= 0) values[e] *= weights2.value(i, e);
                if constexpr (BIAS2_DTYPE >= 0) values[e] += biases2.value(i, e);
                values[e] *= 1.0f + scales2.value(i, e);
            }
        }
        store_vector(y2 + row * ROW_BYTES + vector_of(i, member) * 16, pack(values));
    };
    if constexpr (IN_PIPELINE) {
        __shared__ Exchange exchange2;
        Vector kept[PER_LANE];  // y of the row before, for its second norm
        const auto second = [&](i64 row, int turn) {
            if constexpr (LINE2) renew_line2(row);
            const Statistics found = end_statistics<SPREAD>([&](int i, float (&values)[VEC]) { shifted(kept[i], values); }, member, turn, eps, exchange2);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                if (!skips(i, member)) put_second(row, i, kept[i], found);
        };
        i64 last = rows.first;
        int last_turn = 0;
        const auto end = [&](i64 row, int slot, const Statistics& found, int turn) {
            if constexpr (SECOND)
                if (row != rows.first) second(row - rows.step, turn - 1);
            renew_first(row);
            if constexpr (RESIDUAL_OWN) stream.template take<1>(row, slot, residuals);
            if constexpr (GATE_OWN) stream.template take<2>(row, slot, gates);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                if (!skips(i, member)) kept[i] = put_first(row, i, stream.template vector_in<0>(slot, i), found);
            if constexpr (SECOND) {
                if constexpr (SCALE2_OWN) {
                    stream.template take<3>(row, slot, scales2);
                } else if constexpr (!LINE2) {
                    const auto [batch, token] = place_of(row, tokens);
                    scales2.keep(scale2_row(batch, token), member);
                }
                begin_statistics([&](int i, float (&values)[VEC]) { shifted(kept[i], values); }, member, turn, exchange2);
                last = row;
                last_turn = turn;
            }
        };
        if constexpr (LINE2) renew_line2(rows.first);
        renew_first(rows.first);
        in_pipeline(stream, rows, eps, exchange, end);
        if constexpr (SECOND) {
            __syncthreads();
            second(last, last_turn);
        }
        return;
    }
    int turn = 0;
    for (i64 row = rows.first; row < rows.end; row += rows.step) {
        Vector own[PER_LANE];  // x, then the rounded y
        const auto take_row = [&] {
            stream.template take<0>(row, own);
            if constexpr (RESIDUAL_OWN) stream.template take<1>(row, stream.slot, residuals);
            if constexpr (GATE_OWN) stream.template take<2>(row, stream.slot, gates);
            if constexpr (SECOND && SCALE2_OWN) stream.template take<3>(row, stream.slot, scales2);
        };
        if constexpr (!BULK) take_row();
        if constexpr (LINE2) {
            renew_line2(row);
        } else if constexpr (SECOND && !SCALE2_OWN) {
            const auto [batch, token] = place_of(row, tokens);
            scales2.keep(scale2_row(batch, token), member);
        }
        renew_first(row);
        if constexpr (BULK) {
            stream.wait();
            take_row();
        }
        const auto value = [&](int i, float (&values)[VEC]) { unpack(own[i], values); };
        const Statistics found = row_statistics<SPREAD>(value, member, 0, turn++, eps, exchange);
        stream.release(row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (!skips(i, member)) own[i] = put_first(row, i, own[i], found);
        if constexpr (SECOND) {
            const auto result = [&](int i, float (&values)[VEC]) { shifted(own[i], values); };
            const Statistics second = row_statistics<SPREAD>(result, member, 0, turn++, eps, exchange);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                if (!skips(i, member)) put_second(row, i, own[i], second);
        }
    }
}
