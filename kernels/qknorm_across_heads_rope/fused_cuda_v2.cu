// qknorm_across_heads_rope in CUDA C++: a token's heads of q and of k as one run of vectors over the warps of one block.
//
// A lane's vectors lie a whole number of heads apart, so at one column of every head: it reads its cosines and sines once, whatever the width of
// a head. A block takes one token, or one for each warp; other blocks of the multiprocessor load meanwhile. Macros beside those of
// row_norm.cuh (D is all channels of a token) and own_vectors.cuh:
//
//   Q_HEADS, K_HEADS, HEAD_DIM    heads of q and k, channels of a head
//   CACHE_DTYPE                   dtype of the cosines and sines, coded as DTYPE
//   AFFINE                        1: both norms have a weight, in DTYPE
//   MIN_BLOCKS                    blocks resident per multiprocessor

#include "../_shared/row_norm.cuh"
#include "../_shared/own_vectors.cuh"

constexpr int HEAD_VECTORS = HEAD_DIM / VEC;
constexpr int ACTIVE = LANES / HEAD_VECTORS * HEAD_VECTORS;  // lanes with vectors: those of whole heads
constexpr int EACH = (VECTORS + ACTIVE - 1) / ACTIVE;          // vectors per lane
constexpr int Q_VECTORS = Q_HEADS * HEAD_VECTORS;

static_assert(D == (Q_HEADS + K_HEADS) * HEAD_DIM && HEAD_DIM % VEC == 0, "a vector must lie in one head");
static_assert(ACTIVE > 0 && (WARPS == 1 || GROUPS == 1), "a token's lanes must hold a head; warps that share a token are a block");

// Whether the lane's i-th vector exists, and whether it is of q: known when compiling but for a last pass, and one in which q ends.
__device__ __forceinline__ bool has(int i, int member) {
    return (ACTIVE == LANES || member < ACTIVE) && ((i + 1) * ACTIVE <= VECTORS || member + i * ACTIVE < VECTORS);
}
__device__ __forceinline__ bool of_q(int i, int member) {
    return (i + 1) * ACTIVE <= Q_VECTORS || (i * ACTIVE < Q_VECTORS && member + i * ACTIVE < Q_VECTORS);
}

__device__ __forceinline__ float squares_of(const Vector& v) {
    float x[VEC], squares = 0.0f;
    unpack(v, x);
#pragma unroll
    for (int e = 0; e < VEC; ++e) squares += x[e] * x[e];
    return squares;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
qknorm_across_heads_rope(char* q, char* k, const char* __restrict__ q_weight, const char* __restrict__ k_weight,
                         const char* __restrict__ cache, i64 rows, i64 tokens, i64 q_stride, i64 k_stride, float eps) {
    __shared__ float2 slots[WARPS];  // squares of q and of k
    const int member = threadIdx.x % LANES;
    const i64 row = (i64)blockIdx.x * GROUPS + threadIdx.x / LANES;
    if (GROUPS > 1 && row >= rows) return;  // a whole warp, which no other one waits for
    char* const q_row = q + row * q_stride * ITEM;
    char* const k_row = k + row * k_stride * ITEM - Q_VECTORS * 16;  // a vector's place counts from q's first
    const char* const q_weights = q_weight + member * 16;
    const char* const k_weights = k_weight - Q_VECTORS * 16 + member * 16;
    Vector own[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (has(i, member)) own[i] = load_own((of_q(i, member) ? q_row : k_row) + (member + i * ACTIVE) * 16);
    float c[PAIRS], s[PAIRS];
    const u32 token = SAMPLES ? (u32)row % (u32)tokens : (u32)row;
    const char* const angles = cache + ((i64)token * HEAD_DIM + member % HEAD_VECTORS * PAIRS) * CACHE_ITEM;
    load_angles(angles, c);
    load_angles(angles + HEAD_DIM / 2 * CACHE_ITEM, s);

    float2 squares = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (has(i, member)) {
            const float more = squares_of(own[i]);
            if (of_q(i, member)) squares.x += more;
            else squares.y += more;
        }
    squares = make_float2(warp_sum(squares.x), warp_sum(squares.y));
    if constexpr (WARPS > 1) {
        if (member % 32 == 0) slots[member / 32] = squares;
        __syncthreads();
        squares = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) squares.x += slots[w].x, squares.y += slots[w].y;
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (has(i, member)) keep_narrow(own[i]);
    const float q_scale = __frsqrt_rn(squares.x * (1.0f / (Q_HEADS * HEAD_DIM)) + eps);
    const float k_scale = __frsqrt_rn(squares.y * (1.0f / (K_HEADS * HEAD_DIM)) + eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!has(i, member)) continue;
        const int vector = member + i * ACTIVE;
        const float scale = of_q(i, member) ? q_scale : k_scale;
        float x[VEC];
        unpack(own[i], x);
#pragma unroll
        for (int e = 0; e < VEC; ++e) x[e] *= scale;
        if constexpr (AFFINE) {
            float w[VEC];
            unpack(load_weight((of_q(i, member) ? q_weights : k_weights) + i * (ACTIVE * 16)), w);
#pragma unroll
            for (int e = 0; e < VEC; ++e) x[e] *= w[e];
        }
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const float a = x[2 * p], b = x[2 * p + 1];
            x[2 * p] = a * c[p] - b * s[p];
            x[2 * p + 1] = b * c[p] + a * s[p];
        }
        store_own((of_q(i, member) ? q_row : k_row) + vector * 16, pack(x));
    }
}
