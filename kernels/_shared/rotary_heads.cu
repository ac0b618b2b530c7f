// Rotation of heads, with their RMS norm or without it, in place: qknorm_rope and rotary_embedding in CUDA C++.
//
// A lane holds two vectors of 16 bytes of a head. In the neox layout these are a pair's two halves, so a rotation needs no other lane. A head
// of 80 elements in 16 bits takes 5 lanes and a warp carries six heads; no power of two is needed. Without the norm no lane needs another
// one, and heads lie across warps. Each group of lanes takes UNROLL heads of one token, whose loads are in flight together.
//
// Compiled by NVRTC with these macros defined; needs no other header:
//
//   D, R               head dimension, rotated dimensions
//   Q_HEADS, K_HEADS   heads of q and of k; K_HEADS 0: no k
//   DTYPE              0 bfloat16, 1 float16, 2 float32 (activations and weights)
//   CACHE_DTYPE        the same for the cosines and sines
//   INTERLEAVED        1: pairs (2i, 2i + 1); 0: pairs (i, i + R/2)
//   NORM               1: RMS norm first; 0: products are rounded one by one, as torch's are
//   ROUND_NORM, AFFINE of the norm
//   POSITION_BYTES     bytes of a position (4, 8); 0: a token's position is its place in its sample
//   JOINT              1: a row of the cache holds cosines, then sines; 0: two tables
//   ALIGNED            1: every head of q and k, and both weights, start on 16 bytes
//   CACHE_ALIGNED      1: every run of cosines and sines that a lane reads starts on its own width
//   SAMPLES            1: tokens of several samples
//   WIDE               1: 64-bit counts of lanes
//   UNROLL, THREADS, MIN_BLOCKS   tuning

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

constexpr u32 ALL = 0xffffffffu;
constexpr int FLOAT32 = 2;
constexpr int ITEM = DTYPE == FLOAT32 ? 4 : 2;
constexpr int VEC = 16 / ITEM;                 // elements per vector
constexpr int EXTENT = NORM ? D : R;           // what is read and written of a head
constexpr int VECTORS = EXTENT / VEC;
constexpr int LANES = (VECTORS + 1) / 2;       // that share a head
constexpr int GROUPS = NORM ? 32 / LANES : 1;  // heads that a warp carries
constexpr int HALF = R / 2;
constexpr int APART = HALF / VEC;              // vectors between a pair's halves in the neox layout
constexpr int ANGLES = INTERLEAVED ? VEC / 2 : VEC;  // cosines of one run
constexpr int RUNS = INTERLEAVED ? 2 : 1;
constexpr int Q_CHUNKS = (Q_HEADS + UNROLL - 1) / UNROLL;
constexpr int K_CHUNKS = (K_HEADS + UNROLL - 1) / UNROLL;
constexpr int CHUNKS = Q_CHUNKS + K_CHUNKS;
constexpr bool FULL = Q_HEADS % UNROLL == 0 && K_HEADS % UNROLL == 0 && VECTORS % 2 == 0;  // no lane lacks a vector of a head

static_assert(D % VEC == 0 && R % VEC == 0, "what is rotated and what is not must be whole vectors");
static_assert(INTERLEAVED || HALF % VEC == 0, "in the neox layout R/2 must be whole vectors");
static_assert(!NORM || (LANES <= 32 && VECTORS % 2 == 0), "a head of the norm must be an even number of vectors, at most 64");

#if WIDE
using Count = i64;
#else
using Count = u32;
#endif

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

__device__ __forceinline__ u32 narrow_two(float low, float high) {  // two 16-bit values in one word
    u32 both;
    if constexpr (DTYPE == 0) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

struct Vector { u32 word[4]; };

__device__ __forceinline__ Vector load_vector(const char* p) {
    Vector v;
    if constexpr (ALIGNED) {
        const uint4 raw = *(const uint4*)p;
        v = {{raw.x, raw.y, raw.z, raw.w}};
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            v.word[i] = ITEM == 4 ? ((const u32*)p)[i] : ((const u16*)p)[2 * i] | ((u32)((const u16*)p)[2 * i + 1] << 16);
    }
    return v;
}

__device__ __forceinline__ void store_vector(char* p, const Vector& v) {
    if constexpr (ALIGNED) {
        *(uint4*)p = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (ITEM == 4) ((u32*)p)[i] = v.word[i];
            else ((u16*)p)[2 * i] = (u16)v.word[i], ((u16*)p)[2 * i + 1] = (u16)(v.word[i] >> 16);
        }
    }
}

