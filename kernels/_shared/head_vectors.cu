// Rotation of heads, with their RMS norm or without it, in place: qknorm_rope and rotary_embedding with a vector of a head to each lane.
//
// Neighbouring lanes hold neighbouring vectors of 16 bytes, and neighbouring heads follow: a warp's access is one run of whole sectors, for
// heads of 80 and 96 too, of which a warp carries three and two. A pair's other half in the neox layout comes by shuffles, at any distance.
// Each group of lanes takes UNROLL heads of one token, of q and of k alike, whose loads are in flight together.
//
// Compiled by NVRTC with these macros defined, beside those of row_norm.cuh (WARPS 1), own_vectors.cuh and heads.cuh: THREADS (of a block).

#include "row_norm.cuh"
#include "own_vectors.cuh"
#include "heads.cuh"

__device__ constexpr int divisor(int a, int b) { return b == 0 ? a : divisor(b, a % b); }  // the greatest that both have

constexpr int HEAD_LANES = EXTENT / VEC;
constexpr int WARP_HEADS = 32 / HEAD_LANES;            // heads that a warp carries
constexpr int HEADS = Q_HEADS + K_HEADS;
constexpr int CHUNKS = (HEADS + UNROLL - 1) / UNROLL;  // groups of lanes to a token
constexpr int ANGLES = INTERLEAVED ? PAIRS : VEC;      // cosines that a lane needs
constexpr int RUN = divisor(HALF, ANGLES);             // of them, that follow one another and turn, or do not, alike

static_assert(NORM || INTERLEAVED || RUN == ANGLES, "without the norm a pair's halves must lie whole vectors apart");
static_assert(HEAD_LANES <= 32, "a head must fit a warp, a vector to each lane");

// Whether place `e` of STEP places of the lane lies before LIMIT: compared lane by lane, so that places have few answers between them.
template <int LIMIT, int STEP> __device__ __forceinline__ bool before(int lane, int e) { return lane < (LIMIT - e + STEP - 1) / STEP; }

// A vector of another lane of the warp.
__device__ __forceinline__ Vector from_lane(const Vector& v, int warp_lane) {
    Vector out;
#pragma unroll
    for (int w = 0; w < 4; ++w) out.word[w] = __shfl_sync(ALL, v.word[w], warp_lane);
    return out;
}

