// norm_scale_shift_gate_select01 and its residual form in CUDA C++, over streamed rows (row_stream.cuh).
//
// Macros beside those of row_stream.cuh:
//
//   RESIDUAL                     1: v = residual + residual_gate * x first; the norm takes the unrounded v
//   ROW_DTYPE                    dtype of the six rows, coded as DTYPE
//   WEIGHT_DTYPE, BIAS_DTYPE     likewise; -1: none
//   INDEX_BYTES                  bytes of an index (1, 4, 8); whatever is not zero asks for row set 1

#define STREAMS (RESIDUAL ? 3 : 1)
#include "../row_stream.cuh"

__device__ __forceinline__ bool takes_set_one(const char* index, i64 place) {
    if constexpr (INDEX_BYTES == 1) return __ldg((const unsigned char*)index + place) != 0;
    else if constexpr (INDEX_BYTES == 4) return __ldg((const int*)index + place) != 0;
    else return __ldg((const i64*)index + place) != 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
select01_stream(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ residual_gate,
                const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale0,
                const char* __restrict__ shift0, const char* __restrict__ gate0, const char* __restrict__ scale1,
                const char* __restrict__ shift1, const char* __restrict__ gate1, const char* __restrict__ index, char* __restrict__ y,
                char* __restrict__ v, char* __restrict__ gate_out, i64 row_count, i64 chunk, i64 tokens, i64 x_batch_stride,
                i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride, i64 residual_gate_batch_stride,
                i64 residual_gate_row_stride, i64 scale0_stride, i64 shift0_stride, i64 gate0_stride, i64 scale1_stride,
                i64 shift1_stride, i64 gate1_stride, i64 index_batch_stride, i64 index_token_stride, float eps) {
    constexpr int ROW_ITEM = ROW_DTYPE == FLOAT32 ? 4 : 2;
    __shared__ Ring ring;
    __shared__ Exchange exchange;
    const int member = threadIdx.x;
    const Rows rows(row_count, chunk);
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        if (stream == 0) return x + (batch * x_batch_stride + token * x_row_stride) * ITEM;
        if (stream == 1) return residual_gate + (batch * residual_gate_batch_stride + token * residual_gate_row_stride) * ITEM;
        return residual + (batch * residual_batch_stride + token * residual_row_stride) * ITEM;
    };
    const auto chosen_by = [&](i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return takes_set_one(index, batch * index_batch_stride + token * index_token_stride);
    };
    // Asked for one row ahead: the addresses of the row sets wait for it.
    bool next = rows.first < rows.end ? chosen_by(rows.first) : false;
    Stream stream(ring, source, rows, member);
    Kept<WEIGHT_DTYPE, WEIGHT_DTYPE >= 0 ? CHANNEL : ABSENT> weights;
    Kept<BIAS_DTYPE, BIAS_DTYPE >= 0 ? CHANNEL : ABSENT> biases;
    Kept<ROW_DTYPE, CHANNEL> scales, shifts, gates;  // of the set that the last row chose
    weights.load(weight, member);
    biases.load(bias, member);
    int turn = 0;
    for (i64 row = rows.first; row < rows.end; row += rows.step, ++turn) {
        const i64 batch = (u32)row / (u32)tokens;
        const bool one = next;
        Vector own[PER_LANE], factor[PER_LANE], other[PER_LANE];  // x, residual_gate, residual
        if constexpr (!BULK) {
            stream.take(0, row, own);
            if constexpr (RESIDUAL) stream.take(1, row, factor), stream.take(2, row, other);
        }
        gates.keep(one ? gate1 + batch * gate1_stride * ROW_ITEM : gate0 + batch * gate0_stride * ROW_ITEM, member);
        scales.keep(one ? scale1 + batch * scale1_stride * ROW_ITEM : scale0 + batch * scale0_stride * ROW_ITEM, member);
        shifts.keep(one ? shift1 + batch * shift1_stride * ROW_ITEM : shift0 + batch * shift0_stride * ROW_ITEM, member);
        if (row + rows.step < rows.end) next = chosen_by(row + rows.step);
        if constexpr (BULK) {
            stream.wait();
            stream.take(0, row, own);
            if constexpr (RESIDUAL) stream.take(1, row, factor), stream.take(2, row, other);
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
                if (!holds(i, member)) continue;
                float values[VEC], factors[VEC];
                unpack(own[i], values);
                unpack(factor[i], factors);
                unpack(other[i], wide[i]);
                // Not contracted, so that v rounds as torch's float32 chain does.
#pragma unroll
                for (int e = 0; e < VEC; ++e) wide[i][e] = __fadd_rn(wide[i][e], __fmul_rn(values[e], factors[e]));
                store_vector(v + row * ROW_BYTES + (member + i * LANES) * 16, pack(wide[i]));
            }
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            float values[VEC];
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = gates.value(i, e);
            store_vector(gate_out + row * ROW_BYTES + (member + i * LANES) * 16, pack(values));
        }

        const Statistics found = row_statistics(value, member, 0, turn, eps, exchange);
        stream.release(row);

#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            float values[VEC];
            value(i, values);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                values[e] = (values[e] - found.mean) * found.inverse;
                if constexpr (WEIGHT_DTYPE >= 0) values[e] *= weights.value(i, e);
                if constexpr (BIAS_DTYPE >= 0) values[e] += biases.value(i, e);
                values[e] = values[e] * (1.0f + scales.value(i, e)) + shifts.value(i, e);
            }
            store_vector(y + row * ROW_BYTES + (member + i * LANES) * 16, pack(values));
        }
    }
}
