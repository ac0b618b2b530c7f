// Device code of norms over whole rows in CUDA C++: a row in the registers of WARPS warps, 16-byte vectors, statistics by shuffles.
//
// Compiled by NVRTC; needs no other header.  The including file is compiled with these macros defined:
//
//   D                elements of a row, a multiple of 8
//   DTYPE            0 bfloat16, 1 float16, 2 float32 (activations)
//   LAYER            1: layer norm; 0: RMS norm
//   WARPS, THREADS   warps that share a row (1, 2, 4, 8; 32 * (WARPS - 1) < vectors of a row), threads of a block
//   SAMPLES          0: x has one sample, so that no row's sample has to be found by a division; 1 where it is not defined
//   LEAVES           1: what is read once leaves the L2 first (cuda_rows.launch_macros); 0 where it is not defined
//
// Lane `member` of a row's 32 * WARPS lanes holds vectors member, member + 32 * WARPS, ... of the row: consecutive lanes, consecutive
// addresses.

#ifndef SAMPLES
#define SAMPLES 1
#endif
#ifndef LEAVES
#define LEAVES 0
#endif

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr u32 ALL = 0xffffffffu;
constexpr int BFLOAT16 = 0, FLOAT16 = 1, FLOAT32 = 2;
constexpr int ITEM = DTYPE == FLOAT32 ? 4 : 2;
constexpr int VEC = 16 / ITEM;                             // elements per vector
constexpr int VECTORS = D / VEC;                           // vectors per row
constexpr int LANES = 32 * WARPS;                          // lanes that share a row
constexpr int PER_LANE = (VECTORS + LANES - 1) / LANES;    // vectors per lane
constexpr int GROUPS = THREADS / LANES;                    // rows that a block works on at once

static_assert(D % 8 == 0, "a row must be whole vectors in every dtype");
static_assert(32 * (WARPS - 1) < VECTORS, "every warp must hold elements of the row");

// Whether lane `member` has an i-th vector of its own; true at compile time for all but the last of a row.
__device__ __forceinline__ bool holds(int i, int member) { return (i + 1) * LANES <= VECTORS || member + i * LANES < VECTORS; }

// A lane that has no i-th vector takes the row's last one too, and stores the same values: without branches, loads of all vectors are under
// way at once.  Where more than a quarter of the warps would do nothing else, they skip it.
constexpr int LAST = VECTORS - (PER_LANE - 1) * LANES;  // vectors of a row's last pass
constexpr bool REPEATS = 4 * (WARPS - (LAST + 31) / 32) <= WARPS;

__device__ __forceinline__ bool skips(int i, int member) { return !REPEATS && !holds(i, member); }

__device__ __forceinline__ int vector_of(int i, int member) {
    return REPEATS && !holds(i, member) ? VECTORS - 1 : member + i * LANES;
}

template <int KIND> __device__ __forceinline__ float widen(u32 bits) {
    if constexpr (KIND == BFLOAT16) return __uint_as_float(bits << 16);
    else if constexpr (KIND == FLOAT16) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)bits)); return f; }
    else return __uint_as_float(bits);
}

template <int KIND> __device__ __forceinline__ u32 narrow(float f) {  // round to nearest even
    if constexpr (KIND == BFLOAT16) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
    else if constexpr (KIND == FLOAT16) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
    else return __float_as_uint(f);
}

struct Vector { u32 word[4]; };  // 16 bytes

// For a load or copy whose lines leave the L2 before all others.
__device__ __forceinline__ u64 leaving() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// 16 bytes that are read once.  Without a hint for the L1: on an H200 no_allocate and evict_first cost 1 to 5 % of a kernel's time.
template <int KIND, bool WHOLE> __device__ __forceinline__ Vector load_once(const char* p) {
    Vector v;
    if constexpr (WHOLE && LEAVES) {
        asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
            : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(p), "l"(leaving()));
    } else if constexpr (WHOLE) {
        asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(p));
    } else if constexpr (KIND == FLOAT32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.word[i] = __ldg((const u32*)p + i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.word[i] = __ldg((const u16*)p + 2 * i) | ((u32)__ldg((const u16*)p + 2 * i + 1) << 16);
    }
    return v;
}

