// norm_scale_shift and residual_gate_norm_scale_shift in CUDA C++, over streamed rows (row_stream.cuh).
//
// Macros beside those of row_stream.cuh:
//
//   RESIDUAL                          1: v = residual + gate * x first
//   GATE, SCALE, SHIFT                addressing of the modulation (0 one value, 1 one row, 2 to 4 a row per sample or token); GATE -1: none
//   GATE_DTYPE, SCALE_DTYPE, SHIFT_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE   dtypes, coded as DTYPE; WEIGHT_DTYPE, BIAS_DTYPE -1: none

#define STREAM_ITEMS ITEM, RESIDUAL ? ITEM : 0
#include "row_stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
modulated_stream(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
                 const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale,
                 const char* __restrict__ shift, char* __restrict__ y, char* __restrict__ v, i64 least, i64 more, i64 step, i64 parts,
                 i64 part_rows, i64 tokens, i64 x_batch_stride, i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride,
                 i64 gate_batch_stride, i64 gate_group_stride, i64 gate_rows, i64 scale_batch_stride, i64 scale_group_stride,
                 i64 scale_rows, i64 shift_batch_stride, i64 shift_group_stride, i64 shift_rows, float eps) {
    __shared__ Exchange exchange;
    const int member = threadIdx.x;
    const Rows rows(least, more, step, parts, part_rows);
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return stream == 0 ? x + (batch * x_batch_stride + token * x_row_stride) * ITEM
                           : residual + (batch * residual_batch_stride + token * residual_row_stride) * ITEM;
    };
    Stream stream(ring_of(0), source, rows, member);
    Kept<GATE_DTYPE, RESIDUAL ? GATE : ABSENT> gates;
    Kept<WEIGHT_DTYPE, !COMBINED && WEIGHT_DTYPE >= 0 ? CHANNEL : ABSENT> weights;
    Kept<BIAS_DTYPE, !COMBINED && BIAS_DTYPE >= 0 ? CHANNEL : ABSENT> biases;
    Kept<SCALE_DTYPE, COMBINED ? ABSENT : SCALE> scales;
    Kept<SHIFT_DTYPE, COMBINED ? ABSENT : SHIFT> shifts;
    Line line;
    i64 until = rows.first, gate_until = rows.first;  // with COMBINED: the row that needs another line, another gate
    weights.load(weight, member);
    biases.load(bias, member);
    const auto renew_gates = [&](i64 row) {
        if (row != gate_until) return;
        const auto [batch, token] = place_of(row, tokens);
        gates.load(modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token), member);
        gate_until = row + rows_left<GATE>(gate_rows, token);
    };
    const auto renew_line = [&](i64 row) {
        if (row != until) return;
        const auto [batch, token] = place_of(row, tokens);
        const Broadcast scale_at = {scale_batch_stride, scale_group_stride, scale_rows};
        const Broadcast shift_at = {shift_batch_stride, shift_group_stride, shift_rows};
        const char* scale_row = modulation_row<SCALE_DTYPE, SCALE>(scale, scale_at, batch, token);
        const char* shift_row = modulation_row<SHIFT_DTYPE, SHIFT>(shift, shift_at, batch, token);
        until = row + min(rows_left<SCALE>(scale_rows, token), rows_left<SHIFT>(shift_rows, token));
        combine<WEIGHT_DTYPE, BIAS_DTYPE, SCALE_DTYPE, SCALE, SHIFT_DTYPE, SHIFT>(line, weight, bias, scale_row, shift_row, member);
    };
    // Makes x the rounded v, and stores it.
    const auto add = [&](i64 row, Vector (&own)[PER_LANE], const Vector (&other)[PER_LANE]) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            float values[VEC], sums[VEC];
            unpack(own[i], values);
            unpack(other[i], sums);
            // Not contracted, so that v rounds as torch's float32 chain does.
            if constexpr (GATE >= 0) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] = __fmul_rn(values[e], gates.value(i, e));
            }
#pragma unroll
            for (int e = 0; e < VEC; ++e) sums[e] = __fadd_rn(sums[e], values[e]);
            own[i] = pack(sums);
            store_vector(v + row * ROW_BYTES + vector_of(i, member) * 16, own[i]);
        }
    };
    const auto put_result = [&](i64 row, int i, const Vector& own, const Statistics& found) {
        float values[VEC];
        unpack(own, values);
        modulate(values, i, found, line, weights, biases, scales, shifts);
        store_vector(y + row * ROW_BYTES + vector_of(i, member) * 16, pack(values));
    };
    static_assert(!IN_PIPELINE || !RESIDUAL, "a slot holds x, and the norm would take v");
    if constexpr (IN_PIPELINE) {
        const auto end = [&](i64 row, int slot, const Statistics& found, int) {
            renew_line(row);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
                if (!skips(i, member)) put_result(row, i, stream.template vector_in<0>(slot, i), found);
        };
        renew_line(rows.first);
        in_pipeline(stream, rows, eps, exchange, end);
        return;
    }
    int turn = 0;
    for (i64 row = rows.first; row < rows.end; row += rows.step, ++turn) {
        const auto [batch, token] = place_of(row, tokens);
        Vector own[PER_LANE], other[PER_LANE];  // x, then the rounded v; the residual
        if constexpr (!BULK) {
            stream.take<0>(row, own);
            if constexpr (RESIDUAL) stream.take<1>(row, other);
        }
        if constexpr (RESIDUAL && GATE >= 0 && COMBINED)
            renew_gates(row);
        else if constexpr (RESIDUAL && GATE >= 0)
            gates.keep(modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token), member);
        if constexpr (COMBINED) {
            renew_line(row);
        } else {
            scales.keep(modulation_row<SCALE_DTYPE, SCALE>(scale, {scale_batch_stride, scale_group_stride, scale_rows}, batch, token), member);
            shifts.keep(modulation_row<SHIFT_DTYPE, SHIFT>(shift, {shift_batch_stride, shift_group_stride, shift_rows}, batch, token), member);
        }
        if constexpr (BULK) {
            stream.wait();
            stream.take<0>(row, own);
            if constexpr (RESIDUAL) stream.take<1>(row, other);
        }
        if constexpr (RESIDUAL) add(row, own, other);
        const Statistics found =
            row_statistics<SPREAD>([&](int i, float (&values)[VEC]) { unpack(own[i], values); }, member, 0, turn, eps, exchange);
        stream.release(row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (!skips(i, member)) put_result(row, i, own[i], found);
    }
}