__device__ __forceinline__ float value(const Vector& v, int e) {
    if constexpr (ITEM == 4) return __uint_as_float(v.word[e]);
    else return widen<DTYPE>((v.word[e / 2] >> (16 * (e % 2))) & 0xffffu);
}

__device__ __forceinline__ Vector pack(const float (&x)[VEC]) {
    Vector v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (ITEM == 4) v.word[i] = __float_as_uint(x[i]);
        else v.word[i] = narrow_two(x[2 * i], x[2 * i + 1]);
    }
    return v;
}

// ANGLES neighbouring cosines or sines, in the widest loads that their width allows.
__device__ __forceinline__ void load_angles(const char* p, float* out) {
    constexpr int SIZE = CACHE_DTYPE == FLOAT32 ? 4 : 2;
    constexpr int WORDS = ANGLES * SIZE / 4;
    if constexpr (!CACHE_ALIGNED || WORDS == 0) {
#pragma unroll
        for (int i = 0; i < ANGLES; ++i)
            out[i] = CACHE_DTYPE == FLOAT32 ? __ldg((const float*)p + i) : widen<CACHE_DTYPE>(__ldg((const u16*)p + i));
    } else {
        u32 word[WORDS];
        if constexpr (WORDS % 4 == 0) {
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 raw = __ldg((const uint4*)p + w / 4);
                word[w] = raw.x; word[w + 1] = raw.y; word[w + 2] = raw.z; word[w + 3] = raw.w;
            }
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; ++w) word[w] = __ldg((const u32*)p + w);
        }
#pragma unroll
        for (int i = 0; i < ANGLES; ++i)
            out[i] = SIZE == 4 ? __uint_as_float(word[i]) : widen<CACHE_DTYPE>((word[i / 2] >> (16 * (i % 2))) & 0xffffu);
    }
}

// Which vector of the head is the lane's first (half 0) or second (half 1); VECTORS or more where it has none.
__device__ __forceinline__ int place(int lane, int half) {
    if constexpr (INTERLEAVED) return lane + half * LANES;
    else return lane < APART ? lane + half * APART : APART + lane + half * (LANES - APART);
}