// The lane's vectors of a row that is read once.
template <bool WHOLE> __device__ __forceinline__ void load_row(const char* source, int member, Vector (&out)[PER_LANE]) {
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i)
        if (!skips(i, member)) out[i] = load_once<DTYPE, WHOLE>(source + vector_of(i, member) * 16);
}

__device__ __forceinline__ void store_vector(char* p, const Vector& v) {  // outputs are allocations of their own, so aligned
    *(uint4*)p = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

__device__ __forceinline__ void unpack(const Vector& v, float (&x)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        if constexpr (ITEM == 4) x[i] = __uint_as_float(v.word[i]);
        else x[i] = widen<DTYPE>((v.word[i / 2] >> (16 * (i % 2))) & 0xffffu);
    }
}

__device__ __forceinline__ u32 narrow_two(float low, float high) {  // two 16-bit values in one word
    u32 both;
    if constexpr (DTYPE == BFLOAT16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
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

// VEC values of KIND from element `index` of `base` that many rows share (weights, modulations), widened.  WHOLE: 16-byte alignment.
template <int KIND, bool WHOLE> __device__ __forceinline__ void load_shared_values(const char* base, int index, float (&out)[VEC]) {
    constexpr int SIZE = KIND == FLOAT32 ? 4 : 2;
    const char* p = base + (i64)index * SIZE;
    if constexpr (WHOLE && KIND == FLOAT32) {
#pragma unroll
        for (int i = 0; i < VEC; i += 4) {
            float4 f = __ldg((const float4*)p + i / 4);
            out[i] = f.x; out[i + 1] = f.y; out[i + 2] = f.z; out[i + 3] = f.w;
        }
    } else if constexpr (WHOLE && VEC == 8) {
        uint4 raw = __ldg((const uint4*)p);
        const u32 word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < VEC; ++i) out[i] = widen<KIND>((word[i / 2] >> (16 * (i % 2))) & 0xffffu);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; ++i) out[i] = KIND == FLOAT32 ? __ldg((const float*)p + i) : widen<KIND>(__ldg((const u16*)p + i));
    }
}

// Modulations (see _shared/modulation.py) --------------------------------------------------------------------------------------------

// One value; one row for all of x; a row that depends on sample and token, on the sample alone, or a row for every token.
constexpr int SCALAR = 0, CHANNEL = 1, ROW = 2, OF_SAMPLE = 3, OF_TOKEN = 4;

struct Place { u32 batch, token; };

// The sample and the token of one row of x; both counts fit 32 bits, whose division is far cheaper.
__device__ __forceinline__ Place place_of(i64 row, i64 tokens) {
    if constexpr (!SAMPLES) return {0, (u32)row};
    const u32 batch = (u32)row / (u32)tokens;
    return {batch, (u32)row - batch * (u32)tokens};
}

struct Broadcast { i64 batch_stride, group_stride, rows_per_group; };  // in elements

// Where the values for (batch, token) start.
template <int KIND, int ADDRESSING>
__device__ __forceinline__ const char* modulation_row(const char* base, const Broadcast& at, u32 batch, u32 token) {
    if constexpr (ADDRESSING >= ROW) {
        const u32 group = ADDRESSING == OF_SAMPLE ? 0 : ADDRESSING == OF_TOKEN ? token : token / (u32)at.rows_per_group;
        base += (batch * at.batch_stride + group * at.group_stride) * (KIND == FLOAT32 ? 4 : 2);
    }
    return base;
}

template <int KIND> __device__ __forceinline__ float load_scalar(const char* p) {
    return KIND == FLOAT32 ? __ldg((const float*)p) : widen<KIND>(__ldg((const u16*)p));
}

template <int KIND, int ADDRESSING, bool WHOLE>
__device__ __forceinline__ void load_modulation(const char* row, int index, float (&out)[VEC]) {
    if constexpr (ADDRESSING == SCALAR) {
        const float value = load_scalar<KIND>(row);
#pragma unroll
        for (int i = 0; i < VEC; ++i) out[i] = value;
    } else {
        load_shared_values<KIND, WHOLE>(row, index, out);
    }
}

