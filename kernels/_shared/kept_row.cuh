// Values that many rows of x use, in the registers of the lanes that share a row.  Beside row_norm.cuh, which comes first.
//
//   SHARED_ALIGNED   1: every such row starts on 16 bytes

constexpr int ABSENT = -1;

__device__ constexpr int item_of(int kind) { return kind == FLOAT32 ? 4 : 2; }

// A lane's share of a row that many rows of x use (ADDRESSING as in row_norm.cuh, or ABSENT), kept as it lies in memory.
template <int KIND, int ADDRESSING> struct Kept {
    static __device__ constexpr bool there() { return ADDRESSING != ABSENT; }  // a static member would be a symbol of each cubin
    static constexpr int WORDS = VEC * item_of(KIND) / 4;
    u32 word[PER_LANE][WORDS];
    const char* held = nullptr;

    __device__ __forceinline__ void load(const char* row, int member) {
        if constexpr (ADDRESSING == SCALAR) {
            word[0][0] = KIND == FLOAT32 ? __ldg((const u32*)row) : __ldg((const u16*)row);
        } else if constexpr (ADDRESSING > SCALAR) {
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                if (skips(i, member)) continue;
                const char* p = row + (i64)vector_of(i, member) * (WORDS * 4);
                if constexpr (SHARED_ALIGNED) {
#pragma unroll
                    for (int w = 0; w < WORDS; w += 4) {
                        const uint4 raw = __ldg((const uint4*)p + w / 4);
                        word[i][w] = raw.x; word[i][w + 1] = raw.y; word[i][w + 2] = raw.z; word[i][w + 3] = raw.w;
                    }
                } else {
#pragma unroll
                    for (int w = 0; w < WORDS; ++w)
                        word[i][w] = KIND == FLOAT32 ? __ldg((const u32*)p + w)
                                                     : __ldg((const u16*)p + 2 * w) | ((u32)__ldg((const u16*)p + 2 * w + 1) << 16);
                }
            }
        }
    }

    // Loads `row` unless it is the one that is held.
    __device__ __forceinline__ void keep(const char* row, int member) {
        if (row == held) return;
        held = row;
        load(row, member);
    }

    __device__ __forceinline__ float value(int i, int e) const {
        if constexpr (ADDRESSING == SCALAR) return widen<KIND>(word[0][0]);
        else if constexpr (KIND == FLOAT32) return __uint_as_float(word[i][e]);
        else return widen<KIND>((word[i][e / 2] >> (16 * (e % 2))) & 0xffffu);
    }
};
