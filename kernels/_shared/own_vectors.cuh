// Vectors of rows that are overwritten in place, and the cosines and sines that turn them. Beside row_norm.cuh, which comes first.
//
//   CACHE_DTYPE               dtype of the cosines and sines, coded as DTYPE
//   ALIGNED                   1: every vector of these rows starts on 16 bytes
//   CACHE_ALIGNED             1: the tables of cosines and sines do

constexpr int PAIRS = VEC / 2;  // per vector
constexpr int CACHE_ITEM = CACHE_DTYPE == FLOAT32 ? 4 : 2;

// 16 bytes that are overwritten later, so not through the read-only path. Plain C++: on a condition it stays one predicated load, where
// inline assembly becomes a branch behind which other loads wait.
__device__ __forceinline__ Vector load_own(const char* p) {
    Vector v;
    if constexpr (ALIGNED) {
        const uint4 raw = *(const uint4*)p;
        v.word[0] = raw.x; v.word[1] = raw.y; v.word[2] = raw.z; v.word[3] = raw.w;
    } else if constexpr (ITEM == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.word[i] = ((const u32*)p)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.word[i] = ((const u16*)p)[2 * i] | ((u32)((const u16*)p)[2 * i + 1] << 16);
    }
    return v;
}

__device__ __forceinline__ void store_own(char* p, const Vector& v) {
    if constexpr (ALIGNED) {
        store_vector(p, v);
    } else if constexpr (ITEM == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) ((u32*)p)[i] = v.word[i];
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) { ((u16*)p)[2 * i] = (u16)v.word[i]; ((u16*)p)[2 * i + 1] = (u16)(v.word[i] >> 16); }
    }
}

// 16 bytes that many rows share.
__device__ __forceinline__ Vector load_weight(const char* p) {
    Vector v;
    if constexpr (ALIGNED) {
        const uint4 raw = __ldg((const uint4*)p);
        v.word[0] = raw.x; v.word[1] = raw.y; v.word[2] = raw.z; v.word[3] = raw.w;
    } else if constexpr (ITEM == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.word[i] = __ldg((const u32*)p + i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v.word[i] = __ldg((const u16*)p + 2 * i) | ((u32)__ldg((const u16*)p + 2 * i + 1) << 16);
    }
    return v;
}

// Makes the compiler widen 16-bit values again where they are used next, instead of keeping twice as many registers until then.
__device__ __forceinline__ void keep_narrow(Vector& v) {
    if constexpr (ITEM == 2) {
#pragma unroll
        for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(v.word[w]));
    }
}

// COUNT neighbouring cosines, or sines, the first of whose places in the table COUNT divides: in the widest loads that this allows.
template <int COUNT> __device__ __forceinline__ void load_angles(const char* p, float (&out)[COUNT]) {
    constexpr int WORDS = COUNT * CACHE_ITEM / 4;
    if constexpr (!CACHE_ALIGNED || WORDS == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            out[i] = CACHE_DTYPE == FLOAT32 ? __ldg((const float*)p + i) : widen<CACHE_DTYPE>(__ldg((const u16*)p + i));
    } else {
        u32 word[WORDS];
        if constexpr (WORDS % 4 == 0) {
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 raw = __ldg((const uint4*)p + w / 4);
                word[w] = raw.x; word[w + 1] = raw.y; word[w + 2] = raw.z; word[w + 3] = raw.w;
            }
        } else if constexpr (WORDS == 2) {
            const uint2 raw = __ldg((const uint2*)p);
            word[0] = raw.x; word[1] = raw.y;
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; ++w) word[w] = __ldg((const u32*)p + w);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            out[i] = CACHE_ITEM == 4 ? __uint_as_float(word[i]) : widen<CACHE_DTYPE>((word[i / 2] >> (16 * (i % 2))) & 0xffffu);
    }
}