// Sum over the LANES neighbouring lanes of a head; `first` is the warp's lane that is the head's first.
__device__ __forceinline__ float head_sum(float x, int lane, int first) {
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

// One pair turned; with rounded products where nothing but the rotation is computed.
__device__ __forceinline__ void turn(float a, float b, float c, float s, float& x, float& y) {
    if constexpr (NORM) {
        x = a * c - b * s;
        y = b * c + a * s;
    } else {
        x = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
        y = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
rotary_heads(char* q, char* k, const char* __restrict__ q_weight, const char* __restrict__ k_weight, const char* __restrict__ cosines,
             const char* __restrict__ sines, const char* __restrict__ positions, i64 rows, i64 tokens, i64 q_batch_stride,
             i64 q_token_stride, i64 k_batch_stride, i64 k_token_stride, i64 position_offset, float eps) {
    constexpr int CACHE_ITEM = CACHE_DTYPE == FLOAT32 ? 4 : 2;
    const Count items = (Count)rows * CHUNKS;
    const int warp_lane = threadIdx.x % 32;
    // Groups of a norm stay within a warp, whose last lanes may idle. Without it, they follow one another across warps.
    const Count start = NORM ? ((Count)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * GROUPS : (Count)blockIdx.x * THREADS + threadIdx.x;
    const Count step = NORM ? (Count)gridDim.x * (THREADS / 32) * GROUPS : (Count)gridDim.x * THREADS;
    const Count end = NORM ? items : items * LANES;
    // With the norm the whole warp stays in the loop until its first group is done: shuffles need every lane.
    for (Count at = start; at < end; at += step) {
        const Count item = NORM ? at + warp_lane / LANES : at / LANES;
        const int lane = NORM ? warp_lane % LANES : (int)(at - item * LANES);
        const bool valid = !NORM || (item < items && warp_lane < GROUPS * LANES);
        const Count row = valid ? item / CHUNKS : 0;
        const int chunk = valid ? (int)(item - row * CHUNKS) : 0;
        const bool is_q = K_HEADS == 0 || chunk < Q_CHUNKS;
        const int first = is_q ? chunk : chunk - Q_CHUNKS;
        const int apart = is_q ? Q_CHUNKS : K_CHUNKS;  // neighbouring groups take neighbouring heads
        const int heads = is_q ? Q_HEADS : K_HEADS;
        const Count sample = SAMPLES ? row / (Count)tokens : 0;
        const Count token = row - sample * (Count)tokens;
        char* base = is_q ? q + (sample * q_batch_stride + token * q_token_stride) * ITEM
                          : k + (sample * k_batch_stride + token * k_token_stride) * ITEM;

        Vector raw[UNROLL][2];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (valid && (FULL || (first + u * apart < heads && place(lane, h) < VECTORS)))
                    raw[u][h] = load_vector(base + ((first + u * apart) * D + place(lane, h) * VEC) * ITEM);
                else
                    raw[u][h] = {{0, 0, 0, 0}};
            }

        i64 position = token;
        if constexpr (POSITION_BYTES == 8) position = __ldg((const i64*)positions + row);
        else if constexpr (POSITION_BYTES == 4) position = __ldg((const int*)positions + row);
        position += position_offset;
        const char* cosine_row = cosines + position * ((JOINT ? R : HALF) * CACHE_ITEM);
        const char* sine_row = JOINT ? cosine_row + HALF * CACHE_ITEM : sines + position * (HALF * CACHE_ITEM);
        float c[RUNS * ANGLES], s[RUNS * ANGLES];
        bool turns[RUNS];
#pragma unroll
        for (int h = 0; h < RUNS; ++h) {
            turns[h] = INTERLEAVED ? place(lane, h) < R / VEC : lane < APART;
            if (turns[h]) {
                load_angles(cosine_row + place(lane, h) * (ANGLES * CACHE_ITEM), c + h * ANGLES);
                load_angles(sine_row + place(lane, h) * (ANGLES * CACHE_ITEM), s + h * ANGLES);
            }
        }
        Vector weight[2];
        if constexpr (NORM && AFFINE) {
#pragma unroll
            for (int h = 0; h < 2; ++h) weight[h] = load_vector((is_q ? q_weight : k_weight) + place(lane, h) * 16);
        }

#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float x[2][VEC], y[2][VEC];
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < VEC; ++e) x[h][e] = value(raw[u][h], e);
            if constexpr (NORM) {
                float squares = 0.0f;
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int e = 0; e < VEC; ++e) squares += x[h][e] * x[h][e];
                const float scale = rsqrtf(head_sum(squares, lane, warp_lane - lane) * (1.0f / D) + eps);
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int e = 0; e < VEC; ++e) {
                        x[h][e] *= scale;
                        if constexpr (AFFINE) x[h][e] *= value(weight[h], e);
                        if constexpr (ROUND_NORM) x[h][e] = widen<DTYPE>(narrow<DTYPE>(x[h][e]));
                    }
            }
            if constexpr (INTERLEAVED) {
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int p = 0; p < ANGLES; ++p) {
                        turn(x[h][2 * p], x[h][2 * p + 1], c[h * ANGLES + p], s[h * ANGLES + p], y[h][2 * p], y[h][2 * p + 1]);
                        if (!turns[h]) y[h][2 * p] = x[h][2 * p], y[h][2 * p + 1] = x[h][2 * p + 1];
                    }
            } else {
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    turn(x[0][e], x[1][e], c[e], s[e], y[0][e], y[1][e]);
                    if (!turns[0]) y[0][e] = x[0][e], y[1][e] = x[1][e];
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (valid && (FULL || (first + u * apart < heads && place(lane, h) < VECTORS)))
                    store_vector(base + ((first + u * apart) * D + place(lane, h) * VEC) * ITEM, pack(y[h]));
        }
    }
}
