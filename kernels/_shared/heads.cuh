// Heads that neighbouring lanes of a warp share, and their angles. Beside row_norm.cuh (WARPS 1) and own_vectors.cuh, which come first.
//
//   R                  rotated dimensions of a head's D
//   Q_HEADS, K_HEADS   heads of q and of k; K_HEADS 0: no k
//   INTERLEAVED        1: pairs (2i, 2i + 1); 0: pairs (i, i + R/2)
//   NORM               1: RMS norm first; 0: products are rounded one by one, as torch's are
//   ROUND_NORM, AFFINE of the norm
//   POSITION_BYTES     bytes of a position (4, 8); 0: a token's position is its place in its sample
//   JOINT              1: a row of the cache holds cosines, then sines; 0: two tables
//   SAMPLES            1: tokens of several samples
//   WIDE               1: 64-bit counts of lanes
//   UNROLL, MIN_BLOCKS tuning

constexpr int EXTENT = NORM ? D : R;  // what is read and written of a head
constexpr int HALF = R / 2;

static_assert(EXTENT % VEC == 0, "what is read of a head must be whole vectors");

#if WIDE
using Count = i64;
#else
using Count = u32;
#endif

// Sum over the LANES neighbouring lanes of a head; `first` is the warp's lane that is the head's first.
template <int LANES> __device__ __forceinline__ float head_sum(float x, int lane, int first) {
    constexpr int POWER = LANES & -LANES, ODD = LANES / POWER;
    if constexpr (ODD == 1) {
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL, x, distance);
    } else {
        // Lanes of one remainder by POWER first, then the remainders by halves; lanes turn round within the head.
        float sum = x;
#pragma unroll
        for (int turn = 1; turn < ODD; ++turn) {
            const int from = lane + turn * POWER;
            sum += __shfl_sync(ALL, x, first + (from >= LANES ? from - LANES : from));
        }
        x = sum;
#pragma unroll
        for (int distance = POWER / 2; distance > 0; distance /= 2) {
            const int from = lane + distance;
            x += __shfl_sync(ALL, x, first + (from >= LANES ? from - LANES : from));
        }
    }
    return x;
}

// a * c + b * s, with rounded products where nothing but the rotation is computed.
__device__ __forceinline__ float turned(float a, float c, float b, float s) {
    if constexpr (NORM) return a * c + b * s;
    else return __fadd_rn(__fmul_rn(a, c), __fmul_rn(b, s));
}

// Where a token's cosines and sines lie: `row` counts the tokens of all samples, `token` those of its sample.
struct Angles { const char* cosines; const char* sines; };
__device__ __forceinline__ i64 position_of(const char* positions, Count row, Count token) {
    if constexpr (POSITION_BYTES == 8) return __ldg((const i64*)positions + row);
    else if constexpr (POSITION_BYTES == 4) return __ldg((const int*)positions + row);
    else return token;
}
__device__ __forceinline__ Angles angles_of(const char* cosines, const char* sines, i64 position) {
    const char* const row = cosines + position * ((JOINT ? R : HALF) * CACHE_ITEM);
    return {row, JOINT ? row + HALF * CACHE_ITEM : sines + position * (HALF * CACHE_ITEM)};
}
