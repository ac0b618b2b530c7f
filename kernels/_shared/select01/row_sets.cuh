// How a row of a select01 op chooses between two sets of scale, shift and gate.  Beside row_norm.cuh, which comes first.
//
//   INDEX_BYTES   bytes of an index (1, 4, 8); whatever is not zero asks for row set 1

__device__ __forceinline__ bool takes_set_one(const char* index, i64 place) {
    if constexpr (INDEX_BYTES == 1) return __ldg((const unsigned char*)index + place) != 0;
    else if constexpr (INDEX_BYTES == 4) return __ldg((const int*)index + place) != 0;
    else return __ldg((const i64*)index + place) != 0;
}
