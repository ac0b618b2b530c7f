// qknorm_rope in CUDA C++: a group of lanes per (token, head), 16-byte loads, reductions by shuffles, no shared memory, persistent grid.
//
// A row of D elements is D * ITEM / 16 vectors; a group is the next power of two of that many lanes, at most a warp (D = 128 in 16 bits:
// 16 lanes, so a warp carries two rows).  Each group takes UNROLL heads of one token at a time: their loads are in flight together, and
// their cosines, sines and weights are read once.  Compiled by NVRTC with the macros below defined; it needs no header.
//
//   D, R               head dimension, rotated dimensions
//   Q_HEADS, K_HEADS   heads of q and of k
//   DTYPE              0 bfloat16, 1 float16, 2 float32 (activations and weights)
//   CACHE_DTYPE        the same for the cosines and sines
//   INTERLEAVED        1: pairs (2i, 2i + 1); 0: pairs (i, i + R/2)
//   ROUND_NORM, AFFINE, WIDE_POSITIONS (1: int64, 0: int32)
//   ALIGNED            1: every row of q and k starts on 16 bytes
//   CACHE_ALIGNED      1: every group of four cosines starts on 16 bytes
//   UNROLL, THREADS, MIN_BLOCKS   tuning

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

constexpr u32 ALL = 0xffffffffu;
constexpr int ITEM = DTYPE == 2 ? 4 : 2;
constexpr int VEC = 16 / ITEM;      // elements per vector
constexpr int VECTORS = D / VEC;    // vectors per row
constexpr int HALF = R / 2;

__device__ constexpr int power_of_two_at_least(int n) { int p = 1; while (p < n) p *= 2; return p; }
constexpr int LANES = VECTORS >= 32 ? 32 : power_of_two_at_least(VECTORS);
constexpr int PER_LANE = (VECTORS + LANES - 1) / LANES;
constexpr int GROUPS = 32 / LANES;  // rows that a warp carries
constexpr int Q_CHUNKS = (Q_HEADS + UNROLL - 1) / UNROLL;
constexpr int K_CHUNKS = (K_HEADS + UNROLL - 1) / UNROLL;
constexpr int CHUNKS = Q_CHUNKS + K_CHUNKS;
constexpr int COSINES = INTERLEAVED ? VEC / 2 : VEC;  // per vector

static_assert(D % VEC == 0, "a row must be whole vectors");
static_assert(INTERLEAVED || HALF % VEC == 0, "in the neox layout R/2 must be whole vectors");
static_assert(INTERLEAVED || R / VEC <= 32 || (HALF / VEC) % 32 == 0, "a pair's halves must lie in one pass of the group");

template <int KIND> __device__ __forceinline__ float widen(u32 bits) {
    if constexpr (KIND == 0) return __uint_as_float(bits << 16);
    else if constexpr (KIND == 1) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)bits)); return f; }
    else return __uint_as_float(bits);
}

template <int KIND> __device__ __forceinline__ u32 narrow(float f) {  // round to nearest even
    if constexpr (KIND == 0) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
    else if constexpr (KIND == 1) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
    else return __float_as_uint(f);
}

template <int KIND> __device__ __forceinline__ float load_one(const void* base, i64 index) {
    if constexpr (KIND == 2) return ((const float*)base)[index];
    else return widen<KIND>(((const u16*)base)[index]);
}

struct Vector { u32 word[4]; };

template <bool WHOLE> __device__ __forceinline__ Vector load_vector(const char* p) {
    Vector v;
    if constexpr (WHOLE) {
        uint4 raw = *(const uint4*)p;
        v.word[0] = raw.x; v.word[1] = raw.y; v.word[2] = raw.z; v.word[3] = raw.w;
    } else if constexpr (ITEM == 4) {
        for (int i = 0; i < 4; ++i) v.word[i] = ((const u32*)p)[i];
    } else {
        for (int i = 0; i < 4; ++i) v.word[i] = ((const u16*)p)[2 * i] | ((u32)((const u16*)p)[2 * i + 1] << 16);
    }
    return v;
}

template <bool WHOLE> __device__ __forceinline__ void store_vector(char* p, const Vector& v) {
    if constexpr (WHOLE) {
        *(uint4*)p = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
    } else if constexpr (ITEM == 4) {
        for (int i = 0; i < 4; ++i) ((u32*)p)[i] = v.word[i];
    } else {
        for (int i = 0; i < 4; ++i) { ((u16*)p)[2 * i] = (u16)v.word[i]; ((u16*)p)[2 * i + 1] = (u16)(v.word[i] >> 16); }
    }
}

__device__ __forceinline__ void unpack(const Vector& v, float (&x)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        if constexpr (ITEM == 4) x[i] = __uint_as_float(v.word[i]);
        else x[i] = widen<DTYPE>((v.word[i / 2] >> (16 * (i % 2))) & 0xffffu);
    }
}

__device__ __forceinline__ Vector pack(const float (&x)[VEC]) {
    Vector v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (ITEM == 4) v.word[i] = __float_as_uint(x[i]);
        else v.word[i] = narrow<DTYPE>(x[2 * i]) | (narrow<DTYPE>(x[2 * i + 1]) << 16);
    }
    return v;
}

