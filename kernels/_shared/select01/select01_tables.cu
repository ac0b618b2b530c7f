// norm_scale_shift_gate_select01 and its residual form in CUDA C++, by teams of warps beside tables of both row sets (row_tables.cuh).
//
// A section is a sample. Its two tables hold factor and term of either set, and the gates as they are stored, so rows are taken in memory's
// order, whatever they select.
//
// Macros beside those of row_tables.cuh, where TABLES is 2:
//
//   RESIDUAL                     1: v = residual + residual_gate * x first; the norm takes the unrounded v
//   ROW_DTYPE                    dtype of the six rows, coded as DTYPE
//   WEIGHT_DTYPE, BIAS_DTYPE     likewise; -1: none
//   INDEX_BYTES                  bytes of an index (1, 4, 8); whatever is not zero asks for row set 1

#define STREAMS (RESIDUAL ? 3 : 1)
#define KINDS 2
#include "../row_tables.cuh"

__device__ __forceinline__ bool takes_set_one(const char* index, i64 place) {
    if constexpr (INDEX_BYTES == 1) return __ldg((const unsigned char*)index + place) != 0;
    else if constexpr (INDEX_BYTES == 4) return __ldg((const int*)index + place) != 0;
    else return __ldg((const i64*)index + place) != 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
select01_tables(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ residual_gate,
                const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale0,
                const char* __restrict__ shift0, const char* __restrict__ gate0, const char* __restrict__ scale1,
                const char* __restrict__ shift1, const char* __restrict__ gate1, const char* __restrict__ index, char* __restrict__ y,
                char* __restrict__ v, char* __restrict__ gate_out, i64 row_count, i64 section_rows, i64 tokens, i64 x_batch_stride,
                i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride, i64 residual_gate_batch_stride,
                i64 residual_gate_row_stride, i64 scale0_stride, i64 shift0_stride, i64 gate0_stride, i64 scale1_stride,
                i64 shift1_stride, i64 gate1_stride, i64 index_batch_stride, i64 index_token_stride, float eps) {
    constexpr int ROW_ITEM = ROW_DTYPE == FLOAT32 ? 4 : 2;
    __shared__ Exchange exchange;
    const int group = threadIdx.x / LANES, member = threadIdx.x % LANES;
    const Rows block(row_count, 0), own_rows = team_rows(block, group);
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
    // Asked for one row ahead, so that no row waits for it.
    bool next = own_rows.first < own_rows.end ? chosen_by(own_rows.first) : false;
    Stream stream(ring_of(group), source, own_rows, member);
    uint4* const gates = (uint4*)Table(2).quads;  // of set 0, then of set 1
    const auto fill = [&](u32 batch, int) {
        for (int at = threadIdx.x; at < 2 * VECTORS; at += THREADS) {
            const bool one = at >= VECTORS;
            const int vector = one ? at - VECTORS : at;
            const char* scale = one ? scale1 + batch * scale1_stride * ROW_ITEM : scale0 + batch * scale0_stride * ROW_ITEM;
            const char* shift = one ? shift1 + batch * shift1_stride * ROW_ITEM : shift0 + batch * shift0_stride * ROW_ITEM;
            const char* gate = one ? gate1 + batch * gate1_stride * ROW_ITEM : gate0 + batch * gate0_stride * ROW_ITEM;
            float factor[VEC], term[VEC], values[VEC];
            load_shared_values<ROW_DTYPE, SHARED_ALIGNED>(gate, vector * VEC, values);
            combine_vector<WEIGHT_DTYPE, BIAS_DTYPE, ROW_DTYPE, CHANNEL, ROW_DTYPE, CHANNEL>(
                factor, term, weight, bias, scale, shift, vector * VEC
            );
            const Table table(one);
            table.put(0, vector, factor);
            table.put(1, vector, term);
            store_vector((char*)(gates + at), pack(values));
        }
    };
    int turn = 0;
    const auto work = [&](i64 row, int) {
        const bool one = next;
        const Table table(one);
        if (row + GROUPS < own_rows.end) next = chosen_by(row + GROUPS);
        Vector own[PER_LANE];
        float wide[RESIDUAL ? PER_LANE : 1][VEC];  // the unrounded v
        stream.wait();
        stream.take(0, row, own);
        if constexpr (RESIDUAL) {
            Vector factor[PER_LANE], other[PER_LANE];  // residual_gate, residual
            stream.take(1, row, factor);
            stream.take(2, row, other);
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
        const auto value = [&](int i, float (&values)[VEC]) {
            if constexpr (RESIDUAL) {
#pragma unroll
                for (int e = 0; e < VEC; ++e) values[e] = wide[i][e];
            } else {
                unpack(own[i], values);
            }
        };
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            const int vector = member + i * LANES;
            const uint4 gate = gates[one ? VECTORS + vector : vector];
            *(uint4*)(gate_out + row * ROW_BYTES + vector * 16) = gate;
        }
        const Statistics found = row_statistics<SPREAD>(value, member, group, turn++, eps, exchange);
        stream.release(row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            float values[VEC];
            value(i, values);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = (values[e] - found.mean) * found.inverse;
            table.apply(0, member + i * LANES, values);
            store_vector(y + row * ROW_BYTES + (member + i * LANES) * 16, pack(values));
        }
    };
    in_sections<1>(block, own_rows, section_rows, fill, work);
}
