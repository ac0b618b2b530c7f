// norm_scale_shift and residual_gate_norm_scale_shift in CUDA C++, by teams of warps beside tables of what rows share (row_tables.cuh).
//
// Macros beside those of row_tables.cuh:
//
//   RESIDUAL                          1: v = residual + gate * x first
//   GATE, SCALE, SHIFT                addressing of the modulation (0 one value, 1 one row, 2 a row per sample or token); GATE -1: none
//   GATE_DTYPE, SCALE_DTYPE, SHIFT_DTYPE, WEIGHT_DTYPE, BIAS_DTYPE   dtypes, coded as DTYPE; WEIGHT_DTYPE, BIAS_DTYPE -1: none
//   GATE_SHARED                       1: a section's rows take the same gate, which is in its table; 0: each loads its own

#define STREAMS (RESIDUAL ? 2 : 1)
#define KINDS (RESIDUAL && GATE >= 0 && GATE_SHARED ? 3 : 2)
#include "row_tables.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
modulated_tables(const char* __restrict__ x, const char* __restrict__ residual, const char* __restrict__ gate,
                 const char* __restrict__ weight, const char* __restrict__ bias, const char* __restrict__ scale,
                 const char* __restrict__ shift, char* __restrict__ y, char* __restrict__ v, i64 row_count, i64 section_rows, i64 tokens,
                 i64 x_batch_stride, i64 x_row_stride, i64 residual_batch_stride, i64 residual_row_stride, i64 gate_batch_stride,
                 i64 gate_group_stride, i64 gate_rows, i64 scale_batch_stride, i64 scale_group_stride, i64 scale_rows,
                 i64 shift_batch_stride, i64 shift_group_stride, i64 shift_rows, float eps) {
    __shared__ Exchange exchange;
    const int group = threadIdx.x / LANES, member = threadIdx.x % LANES;
    const Rows block(row_count, 0), own_rows = team_rows(block, group);
    const auto source = [&](int stream, i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return stream == 0 ? x + (batch * x_batch_stride + token * x_row_stride) * ITEM
                           : residual + (batch * residual_batch_stride + token * residual_row_stride) * ITEM;
    };
    const auto gate_row = [&](i64 row) {
        const auto [batch, token] = place_of(row, tokens);
        return modulation_row<GATE_DTYPE, GATE>(gate, {gate_batch_stride, gate_group_stride, gate_rows}, batch, token);
    };
    Stream stream(ring_of(group), source, own_rows, member);
    const auto fill = [&](u32 section, int number) {
        const Table table(number);
        const i64 row = (i64)section * section_rows;
        const auto [batch, token] = place_of(row, tokens);
        const char* scale_row =
            modulation_row<SCALE_DTYPE, SCALE>(scale, {scale_batch_stride, scale_group_stride, scale_rows}, batch, token);
        const char* shift_row =
            modulation_row<SHIFT_DTYPE, SHIFT>(shift, {shift_batch_stride, shift_group_stride, shift_rows}, batch, token);
        for (int vector = threadIdx.x; vector < VECTORS; vector += THREADS) {
            float factor[VEC], term[VEC];
            combine_vector<WEIGHT_DTYPE, BIAS_DTYPE, SCALE_DTYPE, SCALE, SHIFT_DTYPE, SHIFT>(
                factor, term, weight, bias, scale_row, shift_row, vector * VEC
            );
            table.put(0, vector, factor);
            table.put(1, vector, term);
            if constexpr (KINDS == 3) {
                load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gate_row(row), vector * VEC, factor);
                table.put(2, vector, factor);
            }
        }
    };
    int turn = 0;
    const auto work = [&](i64 row, int number) {
        const Table table(number);
        Vector own[PER_LANE], other[PER_LANE];  // x, then the rounded v; the residual
        stream.wait();
        stream.take(0, row, own);
        if constexpr (RESIDUAL) {
            stream.take(1, row, other);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (!holds(i, member)) continue;
                float values[VEC], sums[VEC];
                unpack(own[i], values);
                unpack(other[i], sums);
                // Not contracted, so that v rounds as torch's float32 chain does.
                if constexpr (GATE >= 0) {
                    float gates[VEC];
                    if constexpr (KINDS == 3) table.get(2, member + i * LANES, gates);
                    else load_modulation<GATE_DTYPE, GATE, SHARED_ALIGNED>(gate_row(row), (member + i * LANES) * VEC, gates);
#pragma unroll
                    for (int e = 0; e < VEC; ++e) values[e] = __fmul_rn(values[e], gates[e]);
                }
#pragma unroll
                for (int e = 0; e < VEC; ++e) sums[e] = __fadd_rn(sums[e], values[e]);
                own[i] = pack(sums);
                store_vector(v + row * ROW_BYTES + (member + i * LANES) * 16, own[i]);
            }
        }
        const Statistics found =
            row_statistics<SPREAD>([&](int i, float (&values)[VEC]) { unpack(own[i], values); }, member, group, turn++, eps, exchange);
        stream.release(row);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            float values[VEC];
            unpack(own[i], values);
#pragma unroll
            for (int e = 0; e < VEC; ++e) values[e] = (values[e] - found.mean) * found.inverse;
            table.apply(0, member + i * LANES, values);
            store_vector(y + row * ROW_BYTES + (member + i * LANES) * 16, pack(values));
        }
    };
    in_sections<TABLES>(block, own_rows, section_rows, fill, work);
}