// COSINES values from column `first` of a row of the cache; those of pairs past R/2 turn by nothing.
__device__ __forceinline__ void load_angles(const void* cache, i64 row, int first, float (&cosines)[COSINES], float (&sines)[COSINES]) {
    if constexpr (CACHE_ALIGNED && CACHE_DTYPE == 2 && COSINES % 4 == 0 && HALF % 4 == 0) {
        if (first < HALF) {
            const float* p = (const float*)cache + row * R + first;
#pragma unroll
            for (int i = 0; i < COSINES; i += 4) {
                float4 c = *(const float4*)(p + i), s = *(const float4*)(p + HALF + i);
                cosines[i] = c.x; cosines[i + 1] = c.y; cosines[i + 2] = c.z; cosines[i + 3] = c.w;
                sines[i] = s.x; sines[i + 1] = s.y; sines[i + 2] = s.z; sines[i + 3] = s.w;
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < COSINES; ++i) {
        bool inside = first + i < HALF;
        cosines[i] = inside ? load_one<CACHE_DTYPE>(cache, row * R + first + i) : 1.0f;
        sines[i] = inside ? load_one<CACHE_DTYPE>(cache, row * R + HALF + first + i) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
qknorm_rope(char* __restrict__ q, char* __restrict__ k, const char* __restrict__ q_weight, const char* __restrict__ k_weight,
            const void* __restrict__ cache, const void* __restrict__ positions, i64 q_stride, i64 k_stride, i64 position_offset,
            i64 tokens, float eps) {
    const int lane = threadIdx.x % LANES;
    const int group_in_warp = (threadIdx.x % 32) / LANES;
    const i64 items = tokens * CHUNKS;
    const i64 step = (i64)gridDim.x * (THREADS / 32) * GROUPS;
    // The whole warp stays in the loop until its first group is done: shuffles need every lane.
    for (i64 first = ((i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * GROUPS; first < items; first += step) {
        const i64 item = first + group_in_warp;
        const bool valid = item < items;
        const i64 token = valid ? item / CHUNKS : 0;
        const int chunk = valid ? (int)(item - token * CHUNKS) : 0;
        const bool is_q = chunk < Q_CHUNKS;
        const int head = (is_q ? chunk : chunk - Q_CHUNKS) * UNROLL;
        const int heads = is_q ? Q_HEADS : K_HEADS;
        char* row = (is_q ? q + token * q_stride * ITEM : k + token * k_stride * ITEM) + (i64)head * D * ITEM;

        Vector raw[UNROLL][PER_LANE];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                const int vector = lane + i * LANES;
                if (valid && head + u < heads && vector < VECTORS)
                    raw[u][i] = load_vector<ALIGNED>(row + (u * D + vector * VEC) * ITEM);
                else
                    raw[u][i] = Vector{{0, 0, 0, 0}};
            }

        i64 position = WIDE_POSITIONS ? ((const i64*)positions)[token] : (i64)((const int*)positions)[token];
        position += position_offset;
        float cosines[PER_LANE][COSINES], sines[PER_LANE][COSINES], weight[PER_LANE][VEC];
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int vector = lane + i * LANES;
            int pair = vector * COSINES;  // first pair of this vector, or a value past R/2 where it is not rotated
            if constexpr (!INTERLEAVED) pair = vector < HALF / VEC ? vector * VEC : vector * VEC - HALF;
            load_angles(cache, position, pair, cosines[i], sines[i]);
            if constexpr (AFFINE) {
                Vector w = Vector{{0, 0, 0, 0}};
                if (vector < VECTORS) w = load_vector<ALIGNED>((is_q ? q_weight : k_weight) + vector * 16);
                unpack(w, weight[i]);
            }
        }

#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float x[PER_LANE][VEC];
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                unpack(raw[u][i], x[i]);
#pragma unroll
                for (int e = 0; e < VEC; ++e) squares += x[i][e] * x[i][e];
            }
#pragma unroll
            for (int distance = LANES / 2; distance > 0; distance /= 2) squares += __shfl_xor_sync(ALL, squares, distance);
            const float scale = rsqrtf(squares * (1.0f / D) + eps);
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i)
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    x[i][e] *= scale;
                    if constexpr (AFFINE) x[i][e] *= weight[i][e];
                    if constexpr (ROUND_NORM) x[i][e] = widen<DTYPE>(narrow<DTYPE>(x[i][e]));
                }
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                const int vector = lane + i * LANES;
                float y[VEC];
                if constexpr (INTERLEAVED) {
#pragma unroll
                    for (int p = 0; p < COSINES; ++p) {
                        const float a = x[i][2 * p], b = x[i][2 * p + 1], c = cosines[i][p], s = sines[i][p];
                        const bool turns = R == D || vector * COSINES + p < HALF;
                        y[2 * p] = turns ? a * c - b * s : a;
                        y[2 * p + 1] = turns ? b * c + a * s : b;
                    }
                } else {
                    constexpr int APART = HALF / VEC;  // vectors between a pair's halves
                    const bool lower = vector < APART;
                    const bool turns = vector < 2 * APART;
#pragma unroll
                    for (int e = 0; e < VEC; ++e) {
                        float partner;
                        if constexpr (APART % 32 == 0) partner = x[(i + APART / 32) % PER_LANE][e];
                        else partner = __shfl_sync(ALL, x[i][e], lower ? lane + APART : lane - APART, LANES);
                        const float c = cosines[i][e], s = sines[i][e];
                        const float turned = lower ? x[i][e] * c - partner * s : x[i][e] * c + partner * s;
                        y[e] = turns ? turned : x[i][e];
                    }
                }
                if (valid && head + u < heads && vector < VECTORS)
                    store_vector<ALIGNED>(row + (u * D + vector * VEC) * ITEM, pack(y));
            }
        }
    }
}
