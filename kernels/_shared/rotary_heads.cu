// Rotation of heads, with their RMS norm or without it, in place: qknorm_rope and rotary_embedding with two vectors of a head to each lane.
//
// In the neox layout the two vectors are a pair's two halves, so a rotation needs no other lane. A head of 80 elements in 16 bits takes 5
// lanes and a warp carries six heads; no power of two is needed. Without the norm no lane needs another one, and heads lie across warps.
// Each group of lanes takes UNROLL heads of one token, of q or of k, whose loads are in flight together.
//
// Compiled by NVRTC with these macros defined, beside those of row_norm.cuh (WARPS 1), own_vectors.cuh and heads.cuh: THREADS (of a block).

#include "row_norm.cuh"
#include "own_vectors.cuh"
#include "heads.cuh"

constexpr int HEAD_VECTORS = EXTENT / VEC;
constexpr int HEAD_LANES = (HEAD_VECTORS + 1) / 2;      // that share a head
constexpr int WARP_HEADS = NORM ? 32 / HEAD_LANES : 1;  // heads that a warp carries
constexpr int APART = HALF / VEC;                       // vectors between a pair's halves in the neox layout
constexpr int ANGLES = INTERLEAVED ? PAIRS : VEC;       // cosines of one run
constexpr int RUNS = INTERLEAVED ? 2 : 1;
constexpr int Q_CHUNKS = (Q_HEADS + UNROLL - 1) / UNROLL;
constexpr int K_CHUNKS = (K_HEADS + UNROLL - 1) / UNROLL;
constexpr int CHUNKS = Q_CHUNKS + K_CHUNKS;
constexpr bool FULL = Q_HEADS % UNROLL == 0 && K_HEADS % UNROLL == 0 && HEAD_VECTORS % 2 == 0;  // no lane lacks a vector of a head

static_assert(R % VEC == 0, "what is rotated must be whole vectors");
static_assert(INTERLEAVED || HALF % VEC == 0, "in the neox layout R/2 must be whole vectors");
static_assert(!NORM || (HEAD_LANES <= 32 && HEAD_VECTORS % 2 == 0), "a head of the norm must be an even number of vectors, at most 64");

// Which vector of the head is the lane's first (half 0) or second (half 1); HEAD_VECTORS or more where it has none.
__device__ __forceinline__ int place(int lane, int half) {
    if constexpr (INTERLEAVED) return lane + half * HEAD_LANES;
    else return lane < APART ? lane + half * APART : APART + lane + half * (HEAD_LANES - APART);
}

// Two heads of a norm, all asked for first, make 128 threads spill, and take 5 to 8 % longer (heads of 128, H200, cold) than loads that
// the compiler leaves between the first head's work, as it does with inline assembly.
__device__ __forceinline__ Vector load_head(const char* p) {
    if constexpr (!NORM || UNROLL == 1 || !ALIGNED) return load_own(p);
    Vector v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(p));
    return v;
}

// One pair turned, or left as it is.
__device__ __forceinline__ void turn(float& x, float& y, float c, float s, bool turns) {
    const float a = x, b = y;
    x = turns ? turned(a, c, b, -s) : a;
    y = turns ? turned(b, c, a, s) : b;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
rotary_heads(char* q, char* k, const char* __restrict__ q_weight, const char* __restrict__ k_weight, const char* __restrict__ cosines,
             const char* __restrict__ sines, const char* __restrict__ positions, i64 rows, i64 tokens, i64 q_batch_stride,
             i64 q_token_stride, i64 k_batch_stride, i64 k_token_stride, i64 position_offset, float eps) {
    const Count items = (Count)rows * CHUNKS;
    const Count thread = (Count)blockIdx.x * THREADS + threadIdx.x;
    const int warp_lane = threadIdx.x % 32;
    // Groups of a norm stay within a warp, whose last lanes may idle but stay: shuffles need every lane.
    const Count item = NORM ? thread / 32 * WARP_HEADS + warp_lane / HEAD_LANES : thread / HEAD_LANES;
    const int lane = NORM ? warp_lane % HEAD_LANES : (int)(thread - item * HEAD_LANES);
    const bool valid = item < items && (!NORM || warp_lane < WARP_HEADS * HEAD_LANES);
    if (!NORM && !valid) return;
    const Count row = valid ? item / CHUNKS : 0;
    const int chunk = valid ? (int)(item - row * CHUNKS) : 0;
    const bool is_q = K_HEADS == 0 || chunk < Q_CHUNKS;
    const int first = is_q ? chunk : chunk - Q_CHUNKS;
    const int apart = is_q ? Q_CHUNKS : K_CHUNKS;  // neighbouring groups take neighbouring heads
    const int heads = is_q ? Q_HEADS : K_HEADS;
    const Count sample = SAMPLES ? row / (Count)tokens : 0;
    const Count token = row - sample * (Count)tokens;
    char* const base = is_q ? q + (sample * q_batch_stride + token * q_token_stride) * ITEM
                            : k + (sample * k_batch_stride + token * k_token_stride) * ITEM;
    const auto exists = [&](int u, int h) {
        return valid && (FULL || (first + u * apart < heads && place(lane, h) < HEAD_VECTORS));
    };
    const auto address = [&](int u, int h) { return base + ((first + u * apart) * D + place(lane, h) * VEC) * ITEM; };

    Vector own[UNROLL][2];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (exists(u, h)) own[u][h] = load_head(address(u, h));
            else own[u][h] = Vector{{0, 0, 0, 0}};
        }

    const Angles angles = angles_of(cosines, sines, position_of(positions, row, token) + position_offset);
    float c[RUNS][ANGLES], s[RUNS][ANGLES];
    bool turns[RUNS];
#pragma unroll
    for (int h = 0; h < RUNS; ++h) {
        turns[h] = INTERLEAVED ? place(lane, h) < R / VEC : lane < APART;
        if (turns[h]) {
            load_angles(angles.cosines + place(lane, h) * (ANGLES * CACHE_ITEM), c[h]);
            load_angles(angles.sines + place(lane, h) * (ANGLES * CACHE_ITEM), s[h]);
        }
    }
    Vector weight[2];
    if constexpr (NORM && AFFINE) {
#pragma unroll
        for (int h = 0; h < 2; ++h) weight[h] = load_weight((is_q ? q_weight : k_weight) + place(lane, h) * 16);
    }

#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        float x[2][VEC];
#pragma unroll
        for (int h = 0; h < 2; ++h) unpack(own[u][h], x[h]);
        if constexpr (NORM) {
            float squares = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < VEC; ++e) squares += x[h][e] * x[h][e];
            const float scale = rsqrtf(head_sum<HEAD_LANES>(squares, lane, warp_lane - lane) * (1.0f / D) + eps);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float w[VEC];
                if constexpr (AFFINE) unpack(weight[h], w);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    x[h][e] *= scale;
                    if constexpr (AFFINE) x[h][e] *= w[e];
                    if constexpr (ROUND_NORM) x[h][e] = widen<DTYPE>(narrow<DTYPE>(x[h][e]));
                }
            }
        }
        if constexpr (INTERLEAVED) {
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int p = 0; p < ANGLES; ++p) turn(x[h][2 * p], x[h][2 * p + 1], c[h][p], s[h][p], turns[h]);
        } else {
#pragma unroll
            for (int e = 0; e < VEC; ++e) turn(x[0][e], x[1][e], c[0][e], s[0][e], turns[0]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
            if (exists(u, h)) store_own(address(u, h), pack(x[h]));
    }
}