// Statistics -------------------------------------------------------------------------------------------------------------------------

struct Statistics { float mean, inverse; };  // mean is 0 for an RMS norm

// 1 / sqrt(x), rounded once where the outputs' rounding does not hide the two last bits.
__device__ __forceinline__ float inverse_root(float x) { return ITEM == 4 ? __frsqrt_rn(x) : rsqrtf(x); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL, x, distance);
    return x;
}

// Where the warps of ROWS rows meet: two slots in turn, so that one barrier for all of them is enough, and one for second sums.
template <int ROWS> struct ExchangeOf { float2 slot[3][ROWS][THREADS / 32]; };
using Exchange = ExchangeOf<1>;

__device__ __forceinline__ void row_barrier(int group) {
    if constexpr (LANES == THREADS) __syncthreads();
    else asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(LANES) : "memory");
}

struct Sums { float first, squares; };  // of a row's deviations from an origin; of an RMS norm the squares alone

// Of the warp's share of a row, whose i-th vector `value(i, x)` gives a lane, about an origin; in all of its lanes.
template <class Values> __device__ __forceinline__ Sums warp_sums(const Values& value, float origin, int member) {
    float first = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        if (skips(i, member)) continue;
        float x[VEC];
        value(i, x);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float apart = holds(i, member) ? x[e] - origin : 0.0f;
            if constexpr (LAYER) first += apart;
            squares += apart * apart;
        }
    }
    return {LAYER ? warp_sum(first) : 0.0f, warp_sum(squares)};
}

// Of a row whose warps have put theirs into `shares`.  SPREAD: each lane takes one warp's, and shuffles add them; otherwise every lane adds
// all.
template <bool SPREAD> __device__ __forceinline__ Sums whole_sums(const float2* shares, int member) {
    if constexpr (!SPREAD) {
        Sums sums = {shares[0].x, shares[0].y};
#pragma unroll
        for (int w = 1; w < WARPS; ++w) {
            if constexpr (LAYER) sums.first += shares[w].x;
            sums.squares += shares[w].y;
        }
        return sums;
    }
    constexpr int WIDTH = WARPS > 16 ? 32 : WARPS > 8 ? 16 : 8;
    const int of = member % WIDTH;
    const float2 share = of < WARPS ? shares[of] : make_float2(0.0f, 0.0f);
    Sums sums = {share.x, share.y};
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) {
        if constexpr (LAYER) sums.first += __shfl_xor_sync(ALL, sums.first, distance);
        sums.squares += __shfl_xor_sync(ALL, sums.squares, distance);
    }
    return sums;
}

// The sums of each of ROWS rows about its origin.
template <int ROWS, bool SPREAD, class Values>
__device__ __forceinline__ void rows_sums(const Values& value, const float (&origin)[ROWS], int member, int group,
                                          float2 (&slots)[ROWS][THREADS / 32], Sums (&sums)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[r] = warp_sums([&](int i, float (&x)[VEC]) { value(r, i, x); }, origin[r], member);
    if constexpr (WARPS == 1) return;
    if (member % 32 == 0) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) slots[r][group * WARPS + member / 32] = make_float2(sums[r].first, sums[r].squares);
    }
    row_barrier(group);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[r] = whole_sums<SPREAD>(slots[r] + group * WARPS, member);
}

// Sum of squared deviations from the mean.  Not first * first, which would be D times larger than the squares.
__device__ __forceinline__ float spread_of(const Sums& sums) { return sums.squares - sums.first * (sums.first * (1.0f / D)); }

// Squares about zero that are as many times larger than those about the mean lose 2 or 6 of float32's 24 bits.
constexpr float FAR = ITEM == 4 ? 4.0f : 64.0f;

// Whether a layer norm's sums about zero keep enough digits; false where something is no number.
__device__ __forceinline__ bool near_zero(const Sums& sums) { return sums.squares < FAR * spread_of(sums); }

