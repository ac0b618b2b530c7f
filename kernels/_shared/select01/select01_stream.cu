// norm_scale_shift_gate_select01 and its residual form in CUDA C++, over streamed rows (row_stream.cuh).
//
// Macros beside those of row_stream.cuh and row_sets.cuh:
//
//   RESIDUAL                     1: v = residual + residual_gate * x first; the norm takes the unrounded v
//   ROW_DTYPE                    dtype of the six rows, coded as DTYPE
//   WEIGHT_DTYPE, BIAS_DTYPE     likewise; -1: none
//
// With COMBINED a block has at most 32 rows, and takes those of row set 0 first: it changes the set once.

#define STREAM_ITEMS ITEM, RESIDUAL ? ITEM : 0, RESIDUAL ? ITEM : 0
#include "../row_stream.cuh"
#include "row_sets.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
select01_stream(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ residual_gate,
                const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale0,
                const char* __restrict__ shift0, const char* __restrict__ gate0, const char* __restrict__ scale1,
                const char* __restrict__ shift1, const char* __restrict__ gate1, const char* __restrict__ index, char* __restrict__ y,
                char* __restrict__ v, char* __restrict__ gate_out, i64 least, i64 more, i64 step, i64 parts, i64 part_rows, i64 tokens,
                i64 x_batch_stride, i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride, i64 residual_gate_batch_stride,
                i64 residual_gate_row_stride, i64 scale0_stride, i64 shift0_stride, i64 gate0_stride, i64 scale1_stride,
                i64 shift1_stride, i64 gate1_stride, i64 index_batch_stride, i64 index_token_stride, float eps) {
    constexpr int ROW_ITEM = ROW_DTYPE == FLOAT32 ? 4 : 2;
    __shared__ Exchange exchange;
    const int member = threadIdx.x;
    const Rows rows(least, more, step, parts, part_rows);
    __shared__ int order[COMBINED ? 32 : 1];
    // The row at a place of the block's order.
    const auto row_at = [&](i64 place) { return COMBINED ? rows.first + order[place - rows.first] : place; };
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(COMBINED ? row_at(row) : row, tokens);
        if (stream == 0) return x + (batch * x_batch_stride + token * x_row_stride) * ITEM;
        if (stream == 1) return residual_gate + (batch * residual_gate_batch_stride + token * residual_gate_row_stride) * ITEM;
        return residual + (batch * residual_batch_stride + token * residual_row_stride) * ITEM;
    };
    const auto chosen_by = [&](i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return takes_set_one(index, batch * index_batch_stride + token * index_token_stride);
    };
    // Asked for one row ahead: the addresses of the row sets wait for it.
    bool next = !COMBINED && rows.first < rows.end ? chosen_by(rows.first) : false;
    int zeros = 0;           // of the block's rows those of set 0
    bool straddles = false;  // whether the block has rows of several samples
    if constexpr (COMBINED) {
        const i64 row = rows.first + member % 32;
        const bool mine = row < rows.end;
        const bool one = mine && chosen_by(row);
        const u32 ones = __ballot_sync(ALL, one), below = (1u << member % 32) - 1, all = __ballot_sync(ALL, mine);
        zeros = __popc(all & ~ones);
        if (mine && member < 32) order[one ? zeros + __popc(ones & below) : __popc(~ones & below)] = member;
        __syncthreads();
        straddles = place_of(rows.first, tokens).batch != place_of(rows.end - 1, tokens).batch;
    }
    Stream stream(ring_of(0), source, rows, member);
    Kept<WEIGHT_DTYPE, !COMBINED && WEIGHT_DTYPE >= 0 ? CHANNEL : ABSENT> weights;
    Kept<BIAS_DTYPE, !COMBINED && BIAS_DTYPE >= 0 ? CHANNEL : ABSENT> biases;
    Kept<ROW_DTYPE, COMBINED ? ABSENT : CHANNEL> scales, shifts, gates;  // of the set that the last row chose
    Line line;                   // likewise
    Vector ready[PER_LANE];      // the gate, as it is stored
    i64 held_batch = 0;          // the sample of both
    weights.load(weight, member);
    biases.load(bias, member);
    int turn = 0;
    for (i64 place = rows.first; place < rows.end; place += rows.step, ++turn) {
        const i64 row = COMBINED ? row_at(place) : place;
        const i64 batch = (u32)row / (u32)tokens;
        const bool one = COMBINED ? place - rows.first >= zeros : next;
        Vector own[PER_LANE], factor[PER_LANE], other[PER_LANE];  // x, residual_gate, residual
        if constexpr (!BULK) {
            stream.take<0>(place, own);
            if constexpr (RESIDUAL) stream.take<1>(place, factor), stream.take<2>(place, other);
        }
        const auto gate = [&] { return one ? gate1 + batch * gate1_stride * ROW_ITEM : gate0 + batch * gate0_stride * ROW_ITEM; };
        const auto scale = [&] { return one ? scale1 + batch * scale1_stride * ROW_ITEM : scale0 + batch * scale0_stride * ROW_ITEM; };
        const auto shift = [&] { return one ? shift1 + batch * shift1_stride * ROW_ITEM : shift0 + batch * shift0_stride * ROW_ITEM; };
        if constexpr (COMBINED) {
            if (place == rows.first + zeros || place == rows.first || (straddles && batch != held_batch)) {
                held_batch = batch;
                combine<WEIGHT_DTYPE, BIAS_DTYPE, ROW_DTYPE, CHANNEL, ROW_DTYPE, CHANNEL>(line, weight, bias, scale(), shift(), member);
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) {
                    if (skips(i, member)) continue;
                    float values[VEC];
                    load_shared_values<ROW_DTYPE, SHARED_ALIGNED>(gate(), vector_of(i, member) * VEC, values);
                    ready[i] = pack(values);
                }
            }
        } else {
            gates.keep(gate(), member);
            scales.keep(scale(), member);
            shifts.keep(shift(), member);
            if (row + rows.step < rows.end) next = chosen_by(row + rows.step);
        }
        if constexpr (BULK) {
            stream.wait();
            stream.take<0>(place, own);
            if constexpr (RESIDUAL) stream.take<1>(place, factor), stream.take<2>(place, other);
        }
        float wide[RESIDUAL ? PER_LANE : 1][VEC];  // the unrounded v
        const auto value = [&](int i, float (&values)[VEC]) {
            if constexpr (RESIDUAL) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] = wide[i][e];
            } else {
                unpack(own[i], values);
            }
        };
        if constexpr (RESIDUAL) {
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                float values[VEC], factors[VEC];
                unpack(own[i], values);
                unpack(factor[i], factors);
                unpack(other[i], wide[i]);
                // Not contracted, so that v rounds as torch's float32 chain does.
#pragma unroll
                for (int e = 0; e < VEC; ++e) wide[i][e] = __fadd_rn(wide[i][e], __fmul_rn(values[e], factors[e]));
                store_vector(v + row * ROW_BYTES + vector_of(i, member) * 16, pack(wide[i]));
            }
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            float values[VEC];
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = gates.value(i, e);
            store_vector(gate_out + row * ROW_BYTES + vector_of(i, member) * 16, COMBINED ? ready[i] : pack(values));
        }

        const Statistics found = row_statistics<SPREAD>(value, member, 0, turn, eps, exchange);
        stream.release(place);

#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (skips(i, member)) continue;
            float values[VEC];
            value(i, values);
            modulate(values, i, found, line, weights, biases, scales, shifts);
            store_vector(y + row * ROW_BYTES + vector_of(i, member) * 16, pack(values));
        }
    }
}
