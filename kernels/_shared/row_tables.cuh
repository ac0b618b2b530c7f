// Device code of row norms of which several are worked on at once in one block, beside tables of what rows share.
//
// One block per multiprocessor has GROUPS teams of WARPS warps. Each team streams rows of its own through its own ring (row_stream.cuh).
// What rows share (weights, biases, modulations) is put together once per block, in float32, into a table in shared memory that all teams
// read. So it takes no registers, and is loaded once per multiprocessor instead of once per block.
//
// Macros beside those of row_stream.cuh, where THREADS is GROUPS * 32 * WARPS and COMBINED is 1:
//
//   TABLES   tables that are kept at once
//   KINDS    values per element of a table

#include "row_stream.cuh"

static_assert(COMBINED, "blocks take neighbouring rows");
static_assert(WARPS == 1 || GROUPS <= 15, "a team of several warps needs a named barrier");

constexpr int QUADS = VEC / 4;  // of four float32 values each, per vector

// float32 values of one row of elements, KINDS for each, behind the rings in shared memory: neighbouring vectors lie in neighbouring
// 16 bytes, so that no banks conflict.
struct Table {
    float4* quads;

    __device__ __forceinline__ explicit Table(int number)
        : quads((float4*)(shared_bytes + GROUPS * sizeof(Ring)) + number * KINDS * QUADS * VECTORS) {}

    __device__ __forceinline__ void get(int kind, int vector, float (&out)[VEC]) const {
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const float4 f = quads[(kind * QUADS + q) * VECTORS + vector];
            out[4 * q] = f.x; out[4 * q + 1] = f.y; out[4 * q + 2] = f.z; out[4 * q + 3] = f.w;
        }
    }

    __device__ __forceinline__ void put(int kind, int vector, const float (&in)[VEC]) const {
#pragma unroll
        for (int q = 0; q < QUADS; ++q)
            quads[(kind * QUADS + q) * VECTORS + vector] = make_float4(in[4 * q], in[4 * q + 1], in[4 * q + 2], in[4 * q + 3]);
    }

    // normalised * factor + term, of the kinds `first` and `first + 1`.
    __device__ __forceinline__ void apply(int first, int vector, float (&values)[VEC]) const {
        float factor[VEC], term[VEC];
        get(first, vector, factor);
        get(first + 1, vector, term);
#pragma unroll
        for (int e = 0; e < VEC; ++e) values[e] = values[e] * factor[e] + term[e];
    }
};

// Works on the block's rows in sections of `section_rows` neighbours (counted over all samples) that share all their values, AT_ONCE of
// them at once.  `fill(section, number)` makes what its `number`-th section shares with all threads of the block; `work(row, number)` is a
// team's.
template <int AT_ONCE, class Fill, class Work>
__device__ __forceinline__ void in_sections(const Rows& block, const Rows& own, i64 section_rows, const Fill& fill, const Work& work) {
    const u32 begin = (u32)block.first, end = (u32)block.end, length = (u32)section_rows;  // rows fit 32 bits, in half as many registers
    u32 row = (u32)own.first;
    for (u32 from = begin; from < end;) {
        const u32 first = from / length;
        const u32 until = min(end - from, (first + AT_ONCE) * length - from) + from;  // may pass 32 bits before `end` bounds it
        if (from != begin) __syncthreads();  // no team reads the last tables any more
        for (u32 n = 0; n < AT_ONCE && (first + n) * length < until; ++n) fill(first + n, n);
        __syncthreads();
        for (; row < until; row += GROUPS) work((i64)row, AT_ONCE == 1 ? 0 : (int)(row / length - first));
        from = until;
    }
}

// The rows of one team.
__device__ __forceinline__ Rows team_rows(const Rows& block, int group) {
    Rows own = block;
    own.first += group;
    own.step = GROUPS;
    return own;
}