__device__ __forceinline__ Statistics statistics_of(const Sums& sums, float origin, float eps) {
    const float variance = (LAYER ? fmaxf(spread_of(sums), 0.0f) : sums.squares) * (1.0f / D);  // of a NaN the mean is one too
    return {LAYER ? origin + sums.first * (1.0f / D) : 0.0f, inverse_root(variance + eps)};
}

// Mean and reciprocal deviation of each of ROWS rows, for which their warps meet once, or twice.  `value(r, i, x)` gives the float32 values
// of the lane's i-th vector of row r.
//
// A layer norm's rows are summed about zero.  Where that costs digits, because a row's mean is many deviations from zero, they are summed
// again about their means ("shifted data": Chan, Golub, LeVeque 1983).  Equal values leave exactly zeros.
template <int ROWS, bool SPREAD, class Values>
__device__ __forceinline__ void rows_statistics(const Values& value, int member, int group, int turn, float eps, ExchangeOf<ROWS>& exchange,
                                                Statistics (&found)[ROWS]) {
    float origin[ROWS] = {};
    Sums sums[ROWS];
    rows_sums<ROWS, SPREAD>(value, origin, member, group, exchange.slot[turn & 1], sums);
    if constexpr (LAYER) {
        bool near = true;  // the same for all lanes of the rows
#pragma unroll
        for (int r = 0; r < ROWS; ++r) near = near && near_zero(sums[r]);
        if (!near) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) origin[r] = sums[r].first * (1.0f / D);
            rows_sums<ROWS, SPREAD>(value, origin, member, group, exchange.slot[2], sums);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) found[r] = statistics_of(sums[r], origin[r], eps);
}

// Likewise of one row; `value(i, x)` gives the lane's i-th vector.
template <bool SPREAD = false, class Values>
__device__ __forceinline__ Statistics row_statistics(const Values& value, int member, int group, int turn, float eps, Exchange& exchange) {
    Statistics found[1];
    rows_statistics<1, SPREAD>([&](int, int i, float (&x)[VEC]) { value(i, x); }, member, group, turn, eps, exchange, found);
    return found[0];
}

// `row_statistics` in two halves, between which a block that works on one row at a time passes a barrier and may do anything else.
template <class Values> __device__ __forceinline__ void begin_statistics(const Values& value, int member, int turn, Exchange& exchange) {
    const Sums sums = warp_sums(value, 0.0f, member);
    if (member % 32 == 0) exchange.slot[turn & 1][0][member / 32] = make_float2(sums.first, sums.squares);
}

template <bool SPREAD, class Values>
__device__ __forceinline__ Statistics end_statistics(const Values& value, int member, int turn, float eps, Exchange& exchange) {
    const Sums sums = whole_sums<SPREAD>(exchange.slot[turn & 1][0], member);
    if (LAYER && !near_zero(sums)) {
        float origin[1] = {sums.first * (1.0f / D)};
        Sums again[1];
        rows_sums<1, SPREAD>([&](int, int i, float (&x)[VEC]) { value(i, x); }, origin, member, 0, exchange.slot[2], again);
        return statistics_of(again[0], origin[0], eps);
    }
    return statistics_of(sums, 0.0f, eps);
}

// One vector of a row, from element `index` on, normalised, with its weights and biases (dtypes as DTYPE, or negative: none).
template <int WEIGHTS, int BIASES, bool WHOLE>
__device__ __forceinline__ void normalise(float (&values)[VEC], const Statistics& found, const char* weight, const char* bias, int index) {
#pragma unroll
    for (int e = 0; e < VEC; ++e) values[e] = (values[e] - found.mean) * found.inverse;
    if constexpr (WEIGHTS >= 0) {
        float weights[VEC];
        load_shared_values<WEIGHTS, WHOLE>(weight, index, weights);
#pragma unroll
        for (int e = 0; e < VEC; ++e) values[e] *= weights[e];
    }
    if constexpr (BIASES >= 0) {
        float offsets[VEC];
        load_shared_values<BIASES, WHOLE>(bias, index, offsets);
#pragma unroll
        for (int e = 0; e < VEC; ++e) values[e] += offsets[e];
    }
}
