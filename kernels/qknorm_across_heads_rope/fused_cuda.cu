// qknorm_across_heads_rope in CUDA C++: WARPS warps per token, its rows of q and of k in registers, persistent grid.
//
// Both rows are asked for together and meet at one barrier.  A lane reads its cosines and sines once for all its vectors where these lie at the
// same columns of a head (always for heads of 64, 128 and 256).  Macros beside those of row_norm.cuh, whose D is the width of a row, H * HEAD_DIM:
//
//   HEAD_DIM                  channels of a head
//   CACHE_DTYPE               dtype of the cosines and sines, coded as DTYPE
//   AFFINE                    1: both norms have a weight, in DTYPE
//   ALIGNED, CACHE_ALIGNED    1: every row of q, k and the weights, every vector's cosines and sines start on 16 bytes
//   MIN_BLOCKS                blocks resident per multiprocessor
//   PREFETCH                  1: a token is asked for before the token before it is worked on

#include "../_shared/row_norm.cuh"
#include "../_shared/own_vectors.cuh"

constexpr int HALF = HEAD_DIM / 2;
constexpr int COLUMNS = (LANES * VEC) % HEAD_DIM == 0 ? 1 : PER_LANE;  // different columns of a head that a lane's vectors have

static_assert(D % HEAD_DIM == 0 && HEAD_DIM % 8 == 0, "a vector must lie in one head");

struct Token { Vector q[PER_LANE], k[PER_LANE]; };
struct Angles { float cosines[COLUMNS][PAIRS], sines[COLUMNS][PAIRS]; };

__device__ __forceinline__ void load_half(const char* base, i64 index, float (&out)[PAIRS]) {  // PAIRS cosines, or sines
    if constexpr (CACHE_ALIGNED && CACHE_DTYPE == FLOAT32 && PAIRS == 4) {
        const float4 f = __ldg((const float4*)((const float*)base + index));
        out[0] = f.x; out[1] = f.y; out[2] = f.z; out[3] = f.w;
    } else if constexpr (CACHE_ALIGNED && CACHE_DTYPE == FLOAT32 && PAIRS == 2) {
        const float2 f = __ldg((const float2*)((const float*)base + index));
        out[0] = f.x; out[1] = f.y;
    } else {
#pragma unroll
        for (int i = 0; i < PAIRS; ++i)
            out[i] = CACHE_DTYPE == FLOAT32 ? __ldg((const float*)base + index + i) : widen<CACHE_DTYPE>(__ldg((const u16*)base + index + i));
    }
}

// Makes the compiler widen 16-bit values again where they are used next, instead of keeping twice as many registers until then.
__device__ __forceinline__ void keep_narrow(Vector (&own)[PER_LANE]) {
    if constexpr (ITEM == 2) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(own[i].word[w]));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
qknorm_across_heads_rope(char* q, char* k, const char* __restrict__ q_weight, const char* __restrict__ k_weight,
                         const char* __restrict__ cache, i64 rows, i64 tokens, i64 q_stride, i64 k_stride, float eps) {
    __shared__ float2 slots[2][THREADS / 32];  // squares of q and of k, in turns, so that one barrier a token is enough
    const int group = threadIdx.x / LANES;
    const int member = threadIdx.x % LANES;
    const i64 step = (i64)gridDim.x * GROUPS;

    const auto fetch = [&](i64 row, Token& into, Angles& angles) {
        const char* from_q = q + row * q_stride * ITEM;
        const char* from_k = k + row * k_stride * ITEM;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (holds(i, member)) into.q[i] = load_own(from_q + (member + i * LANES) * 16);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i)
            if (holds(i, member)) into.k[i] = load_own(from_k + (member + i * LANES) * 16);
        const i64 table = (i64)((u32)row % (u32)tokens) * HEAD_DIM;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            if (!holds(c, member)) continue;
            const int pair = (member + c * LANES) * VEC % HEAD_DIM / 2;
            load_half(cache, table + pair, angles.cosines[c]);
            load_half(cache, table + HALF + pair, angles.sines[c]);
        }
    };
    const auto squares_of = [&](const Vector(&own)[PER_LANE]) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            float x[VEC];
            unpack(own[i], x);
#pragma unroll
            for (int e = 0; e < VEC; ++e) squares += x[e] * x[e];
        }
        return warp_sum(squares);
    };
    const auto finish = [&](char* to, const Vector(&own)[PER_LANE], const char* weights, const Angles& angles, float squares) {
        const float scale = __frsqrt_rn(squares * (1.0f / D) + eps);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            if (!holds(i, member)) continue;
            const int vector = member + i * LANES;
            float x[VEC];
            unpack(own[i], x);
#pragma unroll
            for (int e = 0; e < VEC; ++e) x[e] *= scale;
            if constexpr (AFFINE) {
                float w[VEC];
                load_shared_values<DTYPE, ALIGNED>(weights, vector * VEC, w);
#pragma unroll
                for (int e = 0; e < VEC; ++e) x[e] *= w[e];
            }
            const int column = COLUMNS == 1 ? 0 : i;
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                const float a = x[2 * p], b = x[2 * p + 1], c = angles.cosines[column][p], s = angles.sines[column][p];
                x[2 * p] = a * c - b * s;
                x[2 * p + 1] = b * c + a * s;
            }
            store_own(to + vector * 16, pack(x));
        }
    };

    int turn = 0;
    i64 row = (i64)blockIdx.x * GROUPS + group;
    Token ahead;
    Angles ahead_angles;
    if constexpr (PREFETCH)
        if (row < rows) fetch(row, ahead, ahead_angles);
    for (; row < rows; row += step, ++turn) {
        Token own;
        Angles angles;
        if constexpr (PREFETCH) {
            own = ahead;
            angles = ahead_angles;
            if (row + step < rows) fetch(row + step, ahead, ahead_angles);
        } else {
            fetch(row, own, angles);
        }
        float2 squares = make_float2(squares_of(own.q), squares_of(own.k));
        if constexpr (WARPS > 1) {
            float2* meeting = slots[turn & 1] + group * WARPS;
            if (member % 32 == 0) meeting[member / 32] = squares;
            row_barrier(group);
            squares = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; ++w) squares.x += meeting[w].x, squares.y += meeting[w].y;
        }
        keep_narrow(own.q);
        keep_narrow(own.k);
        finish(q + row * q_stride * ITEM, own.q, q_weight, angles, squares.x);
        finish(k + row * k_stride * ITEM, own.k, k_weight, angles, squares.y);
    }
}