// The other value of each pair of the neox layout: R/2 elements further for a head's first R/2, and R/2 elements before for the next.
__device__ __forceinline__ void partners_of(const float (&x)[VEC], int lane, int warp_lane, float (&out)[VEC]) {
    constexpr int BACK = (HALF + VEC - 1) / VEC;  // lanes
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        const bool lower = before<HALF, VEC>(lane, e);
        const int further = e + HALF, earlier = e - HALF + BACK * VEC;
        const int next_lane = warp_lane + further / VEC, last_lane = warp_lane - BACK + earlier / VEC;
        if constexpr (R % VEC == 0) {  // both lie at the same place of their lanes
            out[e] = __shfl_sync(ALL, x[further % VEC], lower ? next_lane : last_lane);
        } else {
            const float next = __shfl_sync(ALL, x[further % VEC], next_lane), last = __shfl_sync(ALL, x[earlier % VEC], last_lane);
            out[e] = lower ? next : last;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
head_vectors(char* q, char* k, const char* __restrict__ q_weight, const char* __restrict__ k_weight, const char* __restrict__ cosines,
             const char* __restrict__ sines, const char* __restrict__ positions, i64 rows, i64 tokens, i64 q_batch_stride,
             i64 q_token_stride, i64 k_batch_stride, i64 k_token_stride, i64 position_offset, float eps) {
    const int warp_lane = threadIdx.x % 32;
    const int group = warp_lane / HEAD_LANES;
    const int lane = warp_lane - group * HEAD_LANES;
    const Count item = ((Count)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * WARP_HEADS + group;
    // Lanes without work stay: shuffles need every lane.
    const bool valid = group < WARP_HEADS && item < (Count)rows * CHUNKS;
    const Count row = valid ? item / CHUNKS : 0;
    const int chunk = valid ? (int)(item - row * CHUNKS) : 0;
    const Count sample = SAMPLES ? row / (Count)tokens : 0;
    const Count token = row - sample * (Count)tokens;
    // A head's place counts from q's first; neighbouring groups take neighbouring heads.
    char* const q_row = q + (sample * q_batch_stride + token * q_token_stride) * ITEM + lane * 16;
    char* const k_row = k + (sample * k_batch_stride + token * k_token_stride - Q_HEADS * D) * ITEM + lane * 16;
    const auto of_q = [&](int u) { return (u + 1) * CHUNKS <= Q_HEADS || (u * CHUNKS < Q_HEADS && chunk + u * CHUNKS < Q_HEADS); };
    const auto exists = [&](int u) { return valid && ((u + 1) * CHUNKS <= HEADS || chunk + u * CHUNKS < HEADS); };
    const auto place = [&](int u) { return (of_q(u) ? q_row : k_row) + (chunk + u * CHUNKS) * (D * ITEM); };

    // A lane without a head loads one that another lane has, so that no branch lies before a load. The cosines' addresses wait for the
    // position: launches of few heads, with one to a lane, ask for it first, and others behind their heads.
    i64 position = 0;
    if constexpr (UNROLL == 1) position = position_of(positions, row, token);
    Vector own[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) own[u] = load_own(place(exists(u) ? u : 0));

    __syncwarp();
    if constexpr (UNROLL > 1) position = position_of(positions, row, token);
    const Angles angles = angles_of(cosines, sines, position + position_offset);
    // In the neox layout a head's second R/2 elements have the angles of its first, with the sines' signs turned in these.
    const auto lower = [&](int e) { return before<HALF, VEC>(lane, e); };
    const auto turns = [&](int e) { return before<INTERLEAVED ? HALF : R, INTERLEAVED ? PAIRS : VEC>(lane, e); };
    float c[ANGLES], s[ANGLES];
#pragma unroll
    for (int e = 0; e < ANGLES; e += RUN)
        if (turns(e)) {
            const int at = (lane * ANGLES + e - (INTERLEAVED || lower(e) ? 0 : HALF)) * CACHE_ITEM;
            float cosines[RUN], sines[RUN];
            load_angles(angles.cosines + at, cosines);
            load_angles(angles.sines + at, sines);
#pragma unroll
            for (int i = 0; i < RUN; ++i) c[e + i] = cosines[i], s[e + i] = sines[i];
        }
    if constexpr (!INTERLEAVED) {
#pragma unroll
        for (int e = 0; e < ANGLES; ++e) s[e] = lower(e) ? -s[e] : s[e];
    }
    Vector weight_of_q = Vector{{0, 0, 0, 0}}, weight_of_k = Vector{{0, 0, 0, 0}};
    if constexpr (NORM && AFFINE) {
        weight_of_q = load_weight(q_weight + lane * 16);
        weight_of_k = load_weight(k_weight + lane * 16);
    }
    // The lane that holds the other values of the lane's pairs, where these lie whole vectors apart.
    const int other = warp_lane + (lower(0) ? HALF / VEC : -(HALF / VEC));

#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        float x[VEC];
        unpack(own[u], x);
        if constexpr (NORM) {
            float squares = 0.0f;
#pragma unroll
            for (int e = 0; e < VEC; ++e) squares += x[e] * x[e];
            const float scale = rsqrtf(head_sum<HEAD_LANES>(squares, lane, warp_lane - lane) * (1.0f / D) + eps);
            float w[VEC];
            if constexpr (AFFINE) unpack(of_q(u) ? weight_of_q : weight_of_k, w);
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                x[e] *= scale;
                if constexpr (AFFINE) x[e] *= w[e];
                if constexpr (ROUND_NORM) x[e] = widen<DTYPE>(narrow<DTYPE>(x[e]));
            }
        }
        if constexpr (INTERLEAVED) {
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                const float a = x[2 * p], b = x[2 * p + 1];
                const bool turning = R == EXTENT || turns(p);
                x[2 * p] = turning ? turned(a, c[p], -b, s[p]) : a;
                x[2 * p + 1] = turning ? turned(b, c[p], a, s[p]) : b;
            }
        } else {
            float partner[VEC];
            if constexpr (NORM) partners_of(x, lane, warp_lane, partner);
            else unpack(from_lane(own[u], other), partner);  // values as they were read, two to a shuffle
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                const float y = turned(x[e], c[e], partner[e], s[e]);
                if (R == EXTENT || turns(e)) x[e] = y;
            }
        }
        if (exists(u)) store_own(place(u), pack(x));
    }
}
